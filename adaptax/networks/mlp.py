"""Multi-layer perceptron."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.factorizations import one_by_one
from adaptax.core.products import dot_general


def orthogonal(scale: float = 1.0) -> nn.initializers.Initializer:
    """Weights of orthogonal columns or rows times `scale` (Saxe et al. 2014)."""
    flax_init = nn.initializers.orthogonal(scale)

    def init(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
        return one_by_one(lambda key: flax_init(key, shape, dtype))(key)

    return init


def dense(features: int, scale: float = np.sqrt(2.0)) -> nn.Dense:
    """A linear layer with orthogonal weights of gain `scale` and zero bias (Saxe et al. 2014)."""
    return nn.Dense(features, kernel_init=orthogonal(scale))


class MLP(nn.Module):
    """Hidden layers of tanh units; [..., in] -> [..., hidden_sizes[-1]]."""

    hidden_sizes: tuple[int, ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Features of the last hidden layer."""
        for size in self.hidden_sizes:
            x = nn.tanh(dense(size)(x))
        return x


class ReluMLP(nn.Module):
    """Hidden layers of rectified linear units; [..., in] -> [..., hidden_sizes[-1]]."""

    hidden_sizes: tuple[int, ...]
    kernel_init: nn.initializers.Initializer = nn.initializers.lecun_normal()
    bias_init: nn.initializers.Initializer = nn.initializers.zeros

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Features of the last hidden layer."""
        for size in self.hidden_sizes:
            layer = nn.Dense(
                size,
                kernel_init=self.kernel_init,
                bias_init=self.bias_init,
                dot_general=dot_general,
            )
            x = nn.relu(layer(x))
        return x
