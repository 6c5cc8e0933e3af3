from __future__ import annotations

import pytest
from entries import entries


@pytest.fixture(params=entries())
def entry(request):
    """Every registered algorithm: its line in the registry is all that these tests ask for."""
    return request.param
