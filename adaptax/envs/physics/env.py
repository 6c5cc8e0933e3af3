"""A body as a compiled environment: its physics is one native call in the program."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from adaptax.core.experience import Step
from adaptax.core.spec import EnvSpec
from adaptax.envs.env import TaskArrays
from adaptax.envs.physics import native
from adaptax.envs.physics.body import Body
from adaptax.envs.physics.task_models import TaskModels
from adaptax.envs.task import Task


class MujocoEnv:
    """One lane of a body, pure; equal to itself alone.

    The physics starts from the bare state at every step (no solver warm start), so that state is
    all there is: lanes, threads and the order of calls change nothing, and saving is exact.
    """

    rests_at_nan = True
    """An action that is no number costs no simulation: lanes that wait for others get such."""

    def __init__(self, body: Body) -> None:
        self.body = body
        self._models = TaskModels(body)

    def __reduce__(self) -> Any:
        return MujocoEnv, (self.body,)

    @cached_property
    def _simulations(self) -> native.Simulations:
        return native.Simulations(self.body.model)

    @property
    def spec(self) -> EnvSpec:
        """Sizes and horizon."""
        return self.body.spec

    def task_arrays(self, task: Task) -> tuple[TaskArrays, Any]:
        """A task's parameters as words, where its model is, and that model, which must live on."""
        params = self._models.params(task)
        model = self._models.model(params)
        arrays = {name: native.to_words(np.asarray(x)[..., None]) for name, x in params.items()}
        arrays["model"] = native.address_words(model._address)
        arrays["simulations"] = self._simulations.words
        return arrays, model

    def reset(self, key: jax.Array, task: Any) -> tuple[jax.Array, jax.Array]:
        """State [2 S] and observation [O] at the start of an episode."""
        body = self.body
        noise = body.reset_noise(key)  # before float64, in which JAX cannot draw inside a program
        with jax.enable_x64(True):
            state = _words(body.initial_state(noise))
            sensors = jnp.zeros((2, 2 * body.model.nsensordata), jnp.uint32)
            if body.model.nsensordata:
                # Those before a substep that is thrown away.
                still = jnp.zeros(body.spec.action.shape, jnp.float32)
                _, sensors = self._simulate(state, still, task, 1)
            physics = body.physics(_doubles(state), _doubles(sensors[0]))
            return state, body.observation(physics).astype(jnp.float32)

    def step(
        self, key: jax.Array, state: jax.Array, action: jax.Array, task: Any
    ) -> tuple[jax.Array, Step]:
        """The state after an action in [-1, 1], and the step."""
        body = self.body
        with jax.enable_x64(True):
            after, sensors = self._simulate(state, action, task, body.frame_skip)
            first, last = _doubles(sensors[0]), _doubles(sensors[1])
            params = {
                name: _doubles(task[name].reshape(-1)).reshape(shape)
                for name, shape in body.task_params.items()
            }
            return after, body.float32_step(
                body.physics(_doubles(state), first),
                action.astype(jnp.float64),
                body.physics(_doubles(after), last),
                params,
            )

    def simulation(self, state: np.ndarray, task: Task) -> tuple[mujoco.MjModel, mujoco.MjData]:
        """MuJoCo's model and data of a lane in `state` [2 S], to draw it."""
        model = self._models.model(self._models.params(task))
        return model, forwarded(model, np.array(state).view(np.float64))

    def _simulate(
        self, state: jax.Array, action: jax.Array, task: Any, num_substeps: int
    ) -> tuple[jax.Array, jax.Array]:
        return native.step(
            task["simulations"],
            task["model"],
            state,
            action,
            num_sensors=self.body.model.nsensordata,
            num_substeps=num_substeps,
        )


def forwarded(model: mujoco.MjModel, state: np.ndarray, kind: int = native.STATE) -> mujoco.MjData:
    """MuJoCo's data in a state [S] of a kind, with all that follows from it."""
    data = mujoco.MjData(model)
    mujoco.mj_setState(model, data, state, kind)
    mujoco.mj_forward(model, data)
    return data


def _doubles(words: jax.Array) -> jax.Array:
    """Words [2 n] as float64 [n]."""
    return jax.lax.bitcast_convert_type(words.reshape(-1, 2), jnp.float64)


def _words(numbers: jax.Array) -> jax.Array:
    """Float64 [n] as words [2 n]."""
    return jax.lax.bitcast_convert_type(numbers, jnp.uint32).reshape(-1)
