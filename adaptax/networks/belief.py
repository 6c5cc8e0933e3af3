"""VariBAD's networks: a recurrent encoder of transitions, and policy and value of its belief."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.experience import PyTree
from adaptax.functional.distributions import DiagonalGaussian
from adaptax.networks.actor_critic import Outputs
from adaptax.networks.memory import Memory

MIN_STD = 1e-3
"""Least standard deviation of a belief: the next belief's KL from it divides by its variance."""


class RecurrentEncoder(nn.Module):
    """Transitions (a, r, o') in a row -> what is believed of the task's z after each of them.

    Each part has a rectified layer of its own before the memory (Zintgraf et al. 2020, appendix C).
    """

    memory: Memory
    latent_size: int
    sizes: tuple[int, ...]
    """Numbers of an action, a reward and an observation."""
    embedding_sizes: tuple[int, ...]
    """Units for each of them."""

    def initial(self, lanes: tuple[int, ...]) -> PyTree:
        """The memory before the first transition, leaves [*lanes, ...]."""
        return self.memory.initial(lanes)

    @nn.compact
    def __call__(
        self, memory: PyTree, transitions: jax.Array, reset: jax.Array | None = None
    ) -> tuple[PyTree, DiagonalGaussian]:
        """Transitions [*lanes, T, F] -> the memory after them, beliefs [*lanes, T, L].

        Where `reset` [*lanes, T] is True the memory is cleared before that transition.
        """
        parts = jnp.split(transitions, np.cumsum(self.sizes)[:-1], axis=-1)
        each = zip(parts, self.embedding_sizes, strict=True)
        embedded = jnp.concatenate([nn.relu(nn.Dense(size)(x)) for x, size in each], axis=-1)
        memory, features = self.memory.sequence(memory, embedded, reset)
        mean, raw = jnp.split(nn.Dense(2 * self.latent_size)(features), 2, axis=-1)
        # A deviation of about 1 at first, as the prior's.
        std = MIN_STD + nn.softplus(raw + np.log(np.e - 1.0))
        return memory, DiagonalGaussian(mean, jnp.log(std))


class BeliefActorCritic(nn.Module):
    """Policy and value of an observation and of the belief's mean and log standard deviation.

    It has an ActorCritic's call signature; its inputs [*lanes, (T,) O + F] are observations beside
    the transitions before them, and its memory is the encoder's. At the first step of a trial there
    is no transition yet, whatever stands in its place, and the belief is the prior N(0, 1).
    """

    encoder: nn.Module
    """As a RecurrentEncoder."""
    actor_critic: Any
    """An ActorCritic without memory over inputs [..., O + 2 L]."""
    observation_size: int
    encoder_gradient: bool = False
    """Whether gradients of policy and value reach the encoder."""

    def initial(self, lanes: tuple[int, ...]) -> PyTree:
        """The memory before a trial, leaves [*lanes, ...]."""
        return {"encoder": self.encoder.initial(lanes), "begun": jnp.zeros(lanes, bool)}

    def __call__(
        self, memory: PyTree, x: jax.Array, reset: jax.Array | None = None
    ) -> tuple[PyTree, Outputs]:
        """One step; see `ActorCritic`."""
        axis = x.ndim - 1
        reset = None if reset is None else reset[..., None]
        memory, outputs = self.sequence(memory, jnp.expand_dims(x, axis), reset)
        return memory, jax.tree.map(lambda y: jnp.squeeze(y, axis), outputs)

    def sequence(
        self, memory: PyTree, x: jax.Array, reset: jax.Array | None = None
    ) -> tuple[PyTree, Outputs]:
        """A sequence; see `ActorCritic`."""
        obs, transitions = jnp.split(x, [self.observation_size], axis=-1)
        memory, belief = self.beliefs(memory, transitions, reset)
        if not self.encoder_gradient:
            belief = jax.lax.stop_gradient(belief)
        seen = jnp.concatenate([obs, belief.mean, belief.log_std], axis=-1)
        return memory, self.actor_critic(self.actor_critic.initial(obs.shape[:-1]), seen)[1]

    def beliefs(
        self, memory: PyTree, transitions: jax.Array, reset: jax.Array | None = None
    ) -> tuple[PyTree, DiagonalGaussian]:
        """What is believed at every step: transitions [*lanes, T, F] -> memory, [*lanes, T, L]."""
        first = jnp.zeros(transitions.shape[:-1], bool).at[..., 0].set(~memory["begun"])
        first = first if reset is None else first | reset
        after, belief = self.encoder(memory["encoder"], transitions, reset)
        # The prior's mean and log deviation are 0.
        belief = jax.tree.map(lambda y: jnp.where(first[..., None], 0.0, y), belief)
        return {"encoder": after, "begun": jnp.ones_like(memory["begun"])}, belief
