"""What `import adaptax` gives, and what it does not load."""

from __future__ import annotations

import ast
import importlib.resources
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import adaptax
from adaptax.algorithms.registry import ALGORITHMS
from adaptax.core.errors import AdaptaxError

ROOT = Path(__file__).parent.parent
NAMES = {
    *("train", "sweep", "load", "load_run", "make_suite", "make_algorithm", "gym_suite"),
    *("compare", "export_run", "import_run", "load_group", "write_videos", "VideoConfig"),
    *(
        "Agent",
        "Suite",
        "Task",
        "Trainer",
        "TrainerConfig",
        "Group",
        "Evaluator",
        "EvaluatorConfig",
    ),
    *("Algorithm", "Env", "Step", "Rollout", "EnvSpec", "Continuous", "Discrete", "MultiDiscrete"),
    *("TaskList", "TaskRange", "compiled_suite", "vector_suite"),
    *("Hyperparameters", "Sampler", "PolicyActor", "Memory", "Evaluation"),
    *("AdaptaxError", "Callback", "EarlyStopping", "TensorBoard", "WandB", "MLflow", "Trackio"),
}
TIMED = """
import time
start = time.process_time()
import adaptax
seconds = time.process_time() - start
dir(adaptax)
import sys
heavy = {"jax", "jaxlib", "flax", "optax", "numpy", "gymnasium", "mujoco"} & sys.modules.keys()
print(seconds, *heavy)
"""


def answer(program: str) -> list[str]:
    """The words that a fresh interpreter prints."""
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_import_is_quick_and_loads_nothing_heavy():
    answers = [answer(TIMED) for _ in range(3)]
    assert [heavy for _, *heavy in answers] == [[], [], []]
    assert min(float(seconds) for seconds, *_ in answers) < 0.2


def test_all_public_names_can_be_imported_at_once():
    found = {}
    exec("from adaptax import *", found)
    assert found.keys() - {"__builtins__"} == set(dir(adaptax)) - {"__version__"}


def test_every_algorithm_and_its_config_is_a_public_name():
    classes = {entry.where.partition(":")[2] for entry in ALGORITHMS.values()}
    assert {"PPO", "RL2PPO"} < classes
    configs = {f"{name}Config" for name in classes}
    assert set(dir(adaptax)) == {"__version__", *NAMES, *classes, *configs}


def test_an_algorithm_by_name_is_that_of_the_registry():
    assert (adaptax.NOP, adaptax.NOPConfig) == ALGORITHMS["nop"].load()


@pytest.mark.parametrize("name", sorted({*dir(adaptax)} - {"__version__"}))
def test_a_public_name_stands_for_what_is_called_so(name):
    assert getattr(adaptax, name).__name__ == name


def test_type_checkers_are_told_the_same_names():
    (block,) = [
        node
        for node in ast.parse(Path(adaptax.__file__).read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    told = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    assert told == adaptax._modules()


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'adaptax' has no attribute 'PPPO'"):
        adaptax.PPPO  # noqa: B018
    assert not hasattr(adaptax, "_hidden")
    with pytest.raises(ImportError):
        from adaptax import PPPO  # noqa: F401


def test_type_information_is_packaged():
    assert (importlib.resources.files("adaptax") / "py.typed").is_file()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "py.typed" in project["tool"]["setuptools"]["package-data"]["adaptax"]


def test_settings_go_with_names_only(tmp_path):
    suite = adaptax.make_suite("point-goal")
    with pytest.raises(AdaptaxError, match="settings of a suite go with its name"):
        adaptax.train("nop", suite, suite={"horizon": 3}, run_dir=tmp_path)
    with pytest.raises(AdaptaxError, match="go with an algorithm's name"):
        adaptax.train(adaptax.NOP(adaptax.NOPConfig(), suite.spec), suite, algorithm={}, seed=1)
    with pytest.raises(AdaptaxError, match=r"unknown setting 'trainer\.num_iteration'"):
        adaptax.train("nop", suite, run_dir=tmp_path, num_iteration=3)
    assert list(tmp_path.iterdir()) == []
