"""Nested dicts of arrays: what parameters and their gradients are kept in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np


def mapped(f: Callable[..., Any], first: Any, *others: Any) -> Any:
    """f of the arrays at the same place of every tree, as a tree."""
    if isinstance(first, dict):
        return {name: mapped(f, first[name], *(t[name] for t in others)) for name in first}
    return f(first, *others)


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """Every array, with its place as a path."""
    if isinstance(tree, dict):
        for name, branch in tree.items():
            yield from leaves(branch, f"{path}/{name}")
    else:
        yield path, tree


def dot(a: Any, b: Any) -> float:
    """The inner product of two trees."""
    return sum(float(x) for _, x in leaves(mapped(lambda x, y: np.sum(x * y), a, b)))


def plus(a: Any, b: Any, factor: float = 1.0) -> Any:
    """The sum a + factor * b."""
    return mapped(lambda x, y: x + factor * y, a, b)
