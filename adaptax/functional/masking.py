"""Means over what is real: every average over time goes through these."""

from __future__ import annotations

import jax
import jax.numpy as jnp


@jax.custom_batching.custom_vmap
def anywhere(mask: jax.Array) -> jax.Array:
    """Whether any entry is True, in any of those that `vmap` runs side by side.

    What comes out is not batched, so that a `cond` or a `while_loop` by it stays one; the branch
    must leave alone, by the mask, what it does not concern.
    """
    return jnp.any(mask)


@anywhere.def_vmap
def _anywhere(axis_size: int, in_batched: list[bool], mask: jax.Array) -> tuple[jax.Array, bool]:
    return anywhere(mask), False


def masked_mean(x: jax.Array, mask: jax.Array) -> jax.Array:
    """Mean of `x` over the entries where `mask` is True (0 if there are none); same shapes."""
    total = jnp.sum(jnp.where(mask, x, 0.0))
    return total / jnp.maximum(jnp.sum(mask), 1)


def masked_standardize(x: jax.Array, mask: jax.Array, epsilon: float = 1e-8) -> jax.Array:
    """(x - mean) / (population std + epsilon) over the masked entries; 0 elsewhere."""
    centred = x - masked_mean(x, mask)
    std = jnp.sqrt(masked_mean(jnp.square(centred), mask))
    return jnp.where(mask, centred / (std + epsilon), 0.0)


def masked_shift_positive(x: jax.Array, mask: jax.Array, epsilon: float = 1e-8) -> jax.Array:
    """Masked entries shifted so that the smallest of them is epsilon; 0 elsewhere."""
    lowest = jnp.min(jnp.where(mask, x, jnp.inf))
    return jnp.where(mask, x - lowest + epsilon, 0.0)
