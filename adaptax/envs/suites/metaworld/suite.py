"""Suites of Meta-World: ML1, ML10, ML45 and MT10 (Yu et al. 2019, arXiv 1910.10897; v3).

A task is a class and a goal, a vector that says where things stand and where they are to go. The
ML suites hide it: the last 3 observations are 0. Episodes end at the horizon only; success is
reported at every step and ends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from metaworld.env_dict import ALL_V3_ENVIRONMENTS, ML10_V3, ML45_V3, MT10_V3

from adaptax.core.config import check_positive
from adaptax.core.cores import usable_cores
from adaptax.core.errors import check, unknown_name
from adaptax.core.spec import Continuous, EnvSpec
from adaptax.envs.placement import placed
from adaptax.envs.pools.gym import GymPool
from adaptax.envs.suite import Suite
from adaptax.envs.suites.metaworld.env import NUM_ACTIONS, NUM_OBS, MetaWorldEnv
from adaptax.envs.suites.metaworld.goals import benchmark_goals
from adaptax.envs.task import ClassTasks

Goals = dict[str, np.ndarray]
"""Goals of each class [50, D]."""
MAX_SLOTS = 50
"""A simulator takes 20 to 25 MB."""


@dataclass(frozen=True)
class MetaWorldConfig:
    """Goals, length of episodes, and where the simulators run."""

    goal_seed: int = 0
    """The seed of Meta-World's benchmark: with it the goals are those of `metaworld.ML10(seed)`."""
    horizon: int = 500
    """Steps of an episode."""
    num_workers: int | None = None
    """Worker processes that run the simulators; None takes one a core, 0 runs them in this one."""
    num_ray_actors: int = 0
    """Ray actors that run the simulators, on as many machines as the cluster has; 0: none."""

    def __post_init__(self) -> None:
        check_positive(self, "horizon")
        check(0 <= self.goal_seed < 2**32 - 1, f"goal_seed {self.goal_seed} is not in [0, 2^32-1)")


def ml1(env_name: str, config: MetaWorldConfig) -> Suite:
    """One class; 50 goals to train on and 50 others to be tested on."""
    if env_name not in ALL_V3_ENVIRONMENTS:
        raise unknown_name("Meta-World task", env_name, ALL_V3_ENVIRONMENTS)
    train = benchmark_goals([env_name], config.goal_seed)
    test = benchmark_goals([env_name], config.goal_seed + 1)  # as Meta-World does
    return _suite(f"ml1-{env_name}", config, train, test)


def ml10(config: MetaWorldConfig) -> Suite:
    """10 classes to train on, 5 others to be tested on, 50 goals each."""
    return _suite("ml10", config, *_both(ML10_V3, config.goal_seed))


def ml45(config: MetaWorldConfig) -> Suite:
    """45 classes to train on, 5 others to be tested on, 50 goals each."""
    return _suite("ml45", config, *_both(ML45_V3, config.goal_seed))


def mt10(config: MetaWorldConfig) -> Suite:
    """10 classes whose goals are seen, with a one-hot of the class; tested on the same."""
    names = list(MT10_V3)
    goals = benchmark_goals(names, config.goal_seed)
    return _suite("mt10", config, goals, goals, told_classes=names)


def _both(classes: Mapping[Any, Iterable[str]], goal_seed: int) -> tuple[Goals, Goals]:
    """The goals of a benchmark's training classes and of its test classes."""
    train, test = (benchmark_goals(list(classes[part]), goal_seed) for part in ("train", "test"))
    return train, test


def _suite(
    name: str, config: MetaWorldConfig, train: Goals, test: Goals, told_classes: Sequence[str] = ()
) -> Suite:
    """`told_classes`: goals are seen, and observations end with a one-hot of these classes."""
    train_tasks = _tasks(name if train is test else f"{name}-train", train)
    test_tasks = train_tasks if train is test else _tasks(f"{name}-test", test)
    if train is not test:
        _check_disjoint(train, test)
    spec = EnvSpec(
        NUM_OBS + len(told_classes),
        Continuous(NUM_ACTIONS),
        config.horizon,
        trial_episodes=10,
        test_episodes=3,
        num_classes=len(train),
        has_success=True,
    )
    make_env = partial(MetaWorldEnv, tuple(told_classes))
    pool = partial(GymPool, make_env, spec)
    suite = Suite(name, spec, train_tasks, test_tasks, pool, max_slots=MAX_SLOTS)
    num_workers = config.num_workers
    if num_workers is None:
        num_workers = 0 if config.num_ray_actors else len(usable_cores())
    return placed(suite, num_workers, config.num_ray_actors)


def _tasks(name: str, goals: Goals) -> ClassTasks:
    return ClassTasks(
        name, {kind: [{"rand_vec": goal} for goal in rows] for kind, rows in goals.items()}
    )


def _check_disjoint(train: Goals, test: Goals) -> None:
    """Raise unless no goal of a class is in both."""
    for kind in train.keys() & test.keys():
        seen = {goal.tobytes() for goal in train[kind]}
        shared = sum(goal.tobytes() in seen for goal in test[kind])
        check(shared == 0, f"{shared} goals of {kind} are in training and in test")
