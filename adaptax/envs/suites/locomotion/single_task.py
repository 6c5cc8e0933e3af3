"""Gymnasium's HalfCheetah-v5, Hopper-v5 and Walker2d-v5: one task each, natively in many lanes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from adaptax.core.spec import Continuous, EnvSpec
from adaptax.core.step import Step
from adaptax.envs.physics.body import Body, Physics, load_model
from adaptax.envs.physics.suite import mujoco_suite
from adaptax.envs.suite import Suite
from adaptax.envs.suites.locomotion import half_cheetah as cheetahs
from adaptax.envs.suites.locomotion import hopper as hoppers
from adaptax.envs.suites.locomotion import walker as walkers
from adaptax.envs.suites.locomotion.dynamics import (
    CONTROL_COST,
    RESET_NOISE,
    Healthy,
    planar_observation,
)
from adaptax.envs.suites.locomotion.families import (
    FixedTasksConfig,
    mean_velocity,
    squared_norm,
    uniform_noise,
    uniform_normal_noise,
)
from adaptax.envs.task import TaskList

CHEETAH_CONTROL_COST = 0.1
"""HalfCheetah-v5's; the task families have half of it."""
WALKER_FRAME_SKIP = 4


@dataclass(frozen=True)
class SingleTaskConfig(FixedTasksConfig):
    """Run forwards, as fast as possible."""

    horizon: int = 1000
    """Steps of an episode."""


def half_cheetah(config: SingleTaskConfig) -> Suite:
    """HalfCheetah-v5: reward v_x - 0.1 |a|^2."""
    noise = partial(uniform_normal_noise, 9, 9, 0.1)
    return _suite(
        *("half-cheetah", "half_cheetah.xml", config, cheetahs.FRAME_SKIP, noise),
        *(_all_but_x, CHEETAH_CONTROL_COST, None),
    )


def hopper(config: SingleTaskConfig) -> Suite:
    """Hopper-v5: reward 1 + v_x - 0.001 |a|^2 while healthy; without the 1 where that ends."""
    noise = partial(uniform_noise, 6, 6, RESET_NOISE)
    return _suite(
        *("hopper", "hopper.xml", config, hoppers.FRAME_SKIP, noise),
        *(planar_observation, CONTROL_COST, hoppers.healthy),
    )


def walker(config: SingleTaskConfig) -> Suite:
    """Walker2d-v5: rewarded as `hopper`."""
    noise = partial(uniform_noise, 9, 9, RESET_NOISE)
    return _suite(
        *("walker", walkers.ASSET, config, WALKER_FRAME_SKIP, noise),
        *(planar_observation, CONTROL_COST, walkers.healthy),
    )


def _suite(
    name: str,
    asset: str,
    config: SingleTaskConfig,
    frame_skip: int,
    reset_noise: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
    observation: Callable[[Physics], jax.Array],
    control_cost: float,
    healthy: Healthy | None,
) -> Suite:
    """One task, without parameters; it terminates only where `healthy` says so."""
    model = load_model(asset)
    size = model.nq - 1 + model.nv
    names = ("velocity", "control_cost")
    body = Body(
        spec=EnvSpec(size, Continuous(model.nu), config.horizon, info_names=names),
        model=model,
        frame_skip=frame_skip,
        task_params={},
        reset_noise=reset_noise,
        observation=observation,
        outcome=partial(_outcome, frame_skip * model.opt.timestep, control_cost, healthy),
    )
    task = TaskList(name, [{}])
    return mujoco_suite(name, body, task, task, config.num_threads)


def _all_but_x(state: Physics) -> jax.Array:
    """[nq - 1 + nv]: qpos without x, qvel."""
    return jnp.concatenate([state.qpos[1:], state.qvel])


def _outcome(
    step_seconds: float,
    control_cost: float,
    healthy: Healthy | None,
    before: Physics,
    action: jax.Array,
    after: Physics,
    params: Mapping[str, jax.Array],
) -> Step:
    velocity = mean_velocity(before, after, step_seconds)
    cost = control_cost * squared_norm(action)
    info = {"velocity": velocity, "control_cost": cost}
    if healthy is None:
        return Step(reward=velocity - cost, info=info)
    alive = healthy(after)
    return Step(reward=alive + velocity - cost, terminated=~alive, info=info)
