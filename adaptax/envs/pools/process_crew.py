"""Worker processes of this machine that host pools and run policies beside them.

They start by spawn. Their policies run on one thread each, so that as many workers as there are
cores do not fight over them, and find what another has compiled in JAX's compilation cache.
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
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection as mp_connection
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from adaptax.core.errors import ConfigError, EnvironmentFault, check, one_line
from adaptax.envs.pools.channel import Channel, dumps
from adaptax.envs.pools.remote_fault import FaultReport, RemoteTraceback
from adaptax.envs.pools.workers import Host, LostError, SilentError, jax_settings

START_SECONDS = 300.0
"""What workers have at least to start in, however busy the machine."""
GRACE_SECONDS = 2.0
"""What workers have to close their environments before they are killed."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""A terminal or a batch system sends them to every process of a run: they are for the parent."""
END_SIGNAL = signal.SIGUSR1
"""What the parent sends a worker that is to end in the middle of a call."""


class ProcessCrew:
    """`num_workers` processes, started by the first pool and ended with the last.

    A worker that has not taken a step within `timeout` seconds hangs.
    """

    max_attempts = 1

    def __init__(self, num_workers: int, timeout: float = 300.0) -> None:
        check(num_workers > 0, f"num_workers must be greater than 0, not {num_workers}")
        self.num_workers, self.timeout = num_workers, timeout
        self.workers: dict[int, Worker] = {}
        self._pools: set[int] = set()
        self._next_pool = 0

    def enter(self, num_workers: int) -> int:
        """A number for a new pool, when the first so many workers have started."""
        key, self._next_pool = self._next_pool, self._next_pool + 1
        self._pools.add(key)
        try:
            self._start(range(num_workers), key)
        except BaseException:
            self.leave(key)
            raise
        return key

    def leave(self, key: int) -> None:
        """Close a pool: workers that owe it an answer end, and with the last pool all of them."""
        self._pools.discard(key)
        ending = {i: w for i, w in self.workers.items() if w.owes == key or not self._pools}
        for index in ending:
            del self.workers[index]
        for worker in self.workers.values():
            with contextlib.suppress(ConnectionError):  # the next call finds out why
                worker.channel.send(("drop", key))
        _end(ending.values())

    def name(self, worker: int) -> str:
        """What people call it."""
        return f"worker {worker}"

    def put(self, args: tuple[Any, ...]) -> Any:
        """The arguments themselves: each worker is sent a copy."""
        return args

    def send(self, worker: int, method: str, key: int, *args: Any) -> Worker:
        """Have a worker do something with a pool; a new one in the place of one that was ended."""
        self._start([worker], key)
        asked = self.workers[worker]
        asked.ask(key, method, key, *args)
        return asked

    def wait(self, pending: Sequence[Worker]) -> Worker:
        """The first of these that has answered or died."""
        handles = {x: w for w in pending for x in (w.channel.connection, w.process.sentinel)}
        while True:
            before = [worker.num_steps.value for worker in pending]
            ready = mp_connection.wait(list(handles), self.timeout)
            if ready:
                return handles[ready[0]]
            for worker, num_steps in zip(pending, before, strict=True):
                if worker.num_steps.value == num_steps:
                    problem = f"has not taken a step within {self.timeout:g} s"
                    raise SilentError(worker, problem)

    def answer(self, ticket: Worker) -> Any:
        """What a worker has answered."""
        return ticket.answer()

    def replace(self, worker: int) -> None:
        """Have `send` start a new one."""
        _end([self.workers.pop(worker)])

    def _start(self, indices: Iterable[int], key: int) -> None:
        """Start those of these workers that do not run, all at the same time, for a pool."""
        new = [index for index in indices if index not in self.workers]
        if not new:
            return
        context = multiprocessing.get_context("spawn")
        with _stop_signals_blocked():
            for index in new:
                self.workers[index] = Worker.started(context, key)
        deadline = time.monotonic() + max(self.timeout, START_SECONDS)
        for index in new:
            try:
                self.workers[index].await_start(deadline)
            except LostError as loss:
                raise EnvironmentFault(
                    f"{self.name(index)}: {loss}, at its start; a script that starts workers does "
                    'so under `if __name__ == "__main__":`'
                ) from loss


@dataclass(eq=False)
class Worker:
    """A worker process as its parent sees it."""

    process: Any
    channel: Channel
    num_steps: Any
    """Steps, resets and environments that it has begun, in shared memory."""
    owes: int | None = None
    """The pool that it owes an answer; None where it owes none."""

    @classmethod
    def started(cls, context: Any, key: int) -> Worker:
        """A new one, which answers the pool when it has started."""
        num_steps = context.RawValue(ctypes.c_uint64)
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, num_steps))
        process.start()
        theirs.close()
        worker = cls(process, Channel(ours), num_steps)
        worker.ask(key, "started", jax_settings())
        return worker

    def await_start(self, deadline: float) -> None:
        """Return when it has started; raises a LostError if it does not."""
        handles = [self.channel.connection, self.process.sentinel]
        if not mp_connection.wait(handles, max(0.0, deadline - time.monotonic())):
            raise LostError("the process has not answered")
        self.answer()

    def ask(self, key: int, method: str, *args: Any) -> None:
        """Have its host do something for a pool; a ConfigError if arguments cannot be sent."""
        try:
            with contextlib.suppress(ConnectionError):  # `answer` finds out why
                self.channel.send((method, *args))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise _cannot_be_sent(error) from error
        self.owes = key

    def answer(self) -> Any:
        """What it has answered; raises a LostError that says how it has died."""
        self.owes = None
        with contextlib.suppress(EOFError, ConnectionError):
            if self.channel.connection.poll():
                return self.channel.receive()
        self.process.join(GRACE_SECONDS)
        code = self.process.exitcode
        killed = code is not None and code < 0
        how = f"was killed by {signal.Signals(-code).name}" if killed else f"ended with code {code}"
        raise LostError(f"the process {how}")


def in_worker(function: Callable[..., Any], *args: Any, timeout: float = 300.0) -> Any:
    """What a function gives in a process of its own, which may take `timeout` seconds.

    An EnvironmentFault where it fails, does not answer in time, or takes the process with it.
    """
    crew = ProcessCrew(1, timeout)
    key = crew.enter(1)
    try:
        worker = crew.workers[0]
        worker.ask(key, "call", function, *args)
        answer = crew.answer(crew.wait([worker]))
    except LostError as loss:
        raise EnvironmentFault(f"in a worker process, {loss}") from loss
    except SilentError:
        raise EnvironmentFault(f"a worker process has not answered within {timeout:g} s") from None
    finally:
        crew.leave(key)
    if isinstance(answer, FaultReport):
        raise EnvironmentFault(answer.problem) from RemoteTraceback(answer.traceback)
    return answer


def check_can_be_sent(make_pool: Any) -> None:
    """Raise a one-line ConfigError if a pool's maker cannot go to a worker."""
    try:
        dumps(make_pool)
    except Exception as error:
        raise _cannot_be_sent(error) from error


def _cannot_be_sent(error: Exception) -> ConfigError:
    return ConfigError(
        f"environment or policy cannot be sent to a worker process: {one_line(error)}; "
        "define it at the top level of a module, not within a function nor as a lambda"
    )


def _end(workers: Collection[Worker]) -> None:
    """Hang up, and kill whoever has not gone in time."""
    for worker in workers:
        if worker.owes is not None and worker.process.is_alive():
            os.kill(worker.process.pid, END_SIGNAL)
        worker.channel.close()
    deadline = time.monotonic() + GRACE_SECONDS
    for worker in workers:
        worker.process.join(max(0.0, deadline - time.monotonic()))
        worker.process.kill()
        worker.process.join()


@contextlib.contextmanager
def _stop_signals_blocked() -> Iterator[None]:
    """Processes started here do not hear STOP_SIGNALS before they can ignore them."""
    resource_tracker.ensure_running()  # or the first start would, and unblock them
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(connection: Connection, num_steps: Any) -> None:
    """The life of a worker process."""
    for number in STOP_SIGNALS:
        signal.signal(number, lambda *_: None)  # unlike SIG_IGN, not inherited by simulators
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    signal.signal(END_SIGNAL, signal.default_int_handler)
    threading.Thread(target=_die_with_parent, daemon=True).start()

    def at_work() -> None:
        num_steps.value += 1

    channel, host = Channel(connection), Host(at_work)
    # The parent hung up, or wants no answer any more: close.
    with (
        contextlib.suppress(EOFError, ConnectionError, KeyboardInterrupt),
        contextlib.closing(host),
    ):
        while True:
            _obey(host, channel)


def _obey(host: Host, channel: Channel) -> None:
    """Do what comes next."""
    try:
        method, *args = channel.receive()
    except (EOFError, ConnectionError):
        raise
    except Exception as error:  # what was sent cannot be imported here
        channel.send(FaultReport.of(error))
        return
    answer = getattr(host, method)(*args)
    if method != "drop":
        channel.send(answer)


def _die_with_parent() -> None:
    """End this process with its parent, even if it was killed, and even in the middle of a step."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    mp_connection.wait([parent.sentinel])
    os._exit(1)
