"""The processor's cores that this process may use: systems differ in what they let one ask."""

from __future__ import annotations

import os
from collections.abc import Iterable

CAN_BIND = hasattr(os, "sched_setaffinity")
"""Whether processes can be bound to cores; not on macOS."""


def usable_cores() -> list[int]:
    """Numbers of the cores that this process may run on, in ascending order."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def bind(pid: int, cores: Iterable[int]) -> None:
    """Have a process, 0 for this one, and what it starts run on these cores only, where it can."""
    if CAN_BIND:
        os.sched_setaffinity(pid, cores)
