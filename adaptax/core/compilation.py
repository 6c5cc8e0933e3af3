"""What is compiled once need not be compiled again by the next process."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

MAX_BYTES = 2**30
"""Of kept programs, beyond which JAX drops those not used for longest; one takes 20 to 300 kB."""
MIN_SECONDS = 0.1
"""A program that compiles faster is not kept."""


def keep_compiled_programs() -> None:
    """Keep compiled programs in the user's cache directory, before JAX is imported.

    A run's programs take seconds to compile; a second run with the same settings, a resumed one or
    an evaluation reads them instead, and computes the same bits. Through the environment, so that
    processes started from here do so too. Does nothing where JAX_COMPILATION_CACHE_DIR says where
    programs go, or where the user has no directory to write to. It changes the whole process,
    therefore programs call it and the library does not.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    root = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    kept = root / "adaptax" / f"jax-{processor()}"
    try:
        kept.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return
    if os.access(kept, os.W_OK):
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(kept)
        os.environ["JAX_COMPILATION_CACHE_MAX_SIZE"] = str(MAX_BYTES)
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = str(MIN_SECONDS)


def processor() -> str:
    """A name for what the processor can do.

    Code for one may not run on another, and JAX does not tell them apart, while home directories
    are shared between machines.
    """
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = [platform.processor()]
    abilities = sorted({x for x in lines if x.startswith(("flags", "Features", "model name"))})
    digest = hashlib.sha256("\n".join(abilities or lines).encode()).hexdigest()[:12]
    return f"{platform.machine()}-{digest}"
