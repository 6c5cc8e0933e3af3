"""The sampler: tasks, whole episodes or steps, with data that do not depend on the pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.errors import SnapshotError, check, unknown_name
from adaptax.core.experience import PyTree, Rollout
from adaptax.core.rng import named_generator, named_key, stream_root
from adaptax.core.spec import check_task_count
from adaptax.envs.env import Env, TaskArrays
from adaptax.envs.pools.pool import Pool
from adaptax.envs.suite import Suite
from adaptax.envs.task import Task, TaskDistribution
from adaptax.sampling.actors import Actor, ByLane
from adaptax.sampling.compiled_engine import compiled_loop
from adaptax.sampling.draws import (
    Counted,
    Drawn,
    Planned,
    counted_episodes,
    example_tasks,
    raise_fault,
    stacked_draws,
)
from adaptax.sampling.host_engine import Cursor, begin, host_loop
from adaptax.sampling.in_program import Draw, Outcome, Plan, Standing
from adaptax.sampling.size import check_rollout_fits, check_tasks_fit, steps_of
from adaptax.sampling.statistics import EpisodeStatistics, Unfinished
from adaptax.sampling.worker_engine import worker_loop

ENGINES: dict[str, Any] = {"host": host_loop, "compiled": compiled_loop, "workers": worker_loop}
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
        self._standing: Standing | None = None
        """The cursor and its pool's lanes as programs take them, while they are in step."""
        self._iteration_tasks: tuple[Task, ...] = ()
        self._pools: dict[int, Pool] = {}
        self.programs: dict[Any, Any] = {}
        """Whole iterations on this sampler, by the algorithm."""
        if suite.engine not in ENGINES:
            raise unknown_name("engine", suite.engine, ENGINES)
        self._loop = ENGINES[suite.engine]

    def sample_tasks(self, n: int) -> tuple[Task, ...]:
        """The next n tasks; where they can be listed, each comes once before any repeats."""
        check_task_count(n, self.spec.num_classes)
        check_tasks_fit(n)
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

    def begin_iteration(self) -> None:
        """Have `tasks_of_iteration` draw new ones."""
        self._iteration_tasks = ()

    def tasks_of_iteration(self, n: int) -> tuple[Task, ...]:
        """The `n` tasks of this iteration: drawn when first asked for, the same until it ends."""
        if len(self._iteration_tasks) != n:
            self._iteration_tasks = self.sample_tasks(n)
        return self._iteration_tasks

    def fixed_tasks(self, n: int) -> tuple[Task, ...]:
        """The tasks of an algorithm that always trains on the same ones; no counter moves.

        n of them, or all where fewer are listed.
        """
        check_task_count(n, self.spec.num_classes)
        n = n if self.num_listed is None else min(n, self.num_listed)
        return self.tasks.sample(named_generator(self.seed, self.stream, "fixed tasks"), n)

    def episodes(
        self,
        actor: Actor,
        tasks: tuple[Task, ...],
        num_lanes: int,
        num_episodes: int,
        most_steps: int | None = None,
    ) -> Rollout:
        """`num_episodes` episodes in each of `num_lanes` lanes a task, from fresh resets.

        [M, N, T] with T = num_episodes * horizon; episodes in a lane follow one another. They are
        whole, unless T is `most_steps`, which cuts the one under way.
        """
        num_steps = steps_of(self.spec, num_episodes, most_steps)
        check_rollout_fits(self.spec, len(tasks), num_lanes, num_steps)
        cursor = self._start(actor, tasks, num_lanes)
        rollout, _ = self._run(actor, cursor, num_steps, num_episodes)
        self._stand(None)
        return rollout

    def steps(
        self, actor: Actor, tasks: tuple[Task, ...], num_lanes: int, num_steps: int
    ) -> Rollout:
        """`num_steps` steps in every lane, going on where the last call stopped.

        It starts afresh when tasks or lanes changed or `episodes` was called in between. Where an
        environment spends steps on resets of its own, a lane has as many fewer.
        """
        check_rollout_fits(self.spec, len(tasks), num_lanes, num_steps)
        cursor = self._cursor
        if cursor is None or not self.goes_on(tasks, num_lanes):
            cursor = self._start(actor, tasks, num_lanes)
        if cursor.carry_is_flat:
            begun = actor.begin(*cursor.shape, cursor.key)
            cursor.carry = jax.tree.unflatten(jax.tree.structure(begun), cursor.carry)
            cursor.carry_is_flat = False
        rollout, after = self._run(actor, cursor, num_steps, None)
        self._stand(after)
        return rollout

    def goes_on(self, tasks: tuple[Task, ...], num_lanes: int) -> bool:
        """Whether `steps` with these would go on where the last call stopped."""
        cursor = self._cursor
        return cursor is not None and _same((cursor.tasks, cursor.shape), tasks, num_lanes)

    @property
    def env(self) -> Env | None:
        """The environment, where it can be part of a program."""
        return self._pool(1).env if self.suite.engine == "compiled" else None  # type: ignore[attr-defined]

    @property
    def num_threads(self) -> int:
        """Threads among which the lanes of a compiled environment are shared out."""
        return self._pool(1).num_threads  # type: ignore[attr-defined]

    @property
    def num_listed(self) -> int | None:
        """Tasks that there are; None where they cannot be listed."""
        listed = self.tasks.tasks
        return None if listed is None else len(listed)

    def example_tasks(self) -> TaskArrays:
        """Parameters of a few tasks [K, ...], as programs take them."""
        assert self.env is not None
        return example_tasks(self.env, self.tasks)

    def draw(self, plan: Plan, num_iterations: int, num_cycles: int) -> Drawn:
        """The draws of iterations of a plan, each of `num_cycles` cycles; counters go on."""
        rows, cursor = list[tuple[Planned, ...]](), self._cursor
        place = None if cursor is None else (cursor.tasks, cursor.shape)
        for number in range(num_iterations * num_cycles):
            if number % num_cycles == 0:
                self.begin_iteration()
            asked = [task for method, n in plan.requests for task in getattr(self, method)(n)]
            row = []
            for call in plan.calls:
                tasks, stays = tuple(asked[i] for i in call.tasks), call.num_episodes is None
                fresh = place is None or not stays or not _same(place, tasks, call.num_lanes)
                place = (tasks, call.shape) if stays else None
                row.append(Planned(tasks, self._num_calls if fresh else None))
                self._num_calls += fresh
            rows.append(tuple(row))
        return Drawn(plan, num_cycles, tuple(rows))

    def arrays_of(self, drawn: Drawn, like: TaskArrays) -> tuple[tuple[Draw, ...], Any]:
        """The draws as arrays [K, C, ...], and what must be kept alive while a program has them."""
        assert self.env is not None
        return stacked_draws(self.env, (self.seed, self.stream), drawn, like)

    def standing(self, like: Standing | None) -> Standing | None:
        """Where `steps` would go on, in the shapes of `like`; zeros where it would start afresh."""
        cursor = self._cursor
        if like is None or cursor is None or cursor.shape != like.reward_sum.shape:
            return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like)
        if self._standing is None:
            pool: Any = self._pool(cursor.num_slots)
            leaves, form = jax.tree.leaves(cursor.carry), jax.tree.structure(like.carry)
            fits = [np.shape(x) for x in leaves] == [x.shape for x in jax.tree.leaves(like.carry)]
            if not fits:
                raise SnapshotError("what the agent remembers, by the snapshot, has other shapes")
            found = Standing(
                lanes=pool.lanes,
                carry=jax.tree.unflatten(form, leaves),
                episode=cursor.episode,
                t=np.uint32(cursor.t),
                root=cursor.root,
                key=jax.random.key_data(cursor.key),
                tasks={k: x[:: cursor.shape[1]] for k, x in pool.task_arrays.items()},
                reward_sum=cursor.unfinished.reward_sum,
            )
            self._standing = jax.tree.map(lambda x, y: jnp.asarray(x, y.dtype), found, like)
        return self._standing

    def count(
        self, drawn: Drawn, outcomes: Sequence[Outcome], standing: Standing | None
    ) -> list[Counted]:
        """Count what a program did with its draws, iteration by iteration.

        `steps` then goes on from `standing`. Leaves of `outcomes` are NumPy arrays [K, C, ...].
        Raises the first fault that there was.
        """
        raise_fault(drawn, outcomes)
        unfinished = None if self._cursor is None else self._cursor.unfinished
        counted, unfinished = counted_episodes(drawn, outcomes, unfinished)
        self.num_steps += sum(each.num_steps for each in counted)
        self.num_episodes += sum(each.num_episodes for each in counted)
        self._stand(None)
        if standing is not None and unfinished is not None:
            call, last = drawn.plan.calls[-1], drawn.rows[-1][-1]
            pool: Any = self._pool(call.shape[0] * call.shape[1])
            pool.take(standing.lanes, [t for t in last.tasks for _ in range(call.num_lanes)])
            self._standing = standing
            self._cursor = Cursor(
                shape=call.shape,
                tasks=last.tasks,
                root=np.asarray(standing.root),
                key=jax.random.wrap_key_data(standing.key),
                obs=standing.lanes.obs,
                carry=standing.carry,
                episode=standing.episode,
                unfinished=replace(unfinished, reward_sum=np.asarray(standing.reward_sum)),
                t=int(standing.t),
            )
        return counted

    def restart(self) -> None:
        """Forget all counters: the next calls repeat the first ones."""
        self.num_steps = self.num_episodes = self._num_calls = self._num_tasks = 0
        self.statistics.take()
        self._stand(None)

    def abandon(self) -> None:
        """Drop unfinished episodes and all pools after a fault; counters go on."""
        self.close()
        self.statistics.take()
        self._stand(None)

    def save(self) -> PyTree:
        """Counters, and the state of unfinished episodes: nested dicts of arrays."""
        counters = [self.num_steps, self.num_episodes, self._num_calls, self._num_tasks]
        saved: dict[str, Any] = {"counters": np.array(counters, np.int64)}
        if self._cursor is not None:
            saved["cursor"] = self._cursor.save()
            saved["pool"] = self._pool(self._cursor.num_slots).save()
        return saved

    def restore(self, saved: PyTree, *, episodes: bool = True) -> None:
        """Go on exactly where `save` was called; without `episodes`, with its counters alone."""
        counters = [int(x) for x in saved["counters"]]
        self.num_steps, self.num_episodes, self._num_calls, self._num_tasks = counters
        self._stand(None)
        if episodes and "cursor" in saved:
            cursor = Cursor.restore(saved["cursor"])
            cursor.tasks = tuple(map(self._own, cursor.tasks))
            if np.shape(cursor.obs) != (cursor.num_slots, self.spec.observation_size):
                raise ValueError("its observations have another shape")
            pool = self._pool(cursor.num_slots)
            pool.restore(saved["pool"], cursor.slot_tasks())
            self._stand(cursor)

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
        if isinstance(actor, ByLane):
            actor = actor.begun()
        rollout, after = self._loop(pool, actor, cursor, num_steps, num_episodes)
        ended = np.asarray(rollout.terminated) | np.asarray(rollout.truncated)
        self.num_steps += int(np.asarray(rollout.valid).sum())
        self.num_episodes += int(ended.sum())
        after.unfinished = self.statistics.add(rollout, cursor.tasks, cursor.unfinished)
        rollout = replace(
            rollout, initial_carry=cursor.carry, initial_return=cursor.unfinished.reward_sum
        )
        return rollout, after

    def _own(self, task: Task) -> Task:
        """A task of a snapshot as it is listed here: a snapshot has lists where it has tuples."""
        listed = self.tasks.tasks or ()
        own = listed[task.index] if 0 <= task.index < len(listed) else task
        return own if own.same_as(task) else task

    def _stand(self, cursor: Cursor | None) -> None:
        self._cursor, self._standing = cursor, None

    def _pool(self, num_slots: int) -> Pool:
        if num_slots not in self._pools:
            self._pools[num_slots] = self.suite.make_pool(num_slots)
        return self._pools[num_slots]

    def _generator(self, counter: int) -> np.random.Generator:
        return named_generator(self.seed, self.stream, "tasks", counter)


def _same(
    place: tuple[tuple[Task, ...], tuple[int, int]], tasks: tuple[Task, ...], num_lanes: int
) -> bool:
    """Whether these are the tasks and lanes of `place`."""
    before, shape = place
    if shape != (len(tasks), num_lanes):
        return False
    pairs = zip(before, tasks, strict=True)
    return all(old.same_as(new) for old, new in pairs)
