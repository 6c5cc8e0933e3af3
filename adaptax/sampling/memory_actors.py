"""Actors that remember: by an actor-critic's memory, within an episode or through a whole trial."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from adaptax.core.experience import PyTree, Rollout, Step, Transitions
from adaptax.core.spec import ActionSpace
from adaptax.functional.returns import last_valid
from adaptax.networks.normalizer import Moments, normalized
from adaptax.sampling.actors import ByLane, Extras, draw, encode_action


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class MemoryActor(ByLane):
    """Acts by an actor-critic; an episode's end clears what it remembers.

    Its carry is the network's `memory`, and `reset`, whether to clear it before the next step.
    """

    params: PyTree
    network: Any = field(metadata={"static": True})
    """With the call signature of `ActorCritic`."""
    obs_moments: Moments | None = None
    """What observations are standardised by, if they are."""
    deterministic: bool = field(default=False, metadata={"static": True})

    def begin(self, num_members: int, num_lanes: int, key: jax.Array) -> PyTree:
        """The start of an episode in every lane."""
        lanes = (num_members, num_lanes)
        return {"memory": self.network.initial(lanes), "reset": jnp.zeros(lanes, bool)}

    def act(
        self, carry: PyTree, obs: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, PyTree, Extras]:
        """An action from the network run one step further; records `log_prob` if it was drawn."""
        obs = normalized(obs, self.obs_moments)
        memory, (distribution, _) = self.network.apply(
            self.params, carry["memory"], obs, carry["reset"]
        )
        action, extras = draw(distribution, self.deterministic, key)
        return action, {"memory": memory, "reset": jnp.zeros_like(carry["reset"])}, extras

    def observe(self, carry: PyTree, step: Step, key: jax.Array) -> PyTree:
        """The same memory, to be cleared after an episode's end."""
        return {"memory": carry["memory"], "reset": step.terminated | step.truncated}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrialInputs(ByLane):
    """Gives an actor its last action, last reward and the boundary flag, and has it forget nothing.

    RL2's inputs (Duan et al. 2016, section 2.2). The carry lives through episode ends: at the first
    step of the next episode the actor still sees the last reward, and flag = 1. It is zero only
    where a trial starts.
    """

    actor: MemoryActor
    space: ActionSpace = field(metadata={"static": True})
    start: PyTree = None
    """The carry to begin from after adaptation; None for a new task."""

    def begun(self) -> TrialInputs:
        """The same on a new task and after adaptation, so that one program serves both."""
        return replace(self, start=None)

    def begin(self, num_members: int, num_lanes: int, key: jax.Array) -> PyTree:
        """Zeros, or what was learned of the task before."""
        if self.start is not None:
            return self.start
        lanes = (num_members, num_lanes)
        return {
            "actor": self.actor.begin(num_members, num_lanes, key),
            "last_action": jnp.zeros((*lanes, self.space.size)),
            "last_reward": jnp.zeros(lanes),
            "boundary": jnp.zeros(lanes),
        }

    def act(
        self, carry: PyTree, obs: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, PyTree, Extras]:
        """The actor's action for the observation and what the last step led to."""
        inputs = trial_input(obs, carry["last_action"], carry["last_reward"], carry["boundary"])
        action, inner, extras = self.actor.act(carry["actor"], inputs, key)
        return action, {**carry, "actor": inner}, extras

    def observe(self, carry: PyTree, step: Step, key: jax.Array) -> PyTree:
        """Remember what the step led to; an episode's end clears nothing."""
        return {
            "actor": carry["actor"],
            "last_action": encode_action(self.space, step.action),
            "last_reward": step.reward,
            "boundary": (step.terminated | step.truncated).astype(jnp.float32),
        }

    def adapted(self, rollout: Rollout, *, deterministic: bool) -> TrialInputs:
        """The actor that goes on from where `rollout` ended; it owns a copy of that memory."""
        start = jax.tree.map(jnp.array, rollout.final_carry)
        return replace(self, actor=replace(self.actor, deterministic=deterministic), start=start)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TransitionInputs(TrialInputs):
    """Gives an actor beside its observation all of the last transition: action, reward, next obs.

    VariBAD's inputs (Zintgraf et al. 2020, section 4). At the first step of a later episode the
    actor still sees where the last one led to, which its own observation does not tell. Zeros stand
    for what came before a trial.
    """

    observation_size: int = field(default=0, metadata={"static": True})

    def begin(self, num_members: int, num_lanes: int, key: jax.Array) -> PyTree:
        """Zeros, or what was learned of the task before."""
        if self.start is not None:
            return self.start
        lanes = (num_members, num_lanes)
        size = self.space.size + 1 + self.observation_size
        inner = self.actor.begin(num_members, num_lanes, key)
        return {"actor": inner, "transition": jnp.zeros((*lanes, size))}

    def act(
        self, carry: PyTree, obs: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, PyTree, Extras]:
        """The actor's action for the observation and the last transition."""
        inputs = jnp.concatenate([obs, carry["transition"]], axis=-1)
        action, inner, extras = self.actor.act(carry["actor"], inputs, key)
        return action, {**carry, "actor": inner}, extras

    def observe(self, carry: PyTree, step: Step, key: jax.Array) -> PyTree:
        """Remember the transition; an episode's end clears nothing."""
        return {"actor": carry["actor"], "transition": transition(step, self.space)}


def trial_input_size(observation_size: int, space: ActionSpace) -> int:
    """O + A + 2: numbers that a network sees of a step within a trial."""
    return observation_size + space.size + 2


def trial_input(
    obs: jax.Array, last_action: jax.Array, last_reward: jax.Array, boundary: jax.Array
) -> jax.Array:
    """What a network sees of a step within a trial, [..., O + A + 2]."""
    flags = jnp.stack([last_reward, boundary], axis=-1)
    return jnp.concatenate([obs, last_action, flags], axis=-1)


def trial_inputs(rollout: Rollout, space: ActionSpace) -> tuple[jax.Array, jax.Array]:
    """What the network saw in whole trials, and after each of their steps, [M, N, T, O + A + 2].

    After the last step it would have seen its successor, had the episode gone on.
    """
    action = encode_action(space, jnp.asarray(rollout.action))
    reward = jnp.asarray(rollout.reward)
    boundary = (rollout.terminated | rollout.truncated).astype(jnp.float32)
    inputs = trial_input(jnp.asarray(rollout.obs), *map(_before, (action, reward, boundary)))
    beyond = trial_input(jnp.asarray(rollout.next_obs), action, reward, jnp.zeros_like(boundary))
    return inputs, _following(inputs, beyond, rollout)


def transition(step: Step | Rollout | Transitions, space: ActionSpace) -> jax.Array:
    """(action, reward, next obs) of steps, [..., A + 1 + O]."""
    reward = jnp.asarray(step.reward)[..., None]
    action = encode_action(space, jnp.asarray(step.action))
    return jnp.concatenate([action, reward, jnp.asarray(step.next_obs)], axis=-1)


def transition_inputs(rollout: Rollout, space: ActionSpace) -> tuple[jax.Array, jax.Array]:
    """The same of a TransitionInputs' network, [M, N, T, O + A + 1 + O]."""
    seen = transition(rollout, space)
    inputs = jnp.concatenate([jnp.asarray(rollout.obs), _before(seen)], axis=-1)
    beyond = jnp.concatenate([jnp.asarray(rollout.next_obs), seen], axis=-1)
    return inputs, _following(inputs, beyond, rollout)


def _before(x: jax.Array) -> jax.Array:
    """Values of x [M, N, T, ...] at the step before each; zeros at the first."""
    return jnp.concatenate([jnp.zeros_like(x[:, :, :1]), x[:, :, :-1]], axis=2)


def _following(inputs: jax.Array, beyond: jax.Array, rollout: Rollout) -> jax.Array:
    """The `inputs` of the step after each; after a lane's last step those of `beyond`."""
    following = jnp.concatenate([inputs[:, :, 1:], jnp.zeros_like(inputs[:, :, :1])], axis=2)
    last = last_valid(jnp.asarray(rollout.valid))
    return jnp.where(last[..., None], beyond, following)
