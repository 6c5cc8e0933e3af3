"""Errors that a person can act on: one clear line, shown without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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


def unknown_name(kind: str, name: str, allowed: Iterable[str]) -> ConfigError:
    """A ConfigError for a name that does not exist, with the nearest match and what is allowed."""
    names = sorted(allowed)
    nearest = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    return ConfigError(f"unknown {kind} {name!r}{hint} (allowed: {', '.join(names)})")


def one_line(error: BaseException) -> str:
    """The kind and the message of an exception, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def check(condition: bool, message: str) -> None:
    """Raise a ConfigError with `message` unless `condition` holds."""
    if not condition:
        raise ConfigError(message)
