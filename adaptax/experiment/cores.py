"""Cores of its own for a run, so that runs side by side do not slow one another down."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from adaptax.core.cores import CAN_BIND, bind, usable_cores
from adaptax.core.errors import AdaptaxError, ConfigError, check
from adaptax.core.files import own_folder

_held: list[int] = []
"""Files whose locks this process holds as long as it lives."""


def take_cores(num_cores: int) -> list[int]:
    """Bind this process to so many cores that no other process has taken; gives their numbers.

    Threads and processes started afterwards inherit that: XLA's, MuJoCo's, workers. Therefore it
    comes before JAX computes anything. It changes the whole process, so programs call it and the
    library does not. A core is taken by a lock, which ends with the process however that ends.
    """
    check(CAN_BIND, "num_cores cannot be set: this system binds no process to cores; leave it out")
    allowed = usable_cores()
    if num_cores > len(allowed):
        raise ConfigError(f"num_cores {num_cores} is more than the {len(allowed)} that there are")
    directory = Path(tempfile.gettempdir()) / f"adaptax-cores-{os.getuid()}"
    try:
        own_folder(directory, links=False)
    except OSError as error:
        raise AdaptaxError(
            f"{directory} {error.strerror}: remove it, or leave num_cores out"
        ) from None
    taken: dict[int, int] = {}
    for core in allowed:
        file = os.open(directory / str(core), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            continue
        taken[core] = file
        if len(taken) == num_cores:
            _held.extend(taken.values())
            bind(0, taken)
            return list(taken)
    for file in taken.values():
        os.close(file)
    raise AdaptaxError(
        f"num_cores {num_cores}: other runs have taken all but {len(taken)} of the "
        f"{len(allowed)} cores; wait for one of them, or leave num_cores out"
    )
