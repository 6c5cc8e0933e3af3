"""Actors that explore beside their policy."""

from __future__ import annotations

from dataclasses import dataclass, field

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.core import rng
from adaptax.core.experience import PyTree, Step
from adaptax.sampling.actors import Actor, ByLane, Extras, Memoryless, UniformActor


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EpsilonGreedyActor(ByLane, Memoryless):
    """The action of the highest value, or with probability epsilon a uniform one."""

    params: PyTree
    network: nn.Module = field(metadata={"static": True})
    """Observations [..., O] -> values [..., A]."""
    epsilon: jax.Array

    def act(
        self, carry: PyTree, obs: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, PyTree, Extras]:
        """One of the A actions, the greedy one among them."""
        values = self.network.apply(self.params, obs)
        explore_key, action_key = rng.split(key)
        lanes = values.shape[:-1]
        at_random = rng.randint(action_key, lanes, values.shape[-1])
        explores = rng.uniform(explore_key, lanes) < self.epsilon
        greedy = jnp.argmax(values, axis=-1).astype(jnp.int32)
        return jnp.where(explores, at_random, greedy), carry, {}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NoisyActor(ByLane, Memoryless):
    """A deterministic policy's action plus Gaussian noise, clipped to [-1, 1]."""

    params: PyTree
    policy: nn.Module = field(metadata={"static": True})
    """Observations [..., O] -> actions [..., A]."""
    noise_std: jax.Array

    def act(
        self, carry: PyTree, obs: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, PyTree, Extras]:
        """An action."""
        action = self.policy.apply(self.params, obs)
        noise = self.noise_std * rng.normal(key, action.shape)
        return jnp.clip(action + noise, -1.0, 1.0), carry, {}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class AfterWarmup(ByLane):
    """An actor that explores, or uniform actions as long as it is too early for that."""

    explorer: Actor
    uniform: UniformActor
    warm: jax.Array
    """[] bool: whether it is late enough."""

    def begin(self, num_members: int, num_lanes: int, key: jax.Array) -> PyTree:
        """What the explorer starts with."""
        return self.explorer.begin(num_members, num_lanes, key)

    def act(
        self, carry: PyTree, obs: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, PyTree, Extras]:
        """The action of one of the two."""
        action, carry, extras = self.explorer.act(carry, obs, key)
        return jnp.where(self.warm, action, self.uniform.act({}, obs, key)[0]), carry, extras

    def observe(self, carry: PyTree, step: Step, key: jax.Array) -> PyTree:
        """What the explorer makes of a step."""
        return self.explorer.observe(carry, step, key)
