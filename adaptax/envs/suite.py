"""Suites: a family of tasks together with the environment that they are tasks of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from adaptax.core.errors import ConfigError, check
from adaptax.core.rng import named_generator
from adaptax.core.spec import EnvSpec, check_horizon, spec_to_dict
from adaptax.envs.pools.pool import Pool
from adaptax.envs.task import Task, TaskDistribution

DRAWN = 256
"""Training tasks drawn to compare test tasks with, where training tasks cannot be listed."""


@dataclass(frozen=True)
class Suite:
    """A family of tasks with its environment: what `train` trains on and `evaluate` tests on."""

    name: str
    spec: EnvSpec
    train: TaskDistribution
    test: TaskDistribution
    """Held out, never seen in training, where `held_out` says so."""
    make_pool: Callable[[int], Pool]
    """`make_pool(num_slots)` makes a pool of so many environments."""
    engine: Literal["host", "compiled", "workers"] = "host"
    """What runs the loop of policy and environment: Python in this process over any pool, one
    program over a CompiledPool, or the workers of a WorkerPool."""
    max_slots: int | None = None
    """Environments that a pool should not exceed, where they take much memory."""
    note: str | None = None
    """What a person should know who runs it here, in one line."""
    config: Any = None
    """The settings that it was made with, a dataclass; None for a person's own suite."""

    def __post_init__(self) -> None:
        named = isinstance(self.name, str) and self.name.strip()
        check(bool(named), f"a suite's name is a text that is not empty, not {self.name!r}")

    @cached_property
    def held_out(self) -> bool:
        """Whether no test task is one of the training tasks; of those without a list, of many."""
        drawn = self.train.tasks
        if drawn is None and self.test.tasks is not None:
            drawn = self.train.sample(named_generator(0, "suite", "held out"), DRAWN)
        trained = {_params_text(task) for task in drawn or ()}
        return not any(_params_text(task) in trained for task in self.test.tasks or ())

    def check_made_for(self, spec: EnvSpec) -> None:
        """Raise a ConfigError where an algorithm with this spec was made for other environments."""
        made_for, there = spec_to_dict(spec), spec_to_dict(self.spec)
        differing = [name for name in there if made_for[name] != there[name]]
        found = [f"{name} {made_for[name]}, not {there[name]}" for name in differing]
        check(
            not found,
            f"the algorithm was made for other environments than {self.name}'s: "
            f"{', '.join(found)}; make it with suite.spec",
        )

    def task_set_hash(self) -> str:
        """Twelve hex digits that tell whether two runs used the same tasks."""
        listed = [
            None if d.tasks is None else [task.plain() for task in d.tasks]
            for d in (self.train, self.test)
        ]
        text = json.dumps([self.name, listed], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def within_limits(
    horizon: int | None, limits: Iterable[int | None], env: Any, *, can_cut: bool = True
) -> int:
    """`horizon`, or the shortest of an environment's own time limits where that is None.

    Where episodes cannot be cut before such a limit, no other horizon will do.
    """
    if horizon is not None:
        check_horizon(horizon)
    own = min((limit for limit in limits if limit is not None), default=None)
    steps = own if horizon is None else horizon
    if steps is None:
        raise ConfigError(f"{env} has no time limit: give a horizon, in steps")
    fits = own is None or steps <= own
    check(
        fits, f"horizon {horizon} is over the time limit of {env}, {own} steps: give at most that"
    )
    check(
        can_cut or own in (None, steps),
        f"horizon {horizon} is under the time limit of {env}, {own} steps; it alone resets its "
        "lanes, so leave the horizon out",
    )
    return steps


def _params_text(task: Task) -> str:
    """A task's parameters; 1 and 1.0 are one number."""
    params = {name: np.asarray(value) for name, value in task.params.items()}
    alike = {k: x if x.dtype.kind == "U" else x.astype(np.float64) for k, x in params.items()}
    return json.dumps({name: x.tolist() for name, x in alike.items()}, sort_keys=True)
