"""Whether what is asked for fits into memory at all."""

from __future__ import annotations

import math

from adaptax.core.devices import check_fits
from adaptax.core.spec import EnvSpec

TASK_BYTES = 500
"""Least memory of a task on the host, in bytes."""


def check_tasks_fit(n: int, setting: str | None = None) -> None:
    """Raise a ConfigError, which names the setting, where n tasks are more than memory holds."""
    what = f"{n:,} tasks at a time" if setting is None else f"{setting} {n:,}"
    check_fits(n * TASK_BYTES, what, "fewer tasks fit")


def steps_of(spec: EnvSpec, num_episodes: int, most_steps: int | None = None) -> int:
    """Most steps that `num_episodes` episodes take in a lane, at most `most_steps`."""
    steps = num_episodes * spec.horizon
    return steps if most_steps is None else min(steps, most_steps)


def check_rollout_fits(spec: EnvSpec, num_tasks: int, num_lanes: int, num_steps: int) -> None:
    """Raise a ConfigError where a rollout of that size is more than the memory holds.

    Counted is what each step certainly has: observations, action, reward and flags.
    """
    of_a_number = 1 if spec.binary else 4
    each = 2 * spec.observation_size * of_a_number + 4 * (math.prod(spec.action.shape) + 1) + 3
    needed = num_tasks * num_lanes * num_steps * each
    what = f"a rollout of {num_tasks:,} tasks x {num_lanes:,} lanes x {num_steps:,} steps"
    check_fits(needed, what, "fewer tasks, lanes, or steps at a time fit")
