from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest.mock import Mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from said import first_output
from small import SMALL
from toys import cliff_suite, fingerprint

import adaptax
from adaptax.algorithms.base import Algorithm
from adaptax.core.errors import AdaptaxError, ConfigError, EnvironmentFault, SnapshotError
from adaptax.core.experience import PyTree
from adaptax.core.snapshot import Snapshots
from adaptax.envs.task import Task
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.experiment.evaluator import EvaluatorConfig
from adaptax.experiment.learner import Learner
from adaptax.experiment.logger import read_rows
from adaptax.experiment.trainer import Trainer, TrainerConfig

GOAL = (Task("goal", 0, {"goal": np.array([0.0, 1.0], np.float32)}),)
NUM_LANES, NUM_STEPS = 2, 7
STEPS_PER_ITERATION = NUM_LANES * NUM_STEPS


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DriftingActor:
    """Actions that drift about: what it remembers runs through episode ends."""

    bias: jax.Array
    size: int = field(metadata={"static": True})

    def begin(self, num_members, num_lanes, key):
        return {"drift": 0.1 * jax.random.normal(key, (num_members, num_lanes, self.size))}

    def act(self, carry, obs, key):
        noise = 0.1 * jax.random.normal(key, carry["drift"].shape)
        return jnp.tanh(self.bias + carry["drift"] + noise), carry, {}

    def observe(self, carry, step, key):
        return {"drift": 0.9 * carry["drift"] + 0.1 * step.action + 0.01 * step.reward[..., None]}


@dataclass(frozen=True)
class Nothing:
    pass


class Walker(Algorithm):
    """Learns a bias from steps that go on in mid-episode; `hooks` run in numbered iterations."""

    name = "walker"

    def __init__(self, spec, tasks: tuple[Task, ...], hooks: dict[int, Any] | None = None) -> None:
        super().__init__(Nothing(), spec)
        self.tasks, self.hooks, self._calls = tasks, hooks or {}, list[None]()

    @property
    def count(self) -> int:
        """How often it has collected."""
        return len(self._calls)

    def init(self, key) -> PyTree:
        return {"bias": jnp.zeros(self.spec.action.size), "updates": jnp.array(0), "key": key}

    def collect(self, state, sampler):
        self._calls.append(None)
        self.hooks.get(self.count, lambda: None)()
        return sampler.steps(self.actor(state), self.tasks, NUM_LANES, NUM_STEPS)

    def update(self, state, rollout):
        key, noise_key = jax.random.split(state["key"])
        noise = jax.random.normal(noise_key, state["bias"].shape)
        bias = state["bias"] + 0.01 * jnp.mean(rollout.reward) * noise
        state = {"bias": bias, "updates": state["updates"] + 1, "key": key}
        return state, {"bias": bias.sum()}

    def actor(self, state, *, deterministic=False):
        return DriftingActor(state["bias"], self.spec.action.size)


def trainer(run_dir, hooks=None, suite=None, tasks=GOAL, **settings) -> Trainer:
    suite = suite or cliff_suite()
    evaluation = EvaluatorConfig(num_tasks=1, num_episodes=2)
    settings = {"quiet": True, "evaluation_interval": None, "evaluation": evaluation, **settings}
    config = TrainerConfig(str(run_dir), **settings)
    return Trainer(config, Walker(suite.spec, tasks, hooks), suite)


def left_behind(run) -> tuple[Any, ...]:
    """State, sampler and rows of a run, but for the time they took."""
    rows = [{**row, "seconds": None} for row in read_rows(run.run_dir / "progress.jsonl")]
    path = run.run_dir / "evaluations.jsonl"
    evaluations = read_rows(path) if path.exists() else []
    return fingerprint((run.state, run.sampler.save())), rows, evaluations


def column(run, name: str = "iteration", file: str = "progress.jsonl") -> list[Any]:
    return [row[name] for row in read_rows(run.run_dir / file)]


def snapshots(run) -> list[int]:
    return Snapshots(run.run_dir / "snapshots").iterations()


def test_three_iterations_give_three_rows_and_three_snapshots(tmp_path):
    run = trainer(tmp_path / "run", num_iterations=3, snapshot_interval=1)
    last = run.run()
    assert run.algorithm.count == run.iteration == 3
    assert int(run.state["updates"]) == 3
    assert column(run) == [1, 2, 3]
    assert column(run, "num_steps") == [STEPS_PER_ITERATION * i for i in (1, 2, 3)]
    assert snapshots(run) == [1, 2, 3]
    assert last == read_rows(run.run_dir / "progress.jsonl")[-1]


def test_a_trainer_says_what_and_where_it_is(tmp_path):
    run = trainer(tmp_path / "run", num_iterations=1)
    assert repr(run) == f"<Trainer of walker on cliff in {tmp_path}/run, iteration 0>"


def test_a_run_that_lacks_a_row_says_so_where_it_goes_on(tmp_path):
    trainer(tmp_path / "run", num_iterations=4).run()
    log = tmp_path / "run" / "progress.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([*lines[:2], lines[3]]))
    run = trainer(tmp_path / "run", num_iterations=5)
    with pytest.warns(UserWarning, match=r"progress\.jsonl lacks the row of iteration 3: "):
        run.resume()
    assert column(run) == [1, 2, 4, 5]


def test_a_row_tells_progress_and_training_figures(tmp_path):
    row = trainer(tmp_path / "run", num_iterations=1).run()
    assert list(row)[:4] == ["iteration", "num_steps", "num_episodes", "seconds"]
    assert {"train/return", "train/bias"} <= row.keys()
    assert 0 < row["seconds"] < 600


@pytest.mark.parametrize(
    ("num_iterations", "interval", "kept"),
    [(7, 2, [2, 4, 6, 7]), (6, 3, [3, 6]), (1, 10, [1])],
)
def test_snapshots_are_written_at_the_interval_and_at_the_end(
    tmp_path, num_iterations, interval, kept
):
    settings = {"snapshot_interval": interval, "keep_snapshots": 10}
    run = trainer(tmp_path / "run", num_iterations=num_iterations, **settings)
    run.run()
    assert snapshots(run) == kept


def test_the_last_snapshots_and_the_best_are_kept(tmp_path):
    settings = {"snapshot_interval": 1, "keep_snapshots": 2}
    run = trainer(tmp_path / "run", num_iterations=8, **settings)
    run.run()
    returns = column(run, "train/return")
    numbers = [r for r in returns if r is not None]
    assert len(numbers) > 2
    best = 1 + returns.index(max(numbers))
    assert snapshots(run) == sorted({best, 7, 8})


@pytest.mark.parametrize(
    ("num_iterations", "interval", "evaluated"),
    [(4, 2, [0, 2, 4]), (5, 2, [0, 2, 4, 5]), (2, 20, [0, 2])],
)
def test_evaluations_are_before_training_at_the_interval_and_at_the_end(
    tmp_path, num_iterations, interval, evaluated
):
    run = trainer(tmp_path / "run", num_iterations=num_iterations, evaluation_interval=interval)
    run.run()
    assert column(run, file="evaluations.jsonl") == evaluated
    assert column(run, "num_steps", "evaluations.jsonl") == [
        STEPS_PER_ITERATION * i for i in evaluated
    ]


def test_steps_limit_the_run_at_the_end_of_an_iteration(tmp_path):
    run = trainer(tmp_path / "run", num_steps=2 * STEPS_PER_ITERATION + 1)
    assert run.run()["num_steps"] == 3 * STEPS_PER_ITERATION


def test_an_exact_number_of_steps_is_not_exceeded(tmp_path):
    run = trainer(tmp_path / "run", num_steps=2 * STEPS_PER_ITERATION)
    assert run.run()["num_steps"] == 2 * STEPS_PER_ITERATION


def test_seconds_limit_the_run_at_the_end_of_an_iteration(tmp_path):
    wait = {i: lambda: time.sleep(0.2) for i in range(1, 100)}
    run = trainer(tmp_path / "run", hooks=wait, max_seconds=0.5)
    row = run.run()
    assert row["seconds"] >= 0.5
    assert run.iteration <= 3


def test_the_first_limit_reached_ends_the_run(tmp_path):
    run = trainer(tmp_path / "run", num_iterations=2, num_steps=10**9, max_seconds=1e9)
    assert run.run()["iteration"] == 2


def test_without_a_limit_there_are_100_iterations():
    assert TrainerConfig("run").limits() == {"iteration": 100}
    assert TrainerConfig("run", num_steps=5).limits() == {"num_steps": 5}


def same_as_whole(tmp_path, **settings):
    """Whether 3 iterations and then 3 more in a new trainer equal 6 at once."""
    whole = trainer(tmp_path / "whole", num_iterations=6, **settings)
    whole.run()
    trainer(tmp_path / "parts", num_iterations=3, **settings).run()
    parts = trainer(tmp_path / "parts", num_iterations=6, **settings)
    assert parts.resume()["iteration"] == 6
    assert parts.algorithm.count == 3
    assert column(parts) == [1, 2, 3, 4, 5, 6]
    return left_behind(parts) == left_behind(whole)


@pytest.mark.parametrize("interval", [1, 2, 5])
def test_a_finished_run_prolonged_equals_a_long_one(tmp_path, interval):
    assert same_as_whole(tmp_path, evaluation_interval=interval, snapshot_interval=2)


@pytest.mark.parametrize("name", ["gym:Pendulum-v1", "half-cheetah-vel"])
def test_a_resumed_run_goes_on_in_mid_episode(tmp_path, name):
    settings = {"num_train_tasks": 1} if name == "half-cheetah-vel" else {}
    suite = make_suite(name, horizon=10, **settings)
    assert same_as_whole(tmp_path, suite=suite, tasks=suite.train.tasks)


def test_resume_passes_over_a_damaged_snapshot(tmp_path):
    whole = trainer(tmp_path / "whole", num_iterations=6)
    whole.run()
    trainer(tmp_path / "run", num_iterations=5, snapshot_interval=2).run()
    damaged = tmp_path / "run" / "snapshots" / "iteration-00000005.json"
    damaged.write_text("{}")
    run = trainer(tmp_path / "run", num_iterations=6, snapshot_interval=2)
    with pytest.warns(UserWarning, match="iteration-00000005 is damaged or incomplete"):
        run.resume()
    assert left_behind(run) == left_behind(whole)
    assert run.algorithm.count == 2


def test_resume_cuts_the_log_back_to_the_snapshot(tmp_path):
    trainer(tmp_path / "run", num_iterations=2).run()
    with (tmp_path / "run" / "progress.jsonl").open("a") as file:
        file.write('{"iteration": 3, "num_steps": 0}\n{"iterat')
    run = trainer(tmp_path / "run", num_iterations=3)
    run.resume()
    assert column(run) == [1, 2, 3]
    assert column(run, "num_steps")[-1] == 3 * STEPS_PER_ITERATION


def test_resuming_a_finished_run_changes_nothing_and_gives_its_last_row(tmp_path):
    settings = {"num_iterations": 3, "evaluation_interval": 2, "snapshot_interval": 2}
    first = trainer(tmp_path / "run", **settings)
    last = first.run()
    again = trainer(tmp_path / "run", **settings)
    assert again.resume() == last
    assert again.algorithm.count == 0
    assert left_behind(again) == left_behind(first)
    scores = [
        json.loads((tmp_path / f"run/snapshots/iteration-0000000{i}.json").read_text())["score"]
        for i in (2, 3)
    ]
    assert scores == column(first, "train/return")[1:]


def test_a_run_without_snapshots_cannot_be_resumed(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(SnapshotError, match="no snapshot that can be read"):
        trainer(tmp_path / "run").resume()


def test_a_run_killed_while_its_first_snapshot_is_written_begins_anew(tmp_path):
    """Its rows are there, and of its snapshot what comes last is not."""
    settings = {"snapshot_interval": 2, "evaluation_interval": 2}
    run, whole = (trainer(tmp_path / n, num_iterations=4, **settings) for n in ("run", "whole"))
    trainer(tmp_path / "run", num_iterations=2, **settings).run()
    (tmp_path / "run" / "snapshots" / "iteration-00000002.json").unlink()
    with pytest.warns(UserWarning, match="has no snapshot yet: from the start"):
        run.resume()
    whole.run()
    assert left_behind(run) == left_behind(whole)


def test_a_snapshot_of_another_algorithm_is_refused(tmp_path):
    trainer(tmp_path / "run", num_iterations=1).run()
    run = trainer(tmp_path / "run", num_iterations=2)
    run.algorithm.initial_state = lambda key: {"weights": jnp.zeros(3)}
    with pytest.raises(SnapshotError, match="snapshot and configuration differ at"):
        run.resume()


def interrupt(number=signal.SIGINT):
    return lambda: signal.raise_signal(number)


@pytest.fixture
def delivered():
    """What SIGTERM still does to the program around a run."""
    numbers = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: numbers.append(number))
    yield numbers
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_after_the_iteration_with_a_snapshot(
    tmp_path, capsys, number, delivered
):
    before = signal.getsignal(number)
    settings = {"num_iterations": 6, "evaluation_interval": 4}
    run = trainer(tmp_path / "run", hooks={2: interrupt(number)}, **settings)
    assert run.run()["iteration"] == 2
    assert delivered == [signal.SIGTERM] * (number == signal.SIGTERM)
    assert snapshots(run) == [2]
    assert column(run, file="evaluations.jsonl") == [0]
    err = capsys.readouterr().err
    assert "stopped after iteration 2; go on with: trainer.resume()\n" in err
    assert signal.getsignal(number) is before


LOOP = """
import sys, adaptax
for seed in range(3):
    adaptax.train("nop", "point-goal", run_dir=f"{sys.argv[1]}/{seed}", seed=seed,
                  num_iterations=1_000_000, evaluation_interval=None, quiet=True)
"""


def test_sigterm_ends_a_program_of_several_runs_once_the_one_under_way_is_on_disk(tmp_path):
    program = [sys.executable, "-c", LOOP, str(tmp_path)]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        deadline = time.monotonic() + 120
        while not (tmp_path / "0/progress.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.terminate()
        _, err = process.communicate(timeout=120)
    last = read_rows(tmp_path / "0/progress.jsonl")[-1]["iteration"]
    assert process.returncode == -signal.SIGTERM
    assert f"stopped after iteration {last}" in err.splitlines()[-1]
    assert "Traceback" not in err
    assert Snapshots(tmp_path / "0/snapshots").iterations()[-1] == last
    assert not (tmp_path / "1").exists()


def test_an_interrupted_run_goes_on_as_if_nothing_had_happened(tmp_path):
    settings = {"num_iterations": 5, "evaluation_interval": 2}
    whole = trainer(tmp_path / "whole", **settings)
    whole.run()
    trainer(tmp_path / "run", hooks={3: interrupt()}, **settings).run()
    run = trainer(tmp_path / "run", **settings)
    run.resume()
    assert left_behind(run) == left_behind(whole)


def test_a_run_interrupted_before_its_first_iteration_is_evaluated_once(tmp_path):
    settings = {"num_iterations": 2, "evaluation_interval": 2}
    run = trainer(tmp_path / "run", **settings)
    actor, calls = run.algorithm.actor, []

    def interrupted_actor(state, *, deterministic=False):
        calls.append(1)
        if len(calls) == 1:
            signal.raise_signal(signal.SIGINT)
        return actor(state)

    run.algorithm.actor = interrupted_actor
    run.run()
    assert (snapshots(run), run.iteration) == ([0], 0)
    assert run.resume()["iteration"] == 2
    assert column(run, file="evaluations.jsonl") == [0, 2]


def test_a_second_signal_ends_the_run_at_once(tmp_path):
    def twice():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)  # ignored, where the tests run in the background
    run = trainer(tmp_path / "run", hooks={2: twice}, num_iterations=5, snapshot_interval=1)
    with pytest.raises(KeyboardInterrupt):
        run.run()
    assert (column(run), snapshots(run)) == ([1], [1])
    assert signal.getsignal(signal.SIGINT) is before


def test_a_failing_environment_leaves_what_was_done(tmp_path):
    def fail():
        raise EnvironmentFault("it broke")

    run = trainer(tmp_path / "run", hooks={3: fail}, num_iterations=5, snapshot_interval=2)
    with pytest.raises(EnvironmentFault, match="it broke"):
        run.run()
    assert (column(run), snapshots(run)) == ([1, 2], [2])
    again = trainer(tmp_path / "run", num_iterations=5)
    assert again.resume()["iteration"] == 5


def test_a_run_that_goes_on_as_the_same_object_forgets_what_was_broken_off(tmp_path, monkeypatch):
    run, whole = (
        trainer(tmp_path / name, num_iterations=5, snapshot_interval=2) for name in ("run", "whole")
    )
    steps = run.sampler.steps

    def broken(*args):
        rollout = steps(*args)  # in which episodes ended
        if run.iteration == 3:
            raise KeyboardInterrupt
        return rollout

    monkeypatch.setattr(run.sampler, "steps", broken)
    with pytest.raises(KeyboardInterrupt):
        run.run()
    monkeypatch.undo()
    run.resume()
    whole.run()
    assert left_behind(run) == left_behind(whole)


def test_a_fault_in_mid_iteration_leaves_a_snapshot_of_where_it_began(tmp_path, monkeypatch):
    run = trainer(tmp_path / "run", num_iterations=5, snapshot_interval=100)
    steps = run.sampler.steps

    def broken(*args):
        rollout = steps(*args)
        if run.iteration == 2:
            raise EnvironmentFault("it broke")
        return rollout

    monkeypatch.setattr(run.sampler, "steps", broken)
    with pytest.raises(EnvironmentFault, match="it broke"):
        run.run()
    assert (column(run), snapshots(run)) == ([1, 2], [2])
    again, whole = (trainer(tmp_path / name, num_iterations=5) for name in ("run", "whole"))
    again.resume()
    whole.run()
    assert left_behind(again) == left_behind(whole)


def test_a_run_can_be_in_another_thread(tmp_path):
    run = trainer(tmp_path / "run", num_iterations=2)
    thread = threading.Thread(target=run.run)
    thread.start()
    thread.join()
    assert column(run) == [1, 2]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_on_the_command_line_says_how_to_go_on(tmp_path, number):
    run = tmp_path / "run"
    words = ["train", "nop", "point-goal", "--run-dir", str(run), "--quiet"]
    words += ["--num-iterations", "1000000", "--evaluation-interval", "None"]
    program = [sys.executable, "-m", "adaptax.experiment.cli", *words]
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        deadline = time.monotonic() + 120
        while not (run / "progress.jsonl").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(number)
        _, err = process.communicate(timeout=120)
    rows = read_rows(run / "progress.jsonl")
    last = rows[-1]["iteration"]
    assert (
        err.splitlines()[-1] == f"stopped after iteration {last}; go on with: adaptax resume {run}"
    )
    assert "Traceback" not in err
    assert Snapshots(run / "snapshots").iterations()[-1] == last


def test_config_holds_every_value_and_versions_before_the_first_step(tmp_path):
    found = {}

    def look():
        found.update(json.loads((tmp_path / "run" / "config.json").read_text()))

    run = trainer(tmp_path / "run", hooks={1: look}, num_iterations=1, seed=4)
    run.run()
    assert found["algorithm"] == {"name": "walker", "networks": None}
    assert found["suite"] == {"name": "cliff"}
    assert found["seed"] == 4
    assert found["trainer"]["evaluation"]["num_episodes"] == 2
    assert found["trainer"].keys() == set(TrainerConfig.__dataclass_fields__)
    assert found["versions"]["jax"] == jax.__version__
    assert found["task_set"] == run.suite.task_set_hash()


def test_a_protocol_that_changes_at_resume_is_on_record_and_warned_of(tmp_path):
    settings = {"num_iterations": 2, "evaluation_interval": 1}
    trainer(tmp_path / "run", **settings).run()
    config = tmp_path / "run" / "config.json"
    before = json.loads(config.read_text())["protocol"]
    settings = {**settings, "num_iterations": 3}
    other = EvaluatorConfig(num_tasks=1, num_episodes=1, deterministic=True)
    run = trainer(tmp_path / "run", evaluation=other, **settings)
    words = r"another protocol .*, from deterministic False to True, num_episodes 2 to 1: "
    with pytest.warns(UserWarning, match=words) as caught:
        run.resume()
    assert len(caught) == 1
    found = json.loads(config.read_text())
    assert found["protocol"] == {**before, "num_episodes": 1, "deterministic": True}
    assert found["trainer"]["evaluation"]["deterministic"] is True


def test_a_run_that_goes_on_without_evaluations_keeps_the_protocol_of_those_it_has(tmp_path):
    trainer(tmp_path / "run", num_iterations=1, evaluation_interval=1).run()
    config = tmp_path / "run" / "config.json"
    before = json.loads(config.read_text())["protocol"]
    other = EvaluatorConfig(num_tasks=1, num_episodes=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer(tmp_path / "run", num_iterations=2, evaluation=other).resume()
    assert json.loads(config.read_text())["protocol"] == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_steps": 1e3}, "trainer.num_steps: expected int, not 1000.0"),
        ({"num_iterations": "3"}, "trainer.num_iterations: expected int, not '3'"),
        ({"seed": np.int64(1)}, r"trainer.seed: expected int, not np.int64\(1\)"),
        ({"callbacks": ["x"]}, r"trainer.callbacks: expected tuple, not \['x'\]"),
    ],
)
def test_a_setting_that_could_not_be_read_back_is_refused_before_anything(settings, message):
    with pytest.raises(ConfigError, match=message):
        TrainerConfig(run_dir="run", **settings)


def test_a_setting_of_an_algorithm_that_could_not_be_read_back_is_refused():
    with pytest.raises(ConfigError, match=r"hidden_sizes: expected .*, not \[16, 16\]"):
        adaptax.ReinforceConfig(hidden_sizes=[16, 16])
    with pytest.raises(ConfigError, match=r"ReinforceConfig.normalize_obs: expected bool, not 1"):
        adaptax.ReinforceConfig(normalize_obs=1)


def test_paths_of_the_trainer_may_be_path_objects(tmp_path):
    run_dir, suite = tmp_path / "run", cliff_suite()
    config = TrainerConfig(run_dir, num_iterations=1, evaluation_interval=None, init_from=run_dir)
    assert config.init_from == str(run_dir)
    config = replace(config, init_from=None)
    Trainer(config, Walker(suite.spec, GOAL), suite).run()
    found = json.loads((run_dir / "config.json").read_text())["trainer"]
    assert found["run_dir"] == str(run_dir)


def test_the_task_set_has_its_own_hash():
    assert cliff_suite(5).task_set_hash() == cliff_suite(5).task_set_hash()
    assert cliff_suite(5).task_set_hash() != cliff_suite(6).task_set_hash()


def test_a_run_directory_must_be_new_or_empty(tmp_path):
    (tmp_path / "empty").mkdir()
    for run_dir in (tmp_path / "empty", tmp_path / "deep" / "new"):
        trainer(run_dir, num_iterations=1).run()
    trainer(tmp_path / "run", num_iterations=1).run()
    with pytest.raises(AdaptaxError, match="holds a run already"):
        trainer(tmp_path / "run", num_iterations=1).run()
    assert len(read_rows(tmp_path / "run" / "progress.jsonl")) == 1


def test_overwrite_deletes_runs_only(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "text").write_text("mine")
    with pytest.raises(AdaptaxError, match="holds no run"):
        trainer(tmp_path / "notes", overwrite=True).run()
    assert (tmp_path / "notes" / "text").read_text() == "mine"
    run = trainer(tmp_path / "run", num_iterations=2)
    run.run()
    again = trainer(tmp_path / "run", num_iterations=1, overwrite=True)
    again.run()
    assert column(again) == [1]
    assert replace(again.config, overwrite=False, num_iterations=2) == run.config


def test_an_iteration_that_takes_long_is_said_to_be_under_way(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("adaptax.experiment.progress.LONG", 0.05)
    monkeypatch.setattr("adaptax.experiment.progress.PULSE", 0.01)
    said = []
    hooks = {1: lambda: said.append(first_output(capsys))}
    trainer(tmp_path / "run", hooks, num_iterations=1, quiet=False).run()
    assert re.match(r"iteration 1 under way for \d+ s", said[0])


def test_an_evaluation_before_training_says_what_to_do_first(tmp_path):
    with pytest.raises(ConfigError, match="no state to evaluate yet: train or load one first"):
        trainer(tmp_path / "run").evaluate()


def test_a_metric_that_is_not_finite_is_null_in_the_log(tmp_path):
    run = trainer(tmp_path / "run", num_iterations=1)
    iterate = run.algorithm.iteration

    def iteration(state, sampler, keep=None):
        state, metrics = iterate(state, sampler)
        return state, {**metrics, "loss": jnp.nan, "none": None}

    run.algorithm.iteration = iteration
    run.run()
    row = read_rows(run.run_dir / "progress.jsonl")[0]
    assert row["train/loss"] is None
    assert row["train/none"] is None


def test_settings_given_between_two_runs_of_one_object_count_for_both_of_its_parts(tmp_path):
    run = trainer(tmp_path / "run", num_iterations=2)
    run.run()
    run.config = replace(run.config, num_iterations=4, snapshot_interval=1)
    run.resume()
    assert run.learner.config is run.config
    assert column(run) == [1, 2, 3, 4]


def test_there_is_nothing_to_resume_where_there_is_no_run(tmp_path):
    with pytest.raises(AdaptaxError, match=f"^{tmp_path / 'nope'} holds no run$"):
        trainer(tmp_path / "nope").resume()
    assert not (tmp_path / "nope").exists()


@pytest.mark.slow
def test_memory_that_runs_out_in_several_iterations_at_once_leaves_a_snapshot(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(Learner, "num_at_once", lambda self, *_: 2 if self.iteration == 2 else 1)
    monkeypatch.setattr(Learner, "_many_iterations", Mock(side_effect=MemoryError))
    suite = cliff_suite()
    config = TrainerConfig(str(tmp_path), evaluation_interval=None, quiet=True)
    algorithm = make_algorithm("ppo", suite.spec, **SMALL["ppo"])
    with pytest.raises(MemoryError):
        Trainer(config, algorithm, suite).run()
    assert Snapshots(tmp_path / "snapshots").iterations() == [2]


def test_a_snapshot_is_of_a_run_under_way(tmp_path):
    run = trainer(tmp_path / "run", num_iterations=1)
    with pytest.raises(ConfigError, match="no run is under way"):
        run.save_snapshot(run.sampler.save())
    run.run()
    with pytest.raises(ConfigError, match="no run is under way"):
        run.save_snapshot(run.sampler.save())
    assert not (tmp_path / "run/lock").exists()


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (0, r"Trainer\(config, algorithm, suite\) takes a TrainerConfig, not \{"),
        (1, "takes an Algorithm, not 'ppo'"),
        (2, "takes a Suite, not 'cartpole'"),
    ],
)
def test_what_a_trainer_does_not_take_is_one_clear_line(tmp_path, place, message):
    run = trainer(tmp_path / "run")
    given = [run.config, run.algorithm, run.suite]
    given[place] = [{"run_dir": "run"}, "ppo", "cartpole"][place]
    with pytest.raises(ConfigError, match=message):
        Trainer(*given)


def test_an_empty_name_is_no_directory():
    with pytest.raises(ConfigError, match="run_dir is empty"):
        TrainerConfig("")


@pytest.mark.parametrize("config", [None, {"lr": 0.1}, adaptax.NOPConfig, TrainerConfig("run")])
def test_another_config_is_refused(config):
    with pytest.raises(ConfigError, match="NOP takes a NOPConfig, not "):
        adaptax.NOP(config, cliff_suite().spec)


def test_a_snapshot_that_cannot_be_made_hides_no_fault(tmp_path, monkeypatch):
    suite = cliff_suite()
    config = TrainerConfig(str(tmp_path / "run"), num_iterations=2, quiet=True)
    trainer = Trainer(config, make_algorithm("nop", suite.spec), suite)

    def raises(error, *_):
        raise error

    own = partial(raises, ValueError("the simulator says no"))
    monkeypatch.setattr(trainer.learner, "some_iterations", own)
    monkeypatch.setattr(trainer, "save_snapshot", partial(raises, RuntimeError("it is deleted")))
    with (
        pytest.warns(UserWarning, match="could not be saved: .*it is deleted"),
        pytest.raises(ValueError, match="the simulator says no"),
    ):
        trainer.run()


def test_an_algorithm_without_a_name_is_not_trained(tmp_path):
    class Nameless(adaptax.NOP):
        name = None

    suite = cliff_suite()
    algorithm = Nameless(adaptax.NOPConfig(), suite.spec)
    with pytest.raises(ConfigError, match="Nameless has no name: give the class one"):
        Trainer(TrainerConfig(str(tmp_path / "run")), algorithm, suite)
    assert not (tmp_path / "run").exists()
