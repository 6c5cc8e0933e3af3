"""Learning from replay."""
