from __future__ import annotations

import pytest

from adaptax.algorithms.registry import ALGORITHMS

FAST = {"nop", "cem", "ppo", "sac", "rl2-ppo"}
"""Checked by `make test`, one of a kind; the others, their siblings, by `test-slow`."""


@pytest.fixture(
    params=[
        pytest.param(entry, id=name, marks=() if name in FAST else pytest.mark.slow)
        for name, entry in ALGORITHMS.items()
    ]
)
def entry(request):
    """Every registered algorithm: its line in the registry is all that these tests ask for."""
    return request.param
