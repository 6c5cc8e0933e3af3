"""Environments of other packages in JAX, as compiled suites."""
