"""Ctrl-C and SIGTERM while a run trains."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def finish_iteration_on_signal(interrupt: Callable[[], None]) -> Iterator[None]:
    """Have the first Ctrl-C or SIGTERM, and any later one, call `interrupt`.

    In another thread than the main one signals are the caller's business: nothing is done.
    """

    def handle(number: int, frame: object) -> None:
        interrupt()
        print("finishing the iteration; once more to stop at once", file=sys.stderr)

    try:
        old = {n: signal.signal(n, handle) for n in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:
        yield
        return
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
