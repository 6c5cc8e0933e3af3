"""A memory that is a matrix, written to by outer products, over whole sequences."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.networks.mlp import dense

NUM_HEADS = 4
"""Matrices, each with keys of its own."""
CHUNK = 32
"""Steps whose reads are one product of matrices; the matrices themselves go from chunk to chunk."""
FIRST_SHARPNESS = 4.0
"""Gain of the layers that make keys and queries, at first: near 1 all keys are nearly equal, and a
tabular MDP's states take twice the iterations to be told apart."""


class FastWeights(nn.Module):
    """Fast weights (Schmidhuber 1992), as causal linear attention (Katharopoulos et al. 2020, 3.2).

    At every step each head adds k v' to its matrix, k a key made of the input before and v a value
    made of this one, and reads q'W with a query made of this one. In RL2 an input holds what the
    last one led to: the memory stores action and reward under the observation that they followed,
    and finds them where it is met again.
    """

    size: int
    """Units of the features; a head has keys and values of size / NUM_HEADS."""

    @staticmethod
    def memory_size(size: int) -> int:
        """Figures of the memory of so many units."""
        return size * size // NUM_HEADS + size

    @nn.compact
    def __call__(self, x: jax.Array, memory: jax.Array) -> tuple[jax.Array, jax.Array]:
        """X [..., T, F] and the memory [..., S] before it -> features [..., T, H], the memory.

        The memory is the heads' matrices, each of (size / NUM_HEADS)^2, and the keys of the last
        step, size.
        """
        batch, (steps, width) = x.shape[:-2], x.shape[-2:]
        x, memory = x.reshape(-1, steps, width), memory.reshape(-1, memory.shape[-1])
        heads = (NUM_HEADS, self.size // NUM_HEADS)
        weights = memory[:, : -self.size].reshape(-1, *heads, heads[1])

        def by_head(scale: float) -> jax.Array:
            """A layer's output [B, heads, T, size of one]."""
            out = dense(self.size, scale)(x).reshape(*x.shape[:2], *heads)
            return jnp.moveaxis(out, 2, 1)

        query = nn.softmax(by_head(FIRST_SHARPNESS))
        key = nn.softmax(by_head(FIRST_SHARPNESS))
        before = memory[:, -self.size :].reshape(-1, NUM_HEADS, 1, heads[1])
        written = jnp.concatenate([before, key[:, :, :-1]], axis=2)
        read, weights = fast_weights(query, written, by_head(scale=1.0), weights)
        left = (weights, key[:, :, -1])
        memory = jnp.concatenate([part.reshape(len(x), -1) for part in left], axis=-1)
        # Sums grow with the steps of a trial; logarithms keep counts and means within reach.
        read = jnp.sign(read) * jnp.log1p(jnp.abs(read))
        seen = jnp.concatenate([jnp.moveaxis(read, 1, 2).reshape(len(x), steps, -1), x], axis=-1)
        features = nn.relu(dense(self.size)(seen))
        return features.reshape(*batch, steps, -1), memory.reshape(*batch, -1)


def fast_weights(
    query: jax.Array, key: jax.Array, value: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """What is read [B, N, T, V] with queries [B, N, T, K], and the weights [B, N, K, V] at the end.

    Before each read the weights gain key value', with keys [B, N, T, K] and values [B, N, T, V].
    """
    steps = query.shape[2]
    chunk = min(CHUNK, steps)

    def chunked(x: jax.Array) -> jax.Array:
        # What pads the last chunk has keys of zero, and writes nothing.
        x = jnp.pad(x, ((0, 0), (0, 0), (0, -steps % chunk), (0, 0)))
        return jnp.moveaxis(x.reshape(*x.shape[:2], -1, chunk, x.shape[-1]), 2, 0)

    def one(w: jax.Array, now: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        q, k, v = now
        k = jnp.swapaxes(k, -1, -2)
        return w + k @ v, q @ w + jnp.tril(q @ k) @ v

    weights, read = jax.lax.scan(one, weights, tuple(map(chunked, (query, key, value))))
    read = jnp.moveaxis(read, 0, 2)
    return read.reshape(*read.shape[:2], -1, read.shape[-1])[:, :, :steps], weights
