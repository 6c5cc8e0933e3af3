"""Flax modules: what maps observations to actions and values."""
