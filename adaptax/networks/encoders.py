"""PEARL's networks: an encoder of context, and a policy and values that are told the task's z.

Hidden layers are rectified linear units.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from adaptax.functional.belief import MIN_VARIANCE, Belief, average, product_of_gaussians
from adaptax.functional.distributions import TanhGaussian
from adaptax.networks.critics import LOG_STD_RANGE
from adaptax.networks.mlp import ReluMLP


@dataclass(frozen=True)
class Start:
    """How the weights of a network with hidden layers are drawn.

    By plain values: policies are sent to worker processes, which initializers cannot be.
    """

    scale: float = 1.0
    """`scale`, `mode` and `distribution` are the arguments of `nn.initializers.variance_scaling`,
    which draws the weights."""
    mode: Literal["fan_in", "fan_out"] = "fan_in"
    distribution: Literal["truncated_normal", "uniform"] = "truncated_normal"
    bias: float = 0.0
    """First value of the biases."""
    last: float | None = None
    """Weights and biases of the last layer are uniform within this bound; None: as the others'."""

    @property
    def kernel_init(self) -> nn.initializers.Initializer:
        """What draws weights."""
        return nn.initializers.variance_scaling(self.scale, self.mode, self.distribution)

    @property
    def bias_init(self) -> nn.initializers.Initializer:
        """What gives biases."""
        return nn.initializers.constant(self.bias)


LECUN = Start()
"""Flax's own (LeCun et al. 1998): variance 1 / inputs, no biases."""
ORIGINAL = Start(1 / 3, "fan_out", "uniform", bias=0.1, last=3e-3)
"""PEARL's authors': hidden weights uniform within 1 / sqrt(outputs), which their code calls inputs,
and biases of 0.1."""
ORIGINAL_POLICY = replace(ORIGINAL, last=1e-3)


class JointDense(nn.Module):
    """A linear layer of inputs [..., F_i] side by side -> [..., features].

    The same as `nn.Dense` of their concatenation, but their batch axes may broadcast: what all
    rows of a task share, its z, is multiplied once for the task.
    """

    features: int
    start: Start = LECUN

    @nn.compact
    def __call__(self, *inputs: jax.Array) -> jax.Array:
        """Their weighted sum."""
        sizes = [x.shape[-1] for x in inputs]
        kernel = self.param("kernel", self.start.kernel_init, (sum(sizes), self.features))
        parts = jnp.split(kernel, np.cumsum(sizes)[:-1])
        total = self.param("bias", self.start.bias_init, (self.features,))
        for x, part in zip(inputs, parts, strict=True):
            total = total + x @ part
        return total


class JointMLP(nn.Module):
    """Hidden layers and a linear one over inputs [..., F_i] side by side -> [..., num_outputs]."""

    hidden_sizes: tuple[int, ...]
    num_outputs: int
    start: Start = LECUN

    @nn.compact
    def __call__(self, *inputs: jax.Array) -> jax.Array:
        """Its outputs."""
        start, (first, *others) = self.start, self.hidden_sizes
        x = nn.relu(JointDense(first, start)(*inputs))
        # One axis of rows: with more, the gradients of weights would copy what they multiply.
        rows = ReluMLP(tuple(others), start.kernel_init, start.bias_init)(x.reshape(-1, first))
        if start.last is None:
            last = nn.Dense(
                self.num_outputs, kernel_init=start.kernel_init, bias_init=start.bias_init
            )
        else:
            small = _uniform_within(start.last)
            last = nn.Dense(self.num_outputs, kernel_init=small, bias_init=small)
        return last(rows).reshape(*x.shape[:-1], self.num_outputs)


def _uniform_within(bound: float) -> nn.initializers.Initializer:
    def draw(key: jax.Array, shape: Any, dtype: Any = jnp.float32) -> jax.Array:
        return jax.random.uniform(key, shape, dtype, -bound, bound)

    return draw


class LatentValue(nn.Module):
    """Observations [..., O], actions [..., A] or none, and z [..., L] -> values [...]."""

    hidden_sizes: tuple[int, ...]
    start: Start = LECUN

    @nn.compact
    def __call__(self, *inputs: jax.Array) -> jax.Array:
        """Values."""
        return JointMLP(self.hidden_sizes, 1, self.start)(*inputs)[..., 0]


class LatentPolicy(nn.Module):
    """Observations [..., O] and z [..., L] -> a squashed Gaussian over actions [..., A]."""

    hidden_sizes: tuple[int, ...]
    num_dimensions: int
    start: Start = LECUN

    @nn.compact
    def __call__(self, obs: jax.Array, z: jax.Array) -> TanhGaussian:
        """The distribution."""
        outputs = JointMLP(self.hidden_sizes, 2 * self.num_dimensions, self.start)(obs, z)
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        return TanhGaussian(mean, jnp.clip(log_std, *LOG_STD_RANGE))


class ContextEncoder(nn.Module):
    """Tokens of context [..., C, F], those that are `valid` [..., C] -> a belief [..., L].

    Every token gives a Gaussian factor, and the belief is their product; without the bottleneck a
    token gives a z, and the belief is their mean. The order of tokens is no matter.
    """

    hidden_sizes: tuple[int, ...]
    latent_size: int
    bottleneck: bool
    start: Start = LECUN

    @nn.compact
    def __call__(self, tokens: jax.Array, valid: jax.Array) -> Belief:
        """The belief."""
        num_outputs = (1 + self.bottleneck) * self.latent_size
        outputs = JointMLP(self.hidden_sizes, num_outputs, self.start)(tokens)
        if not self.bottleneck:
            return average(outputs, valid)
        mean, raw = jnp.split(outputs, 2, axis=-1)
        return product_of_gaussians(mean, jnp.maximum(nn.softplus(raw), MIN_VARIANCE), valid)
