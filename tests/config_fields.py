"""Fields of configs, and small values for them, for tests that try settings at random."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args, get_origin, get_type_hints

SMALL_INTEGERS, SMALL_NUMBERS = [1, 2, 3, 4, 8, 16], [0.0, 1e-3, 0.05, 0.3, 0.9, 1.0]


def leaves(config: Any, path: str) -> list[tuple[str, Any, Any]]:
    """Every field's path, type and value, those of nested configs too."""
    hints, found = get_type_hints(type(config)), []
    for f in dataclasses.fields(config):
        value, name = getattr(config, f.name), f"{path}.{f.name}"
        nested = dataclasses.is_dataclass(value)
        found += leaves(value, name) if nested else [(name, hints[f.name], value)]
    return found


def harmless(hint: Any) -> list[Any]:
    """Small values of a field's type."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if get_origin(hint) is tuple:
        return [(item,) for item in harmless(get_args(hint)[0])]
    if get_args(hint):
        return [None, *(v for t in get_args(hint) if t is not type(None) for v in harmless(t))]
    return {int: SMALL_INTEGERS, float: SMALL_NUMBERS, bool: [False, True]}.get(hint, [])
