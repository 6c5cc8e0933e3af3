"""Actors, the sampler, and the engines that run the loop of actor and environment."""
