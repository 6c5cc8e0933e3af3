"""PEARL's networks: an encoder of context, and a policy and values that are told the task's z.

Hidden layers are rectified linear units with Flax's own start (LeCun et al. 1998).
"""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from adaptax.functional.belief import MIN_VARIANCE, Belief, average, product_of_gaussians
from adaptax.functional.distributions import TanhGaussian
from adaptax.networks.critics import LOG_STD_RANGE
from adaptax.networks.mlp import ReluMLP


class JointDense(nn.Module):
    """A linear layer of inputs [..., F_i] side by side -> [..., features].

    The same as `nn.Dense` of their concatenation, but their batch axes may broadcast: what all
    rows of a task share, its z, is multiplied once for the task.
    """

    features: int

    @nn.compact
    def __call__(self, *inputs: jax.Array) -> jax.Array:
        """Their weighted sum."""
        sizes = [x.shape[-1] for x in inputs]
        kernel_init, bias_init = nn.initializers.lecun_normal(), nn.initializers.zeros
        kernel = self.param("kernel", kernel_init, (sum(sizes), self.features))
        parts = jnp.split(kernel, np.cumsum(sizes)[:-1])
        total = self.param("bias", bias_init, (self.features,))
        for x, part in zip(inputs, parts, strict=True):
            total = total + x @ part
        return total


class JointMLP(nn.Module):
    """Hidden layers and a linear one over inputs [..., F_i] side by side -> [..., num_outputs]."""

    hidden_sizes: tuple[int, ...]
    num_outputs: int

    @nn.compact
    def __call__(self, *inputs: jax.Array) -> jax.Array:
        """Its outputs."""
        first, *others = self.hidden_sizes
        x = nn.relu(JointDense(first)(*inputs))
        # One axis of rows: with more, the gradients of weights would copy what they multiply.
        rows = ReluMLP(tuple(others))(x.reshape(-1, first))
        return nn.Dense(self.num_outputs)(rows).reshape(*x.shape[:-1], self.num_outputs)


class LatentValue(nn.Module):
    """Observations [..., O], actions [..., A] or none, and z [..., L] -> values [...]."""

    hidden_sizes: tuple[int, ...]

    @nn.compact
    def __call__(self, *inputs: jax.Array) -> jax.Array:
        """Values."""
        return JointMLP(self.hidden_sizes, 1)(*inputs)[..., 0]


class LatentPolicy(nn.Module):
    """Observations [..., O] and z [..., L] -> a squashed Gaussian over actions [..., A]."""

    hidden_sizes: tuple[int, ...]
    num_dimensions: int

    @nn.compact
    def __call__(self, obs: jax.Array, z: jax.Array) -> TanhGaussian:
        """The distribution."""
        outputs = JointMLP(self.hidden_sizes, 2 * self.num_dimensions)(obs, z)
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

    @nn.compact
    def __call__(self, tokens: jax.Array, valid: jax.Array) -> Belief:
        """The belief."""
        num_outputs = (1 + self.bottleneck) * self.latent_size
        outputs = JointMLP(self.hidden_sizes, num_outputs)(tokens)
        if not self.bottleneck:
            return average(outputs, valid)
        mean, raw = jnp.split(outputs, 2, axis=-1)
        return product_of_gaussians(mean, jnp.maximum(nn.softplus(raw), MIN_VARIANCE), valid)
