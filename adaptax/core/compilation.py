"""What is compiled once need not be compiled again by the next process."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from contextlib import suppress
from pathlib import Path

from adaptax.core.files import own_folder

MAX_BYTES = 2**30
"""Bytes of kept programs beyond which JAX drops the least recently used; one takes 20 to 300 kB."""
MIN_SECONDS = 0.1
"""A program that compiles faster is not kept."""


def keep_compiled_programs() -> None:
    """Keep compiled programs in the user's cache directory, before JAX compiles anything.

    A run's programs take seconds to compile; a second run with the same settings, a resumed one or
    an evaluation reads them instead, and computes the same bits. So do the processes started from
    here, by their environment. Does nothing where JAX_COMPILATION_CACHE_DIR says where
    programs go, or where the user has no directory to write to that is the user's alone. It changes
    the whole process, therefore programs call it and the library does not.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    try:
        kept = own_folder(own_folder(cache_folder()) / f"jax-{processor_name()}")
    except OSError:
        return
    if not os.access(kept, os.W_OK):
        return
    drop_unfinished(kept)
    options = {
        "jax_compilation_cache_dir": str(kept),
        "jax_compilation_cache_max_size": MAX_BYTES,
        "jax_persistent_cache_min_compile_time_secs": MIN_SECONDS,
    }
    os.environ.update({name.upper(): str(value) for name, value in options.items()})
    if "jax" in sys.modules:  # which has read the environment
        for name, value in options.items():
            sys.modules["jax"].config.update(name, value)


def cache_folder() -> Path:
    """Where the user keeps what is compiled."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "adaptax"


def drop_unfinished(kept: Path) -> None:
    """Remove programs whose writing was cut short; JAX would warn of each in every later run.

    It writes KEY-cache and then KEY-atime, neither in one step.
    """
    with suppress(OSError):
        files = {entry.name: entry for entry in os.scandir(kept)}
        for name, entry in files.items():
            key = name.removesuffix("-cache")
            if key != name and (f"{key}-atime" not in files or entry.stat().st_size == 0):
                os.unlink(entry)


def processor_name() -> str:
    """A name for what the processor can do.

    Code for one may not run on another, and JAX does not tell them apart, while home directories
    are shared between machines.
    """
    told = processor_lines("flags", "Features", "model name") or [platform.processor()]
    digest = hashlib.sha256("\n".join(sorted(set(told))).encode()).hexdigest()[:12]
    return f"{platform.machine()}-{digest}"


def processor_lines(*names: str) -> list[str]:
    """What Linux tells of the processors under these names, a line each; [] elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    return [line for line in lines if line.startswith(names)]
