"""Locomotion families on MuJoCo bodies, one file a body."""
