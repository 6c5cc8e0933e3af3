"""The sampler: tasks, whole episodes or steps, with data that do not depend on the pool."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from adaptax.core.errors import check, unknown_name
from adaptax.core.experience import PyTree, Rollout
from adaptax.core.rng import named_generator, named_key, stream_root
from adaptax.core.spec import check_task_count
from adaptax.envs.pools.pool import Pool
from adaptax.envs.suite import Suite
from adaptax.envs.task import Task, TaskDistribution
from adaptax.sampling.actors import Actor
from adaptax.sampling.compiled_engine import compiled_loop
from adaptax.sampling.host_engine import Cursor, begin, host_loop
from adaptax.sampling.ray_engine import ray_loop
from adaptax.sampling.statistics import EpisodeStatistics, Unfinished

ENGINES: dict[str, Any] = {"host": host_loop, "compiled": compiled_loop, "ray": ray_loop}
"""The loops of policy and environment, by `Suite.engine`."""


class Sampler:
    """Runs actors on a suite's tasks.

    Every draw follows from (seed, stream, number of the call): the same calls give the same data
    on any pool and with any number of workers. Its counters and its place in unfinished episodes
    are a pytree (`save`, `restore`).
    """

    def __init__(self, suite: Suite, tasks: TaskDistribution, seed: int, stream: str) -> None:
        self.spec = suite.spec
        self.suite, self.tasks, self.seed, self.stream = suite, tasks, seed, stream
        self.num_steps = 0
        """Environment steps so far."""
        self.num_episodes = 0
        """Episodes ended so far."""
        self.statistics = EpisodeStatistics()
        """Figures of the episodes that ended since they were last taken."""
        self._num_calls = 0
        self._num_tasks = 0
        self._cursor: Cursor | None = None
        self._pools: dict[int, Pool] = {}
        if suite.engine not in ENGINES:
            raise unknown_name("engine", suite.engine, ENGINES)
        self._loop = ENGINES[suite.engine]

    def sample_tasks(self, n: int) -> tuple[Task, ...]:
        """The next n tasks; where they can be listed, each comes once before any repeats."""
        check_task_count(n, self.spec.num_classes)
        first, self._num_tasks = self._num_tasks, self._num_tasks + n
        listed = self.tasks.tasks
        if listed is None:
            return self.tasks.sample(self._generator(first), n)
        if len(listed) == 1:  # nothing to draw
            return listed * n
        drawn: list[Task] = []
        while len(drawn) < n:
            cycle, place = divmod(first + len(drawn), len(listed))
            order = self.tasks.sample(self._generator(cycle), len(listed))
            drawn.extend(order[place : place + n - len(drawn)])
        return tuple(drawn)

    def fixed_tasks(self, n: int) -> tuple[Task, ...]:
        """The tasks of an algorithm that always trains on the same ones; no counter moves.

        n of them, or all where fewer are listed.
        """
        check_task_count(n, self.spec.num_classes)
        listed = self.tasks.tasks
        n = n if listed is None else min(n, len(listed))
        return self.tasks.sample(named_generator(self.seed, self.stream, "fixed tasks"), n)

    def episodes(
        self, actor: Actor, tasks: tuple[Task, ...], num_lanes: int, num_episodes: int
    ) -> Rollout:
        """Whole episodes, `num_episodes` in each of `num_lanes` lanes a task, from fresh resets.

        [M, N, T] with T = num_episodes * horizon; episodes in a lane follow one another.
        """
        cursor = self._start(actor, tasks, num_lanes)
        horizon = num_episodes * self.spec.horizon
        rollout, _ = self._run(actor, cursor, horizon, num_episodes)
        self._cursor = None
        return rollout

    def steps(
        self, actor: Actor, tasks: tuple[Task, ...], num_lanes: int, num_steps: int
    ) -> Rollout:
        """`num_steps` steps in every lane, going on where the last call stopped.

        It starts afresh when tasks or lanes changed or `episodes` was called in between. Where an
        environment spends steps on resets of its own, a lane has as many fewer.
        """
        cursor = self._cursor
        if cursor is None or not self.goes_on(tasks, num_lanes):
            cursor = self._start(actor, tasks, num_lanes)
        if isinstance(cursor.carry, list):
            begun = actor.begin(*cursor.shape, cursor.key)
            cursor.carry = jax.tree.unflatten(jax.tree.structure(begun), cursor.carry)
        rollout, self._cursor = self._run(actor, cursor, num_steps, None)
        return rollout

    @property
    def unfinished_tasks(self) -> tuple[Task, ...]:
        """Those on which `steps` would go on; none after `episodes`."""
        return () if self._cursor is None else self._cursor.tasks

    def goes_on(self, tasks: tuple[Task, ...], num_lanes: int) -> bool:
        """Whether `steps` with these would go on where the last call stopped."""
        return self._cursor is not None and _same(self._cursor, tasks, num_lanes)

    def restart(self) -> None:
        """Forget all counters: the next calls repeat the first ones."""
        self.num_steps = self.num_episodes = self._num_calls = self._num_tasks = 0
        self._cursor = None

    def abandon(self) -> None:
        """Drop unfinished episodes and all pools after a fault; counters go on."""
        self.close()
        self.statistics.take()
        self._cursor = None

    def save(self) -> PyTree:
        """Counters, and the state of unfinished episodes: nested dicts of arrays."""
        counters = [self.num_steps, self.num_episodes, self._num_calls, self._num_tasks]
        saved: dict[str, Any] = {"counters": np.array(counters, np.int64)}
        if self._cursor is not None:
            saved["cursor"] = self._cursor.save()
            saved["pool"] = self._pool(self._cursor.num_slots).save()
        return saved

    def restore(self, saved: PyTree) -> None:
        """Go on exactly where `save` stood."""
        counters = [int(x) for x in saved["counters"]]
        self.num_steps, self.num_episodes, self._num_calls, self._num_tasks = counters
        self._cursor = None
        if "cursor" in saved:
            self._cursor = Cursor.restore(saved["cursor"])
            pool = self._pool(self._cursor.num_slots)
            pool.restore(saved["pool"], self._cursor.slot_tasks())

    def close(self) -> None:
        """Free all pools."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()

    def _start(self, actor: Actor, tasks: tuple[Task, ...], num_lanes: int) -> Cursor:
        check(len(tasks) > 0 and num_lanes > 0, "a rollout needs at least one task and one lane")
        call, self._num_calls = self._num_calls, self._num_calls + 1
        shape = (len(tasks), num_lanes)
        slots = np.arange(len(tasks) * num_lanes)
        root = stream_root(self.seed, self.stream, "episodes", call)
        key = named_key(self.seed, self.stream, "actions", call)
        cursor = Cursor(
            shape=shape,
            tasks=tasks,
            root=root,
            key=key,
            obs=None,
            carry=begin(actor, shape, key),
            episode=np.zeros(len(slots), np.uint32),
            unfinished=Unfinished.fresh(shape),
        )
        seeds = cursor.seeds(slots, cursor.episode)
        cursor.obs = self._pool(len(slots)).reset(slots, seeds, cursor.slot_tasks())
        return cursor

    def _run(
        self, actor: Actor, cursor: Cursor, num_steps: int, num_episodes: int | None
    ) -> tuple[Rollout, Cursor]:
        pool = self._pool(cursor.num_slots)
        rollout, after = self._loop(pool, actor, cursor, num_steps, num_episodes)
        ended = np.asarray(rollout.terminated) | np.asarray(rollout.truncated)
        self.num_steps += int(np.asarray(rollout.valid).sum())
        self.num_episodes += int(ended.sum())
        after.unfinished = self.statistics.add(rollout, cursor.tasks, cursor.unfinished)
        rollout = replace(
            rollout, initial_carry=cursor.carry, initial_return=cursor.unfinished.reward_sum
        )
        return rollout, after

    def _pool(self, num_slots: int) -> Pool:
        if num_slots not in self._pools:
            self._pools[num_slots] = self.suite.make_pool(num_slots)
        return self._pools[num_slots]

    def _generator(self, counter: int) -> np.random.Generator:
        return named_generator(self.seed, self.stream, "tasks", counter)


def _same(cursor: Cursor, tasks: tuple[Task, ...], num_lanes: int) -> bool:
    same_tasks = [t.plain() for t in tasks] == [t.plain() for t in cursor.tasks]
    return same_tasks and cursor.shape == (len(tasks), num_lanes)
