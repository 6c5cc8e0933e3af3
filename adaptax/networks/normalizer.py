"""Running moments: what observations, returns and advantages are standardised by.

Algorithms bring them up to date between iterations, so that data and update of one
iteration see the same numbers.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

Moments = dict[str, jax.Array]
"""`mean` [F], `variance` [F] (population) and `count` [] of all that was seen."""

EPSILON = 1e-8
"""Added to variances."""
CONSTANT = 1e-10
"""Variance below which an observation counts as one that never varies, but for rounding."""
CLIP = 10.0
"""Bound on normalised inputs, in standard deviations."""

OUTLIER = 50.0
"""Deviations from the mean so far at which moments take what is observed beyond. What one step of
two thousand has is within it."""


def fresh_moments(size: int) -> Moments:
    """Moments before anything was observed: standardising by them changes nothing."""
    return {"mean": jnp.zeros(size), "variance": jnp.ones(size), "count": jnp.zeros(())}


def standardized(x: jax.Array, moments: Moments) -> jax.Array:
    """(x - mean) / std; x [..., F], or of any shape where F is 1."""
    return (x - moments["mean"]) * jax.lax.rsqrt(moments["variance"] + EPSILON)


def normalized(obs: jax.Array, moments: Moments | None) -> jax.Array:
    """Observations [..., F] as networks see them: standardised and clipped if there are moments.

    What has never varied is not divided by its deviation: should it do so one day, on a task of
    another kind, networks see it as it is rather than at the bound.
    """
    if moments is None:
        return obs
    never = moments["variance"] < CONSTANT
    by = {**moments, "variance": jnp.where(never, 1.0, moments["variance"])}
    return jnp.clip(standardized(obs, by), -CLIP, CLIP)


def restored(x: jax.Array, moments: Moments) -> jax.Array:
    """The inverse of `standardized`."""
    return moments["mean"] + x * jnp.sqrt(moments["variance"] + EPSILON)


def updated_moments(moments: Moments, x: jax.Array, valid: jax.Array) -> Moments:
    """Moments after the entries of x [..., F] where `valid` [...] (Chan et al. 1979, eq. 1.5)."""
    axes = tuple(range(valid.ndim))
    mask = valid[..., None]
    new = jnp.sum(valid)
    mean = jnp.sum(jnp.where(mask, x, 0.0), axes) / jnp.maximum(new, 1)
    variance = jnp.sum(jnp.where(mask, jnp.square(x - mean), 0.0), axes) / jnp.maximum(new, 1)
    old = moments["count"]
    total = jnp.maximum(old + new, 1.0)
    share = new / total
    shift = mean - moments["mean"]
    # Before the first update the moments are (0, 1) by convention; with count 0 they drop out.
    return {
        "mean": moments["mean"] + shift * share,
        "variance": moments["variance"] * (old / total)
        + variance * share
        + jnp.square(shift) * (old / total) * share,
        "count": old + new,
    }


def observed(moments: Moments, obs: jax.Array, valid: jax.Array) -> Moments:
    """As `updated_moments`, of observations, but with a bound on what each can do.

    A simulation now and then flings an object a kilometre away. Without a bound one such episode
    makes the deviation of its position so large that networks no longer see where it is.
    """
    reach = OUTLIER * jnp.sqrt(moments["variance"])
    near = jnp.clip(obs, moments["mean"] - reach, moments["mean"] + reach)
    known = (moments["count"] > 0) & (moments["variance"] >= CONSTANT)
    return updated_moments(moments, jnp.where(known, near, obs), valid)
