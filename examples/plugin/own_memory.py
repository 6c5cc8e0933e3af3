"""A memory of your own: a decaying mean, `--algorithm.memory decay` once the package is there."""

import flax.linen as nn
import jax
import jax.numpy as jnp

import adaptax


class Decay(adaptax.Memory):
    """Remembers a mean [*lanes, size] of what there was, the older the less."""

    def initial(self, lanes):
        """Zeros."""
        return jnp.zeros((*lanes, self.size))

    @nn.compact
    def sequence(self, memory, x, reset=None):
        """X [*lanes, T, F], reset [*lanes, T] -> the memory, and features [*lanes, T, size]."""
        x = nn.Dense(self.size)(x)
        keep = nn.sigmoid(self.param("keep", nn.initializers.constant(2.0), (self.size,)))
        reset = jnp.zeros(x.shape[:-1], bool) if reset is None else reset

        def step(mean, now):
            x, reset = now
            mean = keep * jnp.where(reset[..., None], 0.0, mean) + (1 - keep) * x
            return mean, mean

        over_time = jnp.moveaxis(x, -2, 0), jnp.moveaxis(reset, -1, 0)
        memory, means = jax.lax.scan(step, memory, over_time)
        return memory, jnp.moveaxis(means, 0, -2)
