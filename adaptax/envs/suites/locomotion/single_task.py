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


@dataclass(frozen=True)
class Runner:
    """What a body's environment has of its own."""

    asset: str
    frame_skip: int
    reset_noise: Callable[[jax.Array], tuple[jax.Array, jax.Array]]
    observation: Callable[[Physics], jax.Array] = planar_observation
    control_cost: float = CONTROL_COST
    healthy: Healthy | None = None
    """Where False, the episode terminates; None: it never does."""


def half_cheetah(config: SingleTaskConfig) -> Suite:
    """HalfCheetah-v5: reward v_x - 0.1 |a|^2."""
    runner = Runner(
        asset="half_cheetah.xml",
        frame_skip=cheetahs.FRAME_SKIP,
        reset_noise=partial(uniform_normal_noise, 9, 9, 0.1),
        observation=_all_but_x,
        control_cost=CHEETAH_CONTROL_COST,
    )
    return _suite("half-cheetah", runner, config)


def hopper(config: SingleTaskConfig) -> Suite:
    """Hopper-v5: reward 1 + v_x - 0.001 |a|^2 while healthy; without the 1 where that ends."""
    runner = Runner(
        asset="hopper.xml",
        frame_skip=hoppers.FRAME_SKIP,
        reset_noise=partial(uniform_noise, 6, 6, RESET_NOISE),
        healthy=hoppers.healthy,
    )
    return _suite("hopper", runner, config)


def walker(config: SingleTaskConfig) -> Suite:
    """Walker2d-v5: rewarded as `hopper`."""
    runner = Runner(
        asset=walkers.ASSET,
        frame_skip=WALKER_FRAME_SKIP,
        reset_noise=partial(uniform_noise, 9, 9, RESET_NOISE),
        healthy=walkers.healthy,
    )
    return _suite("walker", runner, config)


def _suite(name: str, runner: Runner, config: SingleTaskConfig) -> Suite:
    """One task, without parameters."""
    model = load_model(runner.asset)
    size = model.nq - 1 + model.nv
    names = ("velocity", "control_cost")
    step_seconds = runner.frame_skip * model.opt.timestep
    body = Body(
        spec=EnvSpec(size, Continuous(model.nu), config.horizon, info_names=names),
        model=model,
        frame_skip=runner.frame_skip,
        task_params={},
        reset_noise=runner.reset_noise,
        observation=runner.observation,
        outcome=partial(_outcome, step_seconds, runner.control_cost, runner.healthy),
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
