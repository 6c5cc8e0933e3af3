from __future__ import annotations

import pytest

from adaptax.algorithms.registry import ALGORITHMS


@pytest.fixture(params=ALGORITHMS.values(), ids=lambda entry: entry.name)
def entry(request):
    """Every registered algorithm: its line in the registry is all that these tests ask for."""
    return request.param
