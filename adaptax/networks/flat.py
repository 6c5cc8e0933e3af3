"""A network whose parameters are one vector, for search in parameter space."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from adaptax.core.experience import PyTree


@dataclass(frozen=True)
class Flat:
    """`module` with parameters [D] in the place of a tree."""

    module: nn.Module
    observation_size: int

    @property
    def size(self) -> int:
        """D."""
        return sum(leaf.size for leaf in jax.tree.leaves(self._shapes()))

    def init(self, key: jax.Array) -> jax.Array:
        """Fresh parameters [D]."""
        return ravel_pytree(self.module.init(key, self._obs()))[0]

    def apply(self, params: jax.Array, obs: jax.Array) -> Any:
        """What the module gives for observations [..., O]."""
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self._shapes())
        _, unflatten = ravel_pytree(zeros)
        return self.module.apply(unflatten(params), obs)

    def _shapes(self) -> PyTree:
        return jax.eval_shape(self.module.init, jax.random.key(0), self._obs())

    def _obs(self) -> jax.Array:
        return jnp.zeros((1, self.observation_size))
