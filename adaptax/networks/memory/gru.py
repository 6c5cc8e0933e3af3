"""The gated recurrent unit (Cho et al. 2014, arXiv 1406.1078)."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.core.experience import PyTree
from adaptax.functional.gru import gru_sequence
from adaptax.networks.memory.memory import Memory, flat_lanes, orthogonal_blocks


class GRU(Memory):
    """Remembers a hidden state [*lanes, H].

    The input's part of all gates is one product over the whole sequence, so that the loop over
    time holds only what depends on the hidden state.
    """

    def initial(self, lanes: tuple[int, ...]) -> PyTree:
        """Zeros."""
        return jnp.zeros((*lanes, self.size))

    @nn.compact
    def sequence(
        self, memory: PyTree, x: jax.Array, reset: jax.Array | None = None
    ) -> tuple[PyTree, jax.Array]:
        """See `Memory`; the features are the hidden states."""
        gates = nn.Dense(3 * self.size, name="input")(x)
        shape = (self.size, 3 * self.size)
        weights = self.param("recurrent", orthogonal_blocks, shape, jnp.float32)
        bias = self.param("candidate_bias", nn.initializers.zeros, (self.size,))
        time_first = jnp.moveaxis(flat_lanes(gates, 2), 1, 0)
        if reset is not None:
            reset = jnp.moveaxis(flat_lanes(reset, 1), 1, 0)
        states = gru_sequence(weights, bias, time_first, flat_lanes(memory, 1), reset)
        features = jnp.moveaxis(states, 0, 1).reshape(*x.shape[:-1], self.size)
        return features[..., -1, :], features
