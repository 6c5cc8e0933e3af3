"""Multi-layer perceptron."""

from __future__ import annotations

import flax.linen as nn
import jax
import numpy as np

from adaptax.core.products import dot_general


def dense(features: int, scale: float = np.sqrt(2.0)) -> nn.Dense:
    """A linear layer with orthogonal weights of gain `scale` and zero bias (Saxe et al. 2014)."""
    return nn.Dense(features, kernel_init=nn.initializers.orthogonal(scale))


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
