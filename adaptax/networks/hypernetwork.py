"""What heads see of a step: features, an observation beside them, or it by weights they generate.

Beck et al. 2022, "Hypernetworks in meta-reinforcement learning" (arXiv 2210.11348), and 2023,
"Recurrent hypernetworks are surprisingly strong in meta-RL" (arXiv 2309.14970).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.core.config import check_positive, check_types
from adaptax.core.errors import check
from adaptax.core.spec import EnvSpec
from adaptax.networks.actor_critic import value_layer
from adaptax.networks.mlp import MLP, orthogonal

FirstWeights = Literal["bias", "kaiming"]


@dataclass(frozen=True)
class HeadsConfig:
    """What policy and value see behind the memory."""

    kind: Literal["plain", "state", "generated"] = "plain"
    """Linear layers of the memory's features (`plain`), of features and observation (`state`), or
    networks of the observation alone, whose weights a linear layer computes from the features
    (`generated`: a hypernetwork)."""
    hidden_sizes: tuple[int, ...] = (32,)
    """Hidden layers of the networks whose weights are generated."""
    init: FirstWeights = "bias"
    """How the layer that generates weights starts: with weights of zero and the first weights of an
    ordinary network as its biases, so that they are the same for all features (`bias`,
    Bias-HyperInit); or with Kaiming's weights (`kaiming`)."""

    def __post_init__(self) -> None:
        check_types(self, "heads")
        check_positive(self, "hidden_sizes")


class WithState(nn.Module):
    """Features [..., F] beside the first O numbers of an observation -> [..., F + O]."""

    observation_size: int

    def __call__(self, features: jax.Array, obs: jax.Array) -> jax.Array:
        """One behind the other."""
        return jnp.concatenate([features, obs[..., : self.observation_size]], axis=-1)


class Generated(nn.Module):
    """A network of tanh units over observations whose weights a layer makes of features.

    Every layer's weights [in, out] and biases [out] are one linear layer's output. With
    `first_weights` "bias" that layer's weights are zero at first, and its biases what an `MLP`
    would start with; the last layer's have gain `scale`.
    """

    observation_size: int
    hidden_sizes: tuple[int, ...]
    num_outputs: int
    scale: float
    first_weights: FirstWeights = "bias"

    @nn.compact
    def __call__(self, features: jax.Array, obs: jax.Array) -> jax.Array:
        """Features [..., F], obs [..., O or more] -> [..., outputs]."""
        x = obs[..., : self.observation_size]
        sizes = (self.observation_size, *self.hidden_sizes, self.num_outputs)
        gains = (*(2**0.5 for _ in self.hidden_sizes), self.scale)
        for i, ((inputs, outputs), gain) in enumerate(zip(pairwise(sizes), gains, strict=True)):
            layer = self._layer(inputs, outputs, gain)(features)
            weights, bias = jnp.split(layer, [inputs * outputs], axis=-1)
            weights = weights.reshape(*weights.shape[:-1], inputs, outputs)
            # A sum of products by element: a batch of small products of matrices takes longer.
            x = jnp.sum(x[..., None] * weights, axis=-2) + bias
            x = nn.tanh(x) if i < len(self.hidden_sizes) else x
        return x

    def _layer(self, inputs: int, outputs: int, gain: float) -> nn.Dense:
        """What makes a layer's weights, row by row, and behind them its biases."""
        num = (inputs + 1) * outputs
        if self.first_weights == "kaiming":
            return nn.Dense(num, kernel_init=nn.initializers.he_normal())

        def first(key: jax.Array, shape: tuple[int, ...], dtype: Any = jnp.float32) -> jax.Array:
            weights = orthogonal(gain)(key, (inputs, outputs), dtype)
            return jnp.concatenate([weights.ravel(), jnp.zeros(outputs, dtype)])

        return nn.Dense(num, kernel_init=nn.initializers.zeros, bias_init=first)


class Behind(nn.Module):
    """An MLP of what comes behind the first O numbers of its input [..., O + F]."""

    observation_size: int
    hidden_sizes: tuple[int, ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Features of the last hidden layer."""
        return MLP(self.hidden_sizes)(x[..., self.observation_size :])


def head_inputs(
    config: HeadsConfig, spec: EnvSpec, value_bins: int | None = None
) -> dict[str, Any]:
    """The fields of an `ActorCritic` that say what its heads see; `value_bins` as there."""
    if config.kind == "plain":
        return {}
    check(spec.picture is None, f"heads of kind {config.kind!r} do not take pictures")
    size = spec.observation_size
    if config.kind == "state":
        return {"policy_input": WithState(size), "value_input": WithState(size)}
    made = partial(Generated, size, config.hidden_sizes, first_weights=config.init)
    policy, value = made(spec.action.size, 0.01), made(*value_layer(value_bins))
    return {"policy_input": policy, "value_input": value, "linear_heads": False}
