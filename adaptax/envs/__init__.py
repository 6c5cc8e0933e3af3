"""Tasks, environments, pools and suites: everything that an agent can act on."""
