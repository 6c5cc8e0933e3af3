"""Meta-World as a compiled environment: a step of it is one native call in the program."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from metaworld.env_dict import ALL_V3_ENVIRONMENTS

from adaptax.core.errors import EnvironmentFault, check, one_line
from adaptax.core.spec import EnvSpec
from adaptax.core.step import Step
from adaptax.envs.env import TaskArrays
from adaptax.envs.physics import native
from adaptax.envs.physics.env import forwarded
from adaptax.envs.physics.scene import STATE, Guide, Scene, step_scenes
from adaptax.envs.suites.metaworld.env import NUM_OBS, Simulator
from adaptax.envs.suites.metaworld.recording import NUM_SEEN, Recording, record
from adaptax.envs.task import Task

STATE_SIZE, NUM_PLACES = 128, 60
"""Room for the physics and memory of any class, and for its bodies and sites."""
ONE_AT_A_TIME = Lock()
"""For Meta-World's objects of a process, which share models: members of a group are threads."""


@dataclass(frozen=True)
class MetaWorldLanes:
    """One lane of Meta-World's classes, pure; equal to others with the same observations.

    Observations as those of `MetaWorldEnv`: the last 3 of 39 are the goal where `told_classes` are
    given, and a one-hot of the class follows; else 0. An episode starts as Meta-World's own reset
    leaves its object, which runs once for each goal and process. Success ends no episode.
    """

    spec: EnvSpec
    told_classes: tuple[str, ...] = ()

    rests_at_nan: ClassVar[bool] = True
    """An action that is no number costs no simulation: lanes that wait for others get such."""

    def task_arrays(self, task: Task) -> tuple[TaskArrays, Any]:
        """How an episode of a task starts and where its scene is, and that scene, to live on."""
        with ONE_AT_A_TIME:
            own = _class(str(task.params["class"]), not self.told_classes)
            start = own.start(np.asarray(task.params["rand_vec"], np.float64))
        one_hot = np.array([own.name == told for told in self.told_classes], np.float32)
        return {**start, "obs": np.concatenate([start["obs"], one_hot])}, own.scene

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
        """MuJoCo's data of a lane in `state` [2 S], and its model, which the next call changes."""
        with ONE_AT_A_TIME:
            simulator = _class(str(task.params["class"]), not self.told_classes).simulator
            simulator.begin(np.asarray(task.params["rand_vec"], np.float64))
            model = simulator.model
            physics = np.array(state).view(np.float64)[: mujoco.mj_stateSize(model, STATE)]
            return model, forwarded(model, physics, STATE)


class _Class:
    """One of Meta-World's classes: its scene, and how episodes on its goals start."""

    def __init__(self, name: str, goal_hidden: bool) -> None:
        self.name, self.simulator = name, Simulator(name, goal_hidden)
        self.scene: Scene | None = None
        self._recording: Recording | None = None
        self._starts: dict[bytes, TaskArrays] = {}

    def start(self, goal: np.ndarray) -> TaskArrays:
        """What a lane on a goal takes, after Meta-World's own reset to it."""
        key = goal.tobytes()
        if key not in self._starts:
            try:
                obs = self.simulator.begin(goal)
            except Exception as error:
                problem = f"{self.name} cannot be reset to {goal}: {one_line(error)}"
                raise EnvironmentFault(problem) from error
            self._starts[key] = self._begun(obs)
        return self._starts[key]

    def _begun(self, obs: np.ndarray) -> TaskArrays:
        env, model = self.simulator.env, self.simulator.model
        if self.scene is None or self._recording is None:
            self._recording = recording = self._recorded()
            guide = Guide(env.mocap_low, env.mocap_high, env.action_scale, env.frame_skip)
            self.scene = Scene(model, guide, recording.program, NUM_SEEN)
        physics = np.zeros(mujoco.mj_stateSize(model, STATE))
        mujoco.mj_getState(model, env.data, physics, STATE)
        places = np.concatenate([model.body_pos.ravel(), model.site_pos.ravel()])
        state = np.concatenate([physics, self._recording.numbers(env)])
        return {
            "scene": self.scene.words,
            "places": native.to_words(_filled(places, 3 * NUM_PLACES)),
            "state": native.to_words(_filled(state, STATE_SIZE)),
            "obs": obs.astype(np.float32),
        }

    def _recorded(self) -> Recording:
        try:
            return record(self.simulator.env, ALL_V3_ENVIRONMENTS[self.name])
        except Exception as error:
            raise EnvironmentFault(
                f"the step of {self.name} cannot be written down for native code: "
                f"{one_line(error)}; with --suite.num-workers 1 its Python runs as it is"
            ) from error


@cache
def _class(name: str, goal_hidden: bool) -> _Class:
    """The one for all lanes of a process."""
    return _Class(name, goal_hidden)


def _filled(x: np.ndarray, size: int) -> np.ndarray:
    """Made up to `size` with zeros."""
    check(len(x) <= size, f"Meta-World's simulation takes {len(x)} numbers, more than {size}")
    return np.concatenate([x, np.zeros(size - len(x))])
