"""A memory that is a matrix, written to by outer products and read by keys."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.core.experience import PyTree
from adaptax.networks.memory.memory import Memory, flat_lanes
from adaptax.networks.mlp import dense

NUM_HEADS = 4
"""Matrices, each with keys of its own."""
CHUNK = 32
"""Steps whose reads are one product of matrices; the matrices themselves go from chunk to chunk."""
FIRST_SHARPNESS = 4.0
"""Gain of the layers that make keys and queries, at first: near 1 all keys are nearly equal, and a
tabular MDP's states take twice the iterations to be told apart."""


class FastWeights(Memory):
    """Fast weights (Schmidhuber 1992), as causal linear attention (Katharopoulos et al. 2020, 3.2).

    At every step each head adds k v' to its matrix, k a key made of the input before and v a value
    made of this one, and reads q'W with a query made of this one. In RL2 an input holds what the
    last one led to: the memory stores action and reward under the observation that they followed,
    and finds them where it is met again. `size` is that of all heads together.
    """

    @property
    def _heads(self) -> tuple[int, int]:
        return NUM_HEADS, self.size // NUM_HEADS

    def initial(self, lanes: tuple[int, ...]) -> PyTree:
        """Zeros: `weights` [*lanes, heads, K, V], and the last step's `key` [*lanes, heads, K]."""
        heads, width = self._heads
        return {
            "weights": jnp.zeros((*lanes, heads, width, width)),
            "key": jnp.zeros((*lanes, heads, width)),
        }

    @nn.compact
    def sequence(
        self, memory: PyTree, x: jax.Array, reset: jax.Array | None = None
    ) -> tuple[PyTree, jax.Array]:
        """See `Memory`; the features are made of what is read and of the input."""
        rows, lanes = flat_lanes(x, 2), x.shape[:-2]
        resets = None if reset is None else flat_lanes(reset, 1)

        def by_head(scale: float) -> jax.Array:
            """A layer's output [B, heads, T, size of one]."""
            out = dense(self.size, scale)(rows).reshape(*rows.shape[:2], *self._heads)
            return jnp.moveaxis(out, 2, 1)

        query = nn.softmax(by_head(FIRST_SHARPNESS))
        key = nn.softmax(by_head(FIRST_SHARPNESS))
        before = flat_lanes(memory["key"], 2)[:, :, None]
        written = jnp.concatenate([before, key[:, :, :-1]], axis=2)
        if resets is not None:  # the step before belongs to another episode
            written = jnp.where(resets[:, None, :, None], 0.0, written)
        start = flat_lanes(memory["weights"], 3)
        read, weights = fast_weights(query, written, by_head(scale=1.0), start, resets)
        # Sums grow with the steps of a trial; logarithms keep counts and means within reach.
        read = jnp.sign(read) * jnp.log1p(jnp.abs(read))
        joined = jnp.concatenate([jnp.moveaxis(read, 1, 2).reshape(*rows.shape[:2], -1), rows], -1)
        features = nn.relu(dense(self.size)(joined))
        after = {"weights": weights, "key": key[:, :, -1]}
        after = jax.tree.map(lambda y: y.reshape(*lanes, *y.shape[1:]), after)
        return after, features.reshape(*x.shape[:-1], self.size)


def fast_weights(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    weights: jax.Array,
    reset: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """What is read [B, N, T, V] with queries [B, N, T, K], and the weights [B, N, K, V] at the end.

    Before each read the weights gain key value', with keys [B, N, T, K] and values [B, N, T, V];
    before that they are cleared where `reset` [B, T] is True.
    """
    steps = query.shape[2]
    chunk = min(CHUNK, steps)

    def chunked(x: jax.Array) -> jax.Array:
        # What pads the last chunk has keys of zero, and writes nothing.
        x = jnp.pad(x, ((0, 0), (0, 0), (0, -steps % chunk), (0, 0)))
        return jnp.moveaxis(x.reshape(*x.shape[:2], -1, chunk, x.shape[-1]), 2, 0)

    def one(w: jax.Array, now: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        q, k, v = now[:3]
        mixed = jnp.tril(q @ jnp.swapaxes(k, -1, -2))
        old, kept = q @ w, w
        if reset is not None:
            # Steps are of one stretch where as many resets came before; stretch 0 knows w.
            stretch = jnp.cumsum(now[3], axis=2)
            mixed = jnp.where(stretch == jnp.swapaxes(stretch, -1, -2), mixed, 0.0)
            old = jnp.where(stretch == 0, old, 0.0)
            kept = jnp.where(stretch[:, :, -1:] == 0, w, 0.0)
            k = jnp.where(stretch == stretch[:, :, -1:], k, 0.0)
        return kept + jnp.swapaxes(k, -1, -2) @ v, old + mixed @ v

    parts = [query, key, value]
    if reset is not None:
        parts.append(reset[:, None, :, None].astype(jnp.int32))
    weights, read = jax.lax.scan(one, weights, tuple(map(chunked, parts)))
    read = jnp.moveaxis(read, 0, 2)
    return read.reshape(*read.shape[:2], -1, read.shape[-1])[:, :, :steps], weights
