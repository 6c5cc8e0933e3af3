"""Swimmer task family: swim at a target velocity.

The reward follows ProMP's SwimmerRandVelEnv (Rothfuss et al. 2019, arXiv 1810.06784;
jonasrothfuss/ProMP, meta_policy_search/envs/mujoco_envs/swimmer_rand_vel.py), except that ProMP
adds the distance from the target velocity, which rewards missing it; here it is taken off, as in
MAML's SwimmerRandGoalEnv (cbfinn/maml_rl). The body, the frame skip and the reset noise are those
of Gymnasium's Swimmer-v5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from adaptax.core.spec import Continuous, EnvSpec
from adaptax.core.step import Step
from adaptax.envs.physics.body import Body, Physics, load_model
from adaptax.envs.suite import Suite
from adaptax.envs.suites.locomotion.families import (
    TRIAL_EPISODES,
    DrawnTasksConfig,
    check_range,
    draw_uniform,
    drawn_tasks_suite,
    mean_velocity,
    squared_norm,
    uniform_noise,
)

FRAME_SKIP = 4
STEP_SECONDS = 0.04
"""Frame skip times the model's 0.01 s."""
CONTROL_COST = 1e-4


@dataclass(frozen=True)
class SwimmerVelConfig(DrawnTasksConfig):
    """Swim at a target velocity, drawn uniformly."""

    low: float = 0.1
    """Least target velocity, m/s."""
    high: float = 0.2
    """Greatest target velocity, m/s."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self)


def swimmer_vel(config: SwimmerVelConfig) -> Suite:
    """Swimmer at a target velocity: reward -|v_x - target| - 0.0001 |a|^2; never terminates."""
    spec = EnvSpec(
        observation_size=8,
        action=Continuous(2),
        horizon=config.horizon,
        trial_episodes=TRIAL_EPISODES,
        info_names=("velocity", "control_cost"),
    )
    body = Body(
        spec=spec,
        model=load_model("swimmer.xml"),
        frame_skip=FRAME_SKIP,
        task_params={"target": ()},
        reset_noise=partial(uniform_noise, 5, 5, 0.1),
        observation=_observation,
        outcome=_outcome,
    )
    draw = partial(draw_uniform, "target", config.low, config.high)
    return drawn_tasks_suite("swimmer-vel", config, body, draw)


def _observation(state: Physics) -> jax.Array:
    """[8]: qpos without x and y (3), qvel (5)."""
    return jnp.concatenate([state.qpos[2:], state.qvel])


def _outcome(
    before: Physics, action: jax.Array, after: Physics, params: Mapping[str, jax.Array]
) -> Step:
    velocity = mean_velocity(before, after, STEP_SECONDS)
    control_cost = CONTROL_COST * squared_norm(action)
    return Step(
        reward=-jnp.abs(velocity - params["target"]) - control_cost,
        info={"velocity": velocity, "control_cost": control_cost},
    )
