"""WorkerPool: a pool in each of several workers, processes of this machine or Ray actors.

`run` sends a piece of work to where the environments are, so that policy and tasks go out once for
a whole rollout and nothing travels in a step. What a worker does in a call is a function of the
call and of the state that its pool was left in; each answer brings that state back. So if a worker
is lost, another can take up the state and do the call again: the data are the same, bit for bit,
as if nothing had happened.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.util import Finalize
from typing import Any, Protocol

import jax
import numpy as np

from adaptax.core.errors import EnvironmentFault, check
from adaptax.core.experience import PyTree, Step
from adaptax.core.spec import EnvSpec
from adaptax.envs.pools.pool import AT_WORK, Pool, check_actions, check_reset, closed_on_error, idle
from adaptax.envs.pools.remote_fault import FaultReport
from adaptax.envs.task import Task

MakePool = Callable[[int], Pool]
"""Makes a pool of so many slots; can be pickled."""
Work = Callable[..., Any]
"""`work(share, *args)`, a function at the top level of a module."""
Job = tuple[Work, Any]
"""The work, and what stands for its `args`."""


_NUMERICS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
)


def jax_settings() -> dict[str, Any]:
    """JAX's settings in this process that decide which numbers a policy computes."""
    return {name: getattr(jax.config, name) for name in _NUMERICS}


class LostError(Exception):
    """A worker that died, or whose answer did; says how."""


class SilentError(Exception):
    """A worker that does not answer; says for how long."""

    def __init__(self, ticket: Any, problem: str) -> None:
        self.ticket = ticket
        super().__init__(problem)


class Crew(Protocol):
    """Workers that host pools, one `Host` in each; shared by all pools of a suite.

    A run's pools, for training and for evaluation, take turns, so that each worker has one call at
    a time. They start with the first pool and end with the last.
    """

    num_workers: int
    max_attempts: int
    """Workers that may be lost one after another in one call before it counts as its own fault."""

    def enter(self, num_workers: int) -> int:
        """A number for a new pool, when the first so many workers have started."""

    def leave(self, key: int) -> None:
        """Close a pool; the last one ends the workers."""

    def name(self, worker: int) -> str:
        """What people call it."""

    def put(self, args: tuple[Any, ...]) -> Any:
        """Arguments that several workers are to be sent."""

    def send(self, worker: int, method: str, key: int, *args: Any) -> Any:
        """Have a worker's host do something with a pool; gives what stands for its answer."""

    def wait(self, pending: Sequence[Any]) -> Any:
        """The first of these that is there; raises a SilentError where none comes."""

    def answer(self, ticket: Any) -> Any:
        """What was answered; raises a LostError where the worker was lost."""

    def replace(self, worker: int) -> None:
        """Put a new worker, without pools, in the place of one that was lost."""


@dataclass
class _Part:
    """The slots that one worker hosts."""

    worker: int
    slots: np.ndarray
    """In a row."""
    name: str
    state: PyTree = None
    """What its pool saved at the end of the last call; None before the first."""


class WorkerPool:
    """P slots shared out to the workers of `crew`, each with a pool made by `make_pool`.

    A fault, or a worker that is lost and cannot be replaced, raises an EnvironmentFault and ends
    the pool.
    """

    def __init__(self, make_pool: MakePool, spec: EnvSpec, crew: Crew, num_slots: int) -> None:
        check(num_slots > 0, f"num_slots must be greater than 0, not {num_slots}")
        self.spec, self.num_slots = spec, num_slots
        self._make_pool, self._crew = make_pool, crew
        self._tasks: list[Task | None] = [None] * num_slots
        split = np.array_split(np.arange(num_slots), min(crew.num_workers, num_slots))
        names = [f"{crew.name(i)} (slots {s[0]} to {s[-1]})" for i, s in enumerate(split)]
        self._parts = [_Part(i, *part) for i, part in enumerate(zip(split, names, strict=True))]
        self._key = crew.enter(len(self._parts))
        self._end = Finalize(self, crew.leave, (self._key,), exitpriority=110)
        self._collect({part.worker: None for part in self._parts})

    def run(self, work: Work, *args: Any) -> list[Any]:
        """`work(share, *args)` in every worker, on its own share of the pool."""
        shared = self._crew.put(args)
        return self._collect({part.worker: (work, shared) for part in self._parts})

    def reset(self, slots: np.ndarray, seeds: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
        """Start an episode in each of K slots; gives obs [K, O]."""
        check_reset(slots, seeds, tasks)
        places = self._places(slots)
        jobs = {
            worker: (_reset, (slots[which], seeds[which], [tasks[i] for i in which]))
            for worker, which in places.items()
        }
        obs = np.zeros((len(slots), self.spec.observation_size), np.float32)
        for which, rows in zip(places.values(), self._collect(jobs), strict=True):
            obs[which] = rows
        for slot, task in zip(slots.tolist(), tasks, strict=True):
            self._tasks[slot] = task
        return obs

    def step(self, slots: np.ndarray, actions: np.ndarray) -> Step:
        """Act in K slots, at the price of a call to each worker: `run` does better."""
        check_actions(self.spec, actions, len(slots))
        places = self._places(slots)
        jobs = {w: (_step, (slots[which], actions[which])) for w, which in places.items()}
        back = np.argsort(np.concatenate(list(places.values())))
        step: Step = jax.tree.map(lambda *rows: np.concatenate(rows)[back], *self._collect(jobs))
        return step

    def save(self) -> PyTree:
        """The state of all slots: what the workers' pools saved, one below the other."""
        return jax.tree.map(_padded_below, *(part.state for part in self._parts))

    def restore(
        self, saved: PyTree, tasks: Sequence[Task], at_work: Callable[[], None] = idle
    ) -> None:
        """Go on exactly where `save` stood; `tasks` are of the P slots."""
        jobs = {}
        for part in self._parts:
            rows = jax.tree.map(lambda x, slots=part.slots: np.asarray(x)[slots], saved)
            jobs[part.worker] = (_restore, (rows, [tasks[i] for i in part.slots]))
        self._collect(jobs)
        self._tasks[:] = tasks

    def close(self) -> None:
        """Close the workers' pools; the last pool of a crew ends its workers."""
        self._end()

    def _places(self, slots: np.ndarray) -> dict[int, np.ndarray]:
        """By worker, the places in `slots` of those that it hosts."""
        found = {part.worker: np.flatnonzero(np.isin(slots, part.slots)) for part in self._parts}
        return {worker: which for worker, which in found.items() if len(which)}

    def _collect(self, jobs: Mapping[int, Job | None]) -> list[Any]:
        """What each worker's job gives, None of one that is to make its pool and do nothing.

        The first fault is raised as soon as it is known.
        """
        if not self._end.still_active():
            raise EnvironmentFault("this pool is closed")
        results, losses = {}, dict.fromkeys(jobs, 0)
        with closed_on_error(self):
            pending = {self._send(worker, jobs[worker]): worker for worker in jobs}
            while pending:
                ticket = self._first(pending)
                part = self._parts[pending.pop(ticket)]
                try:
                    answer = self._answer(part, ticket)
                    if answer is None:  # this worker has taken the place of one that was lost
                        self._await(part, self._make(part))
                except LostError as loss:
                    losses[part.worker] += 1
                    self._replace(part, loss, losses[part.worker])
                    answer = None
                if answer is None:
                    pending[self._send(part.worker, jobs[part.worker])] = part.worker
                else:
                    results[part.worker], part.state = answer
        return [results[worker] for worker in jobs]

    def _first(self, pending: dict[Any, int]) -> Any:
        """The first of the answers that workers owe."""
        try:
            return self._crew.wait(list(pending))
        except SilentError as silence:
            name = self._parts[pending[silence.ticket]].name
            raise EnvironmentFault(f"{name} {silence}") from None

    def _replace(self, part: _Part, loss: LostError, attempt: int) -> None:
        """Have another worker take the place of one that was lost, unless it is one too many."""
        most = self._crew.max_attempts
        if attempt == most:
            often = f", {most} times in a call" if most > 1 else ""
            raise EnvironmentFault(f"{part.name}: {loss}{often}") from loss
        self._crew.replace(part.worker)

    def _send(self, worker: int, job: Job | None) -> Any:
        if job is None:
            return self._make(self._parts[worker])
        return self._crew.send(worker, "run", self._key, *job)

    def _answer(self, part: _Part, ticket: Any) -> Any:
        """What a worker has answered; None where it knows nothing of this pool."""
        answer = self._crew.answer(ticket)
        if isinstance(answer, FaultReport):
            answer.raise_here(part.name, int(part.slots[0]))
        return answer

    def _await(self, part: _Part, ticket: Any) -> None:
        """Wait for an answer that only says that all is well."""
        self._answer(part, self._first({ticket: part.worker}))

    def _make(self, part: _Part) -> Any:
        """Have a worker make its pool, in the state of its last answer."""
        tasks = [self._tasks[i] for i in part.slots]
        job = (self._make_pool, part.slots, part.state, tasks)
        return self._crew.send(part.worker, "make", self._key, *job)


class Share:
    """A worker's part of a pool, with slots [K] numbered as in the whole."""

    def __init__(self, pool: Pool, slots: np.ndarray, at_work: Callable[[], None]) -> None:
        self.pool, self.spec, self.slots = pool, pool.spec, slots
        self._at_work = at_work

    def reset(self, slots: np.ndarray, seeds: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
        """Start an episode in each of these slots."""
        self._at_work()
        return self.pool.reset(slots - self.slots[0], seeds, tasks)

    def step(self, slots: np.ndarray, actions: np.ndarray) -> Step:
        """Act in these slots."""
        self._at_work()
        step = self.pool.step(slots - self.slots[0], actions)
        if step.valid is not None:
            raise TypeError("a pool that resets slots on its own cannot live in a worker")
        return step

    def restore(self, saved: PyTree, tasks: Sequence[Task]) -> None:
        """Bring all slots to where `saved` says, whose tasks these are."""
        self.pool.restore(saved, tasks, self._at_work)


class Host:
    """What lives in a worker: shares of pools that do the work they are sent."""

    def __init__(self, at_work: Callable[[], None] = lambda: None) -> None:
        self._at_work = at_work
        """Called before every step, and by pools (`AT_WORK`), so that a worker that hangs can be
        told from a long call."""
        self._shares: dict[int, Share] = {}

    def started(self, settings: dict[str, Any]) -> None:
        """Have policies computed as in the process that sends these settings, but on one thread.

        As many workers as there are cores would fight over them otherwise. Where there is a GPU
        the policies stay with the environments.
        """
        os.environ["PJRT_NPROC"] = "1"  # XLA's pool of threads; it is made with the first array
        here = {"jax_platforms": "cpu", "jax_cpu_enable_async_dispatch": False}
        for name, value in {**settings, **here}.items():
            jax.config.update(name, value)  # type: ignore[no-untyped-call]

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """What a function gives, or what went wrong."""
        try:
            return function(*args)
        except (Exception, SystemExit) as error:
            return FaultReport.of(error)

    def make(
        self,
        key: int,
        make_pool: MakePool,
        slots: np.ndarray,
        saved: PyTree,
        tasks: Sequence[Task],
    ) -> Any:
        """Make a pool, in a saved state unless that is None.

        Gives what `run` gives of no work, (None, None), or what went wrong.
        """
        AT_WORK.set(self._at_work)
        try:
            pool = make_pool(len(slots))
            share = self._shares[key] = Share(pool, slots, self._at_work)
            if saved is not None:
                share.restore(saved, tasks)
        except Exception as error:
            return FaultReport.of(error)
        return None, None

    def run(self, key: int, work: Work, args: tuple[Any, ...]) -> Any:
        """What the work gives and the pool's state after it, or what went wrong.

        None if there is no such pool here.
        """
        if key not in self._shares:
            return None
        share = self._shares[key]
        try:
            return work(share, *args), share.pool.save()
        except Exception as error:
            return FaultReport.of(error)

    def drop(self, key: int) -> None:
        """Close a pool."""
        if key in self._shares:
            self._shares.pop(key).pool.close()

    def close(self) -> None:
        """Close all pools."""
        for key in list(self._shares):
            self.drop(key)


def _padded_below(*rows: np.ndarray) -> np.ndarray:
    """Workers' arrays [K, ...] as one; zeros fill up those of shorter episodes, [K, t, ...]."""
    _, *longest = (max(sizes) for sizes in zip(*(x.shape for x in rows), strict=True))
    missing = [np.subtract(longest, x.shape[1:]).astype(int) for x in rows]
    padded = [np.pad(x, [(0, 0), *((0, n) for n in m)]) for x, m in zip(rows, missing, strict=True)]
    return np.concatenate(padded)


def _reset(share: Share, slots: np.ndarray, seeds: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
    return share.reset(slots, seeds, tasks)


def _step(share: Share, slots: np.ndarray, actions: np.ndarray) -> Step:
    return share.step(slots, actions)


def _restore(share: Share, saved: PyTree, tasks: Sequence[Task]) -> None:
    share.restore(saved, tasks)
