"""Humanoid task family: run in a direction of the plane.

The reward follows PEARL's HumanoidDirEnv (Rakelly et al. 2019, arXiv 1903.08254;
katerakelly/oyster, rlkit/envs/humanoid_dir.py), which is OpenAI Gym's Humanoid-v2 with its
velocity taken along the task's direction. ProMP's HumanoidRandDirecEnv has the angles 0 and pi
only. The body, the frame skip and the reset noise are those of Gymnasium's Humanoid-v5.

The originals also take min(5e-7 |cfrc_ext|^2, 10) off the reward and observe `cfrc_ext`, MuJoCo's
external forces. No sensor gives them, and from MuJoCo 2.0 on they are zero unless asked for
(openai/gym issue 1541); they are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from adaptax.core.spec import Continuous, EnvSpec
from adaptax.core.step import Step
from adaptax.envs.physics.body import Body, Physics, SensorKind, load_model
from adaptax.envs.suite import Suite
from adaptax.envs.suites.locomotion.families import (
    TRIAL_EPISODES,
    DrawnTasksConfig,
    draw_uniform,
    drawn_tasks_suite,
    squared_norm,
    uniform_noise,
)

ASSET = "humanoid.xml"
FRAME_SKIP = 5
SUBSTEP_SECONDS = 0.003
STEP_SECONDS = FRAME_SKIP * SUBSTEP_SECONDS
CONTROL_LIMIT = 0.4
"""The control that an action of 1 stands for."""
ALIVE_BONUS = 5.0
VELOCITY_REWARD = 1.25
"""Gym's 0.25 / timestep times the distance of a step, per m/s."""
CONTROL_COST = 0.1
HEALTHY_HEIGHT = (1.0, 2.0)
"""Heights of the torso, m, outside of which an episode terminates."""
PART_SENSORS = {
    "position": mujoco.mjtSensor.mjSENS_FRAMEPOS,
    "x_axis": mujoco.mjtSensor.mjSENS_FRAMEXAXIS,
    "y_axis": mujoco.mjtSensor.mjSENS_FRAMEYAXIS,
    "z_axis": mujoco.mjtSensor.mjSENS_FRAMEZAXIS,
    "linear_velocity": mujoco.mjtSensor.mjSENS_FRAMELINVEL,
    "angular_velocity": mujoco.mjtSensor.mjSENS_FRAMEANGVEL,
}
"""What is sensed of every part's inertial frame, in the world's axes."""


@dataclass(frozen=True)
class HumanoidDirConfig(DrawnTasksConfig):
    """Run in a direction of the plane, drawn uniformly, as fast as possible."""

    part_features: bool = True
    """Whether each part's inertia and velocity and the joints' torques are observed, as published;
    all of them follow from qpos, qvel and the last action."""


@dataclass(frozen=True)
class _Parts:
    """Constants of the N moving parts."""

    mass: jax.Array
    """[N] kg"""
    inertia: jax.Array
    """[N, 3] kg m^2 about the principal axes."""


def humanoid_dir(config: HumanoidDirConfig) -> Suite:
    """Humanoid in any direction: reward 5 + 1.25 v . (cos angle, sin angle) - 0.016 |a|^2."""
    spec = EnvSpec(
        observation_size=270 if config.part_features else 45,
        action=Continuous(17),
        horizon=config.horizon,
        trial_episodes=TRIAL_EPISODES,
        info_names=("velocity", "control_cost"),
    )
    model = _model(config.part_features)
    parts = _Parts(model.body_mass[1:].copy(), model.body_inertia[1:].copy())
    body = Body(
        spec=spec,
        model=model,
        frame_skip=FRAME_SKIP,
        task_params={"angle": ()},
        reset_noise=partial(uniform_noise, 24, 23, 0.01),
        observation=partial(_observation, parts if config.part_features else None),
        outcome=_outcome,
    )
    draw = partial(draw_uniform, "angle", 0.0, 2 * np.pi)
    return drawn_tasks_suite("humanoid-dir", config, body, draw)


def _model(part_features: bool) -> mujoco.MjModel:
    """The humanoid with sensors of its centre of mass and, if asked for, of its parts."""
    body, joint = mujoco.mjtObj.mjOBJ_BODY, mujoco.mjtObj.mjOBJ_JOINT
    sensors: dict[str, SensorKind] = {
        "centre": (mujoco.mjtSensor.mjSENS_SUBTREECOM, body, "torso"),
        "centre_velocity": (mujoco.mjtSensor.mjSENS_SUBTREELINVEL, body, "torso"),
    }
    if part_features:
        plain = load_model(ASSET)
        parts = [plain.body(i).name for i in range(1, plain.nbody)]
        hinges = [plain.joint(i).name for i in range(1, plain.njnt)]
        for quantity, kind in PART_SENSORS.items():
            sensors |= {f"{quantity}/{part}": (kind, body, part) for part in parts}
        torque = mujoco.mjtSensor.mjSENS_JOINTACTFRC
        sensors |= {f"torque/{hinge}": (torque, joint, hinge) for hinge in hinges}
    return load_model(ASSET, sensors)


def _observation(parts: _Parts | None, state: Physics) -> jax.Array:
    """[270]: qpos without x and y (22), qvel (23), cinert (130), cvel (78), torques (17).

    Without the parts' features 45. They are in the order of Humanoid-v5; the torques are the
    hinges' entries of its qfrc_actuator.
    """
    columns = [state.qpos[2:], state.qvel]
    if parts is not None:
        offset = _of_parts("position", state) - state.sensors["centre"]
        columns += [_inertias(parts, offset, state), _velocities(offset, state)]
        columns += [state.sensors["torque"]]
    return jnp.concatenate(columns)


def _of_parts(quantity: str, state: Physics) -> jax.Array:
    """[N, 3]: a quantity of every part."""
    return state.sensors[quantity].reshape(-1, 3)


def _inertias(parts: _Parts, offset: jax.Array, state: Physics) -> jax.Array:
    """[10 N]: cinert, each part's inertia about the whole's centre of mass, `offset` from its.

    By the parallel axis theorem I = sum_i J_i e_i e_i' + m (|c|^2 1 - c c') for principal moments
    J_i, axes e_i, mass m and offset c; as xx, yy, zz, xy, xz, yz, then m c, then m.
    """
    mass = parts.mass[:, None]
    inertia = -mass * _products(offset)
    inertia = inertia.at[:, :3].add(mass * jnp.square(offset).sum(axis=-1, keepdims=True))
    for i, axis in enumerate(("x_axis", "y_axis", "z_axis")):
        inertia += parts.inertia[:, i, None] * _products(_of_parts(axis, state))
    return jnp.concatenate([inertia, mass * offset, mass], axis=1).reshape(-1)


def _products(vector: jax.Array) -> jax.Array:
    """[..., 6]: xx, yy, zz, xy, xz, yz of vectors [..., 3]."""
    x, y, z = jnp.moveaxis(vector, -1, 0)
    return jnp.stack([x * x, y * y, z * z, x * y, x * z, y * z], axis=-1)


def _velocities(offset: jax.Array, state: Physics) -> jax.Array:
    """[6 N]: cvel, each part's angular velocity and its velocity at the whole's centre."""
    angular, linear = _of_parts("angular_velocity", state), _of_parts("linear_velocity", state)
    at_centre = linear - jnp.cross(angular, offset)
    return jnp.concatenate([angular, at_centre], axis=1).reshape(-1)


def _outcome(
    before: Physics, action: jax.Array, after: Physics, params: Mapping[str, jax.Array]
) -> Step:
    # Sensors are one substep old after a step: the centre goes on at the velocity it had then.
    sensors = after.sensors
    end = sensors["centre"] + SUBSTEP_SECONDS * sensors["centre_velocity"]
    velocity = (end - before.sensors["centre"]) / STEP_SECONDS
    along = velocity[0] * jnp.cos(params["angle"]) + velocity[1] * jnp.sin(params["angle"])
    control_cost = CONTROL_COST * CONTROL_LIMIT**2 * squared_norm(action)
    low, high = HEALTHY_HEIGHT
    height = after.qpos[2]
    return Step(
        reward=ALIVE_BONUS + VELOCITY_REWARD * along - control_cost,
        terminated=(height < low) | (height > high),
        info={"velocity": along, "control_cost": control_cost},
    )
