"""The host loop: the policy compiled, the environments stepped by a pool outside JAX."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import numpy as np

from adaptax.core.experience import PyTree, Rollout, select
from adaptax.core.rng import episode_seeds
from adaptax.core.spec import EnvSpec
from adaptax.envs.pools.pool import Pool, StepResult
from adaptax.envs.task import Task
from adaptax.sampling.actors import Actor
from adaptax.sampling.statistics import Unfinished


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

    @property
    def num_slots(self) -> int:
        """M * N."""
        return self.shape[0] * self.shape[1]

    def seeds(self, slots: np.ndarray, episode: np.ndarray) -> np.ndarray:
        """Seeds [K] of the next episodes in `slots`, where each slot has ended `episode` [P]."""
        numbers = episode[slots] * np.uint32(self.num_slots) + slots.astype(np.uint32)
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
        return cls(
            shape=(int(saved["shape"][0]), int(saved["shape"][1])),
            tasks=tuple(Task(**tasks[str(i)]) for i in range(len(tasks))),
            root=saved["root"],
            key=jax.random.wrap_key_data(saved["key"]),
            obs=saved["obs"],
            carry=[carry[str(i)] for i in range(len(carry))],
            episode=saved["episode"],
            unfinished=Unfinished(**saved["unfinished"]),
            t=int(saved["t"]),
        )


def host_loop(
    pool: Pool,
    actor: Actor,
    cursor: Cursor,
    num_steps: int,
    num_episodes: int | None,
    slots: np.ndarray | None = None,
) -> tuple[Rollout, Cursor]:
    """Interact for `num_steps`, or until each lane has ended `num_episodes` episodes.

    Only the lanes in `slots` take part, all by default. The policy sees the others too: what it
    answers one lane depends, in the last bit, on how many lanes there are.
    """
    tasks = cursor.slot_tasks()
    active = np.arange(cursor.num_slots) if slots is None else slots
    record = _Record(pool.spec, cursor.shape, num_steps)
    obs, episode, t = np.array(cursor.obs), np.array(cursor.episode), cursor.t
    # The policy runs where the environments do; on a machine with a GPU that is not the default.
    cpu = jax.local_devices(backend="cpu")[0]
    actor, carry, key = jax.device_put((actor, cursor.carry, cursor.key), cpu)
    carry, step = (carry, carry), record.no_step()
    while len(active) and (num_episodes is not None or t < cursor.t + num_steps):
        lanes_obs, outcome = record.lanes(obs), record.outcome(step)
        action, carry, extras = _advance(actor, carry, outcome, lanes_obs, key, np.uint32(t))
        record.write(step)  # the last one, while the policy computes the next
        chosen = np.asarray(action).reshape(cursor.num_slots, *action.shape[2:])
        result = pool.step(active, chosen[active])
        step = _Step.of(active, obs, chosen, result, extras)
        t += 1
        obs = obs.copy()
        obs[active] = result.next_obs
        ended = active[result.terminated | result.truncated]
        if len(ended):
            episode[ended] += 1
            if num_episodes is not None:
                active = active[episode[active] < num_episodes]
                ended = ended[episode[ended] < num_episodes]
        if len(ended):
            obs[ended] = pool.reset(ended, cursor.seeds(ended, episode), [tasks[i] for i in ended])
    carry = observe(actor, carry, record.outcome(step), key, np.uint32(t))
    record.write(step)
    after = replace(cursor, obs=obs, carry=carry, episode=episode, t=t)
    return record.rollout(jax.tree.map(np.asarray, carry)), after


Outcome = tuple[Any, Any, Any, Any, Any, Any, Any]
"""Which lanes stepped [M, N], and their obs, action, reward, next_obs, terminated, truncated."""
Carry = tuple[PyTree, PyTree]
"""The actor's before it chose its last action, and after: in a lane that did not step, the former
still stands."""


@jax.jit
def observe(actor: Actor, carry: Carry, outcome: Outcome, key: jax.Array, t: Any) -> PyTree:
    """The actor's carry after step t - 1."""
    before, acted = carry
    stepped, obs, action, reward, next_obs, terminated, truncated = outcome
    key = jax.random.fold_in(key, 2 * t)
    seen = actor.observe(acted, obs, action, reward, next_obs, terminated, truncated, key)
    return select(stepped, seen, before)


def act(
    actor: Actor, carry: PyTree, obs: jax.Array, key: jax.Array, t: Any
) -> tuple[jax.Array, PyTree, dict[str, jax.Array]]:
    """The action of step t."""
    return actor.act(carry, obs, jax.random.fold_in(key, 2 * t + 1))


@jax.jit
def _advance(
    actor: Actor, carry: Carry, outcome: Outcome, obs: jax.Array, key: jax.Array, t: Any
) -> tuple[jax.Array, Carry, dict[str, jax.Array]]:
    """What the last step led to and then the next action, in one compiled call."""
    before = observe(actor, carry, outcome, key, t)
    action, acted, extras = act(actor, before, obs, key, t)
    return action, (before, acted), extras


@dataclass
class _Step:
    """What happened in the K slots that acted."""

    slots: np.ndarray
    """[K], in order."""
    fields: dict[str, np.ndarray]
    """obs, action, reward, next_obs, terminated, truncated, and other figures, each [K, ...]."""
    extras: dict[str, jax.Array]
    """The actor's, of all lanes [M, N, ...]."""

    @classmethod
    def of(
        cls,
        active: np.ndarray,
        obs: np.ndarray,
        action: np.ndarray,
        result: StepResult,
        extras: dict[str, jax.Array],
    ) -> _Step:
        """From obs and actions of all slots, and what the pool answered the active ones."""
        acted = slice(None) if result.acted is None else result.acted
        slots = active[acted]
        rows: Any = slice(None) if len(slots) == len(obs) else slots
        fields = {
            "obs": obs[rows],
            "action": action[rows],
            "reward": result.reward[acted],
            "next_obs": result.next_obs[acted],
            "terminated": result.terminated[acted],
            "truncated": result.truncated[acted],
            "extras.success": result.success[acted],
        }
        fields |= {f"extras.info/{name}": x[acted] for name, x in result.info.items()}
        return cls(slots, fields, extras)


OUTCOME = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
"""The fields of a step that an actor observes."""


class _Record:
    """A rollout being written: arrays [M * N, T, ...], zero where nothing was written.

    Every lane has a place of its own to write at, so that one that waits leaves no gap.
    """

    def __init__(self, spec: EnvSpec, shape: tuple[int, int], num_steps: int) -> None:
        self.shape, self.num_steps = shape, num_steps
        self.num_slots = shape[0] * shape[1]
        self.spec = spec
        self.arrays: dict[str, np.ndarray] = {}
        self.lengths = np.zeros(self.num_slots, int)
        self.in_step = True
        """Whether all lanes have written at every step, so that all are at the same place."""

    def write(self, step: _Step) -> None:
        """Record one step."""
        if not len(step.slots):
            return
        self.in_step &= len(step.slots) == self.num_slots
        rows: Any = slice(None) if self.in_step else step.slots
        at = self.lengths[0] if self.in_step else self.lengths[rows]
        fields = step.fields | {"valid": np.ones(len(step.slots), bool)}
        for name, every in step.extras.items():
            flat = np.asarray(every).reshape(self.num_slots, *every.shape[2:])
            fields[f"extras.{name}"] = flat[rows]
        if not self.spec.has_success:
            del fields["extras.success"]
        for name, x in fields.items():
            self._array(name, x)[rows, at] = x
        self.lengths[rows] += 1

    def no_step(self) -> _Step:
        """Before the first step: no slot has acted."""
        spec = self.spec
        obs = np.zeros((0, spec.observation_size), np.float32)
        action = np.zeros((0, *spec.action.shape), spec.action.dtype)
        flag, reward = np.zeros(0, bool), np.zeros(0, np.float32)
        fields = dict(zip(OUTCOME, (obs, action, reward, obs, flag, flag), strict=True))
        return _Step(np.arange(0), fields, {})

    def outcome(self, step: _Step) -> Outcome:
        """What the actor observes of a step; zeros where a lane did not act."""
        stepped = np.ones(len(step.slots), bool)
        values = (stepped, *(step.fields[name] for name in OUTCOME))
        if len(step.slots) < self.num_slots:
            values = tuple(self._spread(step.slots, x) for x in values)
        stepped, obs, action, reward, next_obs, terminated, truncated = map(self.lanes, values)
        return stepped, obs, action, reward, next_obs, terminated, truncated

    def lanes(self, x: np.ndarray) -> np.ndarray:
        """[M * N, ...] as [M, N, ...]."""
        return x.reshape(*self.shape, *x.shape[1:])

    def rollout(self, carry: PyTree) -> Rollout:
        """What was recorded."""
        arrays = {name: self.lanes(x) for name, x in self.arrays.items()}
        extras = {
            name.removeprefix("extras."): arrays.pop(name)
            for name in list(arrays)
            if name.startswith("extras.")
        }
        return Rollout(**arrays, extras=extras, final_carry=carry)

    def _spread(self, slots: np.ndarray, x: np.ndarray) -> np.ndarray:
        """[K, ...] of some slots as [M * N, ...]."""
        every = np.zeros((self.num_slots, *x.shape[1:]), x.dtype)
        every[slots] = x
        return every

    def _array(self, name: str, like: np.ndarray) -> np.ndarray:
        if name not in self.arrays:
            shape = (self.num_slots, self.num_steps, *like.shape[1:])
            self.arrays[name] = np.zeros(shape, like.dtype)
        return self.arrays[name]
