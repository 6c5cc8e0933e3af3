"""A simulated body: its MuJoCo model, and what its tasks ask of it, one lane at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import jax
import jax.numpy as jnp
import mujoco

from adaptax.core.spec import EnvSpec
from adaptax.core.step import Step
from adaptax.envs.task import Params


@dataclass(frozen=True)
class Physics:
    """The physical state of one lane, in float64.

    Before a step and after a reset all is of one moment. After a step `sensors` are those of the
    last forward pass, which comes before the last integration: one substep older than `qpos` and
    `qvel`. The environments that the suites follow read body positions about then, since
    `mj_step` leaves `xpos` stale.
    """

    qpos: jax.Array
    """[nq] joint positions, m and rad."""
    qvel: jax.Array
    """[nv] joint velocities, m/s and rad/s."""
    sensors: Mapping[str, jax.Array]
    """By name of the sensor, or of the group of sensors, each [size]."""


@dataclass(frozen=True, eq=False)
class Body:
    """A simulated body and what its tasks ask of it: one lane, as pure functions in float64.

    Whoever runs them makes many lanes with `vmap`, and float32 of what they answer.
    """

    spec: EnvSpec
    model: mujoco.MjModel
    frame_skip: int
    """Physics substeps in one step, under constant controls."""
    task_params: Mapping[str, tuple[int, ...]]
    """Name and shape of each task parameter; () for a number."""
    reset_noise: Callable[[jax.Array], tuple[jax.Array, jax.Array]]
    """From a key what an episode's start adds to the model's initial qpos [nq] and to zero
    qvel [nv], in float32."""
    observation: Callable[[Physics], jax.Array]
    """[O]"""
    outcome: Callable[[Physics, jax.Array, Physics, Mapping[str, jax.Array]], Step]
    """(state before, clipped action [A], state after, task parameters) -> `reward`, `terminated`
    and `info` of the step."""
    task_model: Callable[[Params], mujoco.MjModel] | None = None
    """The model of a task that changes the dynamics, with the sizes, controls and initial state of
    `model`; None where every task has `model`."""

    def physics(self, state: jax.Array, sensors: jax.Array) -> Physics:
        """What the functions see of MuJoCo's full state [S] and its sensors [D]."""
        nq, nv = self.model.nq, self.model.nv
        parts = {name: sensors[where] for name, where in _sensor_slices(self.model).items()}
        return Physics(state[1 : 1 + nq], state[1 + nq : 1 + nq + nv], parts)

    def initial_state(self, noise: tuple[jax.Array, jax.Array]) -> jax.Array:
        """[S]: time, qpos, qvel and actuator activations at the start of an episode."""
        qpos, qvel = (x.astype(jnp.float64) for x in noise)
        rest = jnp.zeros(self.model.na)
        return jnp.concatenate([jnp.zeros(1), jnp.asarray(self.model.qpos0) + qpos, qvel, rest])

    def float32_step(
        self, before: Physics, action: jax.Array, after: Physics, params: Mapping[str, jax.Array]
    ) -> Step:
        """`outcome` and the observation, as a step has them; `action` is clipped."""
        outcome = self.outcome(before, action, after, params)
        info = {name: outcome.info[name].astype(jnp.float32) for name in self.spec.info_names}
        if self.spec.has_success:
            info["success"] = outcome.info["success"]
        return Step(
            reward=jnp.asarray(outcome.reward, jnp.float32),
            next_obs=self.observation(after).astype(jnp.float32),
            terminated=outcome.terminated,
            info=info,
        )


def _sensor_slices(model: mujoco.MjModel) -> dict[str, slice]:
    """Where each named sensor, or group of sensors, of the model lies in its sensor data."""
    slices: dict[str, slice] = {}
    for i, (start, size) in enumerate(zip(model.sensor_adr, model.sensor_dim, strict=True)):
        name = model.sensor(i).name.partition("/")[0]
        slices[name] = slice(slices[name].start if name in slices else start, start + size)
    return slices


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
