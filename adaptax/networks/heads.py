"""Policies: modules that give a distribution over actions."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.core.errors import check
from adaptax.core.spec import ActionSpace, Continuous, MultiDiscrete
from adaptax.functional.distributions import (
    Categorical,
    DiagonalGaussian,
    Distribution,
    MultiCategorical,
)
from adaptax.networks.mlp import MLP, dense


def check_deviations(first: float, low: float, high: float | None = None) -> None:
    """Raise a ConfigError where a policy's first deviation is not within its bounds."""
    check(high is None or low <= high, f"max_std {high} must be at least min_std {low}")
    most = "" if high is None else f" and at most max_std {high}"
    within = low <= first and (high is None or first <= high)
    check(within, f"init_std {first} must be at least min_std {low}{most}")


class ActionHead(nn.Module):
    """Features [..., F] -> a distribution over the actions of `space`.

    Gaussian for continuous actions, its log standard deviation a parameter or a second output;
    categorical for discrete ones, independently for each part of several choices. The last layer
    starts near zero, so that the first policy ignores its input.
    """

    space: ActionSpace
    init_std: float = 1.0
    min_std: float = 1e-6
    max_std: float | None = None
    learn_std: bool = True
    """Whether the standard deviation is a parameter, or stays `init_std`."""
    tanh_mean: bool = False
    """Whether a Gaussian's mean is squashed to the actions' bounds -1 and 1 by tanh."""
    linear: bool = True
    """Whether the last layer is here; else `features` are its output."""
    state_dependent_std: bool = False
    """Whether a Gaussian's standard deviation follows from the features too."""

    @nn.compact
    def __call__(self, features: jax.Array) -> Distribution:
        """The distribution, batch axes those of `features`."""
        output = dense(self.space.size, scale=0.01)(features) if self.linear else features
        if isinstance(self.space, MultiDiscrete):
            return MultiCategorical(output, self.space.sizes)
        if not isinstance(self.space, Continuous):
            return Categorical(output)
        if self.tanh_mean:
            output = nn.tanh(output)
        if not self.learn_std:
            return DiagonalGaussian(output, jnp.full_like(output, jnp.log(self.init_std)))
        start = nn.initializers.constant(jnp.log(self.init_std))
        log_std = self.param("log_std", start, (self.space.size,))
        if self.state_dependent_std:
            log_std = log_std + dense(self.space.size, scale=0.01)(features)
        # At a bound the gradient is whole, where maximum and minimum would pass on half of it.
        low = jnp.log(self.min_std)
        log_std = jnp.where(log_std < low, low, log_std)
        if self.max_std is not None:
            high = jnp.log(self.max_std)
            log_std = jnp.where(log_std > high, high, log_std)
        return DiagonalGaussian(output, log_std)


class MLPPolicy(nn.Module):
    """Observation [..., O] -> distribution over actions."""

    hidden_sizes: tuple[int, ...]
    space: ActionSpace
    init_std: float = 1.0
    min_std: float = 1e-6
    learn_std: bool = True

    @nn.compact
    def __call__(self, obs: jax.Array) -> Distribution:
        """The distribution, batch axes those of `obs`."""
        head = ActionHead(self.space, self.init_std, self.min_std, learn_std=self.learn_std)
        return head(MLP(self.hidden_sizes)(obs))
