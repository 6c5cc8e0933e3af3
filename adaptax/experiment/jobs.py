"""Programs that run beside each other: processes of this machine, or tasks of a Ray cluster.

A program is the words after `python`. It ends with whoever started it (`end_with_parent`), however
that ends, and finishes its iteration where it is asked to stop.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import IO, Any, NamedTuple, Protocol, get_args

from adaptax.core.cores import bind, usable_cores
from adaptax.core.errors import check
from adaptax.envs.pools.ray_crew import connected
from adaptax.experiment.choices import Where
from adaptax.experiment.console import ERROR, WARNING
from adaptax.experiment.stop_signals import INTERRUPTED, STOP_SIGNALS

CARRIED = ("ADAPTAX_", "JAX_", "XLA_", "PYTHONPATH")
"""Beginnings of the environment variables that go to other machines."""
LOST = -signal.SIGKILL
"""Exit code of a task whose machine was lost."""


class Ended(NamedTuple):
    """A program that has ended: its name, its exit code, and the last line that it complained."""

    name: str
    code: int
    said: str
    warned: Sequence[str] = ()
    """What it warned of, each once."""

    @property
    def was_cut_off(self) -> bool:
        """Whether it was stopped or killed, so that it may go on."""
        return self.code < 0 or self.code == INTERRUPTED

    @property
    def problem(self) -> str | None:
        """Why it came to no end; None where it did."""
        if self.code == 0:
            return None
        if self.code < 0:
            return f"killed by {signal.Signals(-self.code).name}"
        return self.said.removeprefix(ERROR) or f"exit code {self.code}"

    def pass_on_warnings(self, told: set[str]) -> None:
        """Warn of what the program has, whose output nobody reads, but for what was `told`."""
        for text in self.warned:
            if text not in told:
                told.add(text)
                warnings.warn(f"{self.name}: {text}", stacklevel=2)


class Jobs(Protocol):
    """Where programs run; leaving it asks those that do to stop, and waits for them."""

    @property
    def size(self) -> int:
        """How many of them run at once."""

    @property
    def running(self) -> Sequence[str]:
        """The names of those that have been started and have not ended."""

    def start(self, name: str, words: Sequence[str]) -> None:
        """Start a program."""

    def ended(self) -> Iterator[Ended]:
        """Those that have ended since the last call."""

    def stop(self, name: str) -> None:
        """Ask a program to end after its iteration, if it has not been asked."""

    def stop_all(self) -> None:
        """Ask all of them."""

    def __enter__(self) -> Jobs: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None
    ) -> None: ...


def jobs(where: Where, size: int | None = None) -> Jobs:
    """Programs on this machine, or on the Ray cluster that there is; by default one a core."""
    check(where in get_args(Where), f"on must be one of {get_args(Where)}, not {where!r}")
    return Processes(size) if where == "here" else RayTasks(size)


class Processes:
    """Processes of this machine, each on a core of its own as long as there is one."""

    def __init__(self, size: int | None = None) -> None:
        self.size = size or len(usable_cores())
        self._processes: dict[str, tuple[subprocess.Popen[bytes], IO[bytes]]] = {}
        self._cores: dict[str, int] = {}
        self._asked: set[str] = set()
        """Those that have been asked to stop."""

    @property
    def running(self) -> list[str]:
        """The names of those that have been started and have not ended."""
        return list(self._processes)

    def start(self, name: str, words: Sequence[str]) -> None:
        """Start a process, on a core that no other of these is on, if any is.

        Runs of others may be on it as well: they slow each other down, and none is refused.
        """
        self._processes[name] = process, _ = _started(words)
        free = [core for core in usable_cores() if core not in self._cores.values()]
        if free:
            self._cores[name] = free[0]
            with contextlib.suppress(ProcessLookupError):
                bind(process.pid, {free[0]})

    def ended(self) -> Iterator[Ended]:
        """Those that have ended since the last call."""
        for name, (process, complaints) in list(self._processes.items()):
            if process.poll() is not None:
                del self._processes[name]
                self._cores.pop(name, None)
                self._asked.discard(name)
                yield Ended(name, *_answer(process, complaints))

    def stop(self, name: str) -> None:
        """Ask a process to end after its iteration, if it has not been asked."""
        if name not in self._asked:  # which the second time would end it in the midst of it
            self._asked.add(name)
            self._processes[name][0].send_signal(signal.SIGINT)

    def stop_all(self) -> None:
        """Ask all of them."""
        for name in self.running:
            self.stop(name)

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_all()
        for process, complaints in self._processes.values():
            _answer(process, complaints)
        self._processes.clear()


class RayTasks:
    """Tasks of a Ray cluster, of one CPU each; all machines share the folder of the runs.

    Each is an actor that holds a process: Ray can cancel its own tasks, not ask them to finish.
    """

    def __init__(self, size: int | None = None) -> None:
        self._ray, self._size = connected(), size
        self._tasks: dict[str, tuple[Any, Any]] = {}
        """By name, the actor and what it will answer."""
        self._asked: set[str] = set()

    @property
    def size(self) -> int:
        """By default the CPUs that the cluster has at the time."""
        return self._size or max(int(self._ray.cluster_resources().get("CPU", 0)), 1)

    @property
    def running(self) -> list[str]:
        """The names of those that have been started and have not ended."""
        return list(self._tasks)

    def start(self, name: str, words: Sequence[str]) -> None:
        """Start a task, which is a process of one of the machines."""
        carried = {k: v for k, v in os.environ.items() if k.startswith(CARRIED)}
        remote = self._ray.remote(_Remote).options(
            num_cpus=1,
            max_concurrency=2,  # it waits, and is asked to stop meanwhile
            scheduling_strategy="SPREAD",
        )
        actor = remote.remote(list(words), os.getcwd(), carried)
        self._tasks[name] = actor, actor.answer.remote()

    def ended(self) -> Iterator[Ended]:
        """Those that have ended since the last call."""
        for name, (_, answer) in list(self._tasks.items()):
            if self._ray.wait([answer], timeout=0)[0]:
                yield self._answer(name)

    def stop(self, name: str) -> None:
        """Ask a task to end after its iteration, if it has not been asked."""
        if name not in self._asked:
            self._asked.add(name)
            self._tasks[name][0].stop.remote()

    def stop_all(self) -> None:
        """Ask all of them."""
        for name in self.running:
            self.stop(name)

    def __enter__(self) -> RayTasks:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_all()
        for name in self.running:
            self._answer(name)

    def _answer(self, name: str) -> Ended:
        """What became of a task, once it has ended."""
        actor, answer = self._tasks.pop(name)
        self._asked.discard(name)
        try:
            return Ended(name, *self._ray.get(answer))
        except self._ray.exceptions.RayError as error:
            return Ended(name, LOST, str(error).splitlines()[0])
        finally:
            self._ray.kill(actor)


class _Remote:
    """A process of another machine, in the folder of the same name."""

    def __init__(self, words: list[str], folder: str, carried: dict[str, str]) -> None:
        # Ray's threads block signals, and a process inherits that: it could not be asked to stop.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        settings = {"cwd": folder, "env": {**os.environ, **carried}}
        self._process, self._complaints = _started(words, **settings)

    def answer(self) -> tuple[int, str, list[str]]:
        """Exit code, last complaint and warnings, once it has ended."""
        return _answer(self._process, self._complaints)

    def stop(self) -> None:
        """Ask it to end after its iteration."""
        self._process.send_signal(signal.SIGINT)


def end_with_parent() -> None:
    """Have this process, a program of these, killed when whoever started it is no more."""

    def watch() -> None:
        os.read(0, 1)  # nothing is ever written there: it is closed by the other's end
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="end with parent", daemon=True).start()


def _started(words: Sequence[str], **settings: Any) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
    """A process of Python, and the file of its complaints."""
    # Not a pipe, which would fill up, since nobody reads it before the end.
    complaints = tempfile.TemporaryFile()  # noqa: SIM115
    process = subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=complaints,
        start_new_session=True,  # Ctrl-C is for the parent, which hands it on
        **settings,
    )
    return process, complaints


def _answer(process: subprocess.Popen[bytes], complaints: IO[bytes]) -> tuple[int, str, list[str]]:
    """The exit code of a process, once it has ended, its last complaint, and its warnings.

    The last of its own, if there is one: what comes after is of libraries at their end.
    """
    with process, complaints:
        code = process.wait()
        complaints.seek(0)
        lines = complaints.read().decode(errors="replace").splitlines()
    warned = [line for line in lines if line.startswith(WARNING)]
    errors = [s for s in lines if s.startswith(ERROR) and not s.startswith(WARNING)]
    said = (errors or lines or [""])[-1]
    return code, said, list(dict.fromkeys(line.removeprefix(WARNING) for line in warned))
