"""The minimal gated recurrent unit (Feng et al. 2024, arXiv 2410.01201, section 3.1)."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.core.experience import PyTree
from adaptax.functional.linear_recurrence import linear_recurrence
from adaptax.networks.memory.memory import Memory, flat_lanes, gated_residual
from adaptax.networks.mlp import dense


class MinGRU(Memory):
    """Remembers a hidden state for each of its layers, [*lanes, layers, H].

    h_t = (1 - z_t) h_{t-1} + z_t c_t, where the gate z_t = sigmoid(W_z x_t) and the candidate
    c_t = W_c x_t depend on the input alone, so that all steps are one associative scan. What a gate
    should know of the past it knows from the layer below.
    """

    num_layers: int = 2

    def initial(self, lanes: tuple[int, ...]) -> PyTree:
        """Zeros."""
        return jnp.zeros((*lanes, self.num_layers, self.size))

    @nn.compact
    def sequence(
        self, memory: PyTree, x: jax.Array, reset: jax.Array | None = None
    ) -> tuple[PyTree, jax.Array]:
        """See `Memory`."""
        start = flat_lanes(memory, 2)
        resets = None if reset is None else flat_lanes(reset, 1)
        features = dense(self.size, scale=1.0)(flat_lanes(x, 2))
        last = []
        for layer in range(self.num_layers):
            both = nn.Dense(2 * self.size)(nn.LayerNorm()(features))
            gate, candidate = jnp.split(both, 2, axis=-1)
            gate = nn.sigmoid(gate)
            hidden = linear_recurrence(1 - gate, gate * candidate, start[:, layer], resets)
            features = gated_residual(features, hidden)
            last.append(hidden[:, -1])
        after = jnp.stack(last, axis=1).reshape(memory.shape)
        return after, features.reshape(*x.shape[:-1], self.size)
