"""Search in parameter space, and no learning at all."""
