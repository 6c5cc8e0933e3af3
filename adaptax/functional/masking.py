"""Means over what is real: every average over time goes through these."""

from __future__ import annotations

import jax
import jax.numpy as jnp

ROUNDING = 2e-6
"""Relative rounding error of a mean in single precision: equal numbers may be so far from it."""
LEAST_VARIANCE = 1e-8
"""Variance up to which numbers count as constant; else the first reward after many zeros would be
divided by almost nothing."""


def usable_std(mean: jax.Array, variance: jax.Array) -> jax.Array:
    """Standard deviations to divide by: 1 where numbers hardly vary, or by rounding alone."""
    varies = variance > jnp.maximum(jnp.square(ROUNDING * mean), LEAST_VARIANCE)
    return jnp.where(varies, jnp.sqrt(variance), 1.0)


@jax.custom_batching.custom_vmap
def anywhere(mask: jax.Array) -> jax.Array:
    """Whether any entry is True, under `vmap` in any element of the batch.

    The result is not batched, so that a `cond` or a `while_loop` on it remains one; its branch must
    use the mask to leave all other elements as they are.
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
    """(x - mean) / (population std + epsilon) over the masked entries.

    0 elsewhere, and everywhere if they differ by no more than rounding.
    """
    mean = masked_mean(x, mask)
    centred = x - mean
    std = jnp.sqrt(masked_mean(jnp.square(centred), mask))
    varies = std > ROUNDING * jnp.abs(mean)
    return jnp.where(mask & varies, centred / (std + epsilon), 0.0)


def masked_shift_positive(x: jax.Array, mask: jax.Array, epsilon: float = 1e-8) -> jax.Array:
    """Masked entries shifted so that the smallest of them is epsilon; 0 elsewhere."""
    lowest = jnp.min(jnp.where(mask, x, jnp.inf))
    return jnp.where(mask, x - lowest + epsilon, 0.0)
