"""MuJoCo bodies."""
