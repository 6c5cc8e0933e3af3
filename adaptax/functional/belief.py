"""What is believed of a task: a Gaussian over its latent variable z, from context seen so far.

Rakelly et al. 2019, "Efficient off-policy meta-reinforcement learning via probabilistic context
variables" (arXiv 1903.08254), section 4. Axes: C tokens of context, L dimensions of z.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from adaptax.core import rng

MIN_VARIANCE = 1e-7
"""Least variance of one token's factor (the authors' code)."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Belief:
    """A Gaussian with independent dimensions; one of variance 0 knows its z."""

    mean: jax.Array
    """[..., L]"""
    variance: jax.Array
    """[..., L]"""

    def sample(self, key: jax.Array, lanes: tuple[int, ...] | None = None) -> jax.Array:
        """A draw of z, a differentiable function of mean and variance; [*lanes, L] if given."""
        shape = self.mean.shape if lanes is None else (*lanes, self.mean.shape[-1])
        return self.mean + jnp.sqrt(self.variance) * rng.normal(key, shape)

    def kl_from_prior(self) -> jax.Array:
        """KL(self || N(0, 1)) [...] in nats, summed over dimensions."""
        terms = self.variance + jnp.square(self.mean) - 1.0 - jnp.log(self.variance)
        return 0.5 * jnp.sum(terms, axis=-1)


def prior(latent_size: int, *, known: bool = False) -> Belief:
    """What is believed without context: N(0, 1), or that z = 0 where beliefs know their z; [L]."""
    mean = jnp.zeros(latent_size)
    return Belief(mean, mean if known else jnp.ones(latent_size))


def product_of_gaussians(mean: jax.Array, variance: jax.Array, valid: jax.Array) -> Belief:
    """The normalised product of those factors N(mean, variance) [..., C, L] that are `valid`.

    `valid` [..., C]. 1 / s^2 = sum_n 1 / s_n^2 and m = s^2 sum_n m_n / s_n^2 (section 4.2); the
    prior is no factor.
    """
    precision = jnp.where(valid[..., None], 1.0 / variance, 0.0)
    product = 1.0 / jnp.sum(precision, axis=-2)
    weighted = jnp.where(valid[..., None], precision * mean, 0.0)
    return Belief(product * jnp.sum(weighted, axis=-2), product)


def average(z: jax.Array, valid: jax.Array) -> Belief:
    """The belief that z is the mean of those [..., C, L] that are `valid` [..., C]."""
    number = jnp.maximum(jnp.sum(valid, axis=-1, keepdims=True), 1)
    mean = jnp.sum(jnp.where(valid[..., None], z, 0.0), axis=-2) / number
    return Belief(mean, jnp.zeros_like(mean))
