"""The evidence lower bounds of a belief that is brought up to date at every step of a trial.

Zintgraf et al. 2020, "VariBAD" (arXiv 1910.08348), section 3.2. A trial of T steps has T + 1
beliefs q_0, ..., q_T: q_t is what is believed after t steps, and ELBO_t decodes the whole trial,
past and future, from it:

ELBO_t = E_{z ~ q_t} [sum_s log p(r_s, o'_s | z)] - KL(q_t || q_{t-1}), q_{-1} = N(0, 1).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from adaptax.functional.distributions import DiagonalGaussian


def divergences(beliefs: DiagonalGaussian) -> jax.Array:
    """KL(q_t || q_{t-1}) [..., T + 1] in nats of beliefs [..., T + 1, L] (equation 10)."""

    def before(x: jax.Array) -> jax.Array:
        # N(0, 1) has mean 0 and log deviation 0.
        return jnp.concatenate([jnp.zeros_like(x[..., :1, :]), x[..., :-1, :]], axis=-2)

    return beliefs.kl(jax.tree.map(before, beliefs))


def decoding_errors(prediction: jax.Array, target: jax.Array, valid: jax.Array) -> jax.Array:
    """Sums [..., K] over a trial's `valid` [..., T] steps of squared errors.

    Each of K draws of z predicts the whole trial, `prediction` [..., K, T, D] of `target`
    [..., T, D]; over D it is the mean. Minus log-likelihoods, up to constants, of Gaussians with a
    variance of one half.
    """
    errors = jnp.mean(jnp.square(prediction - target[..., None, :, :]), axis=-1)
    return jnp.sum(jnp.where(valid[..., None, :], errors, 0.0), axis=-1)
