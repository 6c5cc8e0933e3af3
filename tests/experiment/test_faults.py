"""What a run does where numbers are not finite, the disk is full, or its directory is in use."""

from __future__ import annotations

import itertools
import os
import resource
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from said import warnings_within
from small import SMALL
from test_trainer import column, left_behind, snapshots, trainer
from toys import CliffEnv, cliff_suite, point_suite

import adaptax
from adaptax.algorithms import program
from adaptax.core.errors import AdaptaxError, DiskError, NotFinite
from adaptax.core.finite import not_finite
from adaptax.core.snapshot import LOCK, Snapshots
from adaptax.envs.pools.compiled import CompiledPool
from adaptax.experiment import cli
from adaptax.experiment.build import make_algorithm
from adaptax.experiment.evaluator import EvaluatorConfig
from adaptax.experiment.group import Group
from adaptax.experiment.logger import RunLog, read_rows
from adaptax.experiment.trainer import Trainer, TrainerConfig


@dataclass(frozen=True)
class BrokenEnv(CliffEnv):
    """A step in twenty answers with a number that is none."""

    where: str = "reward"
    value: float = np.nan

    def step(self, key, state, action, task):
        state, step = super().step(key, state, action, task)
        now = jax.random.bernoulli(jax.random.fold_in(key, 9), 0.05)
        broken = jnp.where(now, self.value, getattr(step, self.where))
        return state, replace(step, **{self.where: broken})


def broken_suite(**settings):
    env = BrokenEnv(**settings)
    return replace(cliff_suite(), make_pool=lambda n: CompiledPool(env, n))


SETTINGS = {"num_iterations": 12, "snapshot_interval": 100}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("where", "what"), [("reward", "the reward"), ("next_obs", "the observation")]
)
def test_an_answer_that_is_not_finite_stops_the_run_and_leaves_a_snapshot(
    tmp_path, where, what, value
):
    run = trainer(tmp_path / "run", suite=broken_suite(where=where, value=value), **SETTINGS)
    with pytest.raises(NotFinite, match=rf"^slot \d, step \d+, task 'goal': {what} is not finite$"):
        run.run()
    assert 0 < run.iteration < 12
    assert snapshots(run) == [run.iteration]
    assert column(run) == list(range(1, run.iteration + 1))
    assert not_finite(run.state) == []


def test_skipped_iterations_are_on_record_and_change_nothing(tmp_path):
    run = trainer(tmp_path / "run", suite=broken_suite(), on_nan="skip", **SETTINGS)
    with pytest.warns(UserWarning, match=r"iteration \d+ is skipped: slot \d, step"):
        run.run()
    rows = read_rows(run.run_dir / "progress.jsonl")
    assert [row["iteration"] for row in rows] == list(range(1, 13))
    skipped = ["skipped" in row for row in rows]
    assert 0 < sum(skipped) < 12
    assert int(run.state["updates"]) == 12 - sum(skipped)


@pytest.mark.filterwarnings("ignore:iteration")
def test_a_run_that_skips_resumes_bit_for_bit(tmp_path):
    suite = broken_suite()
    whole = trainer(tmp_path / "whole", suite=suite, on_nan="skip", num_iterations=8)
    whole.run()
    trainer(tmp_path / "run", suite=suite, on_nan="skip", num_iterations=4).run()
    run = trainer(tmp_path / "run", suite=suite, on_nan="skip", num_iterations=8)
    run.resume()
    assert left_behind(run) == left_behind(whole)


def diverging(run, at: int, value: float = np.nan):
    """The run with a parameter that is not a number after an iteration."""
    iterate = run.algorithm.iteration

    def iteration(*args):
        state, metrics = iterate(*args)
        bad = run.algorithm.count >= at
        return {**state, "bias": state["bias"] * (value if bad else 1.0)}, metrics

    run.algorithm.iteration = iteration
    return run


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_parameter_that_is_not_finite_is_named_and_the_last_good_state_kept(tmp_path, value):
    run = diverging(trainer(tmp_path / "run", **SETTINGS), 4, value)
    with pytest.raises(NotFinite, match=r"the update left NaN or infinity in \['bias'\]$"):
        run.run()
    assert (run.iteration, snapshots(run)) == (3, [3])
    again, whole = (trainer(tmp_path / name, num_iterations=5) for name in ("run", "whole"))
    again.resume()
    whole.run()
    assert left_behind(again) == left_behind(whole)


@pytest.mark.filterwarnings("ignore:iteration")
def test_a_fault_that_does_not_go_away_ends_a_run_that_skips(tmp_path):
    run = diverging(trainer(tmp_path / "run", on_nan="skip", num_iterations=50), 3)
    with pytest.raises(NotFinite):
        run.run()
    assert run.iteration == 12
    assert snapshots(run)[-1] == 12


def test_what_may_be_infinite_is_left_alone(tmp_path):
    run = diverging(trainer(tmp_path / "run", num_iterations=2), 2)
    run.algorithm.may_be_infinite = ("['bias']",)
    assert run.run()["iteration"] == 2


def test_a_fault_in_an_evaluation_leaves_a_snapshot(tmp_path):
    run = trainer(tmp_path / "run", num_iterations=5, evaluation_interval=3)
    evaluate = run.evaluate

    def broken():
        if run.iteration == 3:
            raise NotFinite("it broke")
        return evaluate()

    run.evaluate = broken
    with pytest.raises(NotFinite, match="it broke"):
        run.run()
    assert (snapshots(run), column(run, file="evaluations.jsonl")) == ([3], [0])
    again = trainer(tmp_path / "run", num_iterations=5, evaluation_interval=3)
    again.resume()
    assert column(again, file="evaluations.jsonl") == [0, 3, 5]


def test_a_fault_leaves_the_snapshot_of_its_iteration_alone(tmp_path, monkeypatch):
    # Written anew it would be away for a moment, in which a kill loses it.
    run = diverging(trainer(tmp_path / "run", num_iterations=9, snapshot_interval=3), 4)
    saved, save = [], Snapshots.save

    def counting(self, iteration, *args):
        saved.append(iteration)
        save(self, iteration, *args)

    monkeypatch.setattr(Snapshots, "save", counting)
    with pytest.raises(NotFinite):
        run.run()
    assert (run.iteration, saved, snapshots(run)) == (3, [3], [3])


def break_program(monkeypatch, number: int) -> None:
    """Have a call of a compiled program fail once it has taken over the rows of a replay."""
    calls = itertools.count(1)

    def made(make, *options):
        run = make(*options)

        def call(*arguments):
            result = run(*arguments)
            if next(calls) == number:
                raise jax.errors.JaxRuntimeError("INTERNAL: out of luck")
            return result

        return call

    for name in ("_compiled", "_compiled_update"):
        monkeypatch.setattr(program, name, partial(made, getattr(program, name)))


def replay_run(tmp_path, name: str, num_iterations: int, kind=Trainer, *seeds):
    suite = point_suite()
    algorithm = make_algorithm(name, suite.spec, **SMALL[name])
    config = TrainerConfig(
        str(tmp_path),
        num_iterations=num_iterations,
        evaluation_interval=None,
        snapshot_interval=100,
        quiet=True,
    )
    return kind(config, *seeds, algorithm, suite)


EMPTY = "iteration 3 is saved with an empty replay"


@pytest.mark.parametrize(
    "name", ["sac", *(pytest.param(x, marks=pytest.mark.slow) for x in ("pearl", "rl2-sac"))]
)
def test_a_program_that_fails_costs_the_replay_that_it_had_taken_over_and_no_more(
    tmp_path, monkeypatch, name
):
    whole, broken = replay_run(tmp_path / "whole", name, 3), replay_run(tmp_path / "run", name, 6)
    whole.run()
    with monkeypatch.context() as patch:
        break_program(patch, 4)
        with pytest.warns(UserWarning, match=EMPTY), pytest.raises(Exception, match="out of luck"):
            broken.run()
    assert snapshots(broken) == [3]
    found, expected = (run.store.snapshots.load(3)["state"] for run in (broken, whole))
    (lost,) = broken.algorithm.in_place
    for part in ("sizes", "num_added"):
        assert expected[f".{lost}/{part}"].any()
        expected[f".{lost}/{part}"] = np.zeros_like(found[f".{lost}/{part}"])
    expected = {path: x for path, x in expected.items() if f".{lost}/rows/" not in path}
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    again = replay_run(tmp_path / "run", name, 6)
    again.resume()
    assert column(again) == [1, 2, 3, 4, 5, 6]
    assert again.state.learner.num_updates > whole.state.learner.num_updates
    replay = getattr(again.state, lost)
    assert 0 < replay.sizes.sum() == replay.num_added.sum()


def test_a_program_of_one_seed_that_fails_costs_the_others_nothing(tmp_path, monkeypatch):
    group = replay_run(tmp_path, "sac", 5, Group, (0, 1))
    break_program(monkeypatch, 8)  # one seed's fourth iteration
    with (
        pytest.warns(UserWarning, match=EMPTY),
        pytest.raises(AdaptaxError, match=r"^seed \d: JaxRuntimeError: INTERNAL: out of luck$"),
    ):
        group.run()
    assert sorted(map(snapshots, group.members)) == [[3], [5]]


def limit_files(size: int) -> None:
    """From now on no file can be longer: stands for a full disk, for root as well."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard if size < 0 else size, hard))


@pytest.fixture
def disk():
    """No file grows beyond SIZE `with disk(SIZE)`: within the test, or pytest could not report."""

    @contextmanager
    def limited(size: int):
        limit_files(size)
        try:
            yield
        finally:
            limit_files(-1)

    return limited


def test_a_full_disk_is_survived_and_nothing_is_missing_afterwards(tmp_path, disk):
    hooks = {3: lambda: limit_files(200), 6: lambda: limit_files(-1)}
    run = trainer(tmp_path / "run", hooks, num_iterations=7, snapshot_interval=2)
    with warnings_within() as messages, disk(-1):
        run.run()
    told = [message for message in messages if "cannot write" in message]
    assert len(told) == 2
    assert all(f"cannot write {run.run_dir / 'progress.jsonl'}: " in text for text in told)
    assert "the newest is of iteration 2; the run goes on" in told[1]
    whole = trainer(tmp_path / "whole", num_iterations=7)
    whole.run()
    assert left_behind(run) == left_behind(whole)
    assert snapshots(run) == [2, 6, 7]


def test_a_snapshot_that_cannot_be_written_leaves_the_one_before_it(tmp_path, disk):
    saved = Snapshots(tmp_path)
    saved.save(3, {"x": np.arange(1000)})
    before = sorted(p.name for p in tmp_path.iterdir())
    for iteration in (3, 6):
        message = f"snapshot .*iteration-0000000{iteration}: File too"
        with disk(1000), pytest.raises(DiskError, match=message):
            saved.save(iteration, {"x": np.random.default_rng(0).random(1000)})
    assert sorted(p.name for p in tmp_path.iterdir()) == before
    assert saved.load(3)["x"][-1] == 999


def test_a_run_whose_last_snapshot_could_not_be_written_says_so(tmp_path):
    run = trainer(tmp_path / "run", {2: lambda: (tmp_path / "run/snapshots").touch()})
    run.config = replace(run.config, num_iterations=3)
    with (
        pytest.warns(UserWarning, match="there is none yet; the run goes on"),
        pytest.raises(DiskError, match=r"cannot write snapshot .*iteration-00000003: Not a dir"),
    ):
        run.run()
    assert column(run) == [1, 2, 3]


def test_a_disk_full_from_the_start_is_one_line(tmp_path, disk, capsys):
    run_dir, words = tmp_path / "run", ["train", "nop", "point-goal", "--quiet", "--run-dir"]
    # Its programs are kept from then on: JAX warns of each that it cannot write.
    cli.main([*words, str(tmp_path / "before"), "--num-iterations", "1"])
    capsys.readouterr()
    with disk(0), pytest.raises(SystemExit) as stop:
        cli.main([*words, str(run_dir)])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith(f"adaptax: cannot write {run_dir}")
    assert err.count("\n") == 1


def test_a_row_is_written_whole_or_not_at_all(tmp_path, disk):
    log = RunLog(tmp_path)
    log.log({"iteration": 1})
    waits = r"progress.jsonl: File too large; the run goes on and tries again"
    with disk(20), pytest.warns(UserWarning, match=waits):
        log.log({"iteration": 2})
    assert [row["iteration"] for row in read_rows(tmp_path / "progress.jsonl")] == [1]
    with disk(20), pytest.raises(DiskError, match=r"progress\.jsonl"):
        log.flush()
    log.log({"iteration": 3})
    assert [row["iteration"] for row in read_rows(tmp_path / "progress.jsonl")] == [1, 2, 3]


def test_a_directory_in_use_is_refused_to_every_other_run(tmp_path):
    refusals = []

    def intrude():
        for method, settings in (("run", {"overwrite": True}), ("resume", {})):
            other = trainer(tmp_path / "run", **settings)
            with pytest.raises(AdaptaxError, match="is in use by") as error:
                getattr(other, method)()
            refusals.append(str(error.value))

    run = trainer(tmp_path / "run", {2: intrude}, num_iterations=3, snapshot_interval=1)
    run.run()
    assert len(refusals) == 2
    assert all(f"is in use by process {os.getpid()} on " in text for text in refusals)
    assert column(run) == [1, 2, 3]
    assert not (run.run_dir / LOCK).exists()
    trainer(tmp_path / "run", num_iterations=4).resume()


def test_a_snapshot_without_what_a_run_needs_is_one_line(tmp_path):
    run = trainer(tmp_path / "run", num_iterations=1)
    run.run()
    saved = run.store.snapshots
    tree = saved.load(1)
    for change in (
        {"sampler": {}},
        {"sampler": {"counters": np.zeros(1, np.int64)}},
        {"sampler": {"counters": np.array([1, 2, 3, -4])}},
        {"sampler": {"counters": np.array([1, 2, 3, 2**53 + 1])}},
        *({"seconds": x} for x in (np.nan, np.inf, -1.0, 10**400, "0", None)),
    ):
        saved.save(1, {**tree, **change})
        with pytest.raises(AdaptaxError, match="iteration-00000001 is not of this run"):
            trainer(tmp_path / "run").load()


class Moody(gymnasium.Env):
    """Observations that no seed determines."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        return np.frombuffer(os.urandom(2), np.uint8) / np.float32(256), {}

    def step(self, action):
        return self.reset()[0], 0.0, False, False, {}


def test_what_no_seed_determines_can_be_evaluated_but_not_go_on_in_mid_episode(tmp_path):
    suite = adaptax.gym_suite("moody", Moody, horizon=20)
    settings = {"num_lanes": 1, "num_steps": 5, "num_minibatches": 1, "hidden_sizes": (4,)}
    algorithm = make_algorithm("ppo2", suite.spec, **settings)
    evaluation = EvaluatorConfig(num_lanes=2)
    config = TrainerConfig(
        str(tmp_path / "run"),
        num_iterations=1,
        evaluation_interval=None,
        evaluation=evaluation,
        quiet=True,
    )
    Trainer(config, algorithm, suite).run()
    again = Trainer(replace(config, num_iterations=2), algorithm, suite)
    again.load()
    assert again.iteration == 1
    assert again.evaluate().returns.shape[-1] == 1
    with pytest.raises(AdaptaxError, match="not deterministic given its seed"):
        again.resume()
