"""Whole runs killed at random moments; `python tests/kills.py` does it to every algorithm."""

from __future__ import annotations

import pytest
from kills import compare


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:snapshot .* is not finished", "ignore:.*no snapshot yet")
@pytest.mark.parametrize("name", ["sac", "rl2-ppo"])
def test_a_run_killed_10_times_equals_one_that_was_not(name, tmp_path):
    found = compare(name, 10, 0, tmp_path)
    assert sum(found["kills"].values()) == 10
    assert found["state, rows, evaluations equal"] == [True, True, True]
