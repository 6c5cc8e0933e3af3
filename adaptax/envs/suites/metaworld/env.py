"""One lane of Meta-World as a Gymnasium environment whose task is an argument of reset.

Simulators are made once a class and kept; those of a process share a class's model, in which each
puts what its own task says before it steps. An episode is what a new environment object of
Meta-World's gives after `set_task` and its first reset, whatever this one has done before: all
that an episode can change, in Python as in MuJoCo, is put back before the next.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import mujoco
import numpy as np
from metaworld.env_dict import ALL_V3_ENVIRONMENTS

from adaptax.core.errors import ConfigError, unknown_name
from adaptax.envs.suites.metaworld.fast import SharedModel, fast_class

NUM_OBS = 39
"""Hand, gripper and objects, now and one step ago, and 3 numbers for the goal."""
NUM_ACTIONS = 4
MOST_ANSWERS = 10
"""Times that a reset is told the goal it asks for: more often than any class asks for one."""
STATE_KIND = mujoco.mjtState.mjSTATE_INTEGRATION
"""All that physics goes on from, with what its solver starts at."""


class MetaWorldEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """Meta-World's classes; `reset(options={"class": ..., "rand_vec": ...})` says which task.

    `rand_vec` is Meta-World's own description of a goal. The last 3 observations are 0 in its
    place, as in the ML benchmarks; or, where `told_classes` are given, they are the goal, and a
    one-hot of the class follows, as in the MT benchmarks. Success ends no episode.
    """

    action_space = gymnasium.spaces.Box(-1.0, 1.0, (NUM_ACTIONS,), np.float32)

    def __init__(self, told_classes: tuple[str, ...] = ()) -> None:
        self.told_classes = told_classes
        size = NUM_OBS + len(told_classes)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (size,), np.float64)
        self._simulators: dict[str, Simulator] = {}
        self._current: Simulator | None = None
        self._one_hot = np.zeros(len(told_classes))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode on the task in `options`; nothing in it is random."""
        assert options is not None
        name = str(options["class"])
        if name not in self._simulators:
            self._simulators[name] = Simulator(name, goal_hidden=not self.told_classes)
        self._current = self._simulators[name]
        self._one_hot = np.array([float(name == told) for told in self.told_classes])
        return self._told(self._current.begin(np.asarray(options["rand_vec"], np.float64))), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Act; `info["success"]` is 1 where the task is solved now."""
        assert self._current is not None
        obs, reward, terminated, truncated, info = self._current.step(action)
        return self._told(obs), reward, terminated, truncated, info

    @property
    def model(self) -> Any:
        """MuJoCo's model of the task in hand, until another lane steps."""
        assert self._current is not None
        return self._current.model

    @property
    def data(self) -> Any:
        """MuJoCo's state of the task in hand."""
        assert self._current is not None
        return self._current.env.data

    def close(self) -> None:
        """Free the simulators."""
        self._simulators.clear()
        self._current = None

    def _told(self, obs: np.ndarray) -> np.ndarray:
        return np.concatenate([obs, self._one_hot]) if self.told_classes else obs


class Simulator:
    """An environment object of one class, with what it takes to start the same episode again."""

    def __init__(self, name: str, goal_hidden: bool) -> None:
        if name not in ALL_V3_ENVIRONMENTS:
            raise unknown_name("Meta-World class", name, ALL_V3_ENVIRONMENTS)
        original: Any = ALL_V3_ENVIRONMENTS[name]
        self.env: Any = fast_class(original)()
        self.env._set_task_called = True  # what set_task does, without its pickled task
        self.env._partially_observable = goal_hidden
        self.env.__dict__.pop("sawyer_observation_space", None)  # depends on it
        self._shared: SharedModel = self.env.shared_model
        self._new = _State.of(self.env)
        self._begun: tuple[np.ndarray, np.ndarray, _State] | None = None
        """The last goal's vector, the first observation, and the state it is seen in."""

    def begin(self, rand_vec: np.ndarray) -> np.ndarray:
        """The first observation [39] of an episode; Meta-World's reset runs only for a new goal."""
        if self._begun is not None and np.array_equal(self._begun[0], rand_vec):
            _, obs, begun = self._begun
            begun.put_into(self.env)
            return obs.copy()
        self._begun = None
        self._new.put_into(self.env)
        self._shared.standing = None  # for a reset changes it
        self.env._last_rand_vec = rand_vec.copy()
        self.env._get_state_rand_vec = _answers(self.env._last_rand_vec)
        try:
            obs, _ = self.env.reset()
        finally:
            del self.env._get_state_rand_vec
        begun = _State.of(self.env)
        self._shared.standing = begun.model
        self._begun = rand_vec.copy(), obs.copy(), begun
        return np.asarray(obs)

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Act in the episode that has begun."""
        assert self._begun is not None
        self._shared.put(self._begun[2].model)
        answer: tuple[np.ndarray, float, bool, bool, dict[str, Any]] = self.env.step(action)
        return answer

    @property
    def model(self) -> Any:
        """MuJoCo's model as this episode has it."""
        assert self._begun is not None
        self._shared.put(self._begun[2].model)
        return self._shared.model


def _answers(rand_vec: np.ndarray) -> Callable[[], np.ndarray]:
    """What gives a reset its goal; a goal that a reset refuses is asked for again, for ever."""
    answers = iter([rand_vec] * MOST_ANSWERS)

    def answer() -> np.ndarray:
        found = next(answers, None)
        if found is None:
            raise ConfigError("Meta-World's reset refuses this goal and asks for another")
        return found

    return answer


@dataclass(frozen=True)
class _State:
    """All of an environment object that an episode can change."""

    physics: np.ndarray
    model: dict[str, np.ndarray]
    attributes: dict[str, Any]

    @classmethod
    def of(cls, env: Any) -> _State:
        """The present state, apart from what comes after."""
        physics = np.zeros(mujoco.mj_stateSize(env.model, STATE_KIND))
        mujoco.mj_getState(env.model, env.data, physics, STATE_KIND)
        return cls(physics, env.shared_model.fields(), _apart(vars(env)))

    def put_into(self, env: Any) -> None:
        """Bring the object back to where it was."""
        env.shared_model.put(self.model)
        mujoco.mj_resetData(env.model, env.data)
        mujoco.mj_setState(env.model, env.data, self.physics, STATE_KIND)
        mujoco.mj_forward(env.model, env.data)  # positions, for whoever looks before a step
        mujoco.mj_setState(env.model, env.data, self.physics, STATE_KIND)
        vars(env).clear()
        vars(env).update(_apart(self.attributes))


def _apart(value: Any) -> Any:
    """A value that no later change reaches; views of the simulation remain views of it."""
    if isinstance(value, dict):
        return {name: _apart(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_apart(item) for item in value]
    if not isinstance(value, np.ndarray):
        return value
    base: Any = value
    while isinstance(base, np.ndarray) and base.base is not None:
        base = base.base
    return value.copy() if isinstance(base, np.ndarray) else value
