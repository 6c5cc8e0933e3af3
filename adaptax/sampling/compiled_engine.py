"""The compiled engine: policy and environment together in one program, for a CompiledPool."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.experience import PyTree, Rollout, Step, select
from adaptax.core.rng import episode_seeds
from adaptax.core.step import step_extras
from adaptax.envs.env import Env, Lanes, TaskArrays, reset_lanes, step_lanes
from adaptax.envs.pools.compiled import CompiledPool
from adaptax.envs.pools.pool import SlotNotFinite
from adaptax.sampling.actors import Actor
from adaptax.sampling.host_engine import FIELDS, Cursor, act, observe


def compiled_loop(
    pool: CompiledPool, actor: Actor, cursor: Cursor, num_steps: int, num_episodes: int | None
) -> tuple[Rollout, Cursor]:
    """The same contract and the same data (to rounding) as the host loop."""
    inputs = (pool.task_arrays, cursor.root, cursor.key, np.uint32(cursor.t))
    start = (pool.lanes, cursor.carry, jnp.asarray(cursor.episode))
    settings = _Settings(pool.env, cursor.shape, num_steps, num_episodes)
    rollout, (lanes, episode), finite = _interact(settings, actor, inputs, start)
    if not finite:
        assert pool.lanes is not None
        raise _not_finite(rollout, cursor, np.asarray(pool.lanes.steps))
    pool.lanes = lanes
    after = replace(
        cursor,
        obs=lanes.obs,
        carry=rollout.final_carry,
        episode=episode,
        t=cursor.t + num_steps,
    )
    return rollout, after


State = tuple[Lanes, PyTree, jax.Array]
"""Environments, the actor's carry, and how many episodes each lane has ended."""
Loop = tuple[jax.Array, State, dict[str, Any]]
"""Steps done, the state after them, and the record [T, M, N, ...] with so many rows written."""


@dataclass(frozen=True)
class _Settings:
    """What a compiled loop is made for."""

    env: Env
    shape: tuple[int, int]
    """(M, N)"""
    num_steps: int
    num_episodes: int | None
    """Episodes after which a lane stops; None to go on."""

    def running(self, episode: jax.Array) -> jax.Array:
        """Which lanes [P] still step."""
        if self.num_episodes is None:
            return jnp.ones(episode.shape, bool)
        return episode < self.num_episodes

    def split(self, x: jax.Array) -> jax.Array:
        """[P, ...] as [M, N, ...]."""
        return x.reshape(*self.shape, *x.shape[1:])


@partial(jax.jit, static_argnums=0)
def _interact(
    settings: _Settings, actor: Actor, inputs: tuple[Any, ...], start: State
) -> tuple[Rollout, tuple[Lanes, jax.Array], jax.Array]:
    """The rollout, what follows it, and whether all that was said and answered is finite."""
    tasks, root, key, first = inputs

    def goes_on(loop: Loop) -> jax.Array:
        done, (_, _, episode), _ = loop
        return (done < settings.num_steps) & settings.running(episode).any()

    def step(state: State, t: jax.Array) -> tuple[State, dict[str, Any]]:
        return _step(settings, actor, (tasks, root, key, t), state)

    def step_and_write(loop: Loop) -> Loop:
        done, state, record = loop
        state, row = step(state, first + done.astype(jnp.uint32))
        return done + 1, state, jax.tree.map(lambda x, new: x.at[done].set(new), record, row)

    rows = jax.eval_shape(step, start, first)[1]
    blank = jax.tree.map(lambda x: jnp.zeros((settings.num_steps, *x.shape), x.dtype), rows)
    # Not a scan: once every lane has its episodes, the rest of the record stays zero for nothing.
    loop = jax.lax.while_loop(goes_on, step_and_write, (jnp.array(0), start, blank))
    _, (lanes, carry, episode), record = loop
    record = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2), record)
    finite = jnp.array([jnp.isfinite(record[name]).all() for name in _NUMBERS]).all()
    return Rollout(**record, final_carry=carry), (lanes, episode), finite


_NUMBERS = {
    "obs": "the observation after the reset",
    "action": "the action",
    "next_obs": "the observation",
    "reward": "the reward",
}
"""What of a step must be finite, in the order in which it comes about."""


def _not_finite(rollout: Rollout, cursor: Cursor, begun: np.ndarray) -> SlotNotFinite:
    """The fault of the first step with a NaN; `begun` [P] steps of each episode came before."""
    shape = rollout.valid.shape
    bad = {
        name: ~np.isfinite(np.asarray(getattr(rollout, name))).reshape(*shape, -1).all(-1)
        for name in _NUMBERS
    }
    t = min(int(np.argmax(wrong.any((0, 1)))) for wrong in bad.values() if wrong.any())
    name = next(name for name in _NUMBERS if bad[name][:, :, t].any())
    member, lane = np.argwhere(bad[name][:, :, t])[0]
    slot = int(member * shape[1] + lane)
    ended = np.asarray(rollout.terminated | rollout.truncated)[member, lane, :t]
    step = t - 1 - np.flatnonzero(ended)[-1] if ended.any() else t + begun[slot]
    problem = f"{_NUMBERS[name]} is not finite"
    return SlotNotFinite(slot, int(step), cursor.tasks[member], problem)


def _step(
    settings: _Settings, actor: Actor, inputs: tuple[Any, ...], state: State
) -> tuple[State, dict[str, Any]]:
    """One step of every lane that runs, and what a rollout records of it."""
    (tasks, root, key, t), (lanes, carry, episode) = inputs, state
    env, running = settings.env, settings.running(episode)
    action, acted, extras = act(actor, carry, settings.split(lanes.obs), key, t)
    after, step = step_lanes(env, tasks, lanes, action.reshape(-1, *action.shape[2:]))
    ended = running & (step.terminated | step.truncated)
    in_lanes: Step = jax.tree.map(settings.split, replace(step, valid=running))
    carry = observe(actor, (carry, acted), replace(in_lanes, info={}), key, t + 1)
    record = {name: getattr(in_lanes, name) for name in FIELDS}
    record["extras"] = {**extras, **step_extras(env.spec, in_lanes)}
    zeros = jax.tree.map(jnp.zeros_like, record)
    record = select(in_lanes.valid, record, zeros)
    episode = episode + ended
    lanes = select(running, after, lanes)
    again = ended & settings.running(episode)
    restart = partial(_restart, env, tasks, root, again, episode)
    return (jax.lax.cond(again.any(), restart, lambda old: old, lanes), carry, episode), record


def _restart(
    env: Env, tasks: TaskArrays, root: Any, again: jax.Array, episode: jax.Array, lanes: Lanes
) -> Lanes:
    """The lanes with the next episode begun where `again` [P] says."""
    slots = jnp.arange(len(episode), dtype=jnp.uint32)
    seeds = episode_seeds(jnp.asarray(root), episode * np.uint32(len(episode)) + slots)
    return select(again, reset_lanes(env, tasks, seeds), lanes)
