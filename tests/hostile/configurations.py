"""Random commands that train: any algorithm on any suite, with a few settings of any value."""

from __future__ import annotations

import math
import random
from typing import Any

from config_fields import harmless, leaves
from small import SMALL

from adaptax.algorithms.registry import ALGORITHMS
from adaptax.core.config import from_dict
from adaptax.envs.registry import GYM_PREFIX, ML1_PREFIX, SUITES, find_suite
from adaptax.experiment.trainer_config import TrainerConfig

INTEGERS = [-(2**70), -1, 0, 1, 2, 3, 5, 7, 64, 1000, 10**6, 10**9, 2**31 - 1, 2**31]
NUMBERS = [math.nan, math.inf, -math.inf, -1.0, -1e-9, 0.0, 1e-300, 1e-9, 0.5, 1.0, 1.5, 1e30]
WORDS = ["", "x", "none", "None", "True", "1e3", "--", "../x", "ü", "$x^{$", "a b", "\n"]
SUITE_NAMES = [name for name in SUITES if not name.startswith((GYM_PREFIX, ML1_PREFIX))]
SUITE_NAMES += ["ml1-reach-v3"]
SUITE_NAMES += [f"gym:{name}-v1" for name in ("CartPole", "Pendulum", "Acrobot", "FrozenLake")]
UNTOUCHED = ("run_dir", "num_cores", "num_ray_actors", "quiet", "trackers")
"""Fields that are this program's business; trackers write where they do."""


def command(rng: random.Random) -> list[str]:
    """The words of a command; the run goes to the folder `run`."""
    name, suite = rng.choice(list(ALGORITHMS)), rng.choice(SUITE_NAMES)
    algorithm = from_dict(ALGORITHMS[name].load()[1], SMALL.get(name, {}))
    own = find_suite(suite).load()[0]()
    fields = [
        *leaves(algorithm, "algorithm"),
        *leaves(own, "suite"),
        *leaves(TrainerConfig("run"), "trainer"),
    ]
    fields = [field for field in fields if field[0].rpartition(".")[2] not in UNTOUCHED]
    words = ["train", name, suite, "--run-dir", "run", "--recipe", "none"]
    plain = {path: value for path, _, value in leaves(type(algorithm)(), "algorithm")}
    small = [(path, value) for path, _, value in leaves(algorithm, "algorithm")]
    given = {path: _words(path, value) for path, value in small if plain[path] != value}
    given |= {
        "trainer.num_iterations": ["--trainer.num-iterations", str(rng.randint(1, 3))],
        "trainer.evaluation.num_tasks": ["--trainer.evaluation.num-tasks", "1"],
        "trainer.evaluation.num_lanes": ["--trainer.evaluation.num-lanes", "2"],
    }
    if "suite.horizon" in [path for path, _, _ in fields]:
        given["suite.horizon"] = ["--suite.horizon", "20"]
    for path, hint, _ in rng.sample(fields, rng.randint(1, 4)):
        allowed = harmless(hint)
        careful = allowed and rng.random() < 0.6
        value = rng.choice(allowed if careful else [*INTEGERS, *NUMBERS, *WORDS])
        given[path] = _words(path, value)
    if rng.random() < 0.05:
        words += ["--seeds", rng.choice(["0:3", "0,2", "5", "3:0", "0:2000", "x", "-1:1", "0,0"])]
    return [*words, *(word for some in given.values() for word in some)]


def _words(path: str, value: Any) -> list[str]:
    """A flag with its value."""
    flag = f"--{path.replace('_', '-')}"
    if isinstance(value, bool):
        room, _, field = flag.rpartition(".")
        return [flag if value else f"{room}.no-{field}"]
    if isinstance(value, tuple):
        return [flag, *map(str, value)]
    return [f"{flag}={value}"]
