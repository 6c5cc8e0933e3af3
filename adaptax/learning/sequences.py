"""Rollouts as sequences: lanes of episodes one after another, or whole trials of RL2."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from adaptax.core.experience import PyTree, Rollout, zero_padding
from adaptax.core.spec import ActionSpace
from adaptax.functional.distributions import Distribution
from adaptax.functional.returns import last_valid
from adaptax.networks.normalizer import Moments, normalized
from adaptax.sampling.memory_actors import transition_inputs, trial_inputs


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Sequences:
    """B sequences of T steps, padding last; zero where not valid."""

    obs: jax.Array
    """[B, T, O], normalised if the actor's were."""
    next_obs: jax.Array
    """[B, T, O]: what the network sees after each step, within the same episode or trial."""
    action: jax.Array
    """[B, T, A] or [B, T]"""
    reward: jax.Array
    """[B, T]"""
    log_prob: jax.Array
    """[B, T], by the policy that acted."""
    terminated: jax.Array
    truncated: jax.Array
    valid: jax.Array
    reset: jax.Array
    """[B, T] bool: the memory is cleared before this step."""
    memory: PyTree
    """What the network remembered before the first step, leaves [B, ...]."""
    inputs: jax.Array
    """[B, T, O]: `obs` before normalisation, for its moments."""
    trials: bool = field(default=False, metadata={"static": True})
    """Whether each is one trial: nothing is cleared in its midst, and what is seen after a step is
    what the next one begins with."""


def episode_sequences(rollout: Rollout, obs_moments: Moments | None) -> Sequences:
    """The lanes [M, N, T] of a MemoryActor's rollout as B = M * N sequences of episodes."""
    rollout = zero_padding(rollout)
    ends = jnp.asarray(rollout.terminated | rollout.truncated)
    carry = rollout.initial_carry
    reset = jnp.concatenate([carry["reset"][..., None], ends[..., :-1]], axis=-1)
    fields = {
        "obs": normalized(rollout.obs, obs_moments),
        "next_obs": normalized(rollout.next_obs, obs_moments),
        "action": rollout.action,
        "reward": rollout.reward,
        "log_prob": rollout.extras["log_prob"],
        "terminated": rollout.terminated,
        "truncated": rollout.truncated,
        "valid": rollout.valid,
        "reset": reset,
        "memory": carry["memory"],
        "inputs": rollout.obs,
    }
    return _sequences(fields)


def trial_sequences(
    rollout: Rollout,
    space: ActionSpace,
    obs_moments: Moments | None,
    *,
    bootstrap_end: bool,
    cuts: jax.Array | None = None,
    transitions: bool = False,
) -> Sequences:
    """The lanes [M, N, T] of a TrialInputs' rollout, each a trial that counts as one episode.

    Inner boundaries cut nothing, but for `cuts` [M, N, T] bool: steps after which nothing counts. A
    trial that its last time limit cut ends as if it had terminated unless `bootstrap_end`.
    `transitions`: the rollout is a TransitionInputs'.
    """
    rollout = zero_padding(rollout)
    inputs, next_inputs = (transition_inputs if transitions else trial_inputs)(rollout, space)
    valid = jnp.asarray(rollout.valid)
    nowhere = jnp.zeros_like(valid)
    end = last_valid(valid)
    terminated = end & (rollout.terminated | (not bootstrap_end))
    if cuts is not None:
        terminated = terminated | (valid & cuts)
    fields = {
        "obs": normalized(inputs, obs_moments),
        "next_obs": normalized(next_inputs, obs_moments),
        "action": rollout.action,
        "reward": rollout.reward,
        "log_prob": rollout.extras["log_prob"],
        "terminated": terminated,
        "truncated": end & ~terminated,
        "valid": valid,
        "reset": nowhere,
        "memory": rollout.initial_carry["actor"]["memory"],
        "inputs": inputs,
    }
    return replace(_sequences(fields), trials=True)


def _sequences(fields: dict[str, Any]) -> Sequences:
    """Fields [M, N, ...] as sequences [B, ...]."""
    flat = jax.tree.map(lambda x: jnp.asarray(x).reshape(-1, *x.shape[2:]), fields)
    return Sequences(**flat)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Batch:
    """What networks learn from: n steps [n, ...], or n whole sequences [n, T, ...]."""

    obs: jax.Array
    action: jax.Array
    log_prob: jax.Array
    """By the policy that acted."""
    advantage: jax.Array
    """What the policy learns from."""
    value: jax.Array
    """The network's before the update."""
    target: jax.Array
    """What the value learns from."""
    valid: jax.Array
    reset: jax.Array | None
    """[n, T] as in Sequences; None for steps."""
    memory: PyTree
    """As in Sequences; empty for steps."""

    @property
    def usable(self) -> jax.Array:
        """[n] bool: whether there is a valid step in it."""
        return self.valid.reshape(len(self.valid), -1).any(-1)

    def with_advantage(self, advantage: jax.Array) -> Batch:
        """The batch with other advantages [B, T], those of the sequences that it was made of."""
        if self.reset is not None:
            advantage = cut(advantage, self.valid.shape[1])
        return replace(self, advantage=advantage.reshape(self.valid.shape))

    def outputs(self, network: Any, params: PyTree) -> tuple[Distribution, jax.Array]:
        """The network's distributions and values, axes those of `valid`."""
        memory = self.memory
        if self.reset is None:
            memory = network.initial((len(self.valid),))
            return network.apply(params, memory, self.obs)[1]
        return network.apply(params, memory, self.obs, self.reset, method="sequence")[1]


def cut(x: jax.Array, num_steps: int) -> jax.Array:
    """[n, T, ...] -> [K, n, num_steps, ...], padded with zeros at the end of the last piece."""
    num, length = x.shape[:2]
    padding = [(0, 0), (0, -length % num_steps), *[(0, 0)] * (x.ndim - 2)]
    return jnp.pad(x, padding).reshape(num, -1, num_steps, *x.shape[2:]).swapaxes(0, 1)


def in_pieces(batch: Batch, network: Any, params: PyTree, num_steps: int) -> Batch:
    """Whole sequences [n, T] cut into pieces [K * n, num_steps], of which the last are padded.

    A piece begins with what the network with these parameters remembers there: what is learned
    from it goes no further back (truncated backpropagation through time, Williams and Peng 1990).
    """

    def onwards(memory: PyTree, piece: tuple[jax.Array, jax.Array]) -> tuple[PyTree, PyTree]:
        return network.apply(params, memory, *piece, method="sequence")[0], memory

    arrays = {name: x for name, x in vars(batch).items() if name != "memory"}
    pieces = {name: cut(x, num_steps) for name, x in arrays.items()}
    _, memory = jax.lax.scan(onwards, batch.memory, (pieces["obs"], pieces["reset"]))
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), {**pieces, "memory": memory})
    return Batch(**flat)


def as_batch(
    sequences: Sequences,
    advantage: jax.Array,
    value: jax.Array,
    target: jax.Array,
    *,
    whole: bool,
) -> Batch:
    """Sequences with what was estimated of them [B, T], `whole` or as steps."""
    s = sequences
    fields = {
        "obs": s.obs,
        "action": s.action,
        "log_prob": s.log_prob,
        "advantage": advantage,
        "value": value,
        "target": target,
        "valid": s.valid,
    }
    if whole:
        return Batch(**fields, reset=s.reset, memory=s.memory)
    steps = {name: x.reshape(-1, *x.shape[2:]) for name, x in fields.items()}
    return Batch(**steps, reset=None, memory=())
