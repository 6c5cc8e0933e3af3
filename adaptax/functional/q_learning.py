"""Learning action values from single transitions: targets, losses, and copies that lag behind."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def td_target(
    reward: jax.Array, discount: jax.Array | float, terminated: jax.Array, next_value: jax.Array
) -> jax.Array:
    """The target r + discount * (1 - terminated) * V(s'), all [...] (Watkins 1989).

    A time limit is no termination: what it cut off is worth V(s').
    """
    return reward + discount * jnp.where(terminated, 0.0, next_value)


def soft_value(
    q: jax.Array, log_prob: jax.Array, alpha: jax.Array | float, weight: jax.Array | float = 1.0
) -> jax.Array:
    """E_a[Q(s, a) - alpha log pi(a|s)] over the last axis (Haarnoja et al. 2018, eq. 3).

    The actions a of the last axis are all that there are, `weight` [..., A] their probabilities,
    or a single draw of weight 1. Christodoulou 2019, eq. 10 for discrete actions.
    """
    return jnp.sum(weight * (q - alpha * log_prob), axis=-1)


def of_action(q: jax.Array, action: jax.Array) -> jax.Array:
    """Q of the action taken: q [..., A], action [...] int -> [...]."""
    return jnp.take_along_axis(q, action[..., None], axis=-1)[..., 0]


def ensemble_loss(q: jax.Array, target: jax.Array) -> jax.Array:
    """Half the sum over an ensemble of the mean squared errors; q [E, B], target [B]."""
    return 0.5 * jnp.sum(jnp.mean(jnp.square(q - target), axis=-1))


def temperature_loss(log_alpha: jax.Array, log_prob: jax.Array, target_entropy: float) -> jax.Array:
    """-E[log alpha (log pi + H)], H the target entropy, log_prob [B] fixed.

    Where the policy's entropy is below its target, alpha rises (Haarnoja et al. 2018b, eq. 18,
    with log alpha in place of alpha as in the authors' code).
    """
    return -log_alpha * jnp.mean(jax.lax.stop_gradient(log_prob) + target_entropy)
