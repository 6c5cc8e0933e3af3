"""Values as distributions over bins of returns, so that errors are alike at every scale.

Hafner et al. 2023 (arXiv 2301.04104), "Symlog predictions", and for critics of many tasks at once
Grigsby et al. 2024, AMAGO-2 (arXiv 2411.11188).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp


def symlog(x: jax.Array) -> jax.Array:
    """sign(x) log(1 + |x|), same shape: a logarithm for numbers of either sign."""
    sign = _sign(x)
    return sign * jnp.log1p(sign * x)


def symexp(x: jax.Array) -> jax.Array:
    """sign(x) (exp(|x|) - 1), same shape: the inverse of symlog."""
    sign = _sign(x)
    return sign * jnp.expm1(sign * x)


def symlog_bins(num_bins: int, most: jax.Array | float) -> jax.Array:
    """Numbers [K] from -most to most, equally far apart in symlog."""
    # Not linspace, which on some processors misses 0 in the middle by a rounding.
    places = jnp.arange(1 - num_bins, num_bins, 2) / (num_bins - 1)
    return symexp(symlog(jnp.asarray(most)) * places)


def two_hot(x: jax.Array, bins: jax.Array) -> jax.Array:
    """Weights [..., K] on the two bins next to x [...], whose mean it is.

    What lies beyond the bins is taken to the last one.
    """
    passed = jnp.clip((x[..., None] - bins[:-1]) / jnp.diff(bins), 0.0, 1.0)
    ends = jnp.ones((*x.shape, 1), passed.dtype)
    return -jnp.diff(jnp.concatenate([ends, passed, 0.0 * ends], axis=-1))


def two_hot_value(logits: jax.Array, bins: jax.Array) -> jax.Array:
    """The number [...] that logits [..., K] stand for: their distribution's mean over the bins.

    The mean of the numbers themselves, not of their symlogs as in the first version of the paper,
    which is far closer to 0 where returns vary by chance: 31 for 0 or 1,000, each half of the time.
    """
    p = jax.nn.softmax(logits)
    return (p - p[..., ::-1]) @ bins / 2.0  # 0 of logits that are alike, without a rounding


def two_hot_loss(logits: jax.Array, x: jax.Array, bins: jax.Array) -> jax.Array:
    """Cross-entropies [...] in nats of logits [..., K] from the two-hot of x [...]."""
    return -jnp.sum(two_hot(x, bins) * jax.nn.log_softmax(logits), axis=-1)


def _sign(x: jax.Array) -> jax.Array:
    """1 or -1; 1 of 0, where symlog and symexp have a gradient of 1 too."""
    return jnp.where(x < 0, -1.0, 1.0)
