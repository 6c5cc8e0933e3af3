"""The host loop: the policy compiled, the environments stepped by a pool outside JAX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import jax
import numpy as np

from adaptax.core.experience import Cache, PyTree, Rollout, Step, select
from adaptax.core.rng import episode_seeds, lane_keys, lane_numbers
from adaptax.core.spec import EnvSpec
from adaptax.core.step import step_extras
from adaptax.envs.pools.pool import Pool
from adaptax.envs.pools.workers import Share
from adaptax.envs.task import Task
from adaptax.sampling.actors import Actor, check_actor, is_by_lane
from adaptax.sampling.statistics import Unfinished

FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "truncated", "valid")
"""What of a step an actor observes and a rollout keeps."""


@dataclass
class Cursor:
    """Where interaction stands between two calls; with the pool's state, enough to go on."""

    shape: tuple[int, int]
    """(M, N); slot m * N + n of the pool is lane n of member m."""
    tasks: tuple[Task, ...]
    """M tasks."""
    root: np.ndarray
    """Stream of the episodes' seeds: episode e of slot p has number e * M * N + p."""
    key: jax.Array
    """Key of the actor's draws; step t folds in t."""
    obs: Any
    """[M * N, O]"""
    carry: PyTree
    """The actor's, leading axes [M, N]."""
    episode: Any
    """[M * N] uint32: how many episodes each slot has ended."""
    unfinished: Unfinished
    """What the episodes under way have come to."""
    t: int = 0
    """Steps since the start."""
    carry_is_flat: bool = False
    """Whether `carry` is a list of leaves from a snapshot, whose structure the actor knows."""

    @property
    def num_slots(self) -> int:
        """M * N."""
        return self.shape[0] * self.shape[1]

    def seeds(self, slots: np.ndarray, episode: np.ndarray) -> np.ndarray:
        """Seeds [K] of the next episodes in K `slots`, which have ended `episode` [K] so far."""
        numbers = episode * np.uint32(self.num_slots) + slots.astype(np.uint32)
        return episode_seeds(self.root, numbers)

    def slot_tasks(self) -> list[Task]:
        """The task of every slot."""
        return [task for task in self.tasks for _ in range(self.shape[1])]

    def save(self) -> PyTree:
        """Nested dicts of arrays, numbers and strings."""
        return {
            "shape": np.array(self.shape),
            "tasks": {str(i): asdict(task) for i, task in enumerate(self.tasks)},
            "root": self.root,
            "key": np.asarray(jax.random.key_data(self.key)),
            "obs": np.asarray(self.obs),
            "carry": {str(i): np.asarray(x) for i, x in enumerate(jax.tree.leaves(self.carry))},
            "episode": np.asarray(self.episode),
            "unfinished": asdict(self.unfinished),
            "t": self.t,
        }

    @classmethod
    def restore(cls, saved: PyTree) -> Cursor:
        """The cursor that `save` described; its carry is a list of leaves, without structure."""
        tasks, carry = saved["tasks"], saved.get("carry", {})
        cursor = cls(
            shape=(int(saved["shape"][0]), int(saved["shape"][1])),
            tasks=tuple(Task(**tasks[str(i)]) for i in range(len(tasks))),
            root=saved["root"],
            key=jax.random.wrap_key_data(saved["key"]),
            obs=saved["obs"],
            carry=[carry[str(i)] for i in range(len(carry))],
            episode=saved["episode"],
            unfinished=Unfinished(**saved["unfinished"]),
            t=int(saved["t"]),
            carry_is_flat=True,
        )
        lanes, by_lane = cursor.shape, [*vars(cursor.unfinished).values(), *cursor.carry]
        fits = all(np.shape(x)[:2] == lanes for x in by_lane)
        fits &= np.shape(cursor.episode) == (cursor.num_slots,) and np.shape(cursor.root) == (2,)
        if not fits:
            raise ValueError(f"its unfinished episodes are not those of {lanes} lanes")
        return cursor


def host_loop(
    pool: Pool, actor: Actor, cursor: Cursor, num_steps: int, num_episodes: int | None
) -> tuple[Rollout, Cursor]:
    """Interact for `num_steps`, or until each lane has ended `num_episodes` episodes."""
    every = np.arange(cursor.num_slots)
    return joined(cursor, [interact(pool, actor, cursor, num_steps, num_episodes, every)])


def joined(cursor: Cursor, parts: Sequence[PartialRollout]) -> tuple[Rollout, Cursor]:
    """The rollout of all lanes [M, N, ...], in parts one below the other, and what follows it."""
    times = [part.pop("t") for part in parts]
    whole = jax.tree.map(_one_below_the_other, *parts)
    rollout = jax.tree.map(lambda x: x.reshape(*cursor.shape, *x.shape[1:]), whole["rollout"])
    after = replace(
        cursor,
        obs=whole["obs"],
        carry=rollout.final_carry,
        episode=whole["episode"],
        t=max(times),
    )
    return rollout, after


def _one_below_the_other(*rows: np.ndarray) -> np.ndarray:
    return rows[0] if len(rows) == 1 else np.concatenate(rows)


PartialRollout = dict[str, Any]
"""What comes of K lanes in a row: `rollout` with leaves [K, ...], `obs` [K, O], `episode` [K] and
`t` after it."""


def interact(
    pool: Pool | Share,
    actor: Actor,
    cursor: Cursor,
    num_steps: int,
    num_episodes: int | None,
    slots: np.ndarray,
) -> PartialRollout:
    """The host loop in the lanes `slots` [K] alone, in a row.

    The policy sees zeros in the others: what it answers one lane depends, in the last bit, on how
    many lanes there are.
    """
    check_actor(actor)
    tasks, lanes = cursor.slot_tasks(), _Lanes(cursor.shape, slots)
    record, active = _Record(pool.spec, len(slots), num_steps), np.arange(len(slots))
    obs, episode, t = np.asarray(cursor.obs)[slots], np.asarray(cursor.episode)[slots], cursor.t
    # The policy runs where the environments do; on a machine with a GPU that is not the default.
    cpu = jax.local_devices(backend="cpu")[0]
    actor, carry, key = jax.device_put((actor, cursor.carry, cursor.key), cpu)
    carry, step = (_without_caches(carry), carry), _no_step(pool.spec, len(slots))
    extras: dict[str, np.ndarray] = {}
    while len(active) and (num_episodes is not None or t < cursor.t + num_steps):
        inputs = carry, lanes.every_step(step), lanes.every(obs), key, np.uint32(t)
        action, carry, new_extras = _advance(actor, *inputs)
        record.write(step, extras)  # the last one, while the policy computes the next
        chosen, extras = lanes.own(action), {k: lanes.own(x) for k, x in new_extras.items()}
        answer = pool.step(slots[active], chosen[active])
        step = _completed(answer, active, obs, chosen)
        t += 1
        obs = obs.copy()
        obs[active] = answer.next_obs
        ended = active[answer.terminated | answer.truncated]
        episode[ended] += 1
        if num_episodes is not None:
            taken = record.lengths + step.valid  # `step` is not written yet
            running = (episode < num_episodes) & (taken < num_steps)
            active, ended = active[running[active]], ended[running[ended]]
        if len(ended):
            again = slots[ended]
            seeds = cursor.seeds(again, episode[ended])
            obs[ended] = pool.reset(again, seeds, [tasks[i] for i in again])
    carry = _observe(actor, carry, lanes.every_step(step), key, np.uint32(t))
    record.write(step, extras)
    rollout = record.rollout(jax.tree.map(lanes.own, carry))
    return {"rollout": rollout, "obs": obs, "episode": episode, "t": t}


Carry = tuple[PyTree, PyTree]
"""The actor's before it chose its last action, and after: in a lane that did not step, the former
still stands, but for caches, which only the latter has."""


def begin(actor: Actor, shape: tuple[int, int], key: jax.Array) -> PyTree:
    """The actor's carry at the start, [M, N, ...]; a ConfigError where it is no actor."""
    check_actor(actor)
    return _begin(actor, shape, key)


@partial(jax.jit, static_argnums=1)
def _begin(actor: Actor, shape: tuple[int, int], key: jax.Array) -> PyTree:
    return actor.begin(*shape, jax.random.fold_in(key, 2**32 - 1))


def observe(
    actor: Actor, carry: Carry, step: Step, key: jax.Array, t: Any, lanes: jax.Array
) -> PyTree:
    """The actor's carry after step t - 1, [M, N, ...]; `lanes` [M, N] are their numbers."""
    before, acted = carry
    after = actor.observe(acted, step, keys_of(actor, key, 2 * t, lanes))

    def standing(after: PyTree, before: PyTree) -> PyTree:
        return after if _is_cache(after) else select(step.valid, after, before)

    return jax.tree.map(standing, after, before, is_leaf=_is_cache)


def _without_caches(carry: PyTree) -> PyTree:
    """The carry with nothing in the place of its caches."""
    return jax.tree.map(lambda x: Cache(()) if _is_cache(x) else x, carry, is_leaf=_is_cache)


def _is_cache(x: Any) -> bool:
    return isinstance(x, Cache)


def act(
    actor: Actor, carry: PyTree, obs: jax.Array, key: jax.Array, t: Any, lanes: jax.Array
) -> tuple[jax.Array, PyTree, dict[str, jax.Array]]:
    """The action of step t in the lanes of these numbers [M, N]."""
    return actor.act(carry, obs, keys_of(actor, key, 2 * t + 1, lanes))


def keys_of(actor: Actor, key: jax.Array, t: Any, lanes: jax.Array) -> jax.Array:
    """What an actor draws with at step t: a key for each of the lanes, or one for all."""
    if is_by_lane(actor):
        return lane_keys(key, t, lanes)
    return jax.random.fold_in(key, t)


@jax.jit
def _observe(actor: Actor, carry: Carry, step: Step, key: jax.Array, t: Any) -> PyTree:
    return observe(actor, carry, step, key, t, lane_numbers(*step.valid.shape))


@jax.jit
def _advance(
    actor: Actor, carry: Carry, step: Step, obs: jax.Array, key: jax.Array, t: Any
) -> tuple[jax.Array, Carry, dict[str, jax.Array]]:
    """What the last step led to and then the next action, in one compiled call."""
    lanes = lane_numbers(*obs.shape[:2])
    before = observe(actor, carry, step, key, t, lanes)
    action, acted, extras = act(actor, before, obs, key, t, lanes)
    return action, (_without_caches(before), acted), extras


def _no_step(spec: EnvSpec, num_slots: int) -> Step:
    """Before the first step: no slot has acted."""
    obs = np.zeros((num_slots, spec.observation_size), np.float32)
    flag = np.zeros(num_slots, bool)
    return Step(
        obs=obs,
        action=np.zeros((num_slots, *spec.action.shape), spec.action.dtype),
        reward=np.zeros(num_slots, np.float32),
        next_obs=obs,
        terminated=flag,
        truncated=flag,
        valid=flag,
    )


def _completed(answer: Step, active: np.ndarray, obs: np.ndarray, action: np.ndarray) -> Step:
    """What a pool answered the active slots, as a step of all P; zero in those that did not act.

    `obs` and `action` are of all slots.
    """
    slots = active if answer.valid is None else active[answer.valid]
    if len(slots) == len(obs):
        return replace(answer, obs=obs, action=action, valid=np.ones(len(obs), bool))

    def spread(x: np.ndarray) -> np.ndarray:
        """[K, ...] of the active slots as [P, ...]."""
        every = np.zeros((len(obs), *x.shape[1:]), x.dtype)
        every[slots] = x if answer.valid is None else x[answer.valid]
        return every

    return Step(
        obs=spread(obs[active]),
        action=spread(action[active]),
        reward=spread(answer.reward),
        next_obs=spread(answer.next_obs),
        terminated=spread(answer.terminated),
        truncated=spread(answer.truncated),
        valid=spread(np.ones(len(active), bool)),
        info={name: spread(x) for name, x in answer.info.items()},
    )


class _Lanes:
    """Some lanes `slots` [K], in a row, among M * N."""

    def __init__(self, shape: tuple[int, int], slots: np.ndarray) -> None:
        self.shape, self.rows = shape, slice(slots[0], slots[-1] + 1)
        self.num_others = shape[0] * shape[1] - len(slots)

    def own(self, x: Any) -> np.ndarray:
        """[M, N, ...] of all as [K, ...] of these."""
        return np.asarray(x).reshape(-1, *x.shape[2:])[self.rows]

    def every(self, x: np.ndarray) -> np.ndarray:
        """[K, ...] of these as [M, N, ...] of all, zero in the others."""
        whole = x
        if self.num_others:
            whole = np.zeros((len(x) + self.num_others, *x.shape[1:]), x.dtype)
            whole[self.rows] = x
        return whole.reshape(*self.shape, *x.shape[1:])

    def every_step(self, step: Step) -> Step:
        """What the actor observes of a step of these lanes."""
        fields: dict[str, Any] = {name: self.every(getattr(step, name)) for name in FIELDS}
        return Step(**fields)


class _Record:
    """A rollout of K lanes being written: arrays [K, T, ...], zero where nothing was written.

    Every lane has a place of its own to write at, so that one that waits leaves no gap.
    """

    def __init__(self, spec: EnvSpec, num_slots: int, num_steps: int) -> None:
        self.spec, self.num_slots, self.num_steps = spec, num_slots, num_steps
        self.arrays: dict[str, np.ndarray] = {}
        self.extras: dict[str, np.ndarray] = {}
        self.lengths = np.zeros(self.num_slots, int)
        self.in_step = True
        """Whether all lanes have written at every step, so that all are at the same place."""

    def write(self, step: Step, extras: dict[str, np.ndarray]) -> None:
        """Record a step of all lanes, and what the actor adds [K, ...]."""
        num_valid = np.count_nonzero(step.valid)
        if not num_valid:
            return
        self.in_step &= num_valid == self.num_slots
        rows: Any = slice(None) if self.in_step else np.flatnonzero(step.valid)
        at = self.lengths[0] if self.in_step else self.lengths[rows]
        for name in FIELDS:
            x = getattr(step, name)
            self._array(self.arrays, name, x)[rows, at] = x[rows]
        for name, x in {**step_extras(self.spec, step), **extras}.items():
            self._array(self.extras, name, x)[rows, at] = x[rows]
        self.lengths[rows] += 1

    def rollout(self, carry: PyTree) -> Rollout:
        """What was recorded, and the final carry, leaves [K, ...]."""
        return Rollout(**self.arrays, extras=self.extras, final_carry=carry)

    def _array(self, arrays: dict[str, np.ndarray], name: str, like: np.ndarray) -> np.ndarray:
        if name not in arrays:
            shape = (self.num_slots, self.num_steps, *like.shape[1:])
            arrays[name] = np.zeros(shape, like.dtype)
        return arrays[name]
