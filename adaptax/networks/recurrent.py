"""Networks with a memory for algorithms that learn from replay: features, and a policy of them."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.core.experience import PyTree
from adaptax.networks.convolutions import Picture
from adaptax.networks.critics import hidden
from adaptax.networks.memory import Memory


class ReluTorso(nn.Module):
    """Inputs [..., O], which begin with a picture if there is one -> features [..., G]."""

    hidden_sizes: tuple[int, ...]
    picture: Picture | None = None

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Features of the last hidden layer."""
        return hidden(self.hidden_sizes, self.picture, x)


class RecurrentFeatures(nn.Module):
    """Features of a memory [..., H] and of the present input [..., G], side by side [..., H + G].

    The present input thus reaches the heads past the memory, too (Ni et al. 2022, section 4).
    """

    torso: nn.Module
    memory: Memory

    def initial(self, lanes: tuple[int, ...]) -> PyTree:
        """The memory before the first input, leaves [*lanes, ...]."""
        return self.memory.initial(lanes)

    def __call__(
        self, memory: PyTree, x: jax.Array, reset: jax.Array | None = None
    ) -> tuple[PyTree, jax.Array]:
        """One step: x [*lanes, F] -> the memory after it, features [*lanes, H + G]."""
        seen = self.torso(x)
        memory, features = self.memory(memory, seen, reset)
        return memory, jnp.concatenate([features, seen], axis=-1)

    def sequence(
        self, memory: PyTree, x: jax.Array, reset: jax.Array | None = None
    ) -> tuple[PyTree, jax.Array]:
        """From inputs [*lanes, T, F]: the memory after them, features [*lanes, T, H + G]."""
        seen = self.torso(x)
        memory, features = self.memory.sequence(memory, seen, reset)
        return memory, jnp.concatenate([features, seen], axis=-1)


class RecurrentPolicy(nn.Module):
    """A policy of an encoder's features, to act by: an ActorCritic's signature, values all 0."""

    encoder: Any
    """With the call signature of a RecurrentFeatures."""
    policy: nn.Module
    """Features -> a distribution over actions."""

    def initial(self, lanes: tuple[int, ...]) -> PyTree:
        """The encoder's memory before the first step."""
        return self.encoder.initial(lanes)

    def __call__(
        self, memory: PyTree, x: jax.Array, reset: jax.Array | None = None
    ) -> tuple[PyTree, Any]:
        """One step; see `ActorCritic`."""
        memory, features = self.encoder(memory, x, reset)
        return memory, (self.policy(features), jnp.zeros(x.shape[:-1]))
