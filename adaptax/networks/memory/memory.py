"""What a memory is, and the memory that remembers nothing."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.core.experience import PyTree
from adaptax.networks.mlp import orthogonal


class Memory(nn.Module):
    """Features of each step that depend on the steps before it; what is remembered is a pytree.

    `lanes` stands for any leading axes. Where `reset` is True the memory is as at the start before
    that step is taken in; `reset` None stands for False everywhere. A sequence gives what its steps
    would one after another.
    """

    size: int = 0

    def initial(self, lanes: tuple[int, ...]) -> PyTree:
        """The memory before the first step, leaves [*lanes, ...]; needs no parameters."""
        raise NotImplementedError

    def sequence(
        self, memory: PyTree, x: jax.Array, reset: jax.Array | None = None
    ) -> tuple[PyTree, jax.Array]:
        """From inputs [*lanes, T, F], reset [*lanes, T]: memory, features [*lanes, T, H]."""
        raise NotImplementedError

    def __call__(
        self, memory: PyTree, x: jax.Array, reset: jax.Array | None = None
    ) -> tuple[PyTree, jax.Array]:
        """One step: x [*lanes, F], reset [*lanes] -> the memory after it, features [*lanes, H]."""
        reset = None if reset is None else reset[..., None]
        memory, features = self.sequence(memory, x[..., None, :], reset)
        return memory, features[..., 0, :]


class NoMemory(Memory):
    """Features of the present step alone."""

    def initial(self, lanes: tuple[int, ...]) -> PyTree:
        """Nothing."""
        return ()

    def sequence(
        self, memory: PyTree, x: jax.Array, reset: jax.Array | None = None
    ) -> tuple[PyTree, jax.Array]:
        """The inputs themselves."""
        return memory, x

    def __call__(
        self, memory: PyTree, x: jax.Array, reset: jax.Array | None = None
    ) -> tuple[PyTree, jax.Array]:
        """The inputs themselves."""
        return memory, x


def orthogonal_blocks(key: jax.Array, shape: tuple[int, int], dtype: jnp.dtype) -> jax.Array:
    """Orthogonal [H, H] blocks side by side, [H, k H] (Saxe et al. 2014)."""
    size, width = shape
    block = orthogonal()
    keys = jax.random.split(key, width // size)
    return jnp.concatenate([block(k, (size, size), dtype) for k in keys], axis=-1)


def cleared(memory: PyTree, reset: jax.Array | None) -> PyTree:
    """The memory with zeros in the lanes where `reset` is True."""
    if reset is None:
        return memory
    return jax.tree.map(
        lambda x: jnp.where(reset.reshape(reset.shape + (1,) * (x.ndim - reset.ndim)), 0.0, x),
        memory,
    )


def flat_lanes(x: jax.Array, num_axes: int) -> jax.Array:
    """The array with one axis in the place of its lanes; its last `num_axes` axes stay."""
    return x.reshape(-1, *x.shape[x.ndim - num_axes :])


def gated_residual(x: jax.Array, mixed: jax.Array) -> jax.Array:
    """Inputs [..., H] plus a gated linear unit of a recurrence's output (arXiv 2303.06349, 2.2).

    Called where a Flax module makes its parameters.
    """
    value, gate = jnp.split(nn.Dense(2 * x.shape[-1])(nn.gelu(mixed)), 2, axis=-1)
    return x + value * nn.sigmoid(gate)
