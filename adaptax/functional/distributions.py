"""Distributions over actions: small frozen records whose batch axes come first."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core import rng

Self = TypeVar("Self", bound="Distribution")


class Distribution(Protocol):
    """What every distribution can do; log-probabilities are joint over action dimensions."""

    def sample(self, key: jax.Array) -> jax.Array:
        """A draw for every batch entry; the axes of `key`, if any, are the first of these."""

    def mode(self) -> jax.Array:
        """The most likely action."""

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Log-density or log-probability, batch axes only."""

    def entropy(self) -> jax.Array:
        """Entropy in nats, batch axes only."""

    def kl(self: Self, other: Self) -> jax.Array:
        """KL(self || other), batch axes only."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DiagonalGaussian:
    """A Gaussian with independent dimensions; mean and log_std [..., A]."""

    mean: jax.Array
    log_std: jax.Array

    def __post_init__(self) -> None:
        _spread_log_std(self)

    def sample(self, key: jax.Array) -> jax.Array:
        """A draw [..., A]."""
        return self.mean + jnp.exp(self.log_std) * rng.normal(key, self.mean.shape)

    def mode(self) -> jax.Array:
        """The mean [..., A]."""
        return self.mean

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Joint log-density [...], summed over dimensions."""
        z = (action - self.mean) * jnp.exp(-self.log_std)
        return jnp.sum(-0.5 * jnp.square(z) - self.log_std - 0.5 * np.log(2 * np.pi), axis=-1)

    def entropy(self) -> jax.Array:
        """Sum of log std plus d/2 (1 + log 2 pi), [...]."""
        return jnp.sum(self.log_std + 0.5 * (1.0 + np.log(2 * np.pi)), axis=-1)

    def kl(self, other: DiagonalGaussian) -> jax.Array:
        """KL(self || other) [...]."""
        variance = jnp.exp(2 * self.log_std) + jnp.square(self.mean - other.mean)
        terms = other.log_std - self.log_std + 0.5 * variance * jnp.exp(-2 * other.log_std) - 0.5
        return jnp.sum(terms, axis=-1)


def _spread_log_std(own: Any) -> None:
    """Let a log_std [A] be as one with the mean's batch axes, which come first in what is mapped.

    What JAX puts together from other things than arrays stays as it is.
    """
    are_arrays = all(isinstance(x, jax.Array | np.ndarray) for x in (own.mean, own.log_std))
    if are_arrays and own.log_std.shape != own.mean.shape:
        object.__setattr__(own, "log_std", jnp.broadcast_to(own.log_std, own.mean.shape))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TanhGaussian:
    """tanh(u), u from a Gaussian with independent dimensions; mean and log_std [..., A] of u.

    Haarnoja et al. 2018, appendix C. Its entropy has no closed form.
    """

    mean: jax.Array
    log_std: jax.Array

    def __post_init__(self) -> None:
        _spread_log_std(self)

    @property
    def unbounded(self) -> DiagonalGaussian:
        """The distribution of u."""
        return DiagonalGaussian(self.mean, self.log_std)

    def sample(self, key: jax.Array) -> jax.Array:
        """A draw [..., A] in [-1, 1]."""
        return jnp.tanh(self.unbounded.sample(key))

    def sample_and_log_prob(self, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A draw [..., A] and its joint log-density [...], exact where tanh has rounded to 1."""
        u = self.unbounded.sample(key)
        return jnp.tanh(u), self.log_prob_of_unbounded(u)

    def mode(self) -> jax.Array:
        """The mean squashed [..., A], which is the median and not quite the mode."""
        return jnp.tanh(self.mean)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Joint log-density [...]; actions at -1 or 1 are taken a little further inside."""
        inside = 1.0 - 1e-7
        return self.log_prob_of_unbounded(jnp.arctanh(jnp.clip(action, -inside, inside)))

    def log_prob_of_unbounded(self, u: jax.Array) -> jax.Array:
        """Joint log-density [...] of tanh(u), log N(u) - sum 2 (log 2 - u - softplus(-2 u))."""
        # Even in u, so written for |u|: nothing overflows, and no branch is taken.
        size = jnp.abs(u)
        squashing = 2.0 * (np.log(2.0) - size - jnp.log(1.0 + jnp.exp(-2.0 * size)))
        return self.unbounded.log_prob(u) - jnp.sum(squashing, axis=-1)

    def kl(self, other: TanhGaussian) -> jax.Array:
        """KL(self || other) [...]: that of the unbounded ones, since tanh is one-to-one."""
        return self.unbounded.kl(other.unbounded)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Categorical:
    """A choice among A actions; logits [..., A], unnormalised."""

    logits: jax.Array

    def sample(self, key: jax.Array) -> jax.Array:
        """A draw [...] int32."""
        return rng.categorical(key, self.logits)

    def mode(self) -> jax.Array:
        """The likeliest action [...] int32."""
        return jnp.argmax(self.logits, axis=-1).astype(jnp.int32)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Log-probability [...]; -inf of what is none of the A actions."""
        log_p = jax.nn.log_softmax(self.logits)
        # A gather of one in a few, and the scatter that is its gradient, take longer.
        chosen = jnp.arange(log_p.shape[-1]) == action[..., None]
        of_chosen = jnp.sum(jnp.where(chosen, log_p, 0.0), axis=-1)
        return jnp.where(chosen.any(-1), of_chosen, -jnp.inf)

    def probabilities(self) -> tuple[jax.Array, jax.Array]:
        """Those of all actions [..., A], and their logarithms, 0 where the former are 0.

        So that what is impossible, a logit of -inf, adds nothing to a mean, and is not NaN there.
        """
        log_p = jax.nn.log_softmax(self.logits)
        p = jnp.exp(log_p)
        return p, jnp.where(p > 0, log_p, 0.0)

    def entropy(self) -> jax.Array:
        """Entropy [...]."""
        p, log_p = self.probabilities()
        return -jnp.sum(p * log_p, axis=-1)

    def kl(self, other: Categorical) -> jax.Array:
        """KL(self || other) [...]; infinite where the other rules out what this one does."""
        p, log_p = self.probabilities()
        log_q = jnp.where(p > 0, jax.nn.log_softmax(other.logits), 0.0)
        return jnp.sum(p * (log_p - log_q), axis=-1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MultiCategorical:
    """Independent choices, part i among sizes[i]; their logits side by side [..., sum(sizes)]."""

    logits: jax.Array
    sizes: tuple[int, ...] = field(metadata={"static": True})

    def parts(self) -> list[Categorical]:
        """The distribution of each part."""
        ends = np.cumsum(self.sizes)[:-1].tolist()
        return [Categorical(logits) for logits in jnp.split(self.logits, ends, axis=-1)]

    def sample(self, key: jax.Array) -> jax.Array:
        """A draw [..., P] int32 of all P parts."""
        keys = rng.split(key, len(self.sizes))
        draws = [part.sample(k) for part, k in zip(self.parts(), keys, strict=True)]
        return jnp.stack(draws, axis=-1)

    def mode(self) -> jax.Array:
        """The likeliest choice of each part [..., P] int32."""
        return jnp.stack([part.mode() for part in self.parts()], axis=-1)

    def log_prob(self, action: jax.Array) -> jax.Array:
        """Joint log-probability [...]: the sum over parts."""
        terms = [part.log_prob(action[..., i]) for i, part in enumerate(self.parts())]
        return jnp.sum(jnp.stack(terms), axis=0)

    def entropy(self) -> jax.Array:
        """Entropy [...]: the sum over parts."""
        return jnp.sum(jnp.stack([part.entropy() for part in self.parts()]), axis=0)

    def kl(self, other: MultiCategorical) -> jax.Array:
        """KL(self || other) [...]: the sum over parts."""
        pairs = zip(self.parts(), other.parts(), strict=True)
        return jnp.sum(jnp.stack([part.kl(theirs) for part, theirs in pairs]), axis=0)
