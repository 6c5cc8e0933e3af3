from __future__ import annotations

import math
import re

import jax.numpy as jnp
import pytest
from small import SMALL
from test_trainer import column, left_behind, snapshots, trainer
from toys import cliff_suite

import adaptax
from adaptax.algorithms.search.nop import NOP, NOPConfig
from adaptax.core.errors import AdaptaxError, ConfigError
from adaptax.experiment import cli
from adaptax.experiment.callbacks import Callback, EarlyStopping
from adaptax.experiment.group import Group
from adaptax.experiment.logger import read_rows
from adaptax.experiment.trainer import Trainer, TrainerConfig

EVALUATED = {"evaluation_interval": 1, "snapshot_interval": 2}


def run_with(callbacks, run_dir, hooks=None, **settings) -> Trainer:
    plain = trainer(run_dir, hooks, **settings)
    return Trainer(plain.config, plain.algorithm, plain.suite, callbacks)


def compiled(run_dir, callbacks, **settings):
    """A run of an algorithm whose short iterations are several in a call."""
    suite = adaptax.make_suite("point-goal", horizon=5)
    algorithm = adaptax.make_algorithm("reinforce", suite.spec, **SMALL["reinforce"])
    settings = {"quiet": True, "evaluation_interval": None, "num_iterations": 40, **settings}
    return adaptax.train(algorithm, suite, run_dir=run_dir, callbacks=callbacks, **settings)


@pytest.fixture
def many(monkeypatch):
    """Iterations in a call, however slow the machine."""
    monkeypatch.setattr("adaptax.experiment.learner.MOST_SECONDS", 1e6)


class Told(Callback):
    """Notes what it is told."""

    def __init__(self):
        self.calls = []

    def on_start(self, run):
        self.calls.append(("start", run.iteration))

    def on_row(self, run, row):
        self.calls.append(("row", row["iteration"], run.iteration))

    def on_evaluation(self, run, row):
        self.calls.append(("evaluation", row["iteration"]))

    def on_end(self, run):
        self.calls.append(("end", run.iteration))


class OnlyLooking(Told):
    in_step = False


def test_a_run_tells_what_happens_in_order(tmp_path):
    told = Told()
    run_with([told], tmp_path / "run", num_iterations=3, evaluation_interval=2).run()
    rows = [("row", i, i) for i in (1, 2, 3)]
    untrained, *evaluations = [("evaluation", i) for i in (0, 2, 3)]
    middle = [*rows[:2], evaluations[0], rows[2], evaluations[1]]
    assert told.calls == [("start", 0), untrained, *middle, ("end", 3)]


def test_rows_of_several_iterations_in_a_call_come_one_by_one_and_in_order(tmp_path, many):
    looking, told = OnlyLooking(), Told()
    run_looking = compiled(tmp_path / "looking", [looking])
    run_told = compiled(tmp_path / "told", [told])
    rows = [call for call in looking.calls if call[0] == "row"]
    assert [row[1] for row in rows] == list(range(1, 41))
    assert any(done > iteration for _, iteration, done in rows), "never several in a call"
    assert [call for call in told.calls if call[0] == "row"] == [
        ("row", i, i) for i in range(1, 41)
    ]
    assert left_behind(run_looking) == left_behind(run_told)


class Adding(Callback):
    def __init__(self, **added):
        self.added = added

    def on_row(self, run, row):
        return self.added

    def on_evaluation(self, run, row):
        return self.added


def test_figures_and_texts_of_a_callback_are_in_the_rows(tmp_path):
    adding = [Adding(half=0.5, note="warm", count=jnp.array(3)), Adding(bad=math.nan)]
    run = run_with(adding, tmp_path / "run", num_iterations=2, evaluation_interval=2)
    last = run.run()
    assert (last["half"], last["note"], last["count"]) == (0.5, "warm", 3)
    for file in ("progress.jsonl", "evaluations.jsonl"):
        for row in read_rows(run.run_dir / file):
            assert (row["half"], row["note"], row["count"], row["bad"]) == (0.5, "warm", 3, None)


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ({"iteration": 3}, "the callback Adding adds 'iteration', which the row has"),
        ({"x": [1]}, "the callback Adding adds 'x', a list: only numbers and texts can be"),
        ({"x": jnp.zeros(2)}, "adds 'x', a ArrayImpl: only numbers and texts can be"),
    ],
)
def test_what_does_not_belong_into_a_row_is_refused(tmp_path, added, message):
    with pytest.raises(ConfigError, match=message):
        run_with([Adding(**added)], tmp_path / "run", num_iterations=2).run()


@pytest.mark.parametrize("callback", [Told, print])
def test_what_is_no_callback_is_refused(tmp_path, callback):
    with pytest.raises(ConfigError, match=r"a callback is an adaptax\.Callback, not"):
        run_with([callback], tmp_path / "run")


@pytest.mark.parametrize(
    ("hook", "told"),
    [
        ("on_rows", "unknown hook of the callback Misspelt 'on_rows'; did you mean 'on_row'?"),
        ("on_evaluate", "did you mean 'on_evaluation'?"),
        ("on_iteration_done", "allowed: on_end, on_evaluation, on_row, on_start, on_video"),
    ],
)
def test_a_hook_that_nothing_calls_is_refused(tmp_path, hook, told):
    misspelt = type("Misspelt", (Told,), {hook: lambda self, run, row: None, "on_at": None})
    with pytest.raises(ConfigError, match=re.escape(told)):
        run_with([misspelt()], tmp_path / "run")


@pytest.mark.parametrize("callbacks", [None, 3, EarlyStopping()])
def test_what_are_no_callbacks_is_refused(tmp_path, callbacks):
    with pytest.raises(ConfigError, match="callbacks: expected a list, not"):
        run_with(callbacks, tmp_path / "run")


@pytest.mark.parametrize("seeds", [None, (0, 1)])
def test_callbacks_that_come_one_by_one_are_called(tmp_path, seeds):
    suite = cliff_suite()
    config = TrainerConfig(str(tmp_path / "run"), num_iterations=1, evaluation_interval=None)
    algorithm, callbacks = NOP(NOPConfig(), suite.spec), (each for each in [StopAt(1)])
    if seeds is None:
        runs = [Trainer(config, algorithm, suite, callbacks)]
    else:
        runs = Group(config, seeds, algorithm, suite, callbacks).members
    assert all(len(run.callbacks._all) == 1 for run in runs)


class StopAt(Callback):
    def __init__(self, iteration):
        self.iteration = iteration

    def on_row(self, run, row):
        if row["iteration"] == self.iteration:
            run.stop("enough")


def test_a_callback_ends_the_run_after_the_very_iteration(tmp_path, capsys):
    run = compiled(tmp_path / "run", [StopAt(7)], quiet=False)
    assert column(run)[-1] == run.iteration == snapshots(run)[-1] == 7
    assert "ended after iteration 7: enough" in capsys.readouterr().out


def test_a_run_that_a_callback_ends_is_evaluated(tmp_path):
    run = run_with([StopAt(3)], tmp_path / "run", num_iterations=9, evaluation_interval=2)
    run.run()
    assert column(run, file="evaluations.jsonl") == [0, 2, 3]


def test_every_callback_that_started_is_told_of_the_end_by_an_error(tmp_path):
    class Failing(Told):
        def on_row(self, run, row):
            raise RuntimeError("mine")

    told, failing = Told(), Failing()
    with pytest.raises(RuntimeError, match="mine"):
        run_with([told, failing], tmp_path / "run", num_iterations=2).run()
    assert [called.calls[-1][0] for called in (told, failing)] == ["end", "end"]


class FailsAt(Callback):
    """Goes wrong once, at a row or at an evaluation."""

    def __init__(self, iteration, hook="on_row", in_step=True):
        self.iteration, self.hook, self.in_step = iteration, hook, in_step

    def _heard(self, hook, row):
        if hook == self.hook and row["iteration"] == self.iteration:
            self.iteration = None
            raise RuntimeError("mine")

    def on_row(self, run, row):
        self._heard("on_row", row)

    def on_evaluation(self, run, row):
        self._heard("on_evaluation", row)


@pytest.mark.parametrize("hook", ["on_row", "on_evaluation"])
def test_a_callback_that_fails_costs_nothing_that_was_learned(tmp_path, hook):
    settings = {"num_iterations": 7, "evaluation_interval": 2, "snapshot_interval": 5}
    whole, told = trainer(tmp_path / "whole", **settings), Told()
    whole.run()
    run = run_with([told, FailsAt(4, hook)], tmp_path / "run", **settings)
    with pytest.raises(RuntimeError, match="mine"):
        run.run()
    assert snapshots(run) == [4] and column(run) == [1, 2, 3, 4]
    run.resume()
    assert left_behind(run) == left_behind(whole)
    assert [call[1] for call in told.calls if call[0] == "row"] == [1, 2, 3, 4, 5, 6, 7]
    assert [call[1] for call in told.calls if call[0] == "evaluation"] == [0, 2, 4, 6, 7]


def test_one_that_only_looks_and_fails_costs_none_of_the_iterations_of_its_call(tmp_path, many):
    whole = compiled(tmp_path / "whole", [])
    before, after = OnlyLooking(), OnlyLooking()
    with pytest.raises(RuntimeError, match="mine"):
        compiled(tmp_path / "run", [before, FailsAt(7, in_step=False), after])
    done = before.calls[-1][1]
    for looking in (before, after):
        assert [c[1] for c in looking.calls if c[0] == "row"] == list(range(1, done + 1))
    run = adaptax.load_run(tmp_path / "run", num_iterations=40)
    assert done > 7, "it did not fail within a call"
    assert snapshots(run) == [done] and column(run) == list(range(1, done + 1))
    with pytest.warns(UserWarning, match="goes on without"):
        run.resume()
    assert left_behind(run) == left_behind(whole)


class Scripted(Callback):
    """Stands in for a run."""

    def __init__(self, interval=1):
        self.config = adaptax.TrainerConfig("run", evaluation_interval=interval)
        self.why = None

    def stop(self, why):
        self.why = why


def ended_after(stopping, figures):
    """How many evaluations with these returns it takes to end a run; None if they do not."""
    run = Scripted()
    stopping.on_start(run)
    for number, figure in enumerate(figures, 1):
        stopping.on_evaluation(run, {"episodes": [{"return_mean": 99}, {"return_mean": figure}]})
        if run.why is not None:
            return number, run.why
    return None


def test_early_stopping_counts_evaluations_without_a_better_one():
    ended = ended_after(EarlyStopping(2), [1.0, 3.0, 2.0, 4.0, 4.0, 3.9, 9.0])
    assert ended == (6, "the last 2 evaluations are no better than 4")
    assert ended_after(EarlyStopping(2), [1.0, 1.1, 1.2, 1.3]) is None
    assert ended_after(EarlyStopping(2, min_gain=0.5), [1.0, 1.1, 1.2, 1.3])[0] == 3


def test_early_stopping_looks_at_test_episodes_where_there_are_any():
    run, stopping = Scripted(), EarlyStopping(1)
    for tested, in_a_row in ((1.0, 9.0), (2.0, 8.0)):
        test = {"return_mean": tested}
        stopping.on_evaluation(run, {"episodes": [{"return_mean": in_a_row}], "test": test})
    assert run.why is None and stopping.best == 2.0


@pytest.mark.parametrize(
    "settings", [{"patience": 0}, {"patience": True}, {"min_gain": -1.0}, {"min_gain": "1"}]
)
def test_early_stopping_refuses_what_makes_no_sense(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        EarlyStopping(**settings)


def test_early_stopping_without_evaluations_says_so(tmp_path):
    with pytest.raises(ConfigError, match="needs evaluations: set evaluation_interval"):
        EarlyStopping().on_start(Scripted(None))


@pytest.mark.parametrize("first", [2, 3])
def test_a_run_that_counts_goes_on_as_if_nothing_had_happened(tmp_path, first):
    """Its figures rise and fall, so that it must know the best of before."""
    settings = {**EVALUATED, "num_iterations": 30, "patience": 3}
    whole = trainer(tmp_path / "whole", **settings)
    whole.run()
    assert 3 < whole.iteration < 30
    trainer(tmp_path / "run", **{**settings, "num_iterations": first}).run()
    resumed = trainer(tmp_path / "run", **settings)
    resumed.resume()
    assert left_behind(resumed) == left_behind(whole)


def test_a_run_that_was_ended_stays_so(tmp_path, capsys):
    settings = {**EVALUATED, "num_iterations": 30, "patience": 1}
    first = trainer(tmp_path / "run", **settings)
    first.run()
    again = trainer(tmp_path / "run", **{**settings, "num_iterations": 60, "quiet": False})
    again.resume()
    assert left_behind(again) == left_behind(first)
    out = capsys.readouterr().out
    assert f"ended after iteration {first.iteration}: the last evaluation is no better" in out
    assert "with patience None: Trainer(config, algorithm, suite).resume()" in out


class Count(Callback):
    """Numbers the rows."""

    def __init__(self):
        self.count = 0

    def on_row(self, run, row):
        self.count += 1
        return {"count": self.count}

    def save(self):
        return {"count": self.count}

    def restore(self, saved):
        self.count = saved["count"]


def test_a_callback_goes_on_with_what_the_snapshot_kept_of_it(tmp_path):
    run_with([Count()], tmp_path / "run", num_iterations=3, snapshot_interval=2).run()
    resumed = run_with([Count()], tmp_path / "run", num_iterations=5)
    resumed.resume()
    assert column(resumed, "count") == [1, 2, 3, 4, 5]


def test_a_run_from_the_start_has_its_callbacks_as_they_were(tmp_path):
    run = run_with([Count()], tmp_path / "run", num_iterations=2, overwrite=True)
    run.run()
    run.run()
    assert column(run, "count") == [1, 2]


def test_a_callback_that_another_run_had_begins_anew(tmp_path):
    callbacks, settings = [Count(), EarlyStopping(patience=3)], {**EVALUATED, "num_iterations": 30}
    runs = [run_with(callbacks, tmp_path / name, **settings) for name in ("first", "second")]
    for run in runs:
        run.run()
    assert left_behind(runs[1]) == left_behind(runs[0])
    another = run_with(callbacks, tmp_path / "third", **settings)
    another.run()
    assert column(another, "count") == column(runs[0], "count") == column(runs[0])


@pytest.mark.parametrize(
    ("kept", "message"),
    [({"of": {1: 2}}, "the key 1"), ({"of": {2}}, "a set"), ({"of": [object()]}, "a object")],
)
def test_what_no_snapshot_holds_is_refused_before_training(tmp_path, kept, message):
    class Keeping(Callback):
        def save(self):
            return kept

    with pytest.raises(ConfigError, match=f"Keeping.save\\(\\) gives {message}: give numbers"):
        run_with([Keeping()], tmp_path / "run", num_iterations=2)
    assert not (tmp_path / "run").exists()


def test_a_run_that_begins_anew_has_its_callbacks_see_the_first_evaluation(tmp_path):
    class Die(Callback):
        def on_row(self, run, row):
            raise KeyboardInterrupt

    settings = {**EVALUATED, "num_iterations": 3}
    told, whole = Told(), Told()
    run_with([whole], tmp_path / "whole", **settings).run()
    with pytest.raises(KeyboardInterrupt):
        run_with([Die()], tmp_path / "run", **settings).run()
    resumed = run_with([told], tmp_path / "run", **settings)
    with pytest.warns(UserWarning, match="no snapshot yet"):
        resumed.resume()
    assert told.calls == whole.calls
    assert [row["iteration"] for row in read_rows(tmp_path / "run" / "evaluations.jsonl")] == [
        0,
        1,
        2,
        3,
    ]


def test_a_run_that_goes_on_without_a_callback_says_so(tmp_path):
    run_with([Count()], tmp_path / "run", num_iterations=2).run()
    with pytest.warns(UserWarning, match="was trained with the callback Count and goes on without"):
        trainer(tmp_path / "run", num_iterations=3).resume()


def test_each_seed_of_a_group_has_a_callback_of_its_own(tmp_path):
    count = Count()
    compiled(tmp_path / "group", [count], seeds=range(2), num_iterations=3)
    for seed in range(2):
        rows = read_rows(tmp_path / "group" / f"seed-{seed}" / "progress.jsonl")
        assert [row["count"] for row in rows] == [1, 2, 3]
    assert count.count == 0


def test_a_seed_that_is_ended_leaves_the_others(tmp_path):
    class EndSeedOne(Callback):
        def on_row(self, run, row):
            if run.config.seed == 1 and row["iteration"] == 2:
                run.stop("enough")

    group = compiled(tmp_path / "group", [EndSeedOne()], seeds=range(3), num_iterations=4)
    assert [member.iteration for member in group.members] == [4, 2, 4]


TRAIN = ["train", "nop", "point-goal", "--num-iterations", "9", "--evaluation.num-tasks", "2"]


def test_early_stopping_from_the_command_line(tmp_path, capsys):
    run_dir = tmp_path / "run"  # nothing is learned: its evaluations are all the same
    cli.main([*TRAIN, "--run-dir", str(run_dir), "--patience=2", "--evaluation-interval=1"])
    out = capsys.readouterr().out
    assert [row["iteration"] for row in read_rows(run_dir / "evaluations.jsonl")] == [0, 1, 2]
    assert "ended after iteration 2: the last 2 evaluations are no better than -" in out
    assert out.count(" held-out tasks: return ") == 3
    last = f"{run_dir} is done; next: adaptax evaluate {run_dir}, adaptax plot {run_dir}"
    assert out.splitlines()[-1] == last


def test_patience_without_evaluations_is_refused(tmp_path, capsys):
    words = ["--patience=2", "--evaluation-interval=None"]
    with pytest.raises(SystemExit):
        cli.main([*TRAIN, "--run-dir", str(tmp_path / "run"), *words])
    assert "patience counts evaluations: it needs an evaluation_interval" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_quiet_run_says_nothing_of_evaluations(tmp_path, capsys):
    trainer(tmp_path / "run", num_iterations=2, evaluation_interval=1).run()
    assert capsys.readouterr().out == ""


def test_a_group_says_which_seed_was_evaluated(tmp_path, capsys):
    evaluation = {"num_tasks": 2}
    compiled(
        tmp_path / "group",
        [],
        seeds=range(2),
        num_iterations=2,
        evaluation_interval=2,
        evaluation=evaluation,
        quiet=False,
    )
    out = capsys.readouterr().out
    for seed in range(2):
        assert f"seed {seed}: evaluation at iteration 2, 2 held-out tasks: return -" in out
    assert "adaptax plot" in out.splitlines()[-1]


def test_a_snapshot_of_a_failing_restore_is_not_blamed_on_the_snapshot(tmp_path):
    class Broken(Count):
        def restore(self, saved):
            if saved["count"]:
                raise AdaptaxError("mine")

    Broken.__name__ = "Count"
    run_with([Count()], tmp_path / "run", num_iterations=2).run()
    with pytest.raises(AdaptaxError, match="mine"):
        run_with([Broken()], tmp_path / "run", num_iterations=3).resume()
