"""Files that are written whole or not at all, and never through a link."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def open_new(path: Path) -> IO[bytes]:
    """A file to write where there was none; a FileExistsError where there was one, or a link."""
    return os.fdopen(os.open(path, _NEW, 0o666), "wb")


def open_to_append(path: Path) -> IO[bytes]:
    """A file to write at its end, unbuffered; an OSError where it is a link."""
    return os.fdopen(os.open(path, _APPEND, 0o666), "ab", buffering=0)


@contextlib.contextmanager
def replacing(path: Path, suffix: str = ".new") -> Iterator[IO[bytes]]:
    """A file beside `path` to write, which takes its place in one step at the end.

    Where that fails, `path` is as it was.
    """
    unfinished = path.with_name(path.name + suffix)
    unfinished.unlink(missing_ok=True)
    try:
        with open_new(unfinished) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


def is_same_file(file: int, path: Path) -> bool:
    """Whether an open file is the one that is at `path` now."""
    try:
        return os.path.samestat(os.fstat(file), os.lstat(path))
    except OSError:
        return False
