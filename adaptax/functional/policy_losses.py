"""Policy losses: per-step terms, to be averaged by the caller's mask."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def policy_gradient_loss(log_prob: jax.Array, advantage: jax.Array) -> jax.Array:
    """-A log pi, same shape (Williams 1992)."""
    return -advantage * log_prob


def likelihood_ratio_loss(
    log_prob: jax.Array, old_log_prob: jax.Array, advantage: jax.Array
) -> jax.Array:
    """-rho A, same shape; rho the joint ratio to the policy that acted.

    Where both are the same policy, its first two derivatives are those of the low-variance
    curvature objective (Rothfuss et al. 2019, section 5).
    """
    return -jnp.exp(log_prob - old_log_prob) * advantage


def clipped_ratio_loss(
    log_prob: jax.Array,
    old_log_prob: jax.Array,
    advantage: jax.Array,
    clip_range: float | jax.Array,
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


def adapted_kl_coeff(coeff: jax.Array, kl: jax.Array, target: float) -> jax.Array:
    """Weights of KL penalties after an update that ended at `kl`, same shape.

    Halved where the KL is below target / 1.5, doubled where it is above 1.5 target (Schulman et
    al. 2017, section 4).
    """
    factor = jnp.where(kl < target / 1.5, 0.5, jnp.where(kl > 1.5 * target, 2.0, 1.0))
    return coeff * factor
