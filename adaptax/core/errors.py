"""Errors that a person can act on: one clear line, shown without a traceback."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any


class AdaptaxError(Exception):
    """An error whose message says what was wrong and what to do instead."""


class ConfigError(AdaptaxError, ValueError):
    """A wrong name or value in a configuration."""


class SnapshotError(AdaptaxError):
    """A snapshot that is missing, damaged, or belongs to another configuration."""


class DiskError(AdaptaxError):
    """A file that could not be written: the disk is full, or the directory not writable."""


class EnvironmentFault(AdaptaxError):
    """An environment that broke its contract: a wrong shape, a NaN, an exception."""


class NotFinite(AdaptaxError):
    """NaN or infinity: in what an environment answered, a figure of an update, a parameter."""


MOST_NAMED = 60
"""Names that a message lists; of more it names the nearest."""


def unknown_name(
    kind: str, name: str, allowed: Iterable[str], meant: Sequence[str] = (), room: str = ""
) -> ConfigError:
    """A ConfigError for a name that does not exist, with what is allowed.

    It suggests what is `meant`, by default the nearest match, whatever its capitals. `room` stands
    before all of these names.
    """
    names = sorted(allowed)
    if not meant:
        spelt = {other.lower(): other for other in names}
        meant = [spelt[near] for near in difflib.get_close_matches(name.lower(), spelt, n=1)]
    hint = f"; did you mean {' or '.join(repr(room + other) for other in meant)}?" if meant else ""
    each = ", ".join(room + other for other in names)
    listed = f" (allowed: {each})" if len(names) <= MOST_NAMED else ""
    return ConfigError(f"unknown {kind} {room + name!r}{hint}{listed}")


def one_line(error: BaseException) -> str:
    """The kind and the message of an exception, in one line."""
    try:
        message = " ".join(str(error).split())
    except Exception:  # somebody's own kind
        message = "it cannot say what is wrong"
    return f"{type(error).__name__}: {message}"


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that the host or a device has no more memory."""
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in one_line(error)


def check_kind(given: Any, kind: type, what: str) -> None:
    """Raise a ConfigError where what takes an object of a class is given something else."""
    found = f"the class {given.__name__}" if isinstance(given, type) else reprlib.repr(given)
    check(isinstance(given, kind), f"{what} takes {a_or_an(kind.__name__)}, not {found}")


def a_or_an(name: str) -> str:
    """A name behind its article."""
    return f"an {name}" if name[0] in "AEIOU" else f"a {name}"


def check(condition: bool, message: str) -> None:
    """Raise a ConfigError with `message` unless `condition` holds."""
    if not condition:
        raise ConfigError(message)
