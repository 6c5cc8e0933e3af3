"""What algorithms that learn from replay are made of: action values, and policies that they teach.

Hidden layers are rectified linear units. Weights start as PyTorch's do, uniform within
1 / sqrt(inputs), which is a third of the variance of Flax's (LeCun et al. 1998).
"""

from __future__ import annotations

from functools import cache, partial

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.core.spec import ActionSpace, Discrete
from adaptax.functional.distributions import Categorical, TanhGaussian
from adaptax.networks.convolutions import Convolutions, Picture
from adaptax.networks.mlp import ReluMLP

LOG_STD_RANGE = (-20.0, 2.0)
"""Bounds on the log deviation of squashed policies (Haarnoja et al. 2018, the authors' code)."""
UNIFORM = nn.initializers.variance_scaling(1 / 3, "fan_in", "uniform")
linear = partial(nn.Dense, kernel_init=UNIFORM)


def hidden(hidden_sizes: tuple[int, ...], picture: Picture | None, x: jax.Array) -> jax.Array:
    """Features [..., hidden_sizes[-1]] of inputs, which begin with a picture if there is one.

    For use within a module's compact method.
    """
    x = x if picture is None else Convolutions(picture)(x)
    return ReluMLP(hidden_sizes, kernel_init=UNIFORM)(x)


class ActionValues(nn.Module):
    """Observations [..., O] -> the value of each discrete action [..., A]."""

    hidden_sizes: tuple[int, ...]
    num_actions: int
    picture: Picture | None = None
    begins_at_zero: bool = False
    """Whether all values are 0 at first."""

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        """Values."""
        last = nn.initializers.zeros if self.begins_at_zero else UNIFORM
        x = hidden(self.hidden_sizes, self.picture, obs)
        return nn.Dense(self.num_actions, kernel_init=last)(x)


class Critic(nn.Module):
    """Observations [..., O] and actions [..., A] -> values [...]."""

    hidden_sizes: tuple[int, ...]
    picture: Picture | None = None

    @nn.compact
    def __call__(self, obs: jax.Array, action: jax.Array) -> jax.Array:
        """Values."""
        features = hidden(self.hidden_sizes, self.picture, jnp.concatenate([obs, action], axis=-1))
        return linear(1)(features)[..., 0]


@cache  # equal networks are of one class, and are compiled once
def ensemble(network: type[nn.Module], size: int) -> type[nn.Module]:
    """The same network `size` times, each with weights of its own: outputs [size, ...]."""
    return nn.vmap(
        network,
        variable_axes={"params": 0},
        split_rngs={"params": True},
        in_axes=None,
        axis_size=size,
    )


class StochasticPolicy(nn.Module):
    """Observations [..., O] -> a squashed Gaussian, mean and std both of the observation.

    For discrete actions: a categorical distribution.
    """

    hidden_sizes: tuple[int, ...]
    space: ActionSpace
    picture: Picture | None = None

    @nn.compact
    def __call__(self, obs: jax.Array) -> TanhGaussian | Categorical:
        """The distribution, batch axes those of `obs`."""
        features = hidden(self.hidden_sizes, self.picture, obs)
        if isinstance(self.space, Discrete):
            return Categorical(linear(self.space.size)(features))
        mean, log_std = jnp.split(linear(2 * self.space.size)(features), 2, axis=-1)
        return TanhGaussian(mean, jnp.clip(log_std, *LOG_STD_RANGE))


class DeterministicPolicy(nn.Module):
    """Observations [..., O] -> actions [..., A] in [-1, 1]."""

    hidden_sizes: tuple[int, ...]
    num_dimensions: int
    picture: Picture | None = None

    @nn.compact
    def __call__(self, obs: jax.Array) -> jax.Array:
        """Actions."""
        return jnp.tanh(linear(self.num_dimensions)(hidden(self.hidden_sizes, self.picture, obs)))
