"""ProcessPool: slow Python environments in worker processes, several slots each.

A worker hosts a pool of its own and knows three commands: reset, step, and close, which is the end
of its connection. Observations, actions and outcomes lie in shared memory that has no name: with
the last process that maps it, it is gone. Workers start by spawn and do without JAX.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection as mp_connection
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptax.core.errors import ConfigError, EnvironmentFault, check, one_line
from adaptax.core.spec import EnvSpec
from adaptax.core.step import Step
from adaptax.envs.pools.episode_log import EpisodeLog
from adaptax.envs.pools.pool import Pool, check_actions, check_reset, closed_on_error
from adaptax.envs.pools.remote_fault import FaultReport
from adaptax.envs.task import Task

if TYPE_CHECKING:  # worker processes import this module, and do without JAX
    from adaptax.core.experience import PyTree

MakePool = Callable[[int], Pool]
"""Makes a pool of so many slots; can be pickled."""
START_SECONDS = 300.0
"""What workers have at least to import and make their environments, however busy the machine."""
GRACE_SECONDS = 2.0
"""What workers have to close their environments before they are killed."""
_ANSWERS = ("reward", "terminated", "truncated")
"""Fields of a step that a worker answers with, beside the observation and the info."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""A terminal or a batch system sends them to every process of a run: they are for the parent."""


class ProcessPool:
    """P slots shared out to worker processes, each with a pool made by `make_pool`.

    A fault, a worker that died and one that has not answered within `timeout` seconds all raise
    an EnvironmentFault and end the pool.
    """

    def __init__(
        self,
        make_pool: MakePool,
        spec: EnvSpec,
        num_workers: int,
        num_slots: int,
        timeout: float = 300.0,
    ) -> None:
        check(num_slots > 0, f"num_slots must be greater than 0, not {num_slots}")
        check(num_workers > 0, f"num_workers must be greater than 0, not {num_workers}")
        code = pickled(make_pool)
        self.spec, self.num_slots = spec, num_slots
        self._timeout = timeout
        self._log = EpisodeLog(spec, num_slots)
        context = multiprocessing.get_context("spawn")
        memory: Any = context.RawArray(ctypes.c_ubyte, num_slots * _record(spec).itemsize)
        self._rows = np.frombuffer(memory, _record(spec))
        self._workers: list[_Worker] = []
        # Also run at exit, before multiprocessing waits for its children.
        self._end = Finalize(self, _end, (self._workers,), exitpriority=100)
        parts = np.array_split(np.arange(num_slots), min(num_workers, num_slots))
        with closed_on_error(self):
            with _stop_signals_blocked():
                for index, slots in enumerate(parts):
                    job = (memory, code, spec, int(slots[0]), len(slots))
                    self._workers.append(_start(context, index, job))
            self._await(self._workers, "start", max(timeout, START_SECONDS))

    def reset(self, slots: np.ndarray, seeds: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
        """Start an episode in each of K slots; gives obs [K, O]."""
        check_reset(slots, seeds, tasks)
        self._log.announce(slots, tasks)
        self._ask("reset", slots, lambda which: (seeds[which], [tasks[i] for i in which]))
        obs: np.ndarray = self._rows["obs"][slots]
        self._log.begin(slots, seeds, obs)
        return obs

    def step(self, slots: np.ndarray, actions: np.ndarray) -> Step:
        """Act in K slots; actions [K, *A] in [-1, 1] or integers."""
        check_actions(self.spec, actions, len(slots))
        actions = actions.astype(self.spec.action.dtype)
        self._rows["action"][slots] = actions
        self._ask("step", slots, lambda which: ())
        rows = {name: self._rows[name][slots] for name in _ANSWERS}
        info = dict(zip(self.spec.info_names, self._rows["info"][slots].T, strict=True))
        if self.spec.has_success:
            info["success"] = self._rows["success"][slots]
        obs = self._rows["obs"][slots]
        self._log.add(slots, actions, obs, rows["terminated"] | rows["truncated"])
        return Step(**rows, next_obs=obs, info=info)

    def save(self) -> PyTree:
        """The seed, the actions and the last observation of each slot's episode, each [P, ...]."""
        return self._log.save()

    def restore(self, saved: PyTree, tasks: Sequence[Task]) -> None:
        """Play the running episodes again up to where `save` stood; `tasks` are of the P slots."""
        self._log.play(saved, self, tasks)

    def close(self) -> None:
        """End the workers, at once or after GRACE_SECONDS."""
        self._end()

    def _ask(
        self, command: str, slots: np.ndarray, more: Callable[[np.ndarray], tuple[Any, ...]]
    ) -> None:
        """Have the workers of `slots` do a command; `more` of places in `slots` goes with it."""
        if not self._workers:
            raise EnvironmentFault("the worker processes have ended: this pool is closed")
        asked = []
        with closed_on_error(self):
            for worker in self._workers:
                which = np.flatnonzero((worker.first <= slots) & (slots < worker.stop))
                if len(which):
                    asked.append(worker)
                    message = (command, slots[which] - worker.first, *more(which))
                    with contextlib.suppress(ConnectionError):  # _await finds out why
                        worker.connection.send(message)
            self._await(asked, command, self._timeout)

    def _await(self, workers: Sequence[_Worker], command: str, timeout: float) -> None:
        """Wait until each has answered; raise what the first one reports or has died of."""
        deadline, waiting = time.monotonic() + timeout, list(workers)
        while waiting:
            handles = {w.connection: w for w in waiting} | {w.process.sentinel: w for w in waiting}
            ready = mp_connection.wait(list(handles), max(0.0, deadline - time.monotonic()))
            if not ready:
                raise EnvironmentFault(
                    f"{waiting[0].name} has not answered a {command} within {timeout:g} s"
                )
            for worker in {handles[handle].first: handles[handle] for handle in ready}.values():
                worker.check_answer(command)
                waiting.remove(worker)


@dataclass(frozen=True)
class _Worker:
    """A worker process as the parent sees it: it hosts the slots `first` to `stop - 1`."""

    name: str
    first: int
    stop: int
    process: Any
    connection: Connection

    def check_answer(self, command: str) -> None:
        """Return if the worker has done as it was told; raise what went wrong if not."""
        try:
            report = self.connection.recv() if self.connection.poll() else self._death(command)
        except (EOFError, ConnectionError):
            report = self._death(command)
        if report is not None:
            report.raise_here(self.name, self.first)

    def _death(self, command: str) -> FaultReport:
        self.process.join(GRACE_SECONDS)
        code = self.process.exitcode
        killed = code is not None and code < 0
        how = f"was killed by {signal.Signals(-code).name}" if killed else f"ended with code {code}"
        hint = ""
        if command == "start":
            hint = '; a script that starts workers does so under `if __name__ == "__main__":`'
        return FaultReport(f"the process {how} during a {command}{hint}", "no traceback\n")


def pickled(make_pool: MakePool) -> bytes:
    """A pool's maker as bytes; raises a one-line ConfigError if it cannot go to a worker."""
    try:
        return pickle.dumps(make_pool)
    except Exception as error:
        raise ConfigError(
            f"the environment cannot be sent to a worker process: {one_line(error)}; "
            "define it at the top level of a module, not within a function nor as a lambda"
        ) from error


def _record(spec: EnvSpec) -> np.dtype[Any]:
    """What a slot has in shared memory."""
    fields = [
        ("obs", np.float32, (spec.observation_size,)),
        ("action", np.dtype(spec.action.dtype), spec.action.shape),
        ("reward", np.float32, ()),
        ("info", np.float32, (len(spec.info_names),)),
        ("terminated", bool, ()),
        ("truncated", bool, ()),
        ("success", bool, ()),
    ]
    return np.dtype(fields, align=True)


def _start(context: Any, index: int, job: tuple[Any, ...]) -> _Worker:
    """Start a worker on `job`: shared memory, pickled maker, spec, first slot, number of slots."""
    first, num_slots = job[-2:]
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, *job), name=f"adaptax-worker-{index}")
    process.start()
    theirs.close()
    stop = first + num_slots
    return _Worker(f"worker {index} (slots {first} to {stop - 1})", first, stop, process, ours)


def _end(workers: list[_Worker]) -> None:
    """Hang up, and kill whoever has not gone in time."""
    for worker in workers:
        worker.connection.close()
    deadline = time.monotonic() + GRACE_SECONDS
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        worker.process.kill()
        worker.process.join()
    workers.clear()


@contextlib.contextmanager
def _stop_signals_blocked() -> Iterator[None]:
    """Processes started here do not hear STOP_SIGNALS before they can ignore them."""
    resource_tracker.ensure_running()  # or the first start would, and unblock them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(
    connection: Connection, memory: Any, code: bytes, spec: EnvSpec, first: int, num_slots: int
) -> None:
    """The life of a worker process."""
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: None)  # unlike SIG_IGN, not inherited by simulators
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    threading.Thread(target=_die_with_parent, daemon=True).start()
    # Or a worker, woken by its command, takes the parent's core before the others have theirs.
    with contextlib.suppress(AttributeError, OSError):  # where there is no such thing
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    rows = np.frombuffer(memory, _record(spec))[first : first + num_slots]
    with contextlib.suppress(EOFError, ConnectionError):  # the parent hung up: close
        try:
            pool = pickle.loads(code)(num_slots)
        except Exception as error:
            connection.send(FaultReport.of(error))
            return
        with contextlib.closing(pool):
            report = None
            while report is None:
                connection.send(report)
                report = _obey(pool, rows, *connection.recv())
            connection.send(report)


def _obey(
    pool: Pool, rows: np.ndarray, command: str, slots: np.ndarray, *more: Any
) -> FaultReport | None:
    """Do one command in a worker; the report of what went wrong, if anything did."""
    try:
        if command == "reset":
            rows["obs"][slots] = pool.reset(slots, *more)
            return None
        step = pool.step(slots, rows["action"][slots])
        if step.valid is not None:
            raise TypeError("a pool that resets slots on its own cannot live in a worker")
    except Exception as error:
        return FaultReport.of(error)
    rows["obs"][slots] = step.next_obs
    for name in _ANSWERS:
        rows[name][slots] = getattr(step, name)
    if pool.spec.has_success:
        rows["success"][slots] = step.info["success"]
    for i, name in enumerate(pool.spec.info_names):
        rows["info"][slots, i] = step.info[name]
    return None


def _die_with_parent() -> None:
    """End this process with its parent, even if it was killed, and even in the middle of a step."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    mp_connection.wait([parent.sentinel])
    os._exit(1)
