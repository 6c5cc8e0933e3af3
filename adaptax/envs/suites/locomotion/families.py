"""What the locomotion families share: settings, task sets, velocities, reset noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.config import check_not_negative, check_positive
from adaptax.core.errors import check
from adaptax.core.rng import named_generator
from adaptax.envs.physics.body import Body, Physics
from adaptax.envs.physics.suite import mujoco_suite
from adaptax.envs.suite import Suite
from adaptax.envs.task import Params, TaskDistribution, TaskList, TaskRange, drawn_list

TRIAL_EPISODES = 3
"""PEARL's protocol (oyster, configs): two episodes to explore and one that counts."""

DrawTask = Callable[[np.random.Generator], Params]
"""Draws one task's parameters."""


@dataclass(frozen=True)
class DrawnTasksConfig:
    """Settings of a family whose tasks are drawn at random."""

    horizon: int = 200
    """Steps of an episode."""
    num_train_tasks: int | None = None
    """Number of training tasks; None draws new ones for ever."""
    num_test_tasks: int = 50
    """Number of held-out tasks."""
    task_seed: int = 0
    """Seed of the listed tasks."""
    num_threads: int = 0
    """Threads that equal shares of the lanes run on; 0 means one a core."""

    def __post_init__(self) -> None:
        check_positive(self, "horizon", "num_train_tasks", "num_test_tasks")
        check_not_negative(self, "task_seed", "num_threads")


@dataclass(frozen=True)
class FixedTasksConfig:
    """Settings of a family whose few tasks are fixed."""

    horizon: int = 200
    """Steps of an episode."""
    num_threads: int = 0
    """Threads that equal shares of the lanes run on; 0 means one a core."""

    def __post_init__(self) -> None:
        check_positive(self, "horizon")
        check_not_negative(self, "num_threads")


def drawn_tasks_suite(name: str, config: DrawnTasksConfig, body: Body, draw: DrawTask) -> Suite:
    """The family `name` of `body`, its task sets drawn from their own streams."""

    def listed(split: str, num_tasks: int) -> TaskList:
        rng = named_generator(config.task_seed, name, split)
        return drawn_list(f"{name}-{split}", draw, rng, num_tasks)

    train: TaskDistribution = TaskRange(f"{name}-train", draw)
    if config.num_train_tasks is not None:
        train = listed("train", config.num_train_tasks)
    test = listed("test", config.num_test_tasks)
    return mujoco_suite(name, body, train, test, config.num_threads)


def two_directions_suite(name: str, config: FixedTasksConfig, body: Body) -> Suite:
    """The family `name` of `body` with two tasks, forwards and backwards, in training and test."""
    tasks = TaskList(name, [{"direction": 1.0}, {"direction": -1.0}])
    return mujoco_suite(name, body, tasks, tasks, config.num_threads)


def check_range(config: Any) -> None:
    """Raise unless `low` of a config is less than its `high`."""
    low, high = config.low, config.high
    check(low < high, f"low must be less than high, not {low} and {high}")


def draw_uniform(name: str, low: float, high: float, rng: np.random.Generator) -> Params:
    """One parameter `name`, uniform on [low, high]."""
    return {name: float(rng.uniform(low, high))}


def mean_velocity(before: Physics, after: Physics, seconds: float) -> jax.Array:
    """m/s: mean over a step of `seconds`, along x, the first joint."""
    distance: jax.Array = after.qpos[0] - before.qpos[0]
    return distance / seconds


def squared_norm(vector: jax.Array) -> jax.Array:
    """|a|^2 of an action or another vector [A]."""
    total: jax.Array = jnp.square(vector).sum()
    return total


def uniform_normal_noise(
    num_qpos: int, num_qvel: int, scale: float, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Gymnasium's noise of HalfCheetah-v5 and Ant-v5: qpos + U(-s, s), qvel + s N(0, 1)."""
    position, velocity = jax.random.split(key)
    qpos = jax.random.uniform(position, (num_qpos,), minval=-scale, maxval=scale)
    return qpos, scale * jax.random.normal(velocity, (num_qvel,))


def uniform_noise(
    num_qpos: int, num_qvel: int, scale: float, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Gymnasium's noise of its other bodies: qpos + U(-s, s), qvel + U(-s, s)."""
    noise = jax.random.uniform(key, (num_qpos + num_qvel,), minval=-scale, maxval=scale)
    return noise[:num_qpos], noise[num_qpos:]
