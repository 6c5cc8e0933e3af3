"""What is looked at before a run goes on: that it does so as it began, and what will differ."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from adaptax.core.config import flat, to_dict
from adaptax.core.errors import check
from adaptax.core.spec import spec_to_dict
from adaptax.envs.placement import CHANGE_NOTHING
from adaptax.envs.suite import Suite
from adaptax.experiment.logger import read_rows
from adaptax.experiment.provenance import suite_settings
from adaptax.experiment.run_dir import EVALUATIONS, recorded_config
from adaptax.experiment.trainer_config import TrainerConfig
from adaptax.learning.schedules import at_zero_after, iterations_within


def check_alike(
    run_dir: Path, config: TrainerConfig, suite: Suite, algorithm: Mapping[str, Any]
) -> None:
    """Raise a ConfigError where a run began otherwise, or had another algorithm or suite.

    `algorithm` is what the run would record of it.
    """
    recorded, own = recorded_config(run_dir), to_dict(config)
    before = recorded.get("trainer", {})
    for name in ("seed", "init_from"):
        was = before.get(name, own[name])
        check(
            was == own[name],
            f"{run_dir} began with {name} {was}, and goes on with it, not {own[name]}: train "
            "another run for that",
        )
    check_same_suite(run_dir, recorded, suite)
    _check_same(run_dir, recorded, "algorithm", algorithm)


def check_same_suite(run_dir: Path, recorded: Mapping[str, Any], suite: Suite) -> None:
    """Raise a ConfigError where a run had another suite, or other settings, spec or tasks of it."""
    spec = json.loads(json.dumps(spec_to_dict(suite.spec)))  # lists where it has tuples, as a file
    for part, settings in (("suite", suite_settings(suite)), ("spec", spec)):
        _check_same(run_dir, recorded, part, settings)
    tasks = suite.task_set_hash()
    check(
        recorded.get("task_set", tasks) == tasks,
        f"{run_dir} was trained or is tested on other tasks than this {suite.name} has: train "
        "another run for these",
    )


def _check_same(
    run_dir: Path, recorded: Mapping[str, Any], part: str, settings: Mapping[str, Any]
) -> None:
    had, has = flat(recorded.get(part, {})), flat(settings)
    looked_at_elsewhere = (*CHANGE_NOTHING, "networks")
    for name in [n for n in has if n in had and n not in looked_at_elsewhere]:
        # That of a schedule is as long as all iterations unless it is given.
        length = name.endswith("lr_schedule_steps") and had[name] is not None
        way_on = f"give the {part}'s config {name}={had[name]}, or " if length else ""
        check(
            had[name] == has[name],
            f"{run_dir} was trained with {part}.{name} {had[name]}, and goes on with it, not "
            f"{has[name]}: {way_on}train another run for that",
        )


def warn_of_the_protocol(
    run_dir: Path, recorded: Mapping[str, Any], protocol: Mapping[str, Any]
) -> None:
    """Warn where evaluations on record are by another protocol than those to come."""
    before = recorded.get("protocol", protocol)
    if before != protocol and read_rows(run_dir / EVALUATIONS):
        names = sorted(n for n in {*before, *protocol} if before.get(n) != protocol.get(n))
        changes = ", ".join(f"{n} {before.get(n)} to {protocol.get(n)}" for n in names)
        warnings.warn(
            f"evaluations of {run_dir} up to here are by another protocol than those to come, from "
            f"{changes}: they do not compare",
            stacklevel=3,
        )


def warn_of_the_schedule(config: TrainerConfig, settings: Any, iteration: int = 0) -> None:
    """Warn where it is known that a run goes on, from `iteration`, when its step size is 0."""
    end, last = _at_zero_after(settings), last_iteration(config, settings)
    if end is not None and last is not None and last > end:
        way_on = "a longer one with lr_schedule_steps" if iteration == 0 else A_NEW_ONE
        warnings.warn(
            f"the step size falls to 0 by about iteration {end}, after which nothing is learned; "
            f"{way_on}",
            stacklevel=3,
        )


def nothing_learned_after(config: TrainerConfig, settings: Any) -> int | None:
    """The iteration after which a step size is 0 for certain, where that was not warned of before.

    Learning from replay makes fewer steps at first, and comes to 0 a little later than `end`.
    """
    end, last = _at_zero_after(settings), last_iteration(config, settings)
    return None if end is None or last is not None else end + max(2, end // 10)


def _at_zero_after(settings: Any) -> int | None:
    return at_zero_after(settings) if is_dataclass(settings) else None


def last_iteration(config: TrainerConfig, settings: Any) -> int | None:
    """The last iteration of a run of an algorithm's settings; None where that is not known."""
    limits = config.limits()
    return iterations_within(settings, limits.get("iteration"), limits.get("num_steps"))


A_NEW_ONE = (
    "a new run with --init-from begins with what this one has learned and has a schedule of its own"
)
