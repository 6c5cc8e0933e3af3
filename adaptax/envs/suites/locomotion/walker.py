"""Walker task families: run at a target velocity, or in a body of other dynamics.

- walker-vel follows ProMP's Walker2DRandVelEnv (Rothfuss et al. 2019, arXiv 1810.06784;
  jonasrothfuss/ProMP, meta_policy_search/envs/mujoco_envs/walker2d_rand_vel.py);
- walker-params: see `dynamics`.

The body and the reset noise are those of Gymnasium's Walker2d-v5, both feet of friction 1.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from adaptax.core.config import check_positive
from adaptax.core.step import Step
from adaptax.envs.physics.body import Body, Physics, load_model
from adaptax.envs.suite import Suite
from adaptax.envs.suites.locomotion.dynamics import (
    CONTROL_COST,
    RESET_NOISE,
    dynamics_suite,
    planar_observation,
    planar_spec,
)
from adaptax.envs.suites.locomotion.families import (
    DrawnTasksConfig,
    check_range,
    draw_uniform,
    drawn_tasks_suite,
    mean_velocity,
    squared_norm,
    uniform_noise,
)

ASSET = "walker2d_v5.xml"
VEL_FRAME_SKIP = 8
VEL_STEP_SECONDS = 0.016
"""Frame skip times the model's 0.002 s."""
VEL_ALIVE_BONUS = 15.0
HEALTHY_HEIGHT = (0.8, 2.0)
"""Heights of the torso, m, between which it is healthy ..."""
HEALTHY_ANGLE = 1.0
"""... if its angle is smaller than so many rad; otherwise the episode terminates."""


@dataclass(frozen=True)
class WalkerVelConfig(DrawnTasksConfig):
    """Run at a target velocity, drawn uniformly."""

    low: float = 0.0
    """Least target velocity, m/s."""
    high: float = 10.0
    """Greatest target velocity, m/s."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self)


@dataclass(frozen=True)
class WalkerParamsConfig(DrawnTasksConfig):
    """Run forwards in a walker whose dynamics are drawn at random."""

    log_scale: float = 3.0
    """s: factors are 1.5^U(-s, s), those of the damping 1.3^U(-s, s)."""
    frame_skip: int = 5
    """Physics substeps of 0.002 s in a step (rand_param_envs 5, VariBAD 4)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "log_scale", "frame_skip")


def walker_vel(config: WalkerVelConfig) -> Suite:
    """Walker at a target velocity: reward 15 - |v_x - target| - 0.001 |a|^2 while healthy."""
    model = load_model(ASSET)
    body = Body(
        spec=planar_spec(model, config.horizon),
        model=model,
        frame_skip=VEL_FRAME_SKIP,
        task_params={"target": ()},
        reset_noise=partial(uniform_noise, model.nq, model.nv, RESET_NOISE),
        observation=planar_observation,
        outcome=_velocity_outcome,
    )
    draw = partial(draw_uniform, "target", config.low, config.high)
    return drawn_tasks_suite("walker-vel", config, body, draw)


def walker_params(config: WalkerParamsConfig) -> Suite:
    """Walker of other dynamics: reward 1 + v_x - 0.001 |a|^2 while healthy."""
    return dynamics_suite(
        "walker-params", ASSET, config, config.log_scale, config.frame_skip, healthy
    )


def healthy(state: Physics) -> jax.Array:
    """Whether it stands; otherwise the episode terminates."""
    height, angle = state.qpos[1], state.qpos[2]
    low, high = HEALTHY_HEIGHT
    result: jax.Array = (height > low) & (height < high) & (jnp.abs(angle) < HEALTHY_ANGLE)
    return result


def _velocity_outcome(
    before: Physics, action: jax.Array, after: Physics, params: Mapping[str, jax.Array]
) -> Step:
    velocity = mean_velocity(before, after, VEL_STEP_SECONDS)
    control_cost = CONTROL_COST * squared_norm(action)
    return Step(
        reward=VEL_ALIVE_BONUS - jnp.abs(velocity - params["target"]) - control_cost,
        terminated=~healthy(after),
        info={"velocity": velocity, "control_cost": control_cost},
    )
