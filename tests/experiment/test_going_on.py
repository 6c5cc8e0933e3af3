"""Going on with a run, and comparing runs, where something is not as it was."""

import json
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import adaptax
from adaptax import Callback, EvaluatorConfig, Trainer, TrainerConfig
from adaptax.core.errors import ConfigError
from adaptax.envs.suites.gym import gym_suite
from adaptax.envs.task import TaskRange
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.experiment.curves import Run, load_groups, training_curves
from adaptax.experiment.evaluator import Evaluator
from adaptax.experiment.packaged_protocol import packaged_success
from adaptax.experiment.share import export_run, import_run
from adaptax.experiment.sweep import sweep

BRIEF = {"horizon": 4, "num_test_tasks": 4}
PROTOCOL = EvaluatorConfig(num_tasks=2, num_lanes=1, num_episodes=1)


def trainer(
    folder: Path,
    *,
    step_size: float = 0.1,
    num_tasks: int = 2,
    num_iterations: int = 1,
    **settings: Any,
) -> Trainer:
    suite = make_suite("point-goal", step_size=step_size, **BRIEF)
    config = TrainerConfig(
        str(folder),
        num_iterations=num_iterations,
        evaluation=EvaluatorConfig(num_tasks=num_tasks, num_lanes=1, num_episodes=1),
        evaluation_interval=1,
        quiet=True,
    )
    settings = {"lr": 1e-3, "num_steps": 8, "hidden_sizes": (4,), **settings}
    return Trainer(config, make_algorithm("a2c", suite.spec, **settings), suite)


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    trainer(folder).run()
    return folder


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"lr": 0.5}, "was trained with algorithm.lr 0.001, and goes on with it, not 0.5"),
        ({"step_size": 0.9}, "was trained with suite.step_size 0.1, .*not 0.9"),
    ],
)
def test_a_run_does_not_go_on_with_other_settings(ended, change, told):
    before = {path: path.read_bytes() for path in ended.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match=told):
        trainer(ended, num_iterations=2, **change).resume()
    assert {path: path.read_bytes() for path in ended.rglob("*") if path.is_file()} == before


def test_more_iterations_with_a_step_size_that_falls_need_its_length(tmp_path):
    trainer(tmp_path, lr_schedule="linear", num_iterations=2).run()
    with pytest.raises(ConfigError, match="not 3: give the algorithm's config lr_schedule_steps=2"):
        trainer(tmp_path, lr_schedule="linear", num_iterations=3).resume()
    with pytest.warns(UserWarning, match="the step size falls to 0 by about iteration 2"):
        trainer(tmp_path, lr_schedule="linear", lr_schedule_steps=2, num_iterations=3).resume()


def test_a_run_on_a_suite_of_ones_own_does_not_go_on_with_another_horizon(tmp_path):
    """Of such a suite only its name is on record."""

    def of(horizon: int, num_iterations: int) -> Trainer:
        suite = gym_suite("own", Told, horizon=horizon, train=kinds(*"aa"), test=kinds(*"aa"))
        config = TrainerConfig(
            str(tmp_path), num_iterations=num_iterations, evaluation=PROTOCOL, quiet=True
        )
        return Trainer(config, make_algorithm("nop", suite.spec), suite)

    of(2, 1).run()
    with pytest.raises(ConfigError, match=r"was trained with spec\.horizon 2, .* not 3"):
        of(3, 2).resume()
    of(2, 2).resume()


def test_the_cards_command_has_nothing_that_is_no_flag(ended, tmp_path):
    export_run(ended, tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert "adaptax train" in card and "()" not in card and "--trackers" not in card


@pytest.mark.parametrize("folder", [3, None, "", [1]])
def test_a_folder_to_be_made_is_a_path(ended, folder):
    for make in (export_run, import_run):
        with pytest.raises(ConfigError, match="expected a folder to be made, not"):
            make(ended, folder)


def test_evaluations_by_another_protocol_are_left_out(tmp_path):
    for name, sizes in (("a", (2, 4)), ("b", (4, 4))):
        one = trainer(tmp_path / name, num_tasks=sizes[0])
        one.run()
        again = trainer(tmp_path / name, num_tasks=sizes[1], num_iterations=2)
        with warnings.catch_warnings(action="ignore"):
            again.resume()
    with pytest.warns(UserWarning, match="a: 2 of 3 evaluations are by another protocol"):
        groups = load_groups([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(ConfigError, match="expected folders, or groups that are loaded, not both"):
        adaptax.compare([*groups, tmp_path / "a"])
    rows = [[e["num_tasks"] for e in run.evaluations] for group in groups for run in group.runs]
    assert rows == [[4], [4, 4, 4]]


def logged(folder: Path, rows: list[dict]) -> Run:
    folder.mkdir()
    lines = [json.dumps({"iteration": i + 1, **row}) + "\n" for i, row in enumerate(rows)]
    (folder / "progress.jsonl").write_text("".join(lines))
    return Run(folder, folder.name, {}, 0, [], {})


def test_training_curves_of_a_group_are_of_the_same_episodes(tmp_path):
    whole = [
        {"num_steps": k, "train/return": 1.0, "train/return/episode_1": 0.0, f"{LAST}": 5.0}
        for k in (1, 2, 3)
    ]
    partly = [dict(row) for row in whole]
    partly[1][LAST] = None
    runs = logged(tmp_path / "whole", whole), logged(tmp_path / "partly", partly)
    assert [curve.mean.tolist() for curve in training_curves(runs[:1])] == [[5, 5, 5]]
    assert [curve.mean.tolist() for curve in training_curves(runs)] == [[1, 1, 1], [1, 1, 1]]


LAST = "train/return/episode_2"


def test_a_last_few_goals_count_as_so_many():
    classes = [name for name in "abcde" for _ in range(6)]  # four goals of each go side by side
    for goal in range(6):
        solved = np.tile(np.arange(6) == goal, 5)[:, None]
        told = packaged_success(classes, solved, np.full((30, 1), 10))
        # Of four or of two side by side, the first is the first to end.
        assert told["a"] == pytest.approx({0: 4 / 6, 4: 2 / 6}.get(goal, 0.0))


class Told(gymnasium.Env):
    observation_space = spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, True, False, {}


def kinds(*names: str) -> list[dict]:
    return [{"class": name, "i": i} for i, name in enumerate(names)]


@pytest.mark.parametrize("test", [kinds(*"aaab"), kinds(*"a" * 20, *"b" * 20)])
def test_classes_that_an_evaluation_would_not_be_of_alike_are_refused(test):
    suite = gym_suite("own", Told, horizon=2, train=kinds("a", "b"), test=test)
    with pytest.raises(ConfigError, match=r"of the class a.*list as many of each class, in turn"):
        Evaluator(EvaluatorConfig(), suite, 0)
    in_turn = gym_suite("own", Told, horizon=2, train=kinds("a", "b"), test=kinds(*"ab" * 10))
    Evaluator(EvaluatorConfig(), in_turn, 0)


def test_test_tasks_that_are_drawn_are_the_same_for_every_seed():
    drawn = TaskRange("t", lambda rng: float(rng.uniform()))
    suite = gym_suite("own", Told, horizon=2, train=drawn, test=drawn)
    algorithm = make_algorithm("nop", suite.spec)
    state = algorithm.initial_state(None)
    tasks = [
        [
            t.params["value"]
            for t in Evaluator(PROTOCOL, suite, seed).evaluate(algorithm, state).tasks
        ]
        for seed in (0, 1)
    ]
    assert tasks[0] == tasks[1] and len({*tasks[0]}) == 2


class Numbers(Callback):
    def __init__(self):
        self.got = None

    def save(self):
        return {"best": np.float64(1.5), "count": np.int64(3), "row": np.arange(2)}

    def restore(self, saved):
        self.got = saved


def test_numbers_of_a_callback_come_back_as_numbers(tmp_path):
    adaptax.train(
        "nop", "point-goal", suite=BRIEF, num_iterations=1, run_dir=tmp_path, quiet=True,
        evaluation_interval=None, callbacks=[Numbers()], recipe="none", overwrite=True,
    ).close()  # fmt: skip
    again = Numbers()
    adaptax.load_run(tmp_path, num_iterations=2, callbacks=[again]).resume()
    assert type(again.got["best"]) is float and type(again.got["count"]) is int
    assert again.got["row"].tolist() == [0, 1]


def test_to_go_on_past_early_stopping_is_no_loss(tmp_path):
    settings = {"num_iterations": 6, "evaluation_interval": 1, "evaluation": {"num_tasks": 2}}
    adaptax.train(
        "nop", "point-goal", suite=BRIEF, run_dir=tmp_path / "r", quiet=True, patience=1,
        recipe="none", **settings,
    ).close()  # fmt: skip
    with warnings.catch_warnings(action="error"):
        done = adaptax.load_run(tmp_path / "r", patience=None)
        done.resume()
    assert done.iteration == 6


class Locked(Callback):
    def __init__(self):
        self.lock = threading.Lock()


def test_mistakes_of_python_are_lines(tmp_path):
    quick = {"recipe": "none", "num_iterations": 1}
    with pytest.raises(ConfigError, match="copy of the callback Locked, which cannot be copied"):
        adaptax.train(
            "nop", "point-goal", seeds=[0, 1], callbacks=[Locked()], run_dir=tmp_path, **quick
        )
    with pytest.raises(ConfigError, match="a setting goes by its name, not 3"):
        sweep("ppo", "cartpole", {3: [1, 2]}, run_dir=tmp_path / "s", **quick)
    with pytest.raises(ConfigError, match="algorithm: expected its settings"):
        sweep("ppo", "cartpole", {"algorithm.lr": [1.0]}, algorithm=3, run_dir=tmp_path / "s")


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.2, 0.5, 0.9, 1.3, 1.8])
def test_an_interrupt_while_a_command_begins_ends_it_in_a_line(seconds, tmp_path):
    words = ["train", "ppo", "cartpole", "--run-dir", str(tmp_path / "r"), "--num-steps", "1000000"]
    begin = "from adaptax.__main__ import main; print('ready', flush=True); main()"
    program = [sys.executable, "-c", begin, *words]
    process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"  # before that Python says what it likes
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    try:
        _, err = process.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == 130 or err.startswith("finishing the iteration")
    assert err.count("\n") <= 2 and "Traceback" not in err
