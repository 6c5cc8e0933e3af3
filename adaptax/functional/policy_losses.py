"""Policy losses: per-step terms, to be averaged by the caller's mask."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def policy_gradient_loss(log_prob: jax.Array, advantage: jax.Array) -> jax.Array:
    """-A log pi, same shape (Williams 1992)."""
    return -advantage * log_prob


def clipped_ratio_loss(
    log_prob: jax.Array, old_log_prob: jax.Array, advantage: jax.Array, clip_range: float
) -> jax.Array:
    """-min(rho A, clip(rho, 1 - c, 1 + c) A), rho the joint ratio (Schulman et al. 2017, eq. 7)."""
    ratio = jnp.exp(log_prob - old_log_prob)
    clipped = jnp.clip(ratio, 1.0 - clip_range, 1.0 + clip_range)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def approx_kl(log_ratio: jax.Array) -> jax.Array:
    """Per-step estimate of KL(old || new) from log rho: (rho - 1) - log rho, never negative.

    Schulman 2020, "Approximating KL divergence".
    """
    return jnp.expm1(log_ratio) - log_ratio


def clip_fraction(log_ratio: jax.Array, clip_range: float) -> jax.Array:
    """1 where the ratio lies outside the clipping range, else 0."""
    return (jnp.abs(jnp.expm1(log_ratio)) > clip_range).astype(log_ratio.dtype)
