"""What a run says while it trains: that nobody reads it, or the disk is full, does not end it."""

from __future__ import annotations

import contextlib
import os
import shlex
from typing import Any, TextIO

from adaptax.core.imports import typed_modules

ERROR, WARNING = "adaptax: ", "adaptax: warning: "
"""Beginnings of the lines that a program complains in."""
MAKES_ENVIRONMENTS = ("resume", "evaluate", "video")
"""Commands that make the environments of a run."""


class Forgiving:
    """A text stream that drops what cannot be written; after a reader that has gone, all."""

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write what can be written."""
        with _forgiven(self._stream):
            if self._stream is not None:
                self._stream.write(_printable(text, self._stream))
        return len(text)

    def flush(self) -> None:
        """Hand on what is written."""
        with _forgiven(self._stream):
            if self._stream is not None:
                self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _printable(text: str, stream: TextIO) -> str:
    """The text with escapes for the letters that a stream's encoding lacks."""
    encoding = getattr(stream, "encoding", None)
    try:
        return text.encode(encoding, "backslashreplace").decode(encoding) if encoding else text
    except LookupError:
        return text


def say(line: str, stream: TextIO | None) -> None:
    """Print a line, if that can be done."""
    print(line, file=Forgiving(stream), flush=True)


def shell_command(*words: object) -> str:
    """A command of adaptax as a shell takes it, whatever is in its names.

    One that makes a run's environments names the module that this process was told to import.
    """
    modules = typed_modules()[-1:] if words[0] in MAKES_ENVIRONMENTS else []
    more = [word for module in modules for word in ("--import", module)]
    return shlex.join(["adaptax", *map(str, words), *more])


def settle(stream: TextIO | None) -> None:
    """Hand on what is written, or drop it, so that the interpreter's end does not fail over it."""
    try:
        if stream is not None:
            stream.flush()
    except (OSError, ValueError):
        _drop(stream)


@contextlib.contextmanager
def _forgiven(stream: TextIO | None) -> Any:
    try:
        yield
    except BrokenPipeError:
        _drop(stream)
    except (OSError, ValueError):  # a full disk, which may have space later; a closed file
        pass


def _drop(stream: TextIO | None) -> None:
    """Lead a stream to nowhere, with what waits in it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())  # type: ignore[union-attr]
        os.close(nowhere)
        stream.flush()  # type: ignore[union-attr]
