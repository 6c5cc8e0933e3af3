"""Files that are written whole or not at all, read only if they are plain, never through a link."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
MOST_BYTES = 2**32
"""Most bytes of a file that is read as a whole; ours are far smaller."""


def read_plain(path: Path, most: int = MOST_BYTES) -> bytes:
    """All of a regular file; an OSError where it is a pipe, a device, a link or too large.

    Too large is more than `most` bytes.
    """
    file = os.open(path, _READ)
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        if about.st_size > most:
            raise OSError(errno.EFBIG, f"larger than {most:,} bytes", str(path))
    except OSError:
        os.close(file)
        raise
    with os.fdopen(file, "rb") as whole:
        return whole.read()


def own_folder(path: Path, *, links: bool = True) -> Path:
    """A folder that is this user's alone to write in, made where there is none.

    An OSError where it is somebody else's, others may write in it, or, without `links`, it is one.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    about = path.stat() if links else path.lstat()
    own = stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid()
    if not own or about.st_mode & stat.S_IWOTH:
        problem = "is a folder that others may write in" if own else "is somebody else's or a link"
        raise OSError(errno.EPERM, problem, str(path))
    return path


def parse_json(text: bytes) -> Any:
    """What JSON in UTF-8 says; a ValueError where it is none, or nested too deeply to be read."""
    try:
        return json.loads(text.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None


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
