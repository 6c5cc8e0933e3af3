"""Suites of Meta-World: its ML and MT benchmarks (Yu et al. 2019, arXiv 1910.10897; v3).

A task is a class and a goal, a vector that says where things stand and where they are to go. The
ML suites hide it: the last 3 observations are 0. The MT suites show it, with a one-hot of the
class. Episodes end at the horizon only; success is reported at every step and ends nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from metaworld import env_dict
from metaworld.env_dict import ALL_V3_ENVIRONMENTS

from adaptax.core.config import check_not_negative, check_positive
from adaptax.core.cores import usable_cores
from adaptax.core.errors import check, unknown_name
from adaptax.core.spec import Continuous, EnvSpec
from adaptax.envs.physics import native
from adaptax.envs.placement import placed
from adaptax.envs.pools.compiled import CompiledPool
from adaptax.envs.pools.gym import GymPool
from adaptax.envs.suite import Suite
from adaptax.envs.suites.metaworld.env import NUM_ACTIONS, NUM_OBS, MetaWorldEnv
from adaptax.envs.suites.metaworld.goals import benchmark_goals
from adaptax.envs.suites.metaworld.lanes import MetaWorldLanes
from adaptax.envs.task import ClassTasks

Goals = dict[str, np.ndarray]
"""Goals of each class [50, D]."""
MAX_SLOTS = 50
"""A class takes 20 MB in every process that has a lane of it. In the program it takes less, but an
evaluation of more lanes would draw otherwise there."""


MAX_HORIZON = 500


@dataclass(frozen=True)
class MetaWorldConfig:
    """Goals, length of episodes, and where the simulators run."""

    goal_seed: int = 0
    """Goals are those of Meta-World's benchmark of that name with this seed."""
    horizon: int = 500
    """Steps of an episode; Meta-World's own end after 500."""
    num_threads: int = 0
    """Threads that equal shares of the lanes run on; 0 means one a core."""
    num_workers: int | None = None
    """Worker processes that run Meta-World's Python, 0: this one; None leaves it out where native
    code works, and takes one a core where not."""
    num_ray_actors: int = 0
    """Ray actors that run Meta-World's Python, on as many machines as the cluster has; 0: none."""

    def __post_init__(self) -> None:
        check_positive(self, "horizon")
        check_not_negative(self, "num_threads")
        elsewhere = self.num_workers is not None or self.num_ray_actors
        check(
            not (self.num_threads and elsewhere),
            "num_threads is of the compiled program, and with num_workers or num_ray_actors "
            "Meta-World's Python runs: give one of them",
        )
        most = "is over the 500 steps after which Meta-World's episodes end"
        check(self.horizon <= MAX_HORIZON, f"horizon {self.horizon} {most}")
        check(0 <= self.goal_seed < 2**32 - 1, f"goal_seed {self.goal_seed} is not in [0, 2^32-1)")


@dataclass(frozen=True)
class MTConfig(MetaWorldConfig):
    """An MT benchmark's settings."""

    classes: tuple[str, ...] = ()
    """Those of the benchmark's classes to take, with the goals that they have there; none: all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "classes", _names(self.classes))


@dataclass(frozen=True)
class MLConfig(MetaWorldConfig):
    """An ML benchmark's settings."""

    classes: tuple[str, ...] = ()
    """Those of the benchmark's training classes to train on, with the goals that they have there;
    none: all."""
    test_classes: tuple[str, ...] = ()
    """The same of its test classes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "classes", _names(self.classes))
        object.__setattr__(self, "test_classes", _names(self.test_classes))


def ml1(env_name: str, config: MetaWorldConfig) -> Suite:
    """One class; 50 goals to train on and 50 others to be tested on."""
    if env_name not in ALL_V3_ENVIRONMENTS:
        raise unknown_name("Meta-World task", env_name, ALL_V3_ENVIRONMENTS)
    train = benchmark_goals([env_name], config.goal_seed)
    test = benchmark_goals([env_name], config.goal_seed + 1)  # as Meta-World does
    return _suite(f"ml1-{env_name}", config, train, test)


def ml(benchmark: Literal["ml10", "ml25", "ml45"], config: MLConfig) -> Suite:
    """Some classes to train on, others to be tested on, 50 goals each."""
    every = getattr(env_dict, f"{benchmark.upper()}_V3")
    train = _goals(f"{benchmark}'s training classes", every["train"], config.classes, config)
    test = _goals(f"{benchmark}'s test classes", every["test"], config.test_classes, config)
    return _suite(benchmark, config, train, test)


def mt(benchmark: Literal["mt10", "mt25", "mt50"], config: MTConfig) -> Suite:
    """Classes whose goals are seen, with a one-hot of the class; tested on the same."""
    every = getattr(env_dict, f"{benchmark.upper()}_V3")
    goals = _goals(f"{benchmark}'s classes", every, config.classes, config)
    return _suite(benchmark, config, goals, goals, told_classes=list(goals))


def _names(words: Sequence[str]) -> tuple[str, ...]:
    """Names that may be joined by commas, as on the command line."""
    return tuple(name for word in words for name in word.split(",") if name)


def _goals(
    whose: str, every: Mapping[str, object], chosen: Sequence[str], config: MetaWorldConfig
) -> Goals:
    """The goals of the chosen ones of a benchmark's classes, or of all, in the benchmark's order.

    One generator draws for one class after another, so that those before the chosen draw too.
    """
    for name in chosen:
        if name not in every:
            raise unknown_name(f"class among {whose}", name, every)
    check(len(set(chosen)) == len(chosen), f"a class is named twice: {', '.join(chosen)}")
    names = list(every)
    last = max((names.index(name) for name in chosen), default=len(names) - 1)
    goals = benchmark_goals(names[: last + 1], config.goal_seed)
    return {name: goals[name] for name in goals if name in (chosen or names)}


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
    told, num_workers, note = tuple(told_classes), config.num_workers, None
    if num_workers is None and not config.num_ray_actors:
        problem = native.problem()
        if problem is None:
            lanes = MetaWorldLanes(spec, told)
            compiled = partial(CompiledPool, lanes, num_threads=config.num_threads)
            return Suite(name, spec, train_tasks, test_tasks, compiled, "compiled", MAX_SLOTS)
        num_workers = len(usable_cores())
        note = f"Meta-World runs outside the compiled program, which is slower: {problem}"
    pool = partial(GymPool, partial(MetaWorldEnv, told), spec)
    suite = Suite(name, spec, train_tasks, test_tasks, pool, max_slots=MAX_SLOTS, note=note)
    return placed(suite, num_workers or 0, config.num_ray_actors)


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
