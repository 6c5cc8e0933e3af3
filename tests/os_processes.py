"""Processes that tests start, as the system sees them: they end at times of their own."""

from __future__ import annotations

import time
from collections.abc import Collection

import psutil


def command(process: psutil.Process) -> str:
    """Its command line; "" of one that has ended, whether or not its parent has noticed."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def gone(pids: Collection[int], seconds: float = 60.0) -> bool:
    """Whether all of these have ended within so many seconds; a zombie has."""
    deadline = time.monotonic() + seconds
    while any(_runs(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.NoSuchProcess:
        return False
