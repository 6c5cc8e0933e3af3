"""Which algorithms `make test` checks a property of; `make test-slow` does the others."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from adaptax.algorithms.registry import ALGORITHMS

FAST = frozenset({"nop", "cem", "ppo", "sac", "rl2-ppo"})
"""One of a kind; the others are their siblings."""


def entries(fast: Collection[str] = FAST) -> list[Any]:
    """Every registered algorithm's line in the registry, slow but for those of `fast`."""
    return [
        pytest.param(entry, id=name, marks=() if name in fast else pytest.mark.slow)
        for name, entry in ALGORITHMS.items()
    ]


def quick_for(*names: str) -> Any:
    """For a test that takes long with any algorithm: `make test` does only these."""
    return pytest.mark.parametrize("entry", entries(names), indirect=True)
