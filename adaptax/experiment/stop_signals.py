"""Ctrl-C and SIGTERM while a run trains."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from adaptax.experiment.console import ERROR, say, settle

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE_SECONDS = 1.0
"""What the main thread has to end by itself after the second signal."""
INTERRUPTED = 130
"""Exit code after it."""


_is_own_process = threading.Event()
_owes_end = threading.Event()
"""A SIGTERM was put off until what runs is on disk."""


def own_process() -> None:
    """Let a second signal end this process, whatever it is at: it is a program of adaptax.

    Not for the processes of those who import it: a notebook's holds more than a run.
    """
    _is_own_process.set()


def interrupts_are_raised() -> None:
    """Have Ctrl-C raise KeyboardInterrupt again in a process of the command line."""
    if _is_own_process.is_set():
        signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def finish_iteration_on_signal(
    break_off: Callable[[], None], parting: Callable[[], str]
) -> Iterator[None]:
    """Have the first Ctrl-C or SIGTERM call `break_off`, and any later one end all at once.

    Python's handlers wait for the main thread, which may compute for minutes within one call of a
    compiled program. So another thread hears the signals too and answers the first one at once.
    After the second, in a process of the command line (`own_process`), it says `parting()` and ends
    the process, if nothing else has. In anybody's Python, a notebook say, KeyboardInterrupt with
    `parting()` is raised once the call under way comes back, as for any other call.

    In another thread than the main one signals are the caller's business: nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    watch = _Watch(parting)
    handled: list[int] = []

    def count(number: int) -> None:
        handled.append(number)
        if len(handled) > 1:
            raise KeyboardInterrupt(parting())
        break_off()

    def handle(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGTERM and not _is_own_process.is_set():
            _owes_end.set()
        count(number)
        watch.answered.wait(GRACE_SECONDS)  # what comes after is to be said after
        if watch.num_heard > len(handled):  # Python tells once of all that came within one call
            count(number)

    old = {n: signal.signal(n, handle) for n in STOP_SIGNALS}
    try:
        yield
    except BaseException as error:
        forget_end()
        if len(handled) < 2 or not isinstance(error, Exception):
            raise
        raise KeyboardInterrupt(parting()) from None  # which a compiled program made another
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
        watch.end()


def end_if_told() -> None:
    """Deliver the SIGTERM that was put off, if there was one: the run that it met is on disk.

    It means anybody's whole program, which would go on with its next run. A program of adaptax has
    a message and an exit code of its own.
    """
    if _owes_end.is_set():
        _owes_end.clear()
        signal.raise_signal(signal.SIGTERM)


def forget_end() -> None:
    """Do not deliver the SIGTERM that was put off.

    An error comes in its place, which ends the program, or whoever catches it decides.
    """
    _owes_end.clear()


def end_process() -> NoReturn:
    """End this process and its workers without Python's tidying.

    Programs may still compute in other threads, where that would take from them what they use, such
    as MuJoCo's models, or wait for them.
    """
    kill_workers()
    for stream in (sys.stdout, sys.stderr):
        settle(stream)
    os._exit(INTERRUPTED)


def kill_workers() -> None:
    """End the processes that this one has started, at once."""
    for worker in multiprocessing.active_children():
        worker.kill()


class _Watch:
    """A thread that hears signals whatever the main thread does."""

    def __init__(self, parting: Callable[[], str]) -> None:
        self.answered = threading.Event()
        """Set when the first signal has been answered."""
        self.num_heard = 0
        self._parting, self._ended = parting, threading.Event()
        self._listen, self._tell = os.pipe()
        os.set_blocking(self._tell, False)
        self._old = signal.set_wakeup_fd(self._tell, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._hear, name="stop signals", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Hear no more."""
        signal.set_wakeup_fd(self._old)
        self._ended.set()
        os.write(self._tell, b"\0")
        self._thread.join()
        os.close(self._listen)
        os.close(self._tell)

    def _hear(self) -> None:
        while not self._ended.is_set():
            for number in os.read(self._listen, 1):
                self.num_heard += number in STOP_SIGNALS
                if self.num_heard == 1 and not self.answered.is_set():
                    say("finishing the iteration; once more to stop at once", sys.stderr)
                    self.answered.set()
            again = self.num_heard > 1 and _is_own_process.is_set()
            if again and not self._ended.wait(GRACE_SECONDS):
                self._end_process()

    def _end_process(self) -> None:
        """End this process and its workers, whatever it is at."""
        kill_workers()
        # Another thread, because a reader that is stuck must not keep the process.
        saying = threading.Thread(target=self._say_parting, daemon=True)
        saying.start()
        saying.join(GRACE_SECONDS / 2)
        os._exit(INTERRUPTED)

    def _say_parting(self) -> None:
        with suppress(Exception):
            if sys.stdout.isatty():
                say("\x1b[?25h", sys.stdout)  # the cursor, which a live line hides
        say(f"{ERROR}{self._parting()}", sys.stderr)
