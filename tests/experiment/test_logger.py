import json
import math
import os
import re
import sys
import threading
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from said import first_output
from toys import EVALUATION, point_suite, small_agent

from adaptax.algorithms.registry import ALGORITHMS
from adaptax.core.errors import AdaptaxError
from adaptax.experiment import progress
from adaptax.experiment.logger import RunLog, newest_row, read_rows
from adaptax.experiment.progress import Progress, episode_returns
from adaptax.experiment.trainer import Trainer, TrainerConfig


def row(iteration, **more):
    return {
        "iteration": iteration,
        "num_steps": 1000 * iteration,
        "num_episodes": iteration,
        "seconds": 2.0 * iteration,
        **more,
    }


def evaluation(iteration):
    episodes = [{"index": 1, "return_mean": 1.5, "return_ci": [1.0, 2.0]}]
    return row(iteration, episodes=episodes, tasks=[])


def write(run_dir, rows, evaluations=()):
    with RunLog(run_dir) as log:
        for iteration in rows:
            log.log(row(iteration))
        for iteration in evaluations:
            log.log_evaluation(evaluation(iteration))


def test_a_row_is_on_disk_before_the_next_one(tmp_path):
    log = RunLog(tmp_path)
    log.log(row(1))
    assert read_rows(tmp_path / "progress.jsonl") == [row(1)]
    log.close()


def test_non_finite_numbers_become_null_and_the_others_come_back_exactly(tmp_path):
    with RunLog(tmp_path) as log:
        log.log({"iteration": 1, "a": math.nan, "b": [math.inf, 0.1], "c": np.float32(0.1)})
    text = (tmp_path / "progress.jsonl").read_text()
    read = json.loads(text, parse_constant=pytest.fail)
    assert read == {"iteration": 1, "a": None, "b": [None, 0.1], "c": float(np.float32(0.1))}


def test_arrays_and_array_scalars_are_written_as_numbers(tmp_path):
    with RunLog(tmp_path) as log:
        log.log({"iteration": np.int64(1), "x": jnp.array(2.0), "y": np.array([1, 2]), "z": True})
    assert read_rows(tmp_path / "progress.jsonl") == [
        {"iteration": 1, "x": 2.0, "y": [1, 2], "z": True}
    ]


def test_truncate_keeps_the_exact_bytes_up_to_the_iteration(tmp_path):
    write(tmp_path, range(1, 4), [0, 2])
    before = [(tmp_path / name).read_bytes() for name in ("progress.jsonl", "evaluations.jsonl")]
    write(tmp_path, range(4, 7), [4, 6])
    with RunLog(tmp_path) as log:
        log.truncate(3)
    after = [(tmp_path / name).read_bytes() for name in ("progress.jsonl", "evaluations.jsonl")]
    assert after == before


@pytest.mark.parametrize(
    ("rows", "told"), [([1, 2, 4], "iteration 3: plots"), ([3, 6], "iteration 1 and 3 more: plots")]
)
def test_truncate_warns_of_rows_that_are_missing(tmp_path, rows, told):
    write(tmp_path, rows, [0, 4])
    with pytest.warns(UserWarning, match=rf"progress\.jsonl lacks the row of {told}"):
        RunLog(tmp_path).truncate(6)
    with warnings.catch_warnings(action="error"):
        RunLog(tmp_path).truncate(rows[0] if rows[0] == 1 else 0)


def test_truncate_can_cut_evaluations_one_earlier(tmp_path):
    write(tmp_path, [1, 2], [0, 2])
    with RunLog(tmp_path) as log:
        log.truncate(2, 1)
    assert [r["iteration"] for r in read_rows(tmp_path / "progress.jsonl")] == [1, 2]
    assert [r["iteration"] for r in read_rows(tmp_path / "evaluations.jsonl")] == [0]


@pytest.mark.parametrize("half", [b'{"iter', b'{"iteration": 3', b'{"iteration": 3}', b"\0\0"])
def test_truncate_drops_a_half_written_line(tmp_path, half):
    write(tmp_path, [1, 2])
    path = tmp_path / "progress.jsonl"
    before = path.read_bytes()
    path.write_bytes(before + half)
    with RunLog(tmp_path) as log:
        log.truncate(5)
        assert path.read_bytes() == before
        log.log(row(3))
    assert [r["iteration"] for r in read_rows(path)] == [1, 2, 3]


def test_truncate_cuts_rows_that_this_log_wrote_and_leaves_no_other_file(tmp_path):
    with RunLog(tmp_path) as log:
        for iteration in (1, 2, 3):
            log.log(row(iteration))
        log.truncate(1)
        log.log(row(2))
    assert [r["iteration"] for r in read_rows(tmp_path / "progress.jsonl")] == [1, 2]
    assert [p.name for p in tmp_path.iterdir()] == ["progress.jsonl"]


def test_truncate_of_a_run_without_logs_does_nothing(tmp_path):
    RunLog(tmp_path).truncate(3)
    assert list(tmp_path.iterdir()) == []


DEEP = b"[" * 100_000 + b"\n"


@pytest.mark.parametrize("line", [b"not json\n", b"[1]\n", b'{"num_steps": 1}\n', DEEP])
def test_a_damaged_line_is_named(tmp_path, line):
    write(tmp_path, [1])
    path = tmp_path / "progress.jsonl"
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(AdaptaxError, match=r"progress\.jsonl, line 2: "):
        read_rows(path)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_log_that_is_no_file_is_named(tmp_path, make):
    make(tmp_path / "progress.jsonl")
    with pytest.raises(AdaptaxError, match=r"cannot read .*progress\.jsonl: not a regular file"):
        read_rows(tmp_path / "progress.jsonl")


class Clock:
    """Stands in for the module `time`; moves when told."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def shown(clock, capsys, pauses, *, quiet=False, **limits):
    """Lines printed by rows 1, 2, ... that come `pauses` seconds apart."""
    with Progress(limits, quiet=quiet) as progress:
        for iteration, pause in enumerate(pauses, 1):
            clock.now += pause
            progress.update(row(iteration, **{"train/return": -1.25}))
    return capsys.readouterr().out.splitlines()


def test_without_a_terminal_a_line_at_most_every_ten_seconds_and_the_last(clock, capsys):
    lines = shown(clock, capsys, [1.0] * 25, iteration=25)
    numbers = [line.split(" | ")[0] for line in lines]
    assert numbers == [f"iteration {i}/25" for i in (1, 11, 21, 25)]


def test_the_last_line_is_not_printed_twice(clock, capsys):
    assert len(shown(clock, capsys, [20.0] * 3)) == 3


def test_quiet_prints_nothing(clock, capsys):
    assert shown(clock, capsys, [20.0] * 3, quiet=True) == []


def test_a_line_tells_pace_time_left_and_return(clock, capsys):
    line = shown(clock, capsys, [20.0] * 3, iteration=13)[-1]
    assert line == "iteration 3/13 | 3,000 steps | 50 steps/s | 3:20 left | return -1.25"


@pytest.mark.parametrize(
    ("limits", "left"),
    [
        ({"iteration": 183}, "1:00:00 left"),
        ({"seconds": 10.0}, "0:40 left"),  # rows count 2 seconds each, the clock 20
        ({"num_steps": 5_000}, "0:40 left"),
        ({"iteration": 4, "seconds": 10.0}, "0:20 left"),
        ({"iteration": 2}, "0:00 left"),
    ],
)
def test_time_left_is_that_to_the_nearest_limit(clock, capsys, limits, left):
    assert left in shown(clock, capsys, [20.0] * 3, **limits)[-1].split(" | ")


@pytest.mark.parametrize("quiet", [False, True])
def test_a_run_that_takes_days_is_one_warning_with_the_estimate(clock, capsys, quiet):
    with pytest.warns(UserWarning, match="days more") as told:
        shown(clock, capsys, [1_000.0] * 4, quiet=quiet, iteration=1_002)
    (warning,) = told
    assert "at its pace this run takes 11.6 days more" in str(warning.message)


@pytest.mark.parametrize(
    ("pause", "limits"),
    [(1_000.0, {"iteration": 80}), (1_000.0, {"iteration": 1_002, "seconds": 1e6}), (1e4, {})],
)
def test_a_run_of_a_day_or_one_that_says_when_it_ends_is_none(clock, capsys, pause, limits):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shown(clock, capsys, [pause] * 4, **limits)


def test_the_pace_is_that_of_recent_rows(clock, capsys):
    line = shown(clock, capsys, [100.0] * 5 + [10.0] * 30)[-1]
    assert "100 steps/s" in line.split(" | ")


def test_rows_that_come_at_once_took_what_they_tell(clock, capsys):
    line = shown(clock, capsys, [20.0, 1e-6], iteration=3)[-1]  # rows count 2 seconds each
    assert line == "iteration 2/3 | 2,000 steps | 500 steps/s | 0:02 left | return -1.25"


def test_on_a_terminal_a_live_bar_shows_the_last_row(clock, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    output = "\n".join(shown(clock, capsys, [20.0] * 3, iteration=3))
    assert "iteration 3/3 | 3,000 steps | 50 steps/s" in output


def told_meanwhile(clock, capsys, monkeypatch, pauses, *, quiet=False):
    """What is printed between row 1 and row 2, `pauses` seconds after one another, and after it."""
    looks, tell = threading.Semaphore(0), Progress._tell_if_long

    def look(self):
        tell(self)
        looks.release()

    def await_a_whole_look():
        while looks.acquire(blocking=False):
            pass
        for _ in range(2):  # the first may have begun before
            assert looks.acquire(timeout=0.05 if quiet else 10.0) != quiet

    monkeypatch.setattr("adaptax.experiment.progress.PULSE", 0.001)
    monkeypatch.setattr(Progress, "_tell_if_long", look)
    with Progress({}, quiet=quiet) as progress:
        progress.update(row(1))
        capsys.readouterr()
        progress.begin("iteration 2")
        for pause in pauses:
            clock.now += pause
            await_a_whole_look()
        progress.update(row(2))
        clock.now += 100.0
        await_a_whole_look()
    return capsys.readouterr().out


def test_an_iteration_that_takes_long_is_said_to_be_under_way(clock, capsys, monkeypatch):
    out = told_meanwhile(clock, capsys, monkeypatch, [4.0, 6.0, 4.0, 6.0])
    lines = out.splitlines()
    assert lines[:2] == ["iteration 2 under way for 10 s", "iteration 2 under way for 20 s"]
    assert [line.split(" | ")[0] for line in lines[2:]] == ["iteration 2"]


def test_an_evaluation_that_takes_long_is_said_to_be_under_way(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("adaptax.experiment.progress.LONG", 0.0)
    monkeypatch.setattr("adaptax.experiment.progress.PULSE", 0.001)
    said = []

    def evaluate(self):
        said.append(first_output(capsys))
        return untrained

    monkeypatch.setattr(Trainer, "evaluate", evaluate)
    suite = point_suite(ALGORITHMS["nop"])
    config = TrainerConfig(
        str(tmp_path / "run"), num_iterations=1, evaluation_interval=1, evaluation=EVALUATION
    )
    trainer = Trainer(config, small_agent(ALGORITHMS["nop"], suite), suite)
    untrained = trainer.evaluate_untrained()
    trainer.run()
    assert re.match(r"evaluation at iteration 0 under way for \d+ s", said[0])


@pytest.mark.parametrize(("pause", "quiet"), [(4.9, False), (60.0, True)])
def test_a_short_iteration_and_a_quiet_run_say_nothing_meanwhile(
    clock, capsys, monkeypatch, pause, quiet
):
    out = told_meanwhile(clock, capsys, monkeypatch, [pause], quiet=quiet)
    assert "under way" not in out


def test_on_a_terminal_the_live_line_says_that_an_iteration_is_under_way(
    clock, capsys, monkeypatch
):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    shown = []
    monkeypatch.setattr("rich.progress.Progress.update", lambda *_, line, **__: shown.append(line))
    told_meanwhile(clock, capsys, monkeypatch, [7.0])
    first, *between, last = shown
    assert set(between) == {f"{first} | iteration 2 under way for 7 s"}
    assert last.startswith("iteration 2 | ")


def test_first_and_last_episode_come_from_the_numbered_returns():
    numbered = {f"train/return/episode_{k}": float(k) for k in range(1, 11)}
    assert episode_returns(numbered) == (1.0, 10.0)
    assert episode_returns({"train/return/episode_1": 1.0}) == (None, None)
    assert episode_returns({"train/return": 1.0}) == (None, None)


def test_a_group_shows_its_mean_and_at_the_end_each_seed(clock, capsys):
    with Progress({"iteration": 2}) as progress:
        for iteration in (1, 2):
            clock.now += 20.0
            rows = {s: row(iteration, **{"train/return": float(s)}) for s in (0, 3)}
            progress.update_group(rows)
            progress.tell("between")
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "mean | iteration 1/2 | 1,000 steps | return 1.5",
        "between",
        "mean | iteration 2/2 | 2,000 steps | 50 steps/s | 0:00 left | return 1.5",
        "between",
        "seed 0 | iteration 2/2 | 2,000 steps | return 0",
        "seed 3 | iteration 2/2 | 2,000 steps | return 3",
    ]


def test_a_seed_that_joins_a_group_later_does_not_turn_its_pace_round(clock, capsys):
    with Progress({"iteration": 2}) as progress:
        for rows in ({0: row(1)}, {0: row(2)}, {0: row(2), 1: row(1)}, {0: row(2), 1: row(2)}):
            clock.now += 20.0
            progress.update_group(rows)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("mean")]
    assert lines == [
        "mean | iteration 1/2 | 1,000 steps",
        "mean | iteration 2/2 | 2,000 steps | 50 steps/s | 0:00 left",
        "mean | iteration 2/2 | 1,500 steps",
        "mean | iteration 2/2 | 2,000 steps | 25 steps/s",
    ]


def test_on_a_terminal_a_group_has_a_line_for_each_seed(clock, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")
    with Progress({"iteration": 2}) as progress:
        progress.update_group({s: row(1, **{"train/return": float(s)}) for s in (0, 3)})
    out = capsys.readouterr().out
    for line in ("mean | iteration 1/2", "seed 0 | iteration 1/2", "seed 3 | iteration 1/2"):
        assert line in out


def test_the_newest_row_is_the_last_whole_one(tmp_path):
    path = tmp_path / "progress.jsonl"
    assert newest_row(path) is None
    path.write_text('{"iteration": 1, "x": "' + "y" * 100_000 + '"}\n{"iteration": 2}\n{"iterat')
    assert newest_row(path) == {"iteration": 2}
