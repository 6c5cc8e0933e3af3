"""Plugins: what installed packages offer by entry points, the only code that a name can import."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from adaptax.core.errors import ConfigError, check, one_line

Entry = TypeVar("Entry")


def plugins(
    group: str, is_ours: Callable[[str], bool], name: str | None = None
) -> dict[str, EntryPoint]:
    """The entry points of a group by name, or only that of one name.

    A name that is ours, or that another package has, is refused with a warning.
    """
    found: dict[str, EntryPoint] = {}
    for point in (
        entry_points(group=group) if name is None else entry_points(group=group, name=name)
    ):
        if is_ours(point.name) or point.name in found:
            owner = "adaptax" if is_ours(point.name) else _package(found[point.name])
            warnings.warn(f"{described(point)} is refused: {owner} has that name", stacklevel=3)
        else:
            found[point.name] = point
    return found


def loaded(point: EntryPoint) -> Any:
    """What an entry point names; a ConfigError where it cannot be imported."""
    try:
        return point.load()
    except (Exception, SystemExit) as error:  # whatever somebody's module does
        raise ConfigError(f"{described(point)} cannot be loaded: {one_line(error)}") from error


def loaded_class(point: EntryPoint, base: type, base_name: str) -> Any:
    """The class that an entry point names; a ConfigError where it is no subclass of `base`."""
    found = loaded(point)
    is_one = isinstance(found, type) and issubclass(found, base)
    check(is_one, f"{described(point)} is not a subclass of {base_name}")
    return found


def sound_entries(
    points: Iterable[EntryPoint], entry_of: Callable[[EntryPoint], Entry]
) -> list[Entry]:
    """The registry's entries of plugins; one that is broken is left out with a warning."""
    entries: list[Entry] = []
    for point in points:
        try:
            entries.append(entry_of(point))
        except ConfigError as error:
            warnings.warn(str(error), stacklevel=3)
    return entries


def described(point: EntryPoint) -> str:
    """An entry point in words, for messages."""
    return f"the entry point {point.name!r} ({point.value}) of {_package(point)}"


def summary_of(documented: Any) -> str:
    """The first line of the docstring of a class or function, as `adaptax list` shows it."""
    lines = (documented.__doc__ or "").strip().splitlines()
    return lines[0].rstrip(".") if lines else ""


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "an unknown package"
