"""Policy losses: per-step terms, to be averaged by the caller's mask."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def policy_gradient_loss(log_prob: jax.Array, advantage: jax.Array) -> jax.Array:
    """-A log pi, same shape (Williams 1992)."""
    return -advantage * log_prob


def likelihood_ratio_loss(
    log_prob: jax.Array,
    old_log_prob: jax.Array,
    advantage: jax.Array,
    valid: jax.Array | bool = True,
) -> jax.Array:
    """-rho A, same shape; rho the joint ratio to the policy that acted, 1 where not `valid`.

    Where both are the same policy, its first two derivatives are those of the low-variance
    curvature objective (Rothfuss et al. 2019, section 5).
    """
    return -_ratio(log_prob, old_log_prob, valid) * advantage


def clipped_ratio_loss(
    log_prob: jax.Array,
    old_log_prob: jax.Array,
    advantage: jax.Array,
    clip_range: float | jax.Array,
    valid: jax.Array | bool = True,
) -> jax.Array:
    """-min(rho A, clip(rho, 1 - c, 1 + c) A) (Schulman et al. 2017, eq. 7).

    rho is the joint ratio to the policy that acted, 1 where not `valid`.
    """
    ratio = _ratio(log_prob, old_log_prob, valid)
    clipped = jnp.clip(ratio, 1.0 - clip_range, 1.0 + clip_range)
    return -jnp.minimum(ratio * advantage, clipped * advantage)


def _ratio(log_prob: jax.Array, old_log_prob: jax.Array, valid: jax.Array | bool) -> jax.Array:
    """exp(log_prob - old_log_prob), but in padding.

    The zeros there may be far more likely now than the log-probability of 0 that is recorded for
    them. A ratio beyond float32 would make the gradient NaN, though its mean leaves padding out.
    """
    return jnp.exp(jnp.where(valid, log_prob - old_log_prob, 0.0))


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
