"""Hopper task family: run in a body of other dynamics; see `dynamics`.

The body, the frame skip and the reset noise are those of Gymnasium's Hopper-v5.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from adaptax.core.config import check_positive
from adaptax.envs.physics.body import Physics
from adaptax.envs.suite import Suite
from adaptax.envs.suites.locomotion.dynamics import dynamics_suite
from adaptax.envs.suites.locomotion.families import DrawnTasksConfig

FRAME_SKIP = 4
HEALTHY_HEIGHT = 0.7
"""Height of the torso, m, above which it is healthy ..."""
HEALTHY_ANGLE = 0.2
"""... if its angle is smaller than so many rad ..."""
HEALTHY_STATE = 100.0
"""... and the other joints' positions and all velocities are; otherwise the episode ends."""


@dataclass(frozen=True)
class HopperParamsConfig(DrawnTasksConfig):
    """Run forwards in a hopper whose dynamics are drawn at random."""

    log_scale: float = 3.0
    """s: factors are 1.5^U(-s, s), those of the damping 1.3^U(-s, s)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "log_scale")


def hopper_params(config: HopperParamsConfig) -> Suite:
    """Hopper of other dynamics: reward 1 + v_x - 0.001 |a|^2 while healthy."""
    return dynamics_suite(
        "hopper-params", "hopper.xml", config, config.log_scale, FRAME_SKIP, healthy
    )


def healthy(state: Physics) -> jax.Array:
    """Whether it stands; otherwise the episode terminates."""
    height, angle = state.qpos[1], state.qpos[2]
    others = jnp.concatenate([state.qpos[2:], state.qvel])
    within = (jnp.abs(others) < HEALTHY_STATE).all()
    result: jax.Array = within & (height > HEALTHY_HEIGHT) & (jnp.abs(angle) < HEALTHY_ANGLE)
    return result
