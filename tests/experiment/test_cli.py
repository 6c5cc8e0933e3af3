from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces
from said import warnings_within

import adaptax
from adaptax.core import files
from adaptax.core.cores import usable_cores
from adaptax.experiment import cli, gl_backend
from adaptax.experiment.logger import read_rows
from adaptax.experiment.trainer import Trainer
from adaptax.networks.memory import MEMORIES

TRAIN = ["train", "nop", "point-goal"]
TOO_LONG = 300 * "a"
REINFORCE = ["train", "reinforce", "point-goal"]
HUGE = str(2**31)


class OneStep(gymnasium.Env):
    """Samples of an observation space."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: spaces.Space) -> None:
        self.observation_space = space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


@pytest.fixture(scope="module", autouse=True)
def gym_environments():
    """Environments that adaptax cannot serve, in Gymnasium's registry."""
    ids = {
        "Pixels-v0": spaces.Dict({"eye": spaces.Box(0, 255, (8, 8, 3), np.uint8)}),
        "Words-v0": spaces.Dict({"text": spaces.Text(5)}),
        "Graph-v0": spaces.Graph(spaces.Discrete(2), None),
    }
    for env_id, space in ids.items():
        gymnasium.register(env_id, lambda space=space: OneStep(space), max_episode_steps=5)
    gymnasium.register("Endless-v0", lambda: OneStep(spaces.Discrete(2)))
    yield
    for env_id in [*ids, "Endless-v0"]:
        del gymnasium.registry[env_id]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A directory with a finished run, a broken one, a directory and a file of other things."""
    place = tmp_path_factory.mktemp("place")
    run = place / "run"
    words = ["--num-iterations", "2", "--snapshot-interval", "1", "--evaluation-interval", "1"]
    cli.main([*TRAIN, "--run-dir", str(run), "--quiet", *words, "--evaluation.num-tasks", "3"])
    shutil.copytree(run, place / "bare")
    shutil.rmtree(place / "bare" / "snapshots")
    (place / "full").mkdir()
    (place / "full" / "notes").write_text("mine")
    (place / "file").write_text("mine")
    return place


@pytest.fixture
def inside(place, monkeypatch):
    monkeypatch.chdir(place)
    return place


def contents() -> dict[str, bytes | None]:
    """Everything below the working directory, bytes of files included."""
    return {str(p): p.read_bytes() if p.is_file() else None for p in Path().rglob("*")}


def refused(args: list[str], capsys) -> str:
    """The one line that refuses a command; nothing on disk has changed."""
    before = contents()
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        cli.main(args)
    out, err = capsys.readouterr()
    assert stop.value.code == 2
    assert out == ""
    assert err.count("\n") == 1, err
    assert err.startswith("adaptax: ")
    assert not set(err) & set("│╭╰─")
    assert contents() == before
    return err.removeprefix("adaptax: ").rstrip("\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["trian"], "unknown command 'trian'; did you mean 'train'?"),
        (["train"], "train takes an algorithm and a suite, then flags"),
        (["train", "nop"], "train takes an algorithm and a suite, then flags"),
        (["train", "nop", "--seed", "3", "point-goal"], "train takes an algorithm and a suite"),
        (["train", "point-goal", "nop"], "the algorithm comes first: adaptax train nop point-goal"),
        (["train", "reinforec", "point-goal"], "algorithm 'reinforec'; did you mean 'reinforce'?"),
        (["train", "PPO", "point-goal"], "unknown algorithm 'PPO'; did you mean 'ppo'?"),
        (["train", "nop", "HalfCheetah-v5"], "mean 'gym:HalfCheetah-v5' or 'half-cheetah'?"),
        (["train", "nop", "Acrobot-v1"], "did you mean 'gym:Acrobot-v1'?"),
        (["train", "nop", "point-gaol"], "unknown suite 'point-gaol'; did you mean 'point-goal'?"),
        ([*TRAIN, "extra"], "Unrecognized options: extra"),
        ([*TRAIN, "--seeds", "0:3", "--seed=5"], "train takes --seed or --seeds, not both"),
        ([*TRAIN, "--num-iteration", "3"], "did you mean --num-iterations?"),
        ([*TRAIN, "--num-it", "3"], "did you mean --num-iterations?"),
        ([*TRAIN, "--evaluation.num-task", "3"], "mean --evaluation.num-tasks?"),
        ([*TRAIN, "--algorithm.nmu-lanes", "3"], "did you mean --algorithm.num-lanes?"),
        ([*TRAIN, "--suite.horizn", "3"], "did you mean --suite.horizon?"),
        ([*REINFORCE, "--lr", "3"], "did you mean --algorithm.lr?"),
        ([*REINFORCE, "--total-timesteps", "3"], "did you mean --num-steps?"),
        ([*REINFORCE, "--learning_rate", "3"], "did you mean --algorithm.lr?"),
        (["list", "--jsn"], "did you mean --json?"),
        (["list", "all"], "Unrecognized options: all"),
        (["doctor", "--fast"], "Unrecognized options: --fast"),
        (["resume", "run", "--seed", "3"], "Unrecognized options: --seed, 3"),
        (["resume"], "RUN_DIR is missing"),
        (["evaluate"], "RUN_DIR is missing"),
        (["plot"], "plot takes one or more run directories"),
    ],
)
def test_a_wrong_name_is_refused(inside, capsys, args, message):
    assert message in refused(args, capsys)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([*TRAIN, "--num-iterations"], "Missing value for argument '--trainer.num-iterations';"),
        ([*TRAIN, "--num-iterations", "three"], "expected an integer or None, not 'three';"),
        ([*TRAIN, "--num-iterations", "2.5"], "expected an integer or None, not '2.5';"),
        ([*TRAIN, "--num-iterations", "0"], "num_iterations must be greater than 0, not 0;"),
        ([*TRAIN, "--num-iterations", "-3"], "num_iterations must be greater than 0, not -3;"),
        ([*TRAIN, "--num-steps", "0"], "num_steps must be greater than 0, not 0;"),
        ([*TRAIN, "--max-seconds", "-1"], "max_seconds must be greater than 0, not -1.0;"),
        ([*TRAIN, "--max-seconds", "nan"], "max_seconds must be greater than 0, not nan;"),
        ([*TRAIN, "--max-seconds", "soon"], "expected a number or None, not 'soon';"),
        (
            ["train", "dqn", "cartpole", "--algorithm.num-updates", "all"],
            "expected an integer or auto, not 'all';",
        ),
        ([*TRAIN, "--snapshot-interval", "0"], "snapshot_interval must be greater than 0, not 0;"),
        ([*TRAIN, "--keep-snapshots", "0"], "keep_snapshots must be greater than 0, not 0;"),
        ([*TRAIN, "--seed", "x"], "--trainer.seed: expected an integer, not 'x';"),
        ([*TRAIN, "--seed", "-1"], "seed must lie in [0, 2^63), not -1;"),
        ([*TRAIN, "--seed", "1" + 30 * "0"], "seed must lie in [0, 2^63), not 1000"),
        ([*TRAIN, "--quiet", "maybe"], "Unrecognized options: maybe;"),
        ([*TRAIN, "--evaluation.num-tasks", "0"], "num_tasks must be greater than 0, not 0;"),
        ([*TRAIN, "--evaluation.num-tasks", "51"], "num_tasks 51 is more than the 50 held-out"),
        ([*TRAIN, "--algorithm.num-lanes", "0"], "num_lanes must be greater than 0, not 0;"),
        ([*TRAIN, "--suite.horizon", "0"], "horizon must be greater than 0, not 0;"),
        ([*TRAIN, "--suite.task-seed", "-1"], "seed must not be negative, not -1"),
        ([*REINFORCE, "--algorithm.lr", "fast"], "--algorithm.lr: expected a number, not 'fast';"),
        ([*REINFORCE, "--algorithm.discount", "1.5"], "discount must lie in [0, 1], not 1.5;"),
        ([*REINFORCE, "--algorithm.hidden-sizes", "a"], "--algorithm.hidden-sizes: "),
        (
            [*REINFORCE, "--algorithm.hidden-sizes", "8,8"],
            "with spaces between, such as 64 64",
        ),
        ([*REINFORCE, "--algorithm.hidden-sizes", "8", "0"], "hidden_sizes must be greater than 0"),
        ([*TRAIN, "--num-steps", str(10**400)], "trainer.num_steps must be at most 2^53, not 1000"),
        ([*TRAIN, "--algorithm.num-lanes", HUGE], "algorithm.num_lanes must be less than 2^31"),
        ([*TRAIN, "--suite.horizon", HUGE], "suite.horizon must be less than 2^31, not 2147483648"),
        ([*TRAIN, "--evaluation.num-lanes", HUGE], "trainer.evaluation.num_lanes must be less th"),
        ([*TRAIN, "--snapshot-interval", HUGE], "trainer.snapshot_interval must be less than 2^"),
        ([*REINFORCE, "--algorithm.hidden-sizes", HUGE], "algorithm.hidden_sizes must be less th"),
        (["resume", "run", "--num-iterations", "0"], "num_iterations must be greater than 0"),
        (["evaluate", "run", "--num-tasks", "51"], "num_tasks 51 is more than the 50 held-out"),
        (["evaluate", "run", "--num-tasks", "-1"], "num_tasks must be greater than 0, not -1"),
        (["evaluate", "run", "--num-episodes", "0"], "num_episodes must be greater than 0, not 0"),
    ],
)
def test_a_wrong_value_is_refused(inside, capsys, args, message):
    assert message in refused(args, capsys)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([*TRAIN, "--run-dir", "run"], "run holds a run already; choose another --run-dir"),
        ([*TRAIN, "--run-dir", "full"], "full is not empty and holds no run"),
        ([*TRAIN, "--run-dir", "full", "--overwrite"], "full is not empty and holds no run"),
        ([*TRAIN, "--run-dir", "file"], "file is a file, not a directory"),
        ([*TRAIN, "--run-dir", "file/run"], "cannot make file/run: Not a directory"),
        (["resume", "nowhere"], "nowhere holds no run: there is no nowhere/config.json"),
        (["resume", "full"], "full holds no run: there is no full/config.json"),
        (["resume", "bare"], "bare has no snapshot that can be read"),
        (["evaluate", "nowhere"], "nowhere holds no run"),
        (["evaluate", "bare"], "bare has no snapshot that can be read"),
        (["plot", "nowhere"], "nowhere holds no run"),
        ([*TRAIN, "--run-dir", TOO_LONG], "File name too long"),
        ([*TRAIN, "--seeds", "0:2", "--run-dir", TOO_LONG], "File name too long"),
        ([*TRAIN, "--init-from", TOO_LONG], "File name too long"),
        (["export", TOO_LONG, "new"], "File name too long"),
        (["resume", TOO_LONG], "File name too long"),
        (["plot", TOO_LONG], "File name too long"),
        (["plot", "run", "--out", f"{TOO_LONG}.png"], "File name too long"),
        (["plot", "run", "--out", "file/a.png"], "cannot write file/a.png: "),
        (["plot", "run", "--out", "/dev/null/a.png"], "cannot write /dev/null/a.png: "),
        (["plot", "run", "--out", "."], "its name must end in .png, .pdf or .svg"),
        (["plot", "run", "--out", ""], "its name must end in .png, .pdf or .svg"),
    ],
)
def test_a_wrong_directory_is_refused(inside, capsys, args, message):
    assert message in refused(args, capsys)


def test_what_was_to_have_more_cores_goes_on_with_those_that_there_are(inside, capsys, monkeypatch):
    asked, path = [], Path("run/config.json")
    text = path.read_text()
    config = json.loads(text)
    config["trainer"]["num_cores"] = 10**6
    path.write_text(json.dumps(config))
    monkeypatch.setattr(cli, "set_up_process", asked.append)
    try:
        cli.main(["resume", "run"])
    finally:
        path.write_text(text)  # other tests have it too
    assert asked == [len(usable_cores())]
    told = capsys.readouterr().err
    assert f"adaptax: warning: run was to have 1000000 cores; here are {asked[0]}\n" in told


def test_pictures_of_a_run_on_a_disk_that_is_only_read_are_refused(inside, capsys, monkeypatch):
    def refuse(path):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(files, "open_new", refuse)
    message = refused(["plot", "run"], capsys)
    assert message == "cannot write run/learning.png: Read-only file system"


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("Pixels-v0", "observations of pixels"),
        ("Words-v0", "Text"),
        ("Graph-v0", "observations of Graph"),
        ("Endless-v0", "has no time limit: give a horizon"),
        ("CartPol-v1", "unknown Gymnasium environment 'CartPol-v1'; did you mean 'CartPole-v1'?"),
        ("", "unknown Gymnasium environment ''"),
        ("GymV21Environment-v0", "GymV21Environment-v0: To use the gym compatibility"),
    ],
)
def test_an_environment_that_cannot_be_served_is_refused(inside, capsys, env_id, message):
    assert message in refused(["train", "nop", f"gym:{env_id}"], capsys)


@pytest.mark.parametrize(
    ("room", "change", "message"),
    [
        ("algorithm", {"name": "nap"}, "unknown algorithm 'nap'; did you mean 'nop'?"),
        ("algorithm", {"name": None}, "its algorithm has no name"),
        ("algorithm", {"num_lanes": "four"}, "algorithm.num_lanes: expected int, not 'four'"),
        ("algorithm", {"num_lines": 4}, "unknown setting 'algorithm.num_lines'; did you mean"),
        ("algorithm", {"num_lanes": 0}, "num_lanes must be greater than 0, not 0"),
        ("suite", {"name": "mine"}, "was trained on 'mine'"),
        ("suite", {"name": 3}, "its suite has no name"),
        ("suite", {"horizon": 0}, "horizon must be greater than 0, not 0"),
        ("trainer", {"sed": 3}, "unknown setting 'trainer.sed'; did you mean 'trainer.seed'?"),
        ("trainer", {"evaluation": 3}, "trainer.evaluation: expected an object, not 3"),
        ("trainer", {"num_cores": "x"}, "config.json: trainer.num_cores: expected int, not 'x'"),
    ],
)
@pytest.mark.parametrize("command", ["resume", "evaluate"])
def test_a_changed_config_is_refused(inside, capsys, command, room, change, message):
    err = refused_with(capsys, command, lambda c: {**c, room: c[room] | change})
    assert message in err


@pytest.mark.parametrize("value", [3, None, "x", [1]])
@pytest.mark.parametrize("room", ["versions", "protocol"])
@pytest.mark.parametrize("command", ["resume", "evaluate", "plot"])
def test_a_part_of_a_config_of_another_type_is_refused(inside, capsys, command, room, value):
    assert f"its {room} is no object" in refused_with(capsys, command, lambda c: {**c, room: value})


@pytest.mark.parametrize("command", ["resume", "evaluate"])
def test_a_config_that_lacks_a_setting_is_refused(inside, capsys, command):
    err = refused_with(capsys, command, lambda c: {**c, "trainer": {}})
    assert err == "bare/config.json: trainer: run_dir is missing"


def refused_with(capsys, command: str, change: Callable) -> str:
    """The line that refuses a command on a run whose config has changed."""
    config = Path("bare/config.json")
    text = config.read_text()
    config.write_text(json.dumps(change(json.loads(text))))
    try:
        return refused([command, "bare"], capsys)
    finally:
        config.write_text(text)


@pytest.mark.parametrize("command", ["resume", "evaluate"])
@pytest.mark.parametrize(
    ("room", "name"),
    [
        ("suite", "gym:evil:Env-v0"),
        ("suite", "gym:evil:adaptax/HalfCheetahVel-v1"),
        ("suite", "evil"),
        ("algorithm", "evil:Evil"),
        ("algorithm", "../../evil"),
    ],
)
def test_a_config_cannot_name_code(inside, capsys, monkeypatch, room, name, command):
    monkeypatch.syspath_prepend(inside)
    Path("evil.py").write_text("from pathlib import Path\nPath('mark').touch()\n")
    config = Path("bare/config.json")
    text = config.read_text()
    recorded = json.loads(text)
    recorded[room] = {"name": name}
    config.write_text(json.dumps(recorded))
    try:
        message = refused([command, "bare"], capsys)
        assert name.removeprefix("gym:") in message
    finally:
        config.write_text(text)
        Path("evil.py").unlink()
    assert not Path("mark").exists()
    assert "evil" not in sys.modules


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"algorithm": {"name": "nop"}}', "\x00"])
@pytest.mark.parametrize("command", ["resume", "evaluate"])
def test_a_damaged_config_is_refused(inside, capsys, command, text):
    config = Path("bare/config.json")
    good = config.read_text()
    config.write_text(text)
    try:
        assert "bare/config.json is not" in refused([command, "bare"], capsys)
    finally:
        config.write_text(good)


def test_overwrite_replaces_a_run(inside, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree("run", run)
    words = ["--num-iterations", "1", "--evaluation-interval", "None", "--quiet"]
    cli.main([*TRAIN, "--run-dir", str(run), "--overwrite", *words])
    assert len(read_rows(run / "progress.jsonl")) == 1
    assert not (run / "evaluations.jsonl").exists()


def test_resume_prolongs_a_run(inside, tmp_path):
    run = tmp_path / "run"
    shutil.copytree("run", run)
    cli.main(["resume", str(run), "--num-iterations", "4"])
    assert [row["iteration"] for row in read_rows(run / "progress.jsonl")] == [1, 2, 3, 4]
    assert [row["iteration"] for row in read_rows(run / "evaluations.jsonl")] == [0, 1, 2, 3, 4]
    assert json.loads((run / "config.json").read_text())["trainer"]["num_iterations"] == 4


@pytest.mark.parametrize("limit", ["num_steps", "max_seconds"])
def test_resume_takes_any_limit_in_place_of_those_there_were(limit, inside, tmp_path):
    run = tmp_path / "run"
    shutil.copytree("run", run)
    before = read_rows(run / "progress.jsonl")[-1]
    most = {"num_steps": before["num_steps"] + 1, "max_seconds": before["seconds"] + 0.01}
    cli.main(["resume", str(run), f"--{limit.replace('_', '-')}", str(most[limit])])
    assert len(read_rows(run / "progress.jsonl")) > before["iteration"]
    trainer = json.loads((run / "config.json").read_text())["trainer"]
    assert trainer[limit] == most[limit] and trainer["num_iterations"] is None


def test_resume_with_workers_where_there_are_none_is_one_line(inside, capsys):
    with pytest.raises(SystemExit):
        cli.main(["resume", "run", "--suite.num-workers", "2"])
    assert "have no workers" in capsys.readouterr().err


def test_networks_beyond_all_memory_are_refused_before_anything_is_written(inside, capsys):
    sizes = ["--algorithm.hidden-sizes", "1000000", "1000000"]
    line = refused(["train", "ppo", "pendulum", *sizes, "--run-dir", "huge"], capsys)
    assert "ppo keeps, arrays up to [1000000, 1000000]: at least" in line


def test_more_tasks_than_memory_holds_are_refused_before_anything_is_written(
    inside, capsys, monkeypatch
):
    monkeypatch.setattr("adaptax.core.devices.memory_size", lambda: 16 << 30)
    number = ["--algorithm.meta-batch-size", "1000000000"]
    line = refused(["train", "rl2-ppo", "bandit", *number, "--run-dir", "huge"], capsys)
    assert "meta_batch_size 1,000,000,000: at least 466 GiB" in line


def test_an_evaluation_beyond_all_memory_is_refused_before_anything_is_written(inside, capsys):
    words = [*TRAIN, "--run-dir", "new", "--evaluation.num-episodes", "2000000000"]
    assert "a rollout of 20 tasks x 1 lanes x 40,000,000,000 steps: at" in refused(words, capsys)


def test_an_evaluation_that_takes_days_is_a_warning_with_the_estimate(inside, capsys):
    """Before the run begins, which is refused here for another reason."""
    words = [*TRAIN, "--run-dir", "run", "--evaluation.num-test-episodes", "1000000000"]
    with pytest.raises(SystemExit):
        cli.main(words)
    warning, _ = capsys.readouterr().err.splitlines()
    assert "may take 111 hours at a million steps a second: up to 400,000,001,200 st" in warning


def test_steps_that_take_days_are_a_warning_before_the_run_begins(inside, capsys, monkeypatch):
    monkeypatch.setattr(Trainer, "run", lambda _: sys.exit(0))
    with pytest.raises(SystemExit):
        cli.main([*TRAIN, "--run-dir", "new", "--num-steps", "1000000000000"])
    (warning,) = capsys.readouterr().err.splitlines()
    assert "may take 12 days or more: it is of 1,000,000,000,000 environment steps" in warning
    assert not Path("new").exists()


@pytest.mark.parametrize(
    ("algorithm", "suite", "settings", "words"),
    [
        ("a2c", "point-goal", {}, "20 steps at most, it sees the first 16: --algorithm.num-steps"),
        ("a2c", "point-goal", {"num_steps": 160, "num_lanes": 8}, None),
        ("a2c", "point-goal", {"num_episodes": 1}, None),
        ("a2c", "cartpole", {}, None),
        (
            "svpg",
            "point-goal",
            {"particle": {"num_steps": 16, "num_lanes": 1, "num_minibatches": 1}},
            "first 16: --algorithm.particle.num-steps",
        ),
        ("sac", "point-goal", {"num_cycles": 3, "num_steps": 12, "num_lanes": 4}, "first 9: "),
        ("sac", "point-goal", {"num_cycles": 10, "num_steps": 8, "num_lanes": 4}, None),
    ],
)
def test_episodes_that_no_iteration_sees_the_end_of_are_a_warning(
    tmp_path, algorithm, suite, settings, words
):
    made = adaptax.make_suite(suite)
    run = adaptax.TrainerConfig(tmp_path / "run", num_iterations=1)
    trainer = Trainer(run, adaptax.make_algorithm(algorithm, made.spec, **settings), made)
    with warnings_within() as told:
        trainer.check_start()
    assert [words in message for message in told] == [True] * (words is not None)


def test_memory_that_runs_out_is_one_line(inside, capsys, monkeypatch):
    def command(args: list[str]) -> None:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 9 bytes.")

    monkeypatch.setitem(cli.COMMANDS, "list", command)
    assert "out of memory: JaxRuntimeError: RESOURCE_EXHAUSTED" in refused(["list"], capsys)


@pytest.mark.parametrize(("words", "shows"), [([], True), (["--quiet"], False)])
def test_resume_is_quiet_only_if_asked(inside, tmp_path, capsys, words, shows):
    run = tmp_path / "run"
    shutil.copytree("run", run)  # one that was started with --quiet
    capsys.readouterr()
    cli.main(["resume", str(run), "--num-iterations", "3", *words])
    assert ("iteration 3/3" in capsys.readouterr().out) == shows


def test_a_run_does_not_go_on_with_other_tasks(inside, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree("run", run)
    config = run / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"task_set": "0"}))
    assert "was trained or is tested on other tasks than this" in refused(
        ["resume", str(run)], capsys
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_cores": 999}, "num_cores was 999, is "),
        ({"versions": {}}, "jax was None, is "),
    ],
)
def test_resume_warns_of_what_has_changed(inside, tmp_path, capsys, change, message):
    run = tmp_path / "run"
    shutil.copytree("run", run)
    config = run / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | change))
    cli.main(["resume", str(run)])
    err = capsys.readouterr().err
    assert err.startswith(f"adaptax: warning: {run} may not continue bit for bit: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"task_set": "0"}, "these runs may not compare: task_set of point-goal is "),
        ({"device": "gpu (H200)"}, "device is cpu in "),
        ({"versions": {"mujoco": "3.2.0"}}, "versions.mujoco is 3.3.0 in "),
        ({"protocol": {"num_tasks": 50}}, "protocol.num_tasks is 3 in "),
        ({"protocol": {"num_tasks": [50]}}, "protocol.num_tasks is 3 in run, [50] in "),
    ],
)
def test_plot_warns_of_runs_that_do_not_compare(inside, tmp_path, capsys, change, message):
    other = tmp_path / "other"
    shutil.copytree("run", other)
    config = other / "config.json"
    recorded = json.loads(config.read_text())
    for name, value in change.items():
        recorded[name] = recorded[name] | value if isinstance(value, dict) else value
    config.write_text(json.dumps(recorded))
    cli.main(["plot", "run", str(other), "--out", str(tmp_path / "curves.png")])
    err = capsys.readouterr().err
    assert message in err
    assert f" in {other}" in err
    assert err.count("\n") == 1
    cli.main(["plot", "run", "run", "--out", str(tmp_path / "curves.png")])
    assert capsys.readouterr().err == ""


def test_evaluate_tells_what_its_figures_depend_on_and_warns_where_that_differs(
    inside, tmp_path, capsys
):
    run = tmp_path / "run"
    shutil.copytree("run", run)
    config = run / "config.json"
    recorded = json.loads(config.read_text())
    protocol = {**recorded["protocol"], "num_lanes": 7, "num_repeats": 10}
    recorded |= {"protocol": protocol, "device": "gpu (H200)"}
    config.write_text(json.dumps(recorded))
    cli.main(["evaluate", str(run), "--json", "--num-tasks", "2"])
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert report["protocol"]["num_tasks"] == 2
    assert {"task_set", "versions", "device", "seed"} <= report.keys()
    assert "may not compare with what it was: device was gpu (H200), is cpu" in err
    assert "protocol.num_lanes was 7, is 1" in err
    assert "protocol.num_repeats was 10, is 1" in err  # whose figure is left out now
    assert "num_tasks was" not in err  # that was asked for


def test_without_a_command_there_is_help(capsys):
    for args in ([], ["--help"], ["-h"]):
        cli.main(args)
        assert "train ALGORITHM SUITE" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["list", "resume", "evaluate", "plot", "doctor"])
def test_every_command_has_help(capsys, command):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    assert f"adaptax {command}" in capsys.readouterr().out


def test_the_version_is_told(capsys):
    cli.main(["--version"])
    assert capsys.readouterr().out == f"adaptax {adaptax.__version__}\n"


@pytest.mark.parametrize("words", [["--help"], ["ppo", "-h"]])
def test_help_of_train_lists_algorithms_and_suites(capsys, words):
    cli.main(["train", *words])
    out = capsys.readouterr().out
    assert out.startswith("usage: adaptax train ALGORITHM SUITE")
    assert "rl2-ppo" in out
    assert "half-cheetah-vel" in out


def test_help_of_sweep_shows_a_command_that_is_whole(capsys):
    cli.main(["sweep", "--help"])
    assert "For example: adaptax sweep ppo cartpole --space space.toml\n" in capsys.readouterr().out


def test_help_of_train_has_every_setting(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([*REINFORCE, "--help"])
    out = capsys.readouterr().out
    assert stop.value.code == 0
    flags = ("--trainer.num-iterations", "--algorithm.lr", "--suite.horizon")
    assert all(flag in out for flag in flags)


def test_list_names_algorithms_and_suites(capsys):
    cli.main(["list"])
    out = capsys.readouterr().out
    assert "rl2-ppo" in out
    assert "half-cheetah-vel" in out


def test_list_as_json(capsys):
    cli.main(["list", "--json"])
    listed = json.loads(capsys.readouterr().out)
    assert list(listed) == [
        "algorithms",
        "suites",
        "memories",
        "callbacks",
        "pretrained",
        "recipes",
    ]
    for entry in [*listed["algorithms"], *listed["suites"], *listed["memories"]]:
        assert entry.keys() == {"name", "summary"}
    assert "nop" in [entry["name"] for entry in listed["algorithms"]]
    assert "point-goal" in [entry["name"] for entry in listed["suites"]]
    assert [entry["name"] for entry in listed["memories"]] == list(MEMORIES)


def test_evaluate_as_json(inside, capsys):
    before = contents()
    cli.main(["evaluate", "run", "--num-tasks", "4", "--num-episodes", "2", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert (report["algorithm"], report["suite"], report["num_tasks"]) == ("nop", "point-goal", 4)
    assert [episode["index"] for episode in report["episodes"]] == [1, 2]
    for episode in report["episodes"]:
        low, high = episode["return_ci"]
        assert low <= episode["return_mean"] <= high
        low, high = episode["success_ci"]
        assert 0 <= low <= episode["success_mean"] <= high <= 1
    assert len(report["tasks"]) == 4
    assert all(len(task["returns"]) == 2 for task in report["tasks"])
    assert contents() == before


def test_evaluate_takes_the_number_of_tasks_of_the_run(inside, capsys):
    cli.main(["evaluate", "run", "--json"])
    assert json.loads(capsys.readouterr().out)["num_tasks"] == 3


def test_evaluate_shows_a_table(inside, capsys):
    cli.main(["evaluate", "run", "--num-tasks", "2"])
    out = capsys.readouterr().out
    assert "nop on point-goal, iteration 2" in out
    assert "2 held-out tasks" in out
    assert "gain from first to last episode" in out


def test_the_best_snapshot_is_evaluated_and_loaded(tmp_path, capsys):
    """By the return in training."""
    run_dir = tmp_path / "run"
    words = ["--num-iterations", "3", "--snapshot-interval", "1", "--evaluation-interval", "None"]
    cli.main(["train", "nop", "point-goal", *words, "--run-dir", str(run_dir), "--quiet"])
    best = max(read_rows(run_dir / "progress.jsonl"), key=lambda row: row["train/return"])
    capsys.readouterr()
    cli.main(["evaluate", str(run_dir), "--best"])
    assert f"nop on point-goal, iteration {best['iteration']}" in capsys.readouterr().out
    assert adaptax.load(run_dir, best=True).algorithm.name == "nop"


@pytest.mark.parametrize("suite", ["gym:CartPole-v1", "half-cheetah-dir", "cartpole"])
def test_a_suite_of_few_tasks_is_evaluated_on_all_of_them(tmp_path, suite):
    words = ["--run-dir", str(tmp_path / "run"), "--num-iterations", "1", "--quiet"]
    cli.main(["train", "nop", suite, *words, "--algorithm.num-lanes", "1", "--suite.horizon", "5"])
    rows = read_rows(tmp_path / "run" / "evaluations.jsonl")
    assert 1 <= rows[0]["num_tasks"] <= 20


def interpreter(*args: str, **environment: str) -> subprocess.CompletedProcess:
    program = [sys.executable, "-m", "adaptax.experiment.cli", *args]
    environment = {**os.environ, **environment}
    return subprocess.run(program, capture_output=True, text=True, env=environment)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_an_error_is_one_line_whatever_the_encoding(inside, encoding):
    done = interpreter(*TRAIN, "--num-lanes", "3", PYTHONIOENCODING=encoding)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "adaptax: Unrecognized options: --num-lanes, 3; did you mean --algorithm.num-lanes?; "
        "see adaptax train nop point-goal --help\n"
    )


def test_a_picture_whose_name_cannot_be_said_is_written(inside, tmp_path):
    run = shutil.copytree("run", tmp_path / "größe")
    done = interpreter("plot", str(run), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert (run / "learning.png").exists() and (run / "adaptation.png").exists()


@pytest.mark.parametrize(
    ("words", "error", "said"),
    [
        (["train", "cma-es", "bandit"], AssertionError(), "there is no such platform"),
        (["resume", "run"], RuntimeError("no driver,\nno card"), "no driver, no card"),
        (["evaluate", "run"], RuntimeError("no driver"), "no driver"),
        (["video", "run"], RuntimeError("no driver"), "no driver"),
        (["doctor"], RuntimeError("no driver"), "no driver"),
    ],
)
def test_a_platform_that_is_not_there_is_refused(inside, capsys, monkeypatch, words, error, said):
    def refuse():
        raise error

    monkeypatch.setattr(gl_backend, "choose_gl_backend", lambda: None)
    monkeypatch.setattr(jax, "local_devices", refuse)
    message = refused(words, capsys)
    assert f": {said}; install JAX for it" in message
    assert message.endswith("JAX_PLATFORMS=cpu")


@pytest.mark.slow
def test_the_platform_that_is_not_there_is_named(inside):
    done = interpreter("train", "ppo", "cartpole", JAX_PLATFORMS="abacus")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("adaptax: JAX cannot compute on 'abacus': ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", ["list", "train --help", "--help"])
def test_a_closed_pipe_is_no_error(inside, words):
    command = f"{sys.executable} -u -m adaptax.experiment.cli {words}"
    program = f"{command} | head -n 1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1


def test_resume_of_one_run_does_not_go_on_ray(inside, capsys):
    line = refused(["resume", "run", "--on", "ray"], capsys)
    assert line == "--on ray trains the seeds of a group, and run is one run"


def test_evaluate_takes_what_it_is_asked_for_whatever_is_recorded(inside, tmp_path, capsys):
    """Also what is false or zero, without a warning that it is."""
    run = tmp_path / "run"
    shutil.copytree("run", run)
    config = run / "config.json"
    recorded = json.loads(config.read_text())
    own = {"deterministic": True, "num_test_episodes": 2}
    recorded["protocol"] |= own
    recorded["trainer"]["evaluation"] |= own
    config.write_text(json.dumps(recorded))
    words = ["evaluate", str(run), "--json"]
    asked = {
        (): own,
        ("--no-deterministic",): {**own, "deterministic": False},
        ("--num-test-episodes", "0"): {**own, "num_test_episodes": 0},
    }
    for flags, protocol in asked.items():
        cli.main([*words, *flags])
        out, err = capsys.readouterr()
        assert err == ""
        assert json.loads(out)["protocol"].items() >= protocol.items()


def test_the_pictures_of_a_plot_go_by_its_name(inside, tmp_path):
    run = tmp_path / "run"
    shutil.copytree("run", run)
    log = run / "evaluations.jsonl"
    classes = {"door": {"episodes": [{"success_mean": 0.5, "success_ci": None}]}}
    rows = [{**row, "classes": classes} for row in read_rows(log)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    cli.main(["plot", str(run), "--out", str(tmp_path / "one.pdf")])
    pictures = {path.name for path in tmp_path.iterdir()} - {"run"}
    assert pictures == {"one.pdf", "one-adaptation.pdf", "one-classes.pdf"}
    cli.main(["plot", str(run)])
    assert (run / "classes.png").exists()
