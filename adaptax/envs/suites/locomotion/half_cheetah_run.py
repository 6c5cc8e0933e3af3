"""HalfCheetah as one plain task: Gymnasium's HalfCheetah-v5, stepped natively in many lanes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from adaptax.core.spec import Continuous, EnvSpec
from adaptax.core.step import Step
from adaptax.envs.physics.body import Body, Physics, load_model
from adaptax.envs.physics.suite import mujoco_suite
from adaptax.envs.suite import Suite
from adaptax.envs.suites.locomotion.families import (
    FixedTasksConfig,
    mean_velocity,
    squared_norm,
    uniform_normal_noise,
)
from adaptax.envs.suites.locomotion.half_cheetah import FRAME_SKIP, STEP_SECONDS
from adaptax.envs.task import TaskList

CONTROL_COST = 0.1
"""HalfCheetah-v5's; the task families have half of it."""


@dataclass(frozen=True)
class HalfCheetahConfig(FixedTasksConfig):
    """Run forwards, as fast as possible."""

    horizon: int = 1000
    """Steps of an episode."""


def half_cheetah(config: HalfCheetahConfig) -> Suite:
    """HalfCheetah-v5: reward v_x - 0.1 |a|^2; one task, without parameters."""
    spec = EnvSpec(17, Continuous(6), config.horizon, info_names=("velocity", "control_cost"))
    body = Body(
        spec=spec,
        model=load_model("half_cheetah.xml", {}),
        frame_skip=FRAME_SKIP,
        task_params={},
        reset_noise=partial(uniform_normal_noise, 9, 9, 0.1),
        observation=_observation,
        outcome=_outcome,
    )
    task = TaskList("half-cheetah", [{}])
    return mujoco_suite("half-cheetah", body, task, task, config.num_threads)


def _observation(state: Physics) -> jax.Array:
    """[17]: qpos without x (8), qvel (9)."""
    return jnp.concatenate([state.qpos[1:], state.qvel])


def _outcome(
    before: Physics, action: jax.Array, after: Physics, params: Mapping[str, jax.Array]
) -> Step:
    velocity = mean_velocity(before, after, STEP_SECONDS)
    control_cost = CONTROL_COST * squared_norm(action)
    return Step(
        reward=velocity - control_cost, info={"velocity": velocity, "control_cost": control_cost}
    )
