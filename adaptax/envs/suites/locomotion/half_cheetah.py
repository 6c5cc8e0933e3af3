"""HalfCheetah task families: run at a target velocity, or run in a direction.

Rewards and observations follow garage's HalfCheetahVelEnv and HalfCheetahDirEnv, which follow
MAML (Finn et al. 2017, arXiv 1703.03400, section 5.2); the body, the frame skip and the reset
noise are those of Gymnasium's HalfCheetah-v5.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import mujoco

from adaptax.core.spec import Continuous, EnvSpec
from adaptax.core.step import Step
from adaptax.envs.physics.body import Body, Physics, load_model
from adaptax.envs.suite import Suite
from adaptax.envs.suites.locomotion.families import (
    TRIAL_EPISODES,
    DrawnTasksConfig,
    FixedTasksConfig,
    check_range,
    draw_uniform,
    drawn_tasks_suite,
    mean_velocity,
    squared_norm,
    two_directions_suite,
    uniform_normal_noise,
)

FRAME_SKIP = 5
STEP_SECONDS = 0.05
"""Frame skip times the model's 0.01 s."""
CONTROL_COST = 0.05


@dataclass(frozen=True)
class HalfCheetahVelConfig(DrawnTasksConfig):
    """Run at a target velocity, drawn uniformly."""

    horizon: int = 100
    """Steps of an episode."""
    low: float = 0.0
    """Least target velocity, m/s."""
    high: float = 2.0
    """Greatest target velocity, m/s (garage 2, ProMP and PEARL 3)."""
    torso_position: bool = True
    """Whether observations end with the torso's position (garage; it shows the absolute x)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range(self)


@dataclass(frozen=True)
class HalfCheetahVelPearlConfig(HalfCheetahVelConfig):
    """The same as PEARL and VariBAD have it: faster targets, longer episodes."""

    horizon: int = 200
    """Steps of an episode."""
    high: float = 3.0
    """Greatest target velocity, m/s."""


@dataclass(frozen=True)
class HalfCheetahDirConfig(FixedTasksConfig):
    """Run forwards or backwards, as fast as possible."""

    horizon: int = 100
    """Steps of an episode."""
    torso_position: bool = True
    """Whether observations end with the torso's position (garage; it shows the absolute x)."""


def half_cheetah_vel(config: HalfCheetahVelConfig) -> Suite:
    """HalfCheetah at a target velocity: reward -|v_x - target| - 0.05 |a|^2."""
    return _at_velocity(config, trial_episodes=4)


def half_cheetah_vel_pearl(config: HalfCheetahVelPearlConfig) -> Suite:
    """HalfCheetah at a target velocity, with PEARL's settings and number of episodes.

    Its tasks are those of `half-cheetah-vel` with the same settings.
    """
    return replace(_at_velocity(config, TRIAL_EPISODES), name="half-cheetah-vel-pearl")


def half_cheetah_dir(config: HalfCheetahDirConfig) -> Suite:
    """HalfCheetah forwards or backwards: reward direction * v_x - 0.05 |a|^2."""
    spec = _spec(config.horizon, config.torso_position, trial_episodes=2)
    body = _body(spec, config.torso_position, "direction")
    return two_directions_suite("half-cheetah-dir", config, body)


def _at_velocity(config: HalfCheetahVelConfig, trial_episodes: int) -> Suite:
    spec = _spec(config.horizon, config.torso_position, trial_episodes)
    body = _body(spec, config.torso_position, "target")
    draw = partial(draw_uniform, "target", config.low, config.high)
    return drawn_tasks_suite("half-cheetah-vel", config, body, draw)


def _spec(horizon: int, torso_position: bool, trial_episodes: int) -> EnvSpec:
    return EnvSpec(
        observation_size=20 if torso_position else 17,
        action=Continuous(6),
        horizon=horizon,
        trial_episodes=trial_episodes,
        info_names=("velocity", "control_cost"),
    )


def _body(spec: EnvSpec, torso_position: bool, param: str) -> Body:
    # XBODY is the body's own frame, the `xpos` of the originals; BODY would be its centre of mass.
    torso = (mujoco.mjtSensor.mjSENS_FRAMEPOS, mujoco.mjtObj.mjOBJ_XBODY, "torso")
    return Body(
        spec=spec,
        model=load_model("half_cheetah.xml", {"torso_position": torso}),
        frame_skip=FRAME_SKIP,
        task_params={param: ()},
        reset_noise=partial(uniform_normal_noise, 9, 9, 0.1),
        observation=partial(_observation, torso_position),
        outcome=_velocity_outcome if param == "target" else _direction_outcome,
    )


def _observation(torso_position: bool, state: Physics) -> jax.Array:
    """[20]: qpos without x (8), qvel (9), torso position (3, optional)."""
    parts = [state.qpos[1:], state.qvel]
    if torso_position:
        parts.append(state.sensors["torso_position"])
    return jnp.concatenate(parts)


def _velocity_outcome(
    before: Physics, action: jax.Array, after: Physics, params: Mapping[str, jax.Array]
) -> Step:
    velocity = mean_velocity(before, after, STEP_SECONDS)
    return _outcome(-jnp.abs(velocity - params["target"]), velocity, action)


def _direction_outcome(
    before: Physics, action: jax.Array, after: Physics, params: Mapping[str, jax.Array]
) -> Step:
    velocity = mean_velocity(before, after, STEP_SECONDS)
    return _outcome(params["direction"] * velocity, velocity, action)


def _outcome(running: jax.Array, velocity: jax.Array, action: jax.Array) -> Step:
    """`running` less the cost of the controls."""
    control_cost = CONTROL_COST * squared_norm(action)
    return Step(
        reward=running - control_cost, info={"velocity": velocity, "control_cost": control_cost}
    )
