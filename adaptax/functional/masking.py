"""Means over what is real: every average over time goes through these."""

from __future__ import annotations

import jax
import jax.numpy as jnp


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
