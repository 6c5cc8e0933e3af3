"""Policies: modules that give a distribution over actions."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.core.spec import ActionSpace, Continuous
from adaptax.functional.distributions import Categorical, DiagonalGaussian
from adaptax.networks.mlp import MLP, dense


class ActionHead(nn.Module):
    """Features [..., F] -> a distribution over the actions of `space`.

    Gaussian with a state-independent log standard deviation for continuous actions,
    categorical for discrete ones. The last layer starts near zero, so that the first policy
    ignores its input.
    """

    space: ActionSpace
    init_std: float = 1.0
    min_std: float = 1e-6

    @nn.compact
    def __call__(self, features: jax.Array) -> DiagonalGaussian | Categorical:
        """The distribution, batch axes those of `features`."""
        output = dense(self.space.size, scale=0.01)(features)
        if not isinstance(self.space, Continuous):
            return Categorical(output)
        start = nn.initializers.constant(jnp.log(self.init_std))
        log_std = self.param("log_std", start, (self.space.size,))
        log_std = jnp.maximum(log_std, jnp.log(self.min_std))
        return DiagonalGaussian(output, jnp.broadcast_to(log_std, output.shape))


class MLPPolicy(nn.Module):
    """Observation [..., O] -> distribution over actions."""

    hidden_sizes: tuple[int, ...]
    space: ActionSpace
    init_std: float = 1.0

    @nn.compact
    def __call__(self, obs: jax.Array) -> DiagonalGaussian | Categorical:
        """The distribution, batch axes those of `obs`."""
        return ActionHead(self.space, self.init_std)(MLP(self.hidden_sizes)(obs))
