"""What a run says while it goes on."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def warnings_within() -> Iterator[list[str]]:
    """The warnings raised within, at its end.

    Not what Python says of other tests' garbage, nor JAX of a cache that others write to.
    """
    told: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield told
    mine = [str(w.message) for w in caught if not issubclass(w.category, ResourceWarning)]
    told += [message for message in mine if "persistent compilation cache" not in message]


def first_output(capsys: pytest.CaptureFixture[str], seconds: float = 60.0) -> str:
    """What is printed, once anything is; it may come from another thread."""
    deadline = time.monotonic() + seconds
    while not (out := capsys.readouterr().out) and time.monotonic() < deadline:
        time.sleep(0.01)
    return out
