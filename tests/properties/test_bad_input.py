"""Any flags and any task parameters: a clear line before a file is written, or a run."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import tempfile
import warnings
from operator import itemgetter
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from config_fields import harmless, leaves
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small import SMALL
from toys import EVALUATION, point_suite

from adaptax.algorithms.registry import ALGORITHMS
from adaptax.core.config import from_dict, to_dict
from adaptax.core.errors import AdaptaxError, ConfigError, NotFinite
from adaptax.envs.registry import PREFIXES, SUITES, find_suite
from adaptax.envs.task import TaskList
from adaptax.experiment import cli
from adaptax.experiment.logger import read_rows
from adaptax.experiment.trainer import Trainer, TrainerConfig

INTEGERS = [-(2**70), -1, 0, 1, 2, 3, 5, 64, 2**31]
NUMBERS = [math.nan, math.inf, -math.inf, -1.0, -1e-9, 0.0, 1e-9, 0.5, 1.0, 1.5, 1e30]
WORDS = ["", "x", "none", "None", "True", "1e3", "--", "../x", "\x00", "ü"]
SUITE_NAMES = [n for n in SUITES if not n.startswith((*PREFIXES, "ml", "mt"))]
SUITE_NAMES += ["gym:CartPole-v1"]


def nasty(hint: Any) -> list[Any]:
    """Values that a careless person or a hostile file might give a field."""
    return [*INTEGERS, *NUMBERS, *WORDS]


class Accepted(Exception):
    """A run would begin now, and write its first file."""


def outcome(words: list[str]) -> str | None:
    """The line that refuses a command; None if it is accepted. Whatever else happens is raised."""
    out, err = io.StringIO(), io.StringIO()
    begin = mock.patch("adaptax.experiment.trainer.make_run_dir", side_effect=Accepted)
    fresh = mock.patch("adaptax.algorithms.base.Algorithm.initial_state")  # takes seconds
    with begin, fresh, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            cli.main(words)
        except Accepted:
            return None
        except SystemExit as stop:
            assert stop.code == 2, words
    assert out.getvalue() == ""
    lines = [x for x in err.getvalue().splitlines() if not x.startswith("adaptax: warning: ")]
    assert len(lines) == 1 and lines[0].startswith("adaptax: "), (words, err.getvalue())
    return lines[0]


@st.composite
def commands(draw) -> tuple[list[str], list[Any]]:
    """A `train` command with a few nasty values, and these."""
    name, suite = draw(st.sampled_from(list(ALGORITHMS))), draw(st.sampled_from(SUITE_NAMES))
    rooms = {
        "algorithm": ALGORITHMS[name].load()[1](),
        "suite": find_suite(suite).load()[0](),
        "trainer": TrainerConfig("run"),
    }
    fields = [leaf for room, config in rooms.items() for leaf in leaves(config, room)]
    fields = [f for f in fields if f[0] not in ("trainer.run_dir", "trainer.num_cores")]
    words, values = ["train", name, suite, "--run-dir", "run"], []
    for path, hint, _ in draw(
        st.lists(st.sampled_from(fields), min_size=1, max_size=3, unique_by=itemgetter(0))
    ):
        values.append(draw(st.sampled_from(nasty(hint))))
        words.append(f"--{path.replace('_', '-')}={values[-1]}")
    return words, values


def holds_any_flags(command: tuple[list[str], list[Any]]) -> None:
    words, values = command
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = os.getcwd()
        os.chdir(place)
        try:
            refused = outcome(words)
            assert list(Path().rglob("*")) == []
        finally:
            os.chdir(before)
    if any(isinstance(x, float) and not math.isfinite(x) for x in values):
        assert refused is not None, words


QUIETLY = {"suppress_health_check": list(HealthCheck)}


@settings(max_examples=20, **QUIETLY)
@given(commands())
def test_any_flags_are_accepted_or_refused_by_one_line_before_a_file_is_written(command):
    holds_any_flags(command)


@pytest.mark.slow
@settings(max_examples=300, **QUIETLY)
@given(commands())
def test_many_more_flags_are_accepted_or_refused_by_one_line(command):
    holds_any_flags(command)


@pytest.mark.slow
@settings(max_examples=2, **QUIETLY)
@given(data=st.data())
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_valid_small_config_trains_two_iterations(name, data):
    entry = ALGORITHMS[name]
    config_class, small = (
        entry.load()[1],
        to_dict(from_dict(entry.load()[1], SMALL.get(entry.name, {}))),
    )
    fields = [f for f in leaves(from_dict(config_class, small), "") if harmless(f[1])]
    chosen = data.draw(st.lists(st.sampled_from(fields), min_size=1, max_size=2))
    for path, hint, _ in chosen:
        *rooms, field = path.strip(".").split(".")
        place = small
        for room in rooms:
            place = place[room]
        place[field] = data.draw(st.sampled_from(harmless(hint)), label=path)
    suite = point_suite(entry)
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        trainer = {"num_iterations": 2, "evaluation": EVALUATION, "quiet": True}
        try:
            algorithm = entry.load()[0](from_dict(config_class, small), suite.spec)
            run = Trainer(TrainerConfig(str(run_dir), **trainer), algorithm, suite)
        except ConfigError:
            return
        with contextlib.suppress(NotFinite):  # a step size may be too large
            run.run()
            assert len(read_rows(run_dir / "progress.jsonl")) == 2


PLAIN = st.one_of(
    st.integers(-(2**40), 2**40),
    st.floats(allow_nan=False, allow_infinity=False, width=32),
    st.text(max_size=5),
    st.booleans(),
    st.lists(st.floats(-1, 1), min_size=1, max_size=3).map(np.array),
)
NASTY = st.one_of(
    st.sampled_from([None, math.nan, math.inf, print, object(), b"x", {}, {"a": 1}, {1}, [], 1j]),
    st.sampled_from([np.array([1.0, np.nan]), np.zeros(0), [[1], [1, 2]], [None], np.array(print)]),
)


@settings(max_examples=60, **QUIETLY)
@given(st.dictionaries(st.text(max_size=4), PLAIN, max_size=3))
def test_plain_task_parameters_are_taken(params):
    (task,) = TaskList("t", [params]).tasks
    json.dumps(task.plain(), allow_nan=False)


@settings(max_examples=60, **QUIETLY)
@given(st.dictionaries(st.text(max_size=4), PLAIN, max_size=2), NASTY)
def test_other_task_parameters_are_refused_by_one_line_that_names_them(params, value):
    with pytest.raises(AdaptaxError, match=r"task 't-0': its parameter 'bad' is") as error:
        TaskList("t", [{**params, "bad": value}])
    assert "\n" not in str(error.value)
