"""Tasks, task distributions and pools: everything that an agent can act on."""
