"""How the process gets its memory."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
"""Parameters of glibc's mallopt(3)."""
_NEVER = 2**31 - 1


def keep_freed_memory() -> None:
    """Let the C library keep large blocks that were freed for the next one who asks.

    XLA allocates the temporary memory of a program at every call. Blocks of 32 MiB and more glibc
    would map anew each time, and the system clear page by page. Blocks beyond 64 MiB it still
    maps in threads other than the main one; a single arena for all threads would keep these too,
    but costs more than that: measured, an update of ProMP takes 204 ms with it and 125 without.
    It changes the whole process, therefore programs call it and the library does not: before JAX
    computes anything. Does nothing where the C library is another.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return
    for parameter in (_TRIM_THRESHOLD, _MMAP_THRESHOLD):
        mallopt(parameter, _NEVER)
