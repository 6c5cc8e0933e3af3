"""Long short-term memory (Hochreiter and Schmidhuber 1997, with forget gates: Gers et al. 2000)."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.core.experience import PyTree
from adaptax.networks.memory.memory import Memory, cleared, flat_lanes, orthogonal_blocks


class LSTM(Memory):
    """Remembers a cell's state and a hidden state, each [*lanes, H].

    i, f, o = sigmoid(x W + h U + b), g = tanh(x W + h U + b); c' = f c + i g, h' = o tanh(c').
    """

    def initial(self, lanes: tuple[int, ...]) -> PyTree:
        """Zeros."""
        return {name: jnp.zeros((*lanes, self.size)) for name in ("cell", "hidden")}

    @nn.compact
    def sequence(
        self, memory: PyTree, x: jax.Array, reset: jax.Array | None = None
    ) -> tuple[PyTree, jax.Array]:
        """See `Memory`; the features are the hidden states."""
        gates = nn.Dense(4 * self.size, name="input")(x)
        shape = (self.size, 4 * self.size)
        weights = self.param("recurrent", orthogonal_blocks, shape, jnp.float32)

        def step(
            state: PyTree, inputs: tuple[jax.Array, jax.Array | None]
        ) -> tuple[PyTree, jax.Array]:
            gate, clear = inputs
            state = cleared(state, clear)
            i, f, g, o = jnp.split(gate + state["hidden"] @ weights, 4, axis=-1)
            cell = nn.sigmoid(f) * state["cell"] + nn.sigmoid(i) * nn.tanh(g)
            hidden = nn.sigmoid(o) * nn.tanh(cell)
            return {"cell": cell, "hidden": hidden}, hidden

        start = jax.tree.map(lambda y: flat_lanes(y, 1), memory)
        resets = None if reset is None else jnp.moveaxis(flat_lanes(reset, 1), 1, 0)
        time_first = jnp.moveaxis(flat_lanes(gates, 2), 1, 0)
        last, states = jax.lax.scan(step, start, (time_first, resets))
        features = jnp.moveaxis(states, 0, 1).reshape(*x.shape[:-1], self.size)
        return jax.tree.map(lambda y: y.reshape(*x.shape[:-2], self.size), last), features
