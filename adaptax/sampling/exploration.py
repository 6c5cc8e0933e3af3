"""Actors that explore beside their policy, and one that keeps account of episodes."""

from __future__ import annotations

from dataclasses import dataclass, field

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.core.experience import PyTree, select
from adaptax.sampling.actors import Actor, Extras, Memoryless


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class EpsilonGreedyActor(Memoryless):
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
        explore_key, action_key = jax.random.split(key)
        lanes = values.shape[:-1]
        at_random = jax.random.randint(action_key, lanes, 0, values.shape[-1])
        explores = jax.random.uniform(explore_key, lanes) < self.epsilon
        greedy = jnp.argmax(values, axis=-1).astype(jnp.int32)
        return jnp.where(explores, at_random, greedy), carry, {}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class NoisyActor(Memoryless):
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
        noise = self.noise_std * jax.random.normal(key, action.shape)
        return jnp.clip(action + noise, -1.0, 1.0), carry, {}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Accountant:
    """An actor, and return and length of the episode so far beside it.

    A rollout records both, `return` and `length`, because an episode may be longer than it.
    """

    actor: Actor

    def begin(self, num_members: int, num_lanes: int, key: jax.Array) -> PyTree:
        """The start of an episode in every lane."""
        lanes = (num_members, num_lanes)
        inner = self.actor.begin(num_members, num_lanes, key)
        return {"actor": inner, "totals": (jnp.zeros(lanes), jnp.zeros(lanes, jnp.int32))}

    def act(
        self, carry: PyTree, obs: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, PyTree, Extras]:
        """The actor's action, and the totals before it."""
        action, inner, extras = self.actor.act(carry["actor"], obs, key)
        total, length = carry["totals"]
        return action, {**carry, "actor": inner}, extras | {"return": total, "length": length}

    def observe(
        self,
        carry: PyTree,
        obs: jax.Array,
        action: jax.Array,
        reward: jax.Array,
        next_obs: jax.Array,
        terminated: jax.Array,
        truncated: jax.Array,
        key: jax.Array,
    ) -> PyTree:
        """The totals with this step, zero after an episode's end."""
        step = (obs, action, reward, next_obs, terminated, truncated, key)
        total, length = carry["totals"]
        totals = (total + reward, length + 1)
        zeros = jax.tree.map(jnp.zeros_like, totals)
        return {
            "actor": self.actor.observe(carry["actor"], *step),
            "totals": select(terminated | truncated, zeros, totals),
        }
