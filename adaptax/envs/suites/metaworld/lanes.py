"""Meta-World as a compiled environment: a step of it is one native call in the program."""

from __future__ import annotations

from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from metaworld.env_dict import ALL_V3_ENVIRONMENTS

from adaptax.core.errors import check
from adaptax.core.spec import EnvSpec
from adaptax.core.step import Step
from adaptax.envs.env import TaskArrays
from adaptax.envs.physics import native
from adaptax.envs.physics.scene import STATE, Guide, Scene, step_scenes
from adaptax.envs.suites.metaworld.env import NUM_OBS, Simulator
from adaptax.envs.suites.metaworld.recording import NUM_SEEN, Recording, record
from adaptax.envs.task import Task

STATE_SIZE, NUM_PLACES = 128, 60
"""Room for the physics and memory of any class, and for its bodies and sites."""
ONE_AT_A_TIME = Lock()
"""For Meta-World's objects of a process, which share models: members of a group are threads."""


class MetaWorldLanes:
    """One lane of Meta-World's classes, pure; equal to itself alone.

    Observations as those of `MetaWorldEnv`: the last 3 of 39 are the goal where `told_classes` are
    given, and a one-hot of the class follows; else 0. An episode starts as Meta-World's own reset
    leaves its object, which runs once for each goal. Success ends no episode.
    """

    rests_at_nan = True
    """An action that is no number costs no simulation: lanes that wait for others get such."""

    def __init__(self, spec: EnvSpec, told_classes: tuple[str, ...] = ()) -> None:
        self.spec, self.told_classes = spec, told_classes
        self._simulators: dict[str, Simulator] = {}
        self._scenes: dict[str, tuple[Scene, Recording]] = {}
        self._begun: dict[tuple[str, bytes], TaskArrays] = {}

    def __reduce__(self) -> Any:
        return MetaWorldLanes, (self.spec, self.told_classes)

    def task_arrays(self, task: Task) -> tuple[TaskArrays, Any]:
        """How an episode of a task starts and where its scene is, and that scene, to live on."""
        name, goal = str(task.params["class"]), np.asarray(task.params["rand_vec"], np.float64)
        key = (name, goal.tobytes())
        with ONE_AT_A_TIME:
            if key not in self._begun:
                self._begun[key] = self._begin(name, goal)
        return self._begun[key], self._scenes[name][0]

    def reset(self, key: jax.Array, task: Any) -> tuple[jax.Array, jax.Array]:
        """State [2 S] and observation [O] at the start of an episode; nothing in it is random."""
        return task["state"], task["obs"]

    def step(
        self, key: jax.Array, state: jax.Array, action: jax.Array, task: Any
    ) -> tuple[jax.Array, Step]:
        """The state after an action in [-1, 1], and the step; success: the task is solved now."""
        after, seen = step_scenes(task["scene"], task["places"], state, action, NUM_SEEN)
        obs, reward, success = seen[:NUM_OBS], seen[NUM_OBS], seen[NUM_OBS + 1]
        return after, Step(
            reward=reward,
            next_obs=jnp.concatenate([obs, task["obs"][NUM_OBS:]]),
            info={"success": success > 0.5},
        )

    def simulation(self, state: np.ndarray, task: Task) -> tuple[mujoco.MjModel, mujoco.MjData]:
        """MuJoCo's model, until another lane is drawn, and data of a lane in `state` [2 S]."""
        with ONE_AT_A_TIME:
            simulator = self._simulators[str(task.params["class"])]
            simulator.begin(np.asarray(task.params["rand_vec"], np.float64))
            model = simulator.model
            data = mujoco.MjData(model)
            physics = np.array(state).view(np.float64)[: mujoco.mj_stateSize(model, STATE)]
            mujoco.mj_setState(model, data, physics, STATE)
            mujoco.mj_forward(model, data)
            return model, data

    def _begin(self, name: str, goal: np.ndarray) -> TaskArrays:
        """A task's arrays, after Meta-World's own reset to its goal."""
        if name not in self._simulators:
            self._simulators[name] = Simulator(name, goal_hidden=not self.told_classes)
        simulator = self._simulators[name]
        obs = simulator.begin(goal)
        env, model = simulator.env, simulator.model
        if name not in self._scenes:
            recording = record(env, ALL_V3_ENVIRONMENTS[name])
            guide = Guide(env.mocap_low, env.mocap_high, env.action_scale, env.frame_skip)
            self._scenes[name] = Scene(model, guide, recording.program, NUM_SEEN), recording
        scene, recording = self._scenes[name]
        physics = np.zeros(mujoco.mj_stateSize(model, STATE))
        mujoco.mj_getState(model, env.data, physics, STATE)
        places = np.concatenate([model.body_pos.ravel(), model.site_pos.ravel()])
        one_hot = [float(name == told) for told in self.told_classes]
        state = np.concatenate([physics, recording.numbers(env)])
        return {
            "scene": scene.words,
            "places": native.to_words(_filled(places, 3 * NUM_PLACES)),
            "state": native.to_words(_filled(state, STATE_SIZE)),
            "obs": np.concatenate([obs, one_hot]).astype(np.float32),
        }


def _filled(x: np.ndarray, size: int) -> np.ndarray:
    """Made up to `size` with zeros."""
    check(len(x) <= size, f"Meta-World's simulation takes {len(x)} numbers, more than {size}")
    return np.concatenate([x, np.zeros(size - len(x))])
