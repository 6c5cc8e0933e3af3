"""Actors, the sampler and what turns rollouts into training data."""
