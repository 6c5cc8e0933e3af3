"""A run's directory: made empty, held by one process at a time, its config written whole."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adaptax.core.errors import AdaptaxError, DiskError

LOCK = "lock"
"""The file that a run holds locked; it tells who does. The lock ends with the process, however
that ends, so that none is ever left behind."""

UNFINISHED = "config.json.tmp"


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Hold a run directory; an AdaptaxError where another run holds it."""
    path = run_dir / LOCK
    file = _lock(path)
    try:
        with writing(path):
            os.truncate(file, 0)
            os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(file)


def _lock(path: Path) -> int:
    with writing(path):
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            warnings.warn(f"{path.parent} cannot be locked: {error.strerror}", stacklevel=4)
            return file
        holder = os.pread(file, 200, 0).decode(errors="replace") or "another process"
        os.close(file)
        raise AdaptaxError(
            f"{path.parent} is in use by {holder}: wait for it or stop it, or choose another "
            "--run-dir"
        ) from None
    if os.fstat(file).st_nlink == 0:  # its holder removed it while this process opened it
        os.close(file)
        return _lock(path)
    return file


def check_run_dir(run_dir: Path, *, overwrite: bool) -> None:
    """Refuse a directory that holds something, but for a run that may be overwritten."""
    if run_dir.exists() and not run_dir.is_dir():
        raise AdaptaxError(f"{run_dir} is a file, not a run directory")
    if not run_dir.is_dir() or not _contents(run_dir):
        return
    if not (run_dir / "config.json").exists():
        raise AdaptaxError(
            f"{run_dir} is not empty and holds no run; choose another --run-dir "
            "(--overwrite deletes runs only)"
        )
    if not overwrite:
        raise AdaptaxError(
            f"{run_dir} holds a run already; choose another --run-dir, go on with "
            f"`adaptax resume {run_dir}`, or replace it with --overwrite"
        )


def make_run_dir(run_dir: Path) -> None:
    """Make the directory where there is none."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiskError(f"cannot make {run_dir}: {error.strerror}") from None


def clear_run_dir(run_dir: Path) -> None:
    """Delete all that a locked run directory holds."""
    for path in _contents(run_dir):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def recorded_config(run_dir: Path) -> dict[str, Any]:
    """What `config.json` holds, whatever that is; nothing where it cannot be read."""
    try:
        recorded = json.loads((run_dir / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    return recorded if isinstance(recorded, dict) else {}


def write_config(run_dir: Path, description: dict[str, Any]) -> None:
    """Write `config.json` as a whole or not at all."""
    path, unfinished = run_dir / "config.json", run_dir / UNFINISHED
    with writing(path):
        unfinished.write_text(json.dumps(description, indent=2) + "\n")
        unfinished.replace(path)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the operating system refuses into one clear line about `path`."""
    try:
        yield
    except OSError as error:
        raise DiskError(f"cannot write {path}: {error.strerror}") from error


def _contents(run_dir: Path) -> list[Path]:
    """All but what a run that was killed at once has left."""
    return [path for path in run_dir.iterdir() if path.name not in (LOCK, UNFINISHED)]
