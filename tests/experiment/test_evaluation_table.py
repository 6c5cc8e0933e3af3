"""What `adaptax evaluate` prints: every digit, and what the figures are of."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console

from adaptax.experiment import cli
from adaptax.experiment.evaluation_table import LARGE, _table, figure_text, print_fitting

WORDS = ["--num-iterations", "1", "--evaluation-interval", "None", "--quiet"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs of one iteration, by suite."""
    place = tmp_path_factory.mktemp("runs")
    suites = {
        "half-cheetah-dir": ["--suite.horizon", "5"],
        "cartpole": ["--suite.horizon", "200"],
        "point-goal": ["--suite.num-test-tasks", "4"],
    }
    for name, more in suites.items():
        run_dir = str(place / name)
        lanes = ["--algorithm.num-lanes", "1"]
        cli.main(["train", "nop", name, "--run-dir", run_dir, *WORDS, *more, *lanes])
    return place


def printed(args: list[str], capsys) -> str:
    capsys.readouterr()
    cli.main(args)
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("figure", "interval", "text"),
    [
        (-123.4, [-150.0, -99.9], "-123 [-150, -100]"),
        (1.0, None, "1.00"),
        (0.004, [-0.2, 0.21], "0.00 [-0.20, 0.21]"),
        (0.0, [0.0, 0.0], "0.00 [0.00, 0.00]"),
        (-0.00412, [-0.0051, -0.00313], "-0.0041 [-0.0051, -0.0031]"),
        (3e-7, None, "3e-07"),
    ],
)
def test_figures_below_a_hundredth_keep_their_digits(figure, interval, text):
    assert figure_text(figure, interval) == text


@pytest.mark.parametrize(
    ("suite", "flags", "heading"),
    [
        (
            "half-cheetah-dir",
            [],
            "mean return on 2 tasks (as in training), 10 times each [95 % interval over these]",
        ),
        (
            "half-cheetah-dir",
            ["--num-repeats", "1"],
            "mean return on 2 tasks (as in training) [95 % interval]",
        ),
        ("cartpole", [], "mean return on the task, 20 episodes [95 % interval over them]"),
        ("cartpole", ["--num-lanes", "1"], "mean return on the task"),
        ("point-goal", [], "mean return on 4 held-out tasks [95 % interval]"),
        ("point-goal", ["--num-tasks", "1"], "mean return on 1 held-out task, the first of 4"),
    ],
)
def test_the_heading_says_what_the_figures_are_of(runs, capsys, suite, flags, heading):
    out = printed(["evaluate", str(runs / suite), *flags], capsys)
    found = json.loads(printed(["evaluate", str(runs / suite), *flags, "--json"], capsys))
    assert out.splitlines()[1] == heading
    assert found["held_out"] == (suite == "point-goal")
    intervals = [e["return_ci"] for e in (*found["episodes"], *found["untrained"]["episodes"])]
    alone = found["num_tasks"] == found["protocol"]["num_lanes"] == 1
    assert [interval is None for interval in intervals] == [alone] * len(intervals)
    if not alone:
        assert all(low < high for low, high in intervals)


@pytest.mark.parametrize("suite", ["half-cheetah-dir", "point-goal"])
def test_test_episodes_are_shown_whether_the_suite_knows_success_or_not(runs, capsys, suite):
    out = printed(["evaluate", str(runs / suite), "--num-test-episodes", "1"], capsys)
    assert re.search(r"after +│", out)
    assert ("success" in out) == (suite == "point-goal")


def figures(mean: float, num: int) -> dict:
    ci = [mean - 3, mean + 3]
    success = {"success_mean": 0.75, "success_ci": [0.70, 0.80]}
    return {"index": num, "return_mean": mean, "return_ci": ci, **success}


@pytest.mark.parametrize("terminal", [True, False])
@pytest.mark.parametrize("mean", [-96.12, -1234567.0])
def test_a_table_shows_every_digit_in_a_pipe_and_at_80_columns(terminal, mean):
    episodes = [figures(mean, 1), figures(2 * mean, 2)]
    found = {"episodes": episodes, "untrained": {"episodes": episodes}}
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=terminal, color_system=None)
    print_fitting(console, lambda between: _table(found, between))
    lines = re.sub(r"\x1b\[[0-9;]*m", "", file.getvalue()).splitlines()
    text = " ".join(lines)
    assert "…" not in text
    for number in (mean, 2 * mean, mean - 3, 2 * mean + 3, 0.70, 0.80):
        assert (f"{number:.2f}" if abs(number) < LARGE else f"{number:.0f}") in text
    assert not terminal or max(map(len, lines)) <= 80
