"""The examples, and the README's commands and Python, run small."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from adaptax.experiment.cli import COMMANDS, main
from adaptax.experiment.logger import read_rows

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def example(name):
    """A file of examples/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def code_lines(text):
    """Lines that are not blank."""
    return [line for line in text.splitlines() if line.strip()]


def readme_python():
    """The program that trains, and the one that acts."""
    return re.findall(r"^```python\n(.*?)^```", README, flags=re.M | re.S)


def readme_commands():
    """The arguments of every `$ adaptax ...` in the README."""
    return [shlex.split(line)[2:] for line in README.splitlines() if line.startswith("$ adaptax ")]


def smaller(command):
    """A command with a fiftieth of its iterations, or of its recipe's 200."""
    words = [str(int(word) // 50) if word.isdigit() else word for word in command]
    by_recipe = command[0] == "train" and not {"--num-iterations", "--num-steps"} & {*command}
    return [*words, "--num-iterations", "4"] if by_recipe else words


@pytest.mark.slow
def test_own_environment_gives_a_return_for_each_episode(tmp_path):
    returns = example("own_environment").main(num_iterations=2, run_dir=str(tmp_path / "run"))
    assert returns.shape == (3,)
    assert np.all((returns < 0) & (returns > -10))  # 5 steps, each at most 2 away


def test_own_environment_takes_under_40_lines():
    assert len(code_lines((ROOT / "examples" / "own_environment.py").read_text())) < 40


@pytest.mark.slow
def test_own_environment_shows_adaptation(tmp_path):
    first, *_, last = example("own_environment").main(run_dir=str(tmp_path / "run"))
    assert last > first + 0.4  # six seeds gained 0.66 to 0.96


@pytest.mark.slow
def test_half_cheetah_example_tells_four_episodes_and_draws_them(tmp_path, capsys):
    example("rl2_ppo_half_cheetah").main(1, meta_batch_size=8, run_dir=str(tmp_path / "run"))
    assert re.findall(r"^episode (\d): -\d", capsys.readouterr().out, flags=re.M) == list("1234")
    assert (tmp_path / "run" / "adaptation.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_half_cheetah_example_with_trpo_tells_four_episodes(tmp_path, capsys):
    example("rl2_trpo_half_cheetah").main(1, meta_batch_size=4, run_dir=str(tmp_path / "run"))
    assert re.findall(r"^episode (\d): -\d", capsys.readouterr().out, flags=re.M) == list("1234")


@pytest.mark.slow
def test_half_cheetah_example_with_meta_test_writes_test_episodes(tmp_path):
    run_dir = tmp_path / "run"
    with pytest.warns(UserWarning, match="6 episodes on a task are more than the 4"):
        example("rl2_ppo_half_cheetah_meta_test").main(1, 8, 5, 2, run_dir=str(run_dir))
    row = read_rows(run_dir / "evaluations.jsonl")[-1]
    assert (row["num_tasks"], len(row["episodes"])) == (5, 5)


@pytest.mark.slow
def test_ml10_example_tells_success_by_test_class(tmp_path):
    run_dir = tmp_path / "run"
    example("rl2_ppo_metaworld_ml10").main(1, 10, 1, horizon=20, run_dir=str(run_dir))
    row = read_rows(run_dir / "evaluations.jsonl")[-1]
    assert len(row["classes"]) == 5


@pytest.mark.slow
def test_half_cheetah_example_with_pearl_tells_three_episodes(tmp_path, capsys):
    sizes = {"num_updates": 2, "num_train_tasks": 5}
    example("pearl_half_cheetah_vel").main(1, **sizes, run_dir=str(tmp_path / "run"))
    assert re.findall(r"^after (\d): -\d", capsys.readouterr().out, flags=re.M) == list("012")


def test_readme_python_is_short():
    train, act = readme_python()
    assert len(train.splitlines()) < 6
    assert len(act.splitlines()) < 14


@pytest.mark.slow
def test_readme_python_runs(tmp_path, monkeypatch, capsys):
    train, act = readme_python()
    monkeypatch.chdir(tmp_path)
    text, count = re.subn(r'"num_iterations": \d+', '"num_iterations": 1', train)
    assert count == 1
    names = {}
    exec(compile(text, "README.md", "exec"), names)
    assert len(re.findall(r"-\d+\.\d", capsys.readouterr().out.splitlines()[-1])) == 4
    exec(compile(act, "README.md", "exec"), names)
    assert names["truncated"] and names["carry"].t == names["trainer"].suite.spec.horizon


def test_readme_shows_every_command():
    shown = {command[0] for command in readme_commands()}
    shown |= set(re.findall(r"`adaptax (\w+) ", README))
    assert sorted(shown) == sorted(COMMANDS)


@pytest.mark.slow
def test_readme_commands_run_one_after_another(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for command in readme_commands():
        main(smaller(command))
    run, group = tmp_path / "runs" / "rl2-ppo-point-goal", tmp_path / "runs" / "point"
    assert len(list(group.glob("seed-*/progress.jsonl"))) == 5
    iterations = [row["iteration"] for row in read_rows(run / "progress.jsonl")]
    assert iterations == [1, 2, 3, 4, 5]
    output = capsys.readouterr().out
    for words in ("suites:", "iteration 5/5", "20 held-out tasks", "wrote ", "steps per second"):
        assert words in output


@pytest.mark.slow
def test_own_algorithm_learns_cartpole(tmp_path):
    untrained, trained = example("own_algorithm").main(25, str(tmp_path / "run"))
    assert untrained < 50
    assert trained > 100


def test_the_algorithm_of_the_plugin_is_that_of_the_example():
    own, plugin = ROOT / "examples" / "own_algorithm.py", ROOT / "examples" / "plugin"
    assert own.resolve() == (plugin / "own_algorithm.py").resolve()


@pytest.fixture(scope="module")
def with_plugin(tmp_path_factory):
    """The environment of a process where examples/plugin is installed."""
    place = tmp_path_factory.mktemp("plugin")
    shutil.copytree(ROOT / "examples" / "plugin", place / "source")
    options = "--no-deps --no-build-isolation --no-index --disable-pip-version-check --quiet"
    pip = [sys.executable, "-m", "pip", "install", *options.split()]
    subprocess.run([*pip, "--target", place / "site", place / "source"], check=True)
    path = os.pathsep.join([str(place / "site"), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path}, place


def outputs(command, with_plugin):
    """What a command prints in a process of its own."""
    env, place = with_plugin
    done = subprocess.run(command, env=env, cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_plugin_trains_resumes_and_is_evaluated_from_the_command_line(with_plugin):
    adaptax = [sys.executable, "-m", "adaptax.experiment.cli"]
    listed = " ".join(outputs([*adaptax, "list"], with_plugin).split())
    assert " my-reinforce REINFORCE; its baseline" in listed
    assert " radio A radio and a station" in listed
    train = ["train", "my-reinforce", "radio", "--run-dir", "run", "--num-iterations", "20"]
    settings = [
        "--suite.spread",
        "0.1",
        "--algorithm.num-lanes",
        "8",
        "--evaluation-interval",
        "10",
    ]
    outputs([*adaptax, *train, *settings], with_plugin)
    outputs([*adaptax, "resume", "run", "--num-iterations", "40"], with_plugin)
    figures = json.loads(outputs([*adaptax, "evaluate", "run", "--json"], with_plugin))
    assert (figures["algorithm"], figures["suite"]) == ("my-reinforce", "radio")
    assert figures["iteration"] == 40
    trained, untrained = (f["episodes"][0]["return_mean"] for f in (figures, figures["untrained"]))
    assert trained > untrained + 1  # measured -1.5 and -3.9
    train = ["train", "ppo", "radio", "--run-dir", "memory", "--num-iterations", "1"]
    others = ["--algorithm.memory", "decay", "--callbacks", "good-enough"]
    outputs([*adaptax, *train, *others], with_plugin)
    outputs([*adaptax, "resume", "memory", "--num-iterations", "2"], with_plugin)
    assert "wrote " in outputs([*adaptax, "plot", "memory"], with_plugin)
    config = json.loads((with_plugin[1] / "run" / "config.json").read_text())
    assert config["suite"]["spread"] == 0.1
    assert config["algorithm"]["num_lanes"] == 8


PROGRAM = """
import adaptax, jax
trainer = adaptax.train("my-reinforce", "radio", num_iterations=2, run_dir="python", quiet=True)
adaptax.load_run("python", num_iterations=3, quiet=True).resume()
agent = adaptax.load("python")
action, _ = agent.act(agent.begin(jax.random.key(0)), [0.0])
print(trainer.evaluate().returns.shape, action.shape)
"""


@pytest.mark.slow
def test_a_plugin_is_used_from_python(with_plugin):
    assert outputs([sys.executable, "-c", PROGRAM], with_plugin).strip() == "(20, 1) (1,)"


def printed_under(command, text=README):
    """What the README says that a command prints."""
    _, _, rest = text.partition(f"$ adaptax {command}\n")
    return rest.partition("```")[0]


def table_of(text):
    """Of each episode the means of trained, untrained and success."""
    rows = [line.split("│")[2:-1] for line in text.splitlines() if line.startswith("│")]
    return np.array([[float(cell.split("[")[0]) for cell in row] for row in rows])


def last_interval(text):
    """Both ends of the interval of the last evaluation that a training tells."""
    low, high = re.findall(r"^evaluation at .*: return \S+ \[(\S+), (\S+)\]", text, flags=re.M)[-1]
    return float(low), float(high)


@pytest.mark.slow
def test_the_readmes_figures_are_those_that_its_commands_print(tmp_path, monkeypatch, capsys):
    """Another processor rounds otherwise, and training then goes another way: a little of it."""
    monkeypatch.chdir(tmp_path)
    run = "runs/rl2-ppo-point-goal"
    train = "train rl2-ppo point-goal"
    main(shlex.split(train))
    (low, high), (told_low, told_high) = map(
        last_interval, (capsys.readouterr().out, printed_under(train))
    )
    assert low <= told_high and told_low <= high
    main(["resume", run, "--num-iterations", "250", "--quiet"])
    for command, room in ((f"evaluate {run}", 1.5), ("evaluate pretrained:point-goal", 0.5)):
        capsys.readouterr()
        main(shlex.split(command))
        found, told = table_of(capsys.readouterr().out), table_of(printed_under(command))
        assert found.shape == told.shape == (3, 3)
        np.testing.assert_allclose(found[:, 0], told[:, 0], atol=room)
        np.testing.assert_allclose(found[:, 1], told[:, 1], atol=0.3)
        np.testing.assert_allclose(found[:, 2], told[:, 2], atol=0.3)
