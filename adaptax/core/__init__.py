"""Records, configurations, named random streams and snapshots: what every other room uses."""
