"""Value losses: per-step terms, to be averaged by the caller's mask; and how good a value is."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from adaptax.functional.masking import masked_mean


def squared_value_loss(value: jax.Array, target: jax.Array) -> jax.Array:
    """(y - V)^2 / 2, same shape."""
    return 0.5 * jnp.square(target - value)


def clipped_value_loss(
    value: jax.Array, old_value: jax.Array, target: jax.Array, clip_range: float
) -> jax.Array:
    """max[(y - V)^2, (y - V_clip)^2] / 2, V_clip = V_old + clip(V - V_old, -c, c).

    From the code of OpenAI Baselines' PPO2, not from the paper; `clip_range` is in the units of
    the value.
    """
    clipped = old_value + jnp.clip(value - old_value, -clip_range, clip_range)
    return jnp.maximum(squared_value_loss(value, target), squared_value_loss(clipped, target))


def explained_variance(value: jax.Array, target: jax.Array, mask: jax.Array) -> jax.Array:
    """1 - Var(y - V) / Var(y) over the masked entries: 1 is perfect, 0 no better than a constant.

    0 where the target does not vary.
    """

    def variance(x: jax.Array) -> jax.Array:
        return masked_mean(jnp.square(x - masked_mean(x, mask)), mask)

    total = variance(target)
    return jnp.where(total > 0, 1.0 - variance(target - value) / jnp.where(total > 0, total, 1), 0)
