"""A simulated body: its MuJoCo model, and what its tasks ask of it, vectorised over lanes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import mujoco
import numpy as np

from adaptax.core.spec import EnvSpec
from adaptax.core.step import Step
from adaptax.envs.task import Params


@dataclass(frozen=True)
class Physics:
    """The physical state of K lanes; views, to be read and not kept.

    Before a step and after a reset all is of one moment. After a step `sensors` are those of the
    last forward pass, which comes before the last integration: one substep older than `qpos` and
    `qvel`. The environments that the suites follow read body positions about then, since
    `mj_step` leaves `xpos` stale.
    """

    qpos: np.ndarray
    """[K, nq] joint positions, m and rad."""
    qvel: np.ndarray
    """[K, nv] joint velocities, m/s and rad/s."""
    sensors: Mapping[str, np.ndarray]
    """By name of the sensor, or of the group of sensors, each [K, size]."""


@dataclass(frozen=True)
class Body:
    """A simulated body and what its tasks ask of it: all that MujocoPool needs to know.

    The functions see K lanes at once and must treat each alone, or an episode would depend on
    its neighbours.
    """

    spec: EnvSpec
    model: mujoco.MjModel
    frame_skip: int
    """Physics substeps in one step, under constant controls."""
    task_params: Mapping[str, tuple[int, ...]]
    """Name and shape of each task parameter; () for a number."""
    reset_noise: Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]]
    """What an episode's start adds to the model's initial qpos [nq] and to zero qvel [nv]."""
    observation: Callable[[Physics], np.ndarray]
    """[K, O]"""
    outcome: Callable[[Physics, np.ndarray, Physics, Mapping[str, np.ndarray]], Step]
    """(state before, clipped action [K, A], state after, task parameters [K, ...]) -> `reward`,
    `terminated` and `info` of the step, each [K]."""
    task_model: Callable[[Params], mujoco.MjModel] | None = None
    """The model of a task that changes the dynamics, with the sizes, controls and initial state of
    `model`; None where every task has `model`."""


SensorKind = tuple[mujoco.mjtSensor, mujoco.mjtObj, str]


def load_spec(asset: str, sensors: Mapping[str, SensorKind]) -> mujoco.MjSpec:
    """Gymnasium's MuJoCo model `asset` (half_cheetah.xml) with sensors added, to be compiled.

    `sensors` maps a name to the sensor's type, the type of the object it reads, and its name.
    Sensors named GROUP/MEMBER that follow one another are read together, as GROUP.
    """
    path = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets" / asset
    spec = mujoco.MjSpec.from_file(str(path))
    for name, (kind, object_kind, object_name) in sensors.items():
        spec.add_sensor(name=name, type=kind, objtype=object_kind, objname=object_name)
    return spec


def load_model(asset: str, sensors: Mapping[str, SensorKind] | None = None) -> mujoco.MjModel:
    """`load_spec`, compiled."""
    return load_spec(asset, sensors or {}).compile()
