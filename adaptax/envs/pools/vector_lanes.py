"""A Gymnasium vector environment in the terms of adaptax."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import iterate

from adaptax.core.errors import ConfigError, EnvironmentFault, check, one_line
from adaptax.core.step import Step
from adaptax.envs.pools.gym import made
from adaptax.envs.pools.gym_spaces import (
    action_decoder,
    as_flag,
    as_float32,
    observation_encoder,
    reset_options,
    success_in,
)
from adaptax.envs.pools.pool import close_quietly
from adaptax.envs.task import Task, copied

MakeVec = Callable[[int], VectorEnv[Any, Any, Any]]
"""Makes a vector environment of so many lanes."""


class VectorLanes:
    """P lanes that step together."""

    def __init__(self, make_vec: MakeVec, num_lanes: int) -> None:
        self.vec = _made(make_vec, num_lanes)
        self.mode = _autoreset_mode(self.vec)
        self._takes_seeds = isinstance(self.vec.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        self.can_reset_one = self._takes_seeds or self.mode is AutoresetMode.DISABLED
        """Whether a lane can be reset without the others."""
        space = self.vec.single_observation_space
        self.observation_size, self._encode = observation_encoder(space)
        self.action, self.decode = action_decoder(self.vec.single_action_space)

    def reset_all(self, seed: int, task: Task) -> np.ndarray:
        """Start every lane afresh from one seed on one task; gives obs [P, O]."""
        return self._reset(seed, reset_options(task.params))

    def reset(self, slots: np.ndarray, seeds: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
        """Start some lanes afresh, each from its own seed on its own task; gives obs [K, O]."""
        obs = np.zeros((len(slots), self.observation_size), np.float32)
        for group in self._groups(tasks):
            chosen = slots[group]
            mask = np.zeros(self.vec.num_envs, bool)
            mask[chosen] = True
            every = np.zeros(self.vec.num_envs, np.uint32)
            every[chosen] = seeds[group]
            seed = every.tolist() if self._takes_seeds else int(seeds[group[0]])
            options = {**copied(tasks[group[0]].params), "reset_mask": mask}
            obs[group] = self._reset(seed, options)[chosen]
        return obs

    def step(self, native_actions: Sequence[Any]) -> tuple[Step, np.ndarray]:
        """What acting in all P lanes led to, with actions that `decode` has given.

        Beside the step comes obs [P, O], where the lanes stand now: elsewhere than `next_obs` where
        the environment has reset a lane since. `info` has `success` where the environment tells.
        """
        actions = np.stack(native_actions).astype(self.vec.action_space.dtype)
        try:
            return self._account(*self.vec.step(actions))
        except Exception as error:
            raise _failure(error) from error

    def _account(
        self, native: Any, reward: Any, terminated: Any, truncated: Any, info: Any
    ) -> tuple[Step, np.ndarray]:
        """The same of what the environment answers; an exception where that does not fit."""
        obs, every = self._rows(native), np.arange(self.vec.num_envs)
        terminated = _flags(terminated, every, len(every), "terminated")
        truncated = _flags(truncated, every, len(every), "truncated") & ~terminated
        next_obs, success = obs, _success(info, every, len(every), "info")
        ended = np.flatnonzero(terminated | truncated)
        if self.mode is AutoresetMode.SAME_STEP and len(ended):
            if "final_obs" not in info:
                raise ValueError("mode SAME_STEP needs info['final_obs'], what ended lanes saw")
            next_obs = obs.copy()
            next_obs[ended] = [self._encode(info["final_obs"][lane]) for lane in ended]
            told = info.get("final_info", {})
            final = _success(told, ended, len(every), "info['final_info']")
            if final is not None:
                success = np.zeros(len(every), bool) if success is None else success
                success[ended] = final
        step = Step(
            reward=_fitting(as_float32(reward, "the reward"), len(every), "the reward"),
            next_obs=next_obs,
            terminated=terminated,
            truncated=truncated,
            info={} if success is None else {"success": success},
        )
        return step, obs

    def _reset(self, seed: Any, options: dict[str, Any] | None) -> np.ndarray:
        try:
            return self._rows(self.vec.reset(seed=seed, options=options)[0])
        except Exception as error:
            raise _failure(error) from error

    def _rows(self, native: Any) -> np.ndarray:
        """A batch of observations as [P, O] float32."""
        rows = [self._encode(obs) for obs in iterate(self.vec.observation_space, native)]
        if len(rows) != self.vec.num_envs:
            raise ValueError(f"{len(rows)} observations of {self.vec.num_envs} lanes")
        return np.stack(rows)

    def _groups(self, tasks: Sequence[Task]) -> list[list[int]]:
        """Which of the tasks' lanes one call can reset.

        Options are for all its lanes; and so is a seed, but where a list of them is understood.
        Lanes of one process would have the very same options, which each may keep and change.
        """
        groups: dict[int, list[int]] = {}
        in_process = isinstance(self.vec.unwrapped, SyncVectorEnv)
        for i, task in enumerate(tasks):
            together = self._takes_seeds and not (in_process and task.params)
            groups.setdefault(id(task) if together else i, []).append(i)
        return list(groups.values())


def _autoreset_mode(vec: VectorEnv[Any, Any, Any]) -> AutoresetMode:
    """When it resets a lane on its own."""
    mode, inner = vec.metadata.get("autoreset_mode"), vec.unwrapped
    if not isinstance(mode, AutoresetMode):
        raise ConfigError(
            f"{vec} does not tell when it resets its lanes: metadata['autoreset_mode'] is {mode}, "
            f"not one of {', '.join(map(str, AutoresetMode))}"
        )
    # `final_obs` would be the environment's own array, into which its reset may have written.
    if isinstance(inner, SyncVectorEnv) and mode is AutoresetMode.SAME_STEP:
        inner.autoreset_mode = mode = AutoresetMode.DISABLED
    if isinstance(inner, AsyncVectorEnv) and (problem := _async_problem(inner, mode)):
        close_quietly(vec)
        raise ConfigError(
            f"AsyncVectorEnv in mode {mode.name} {problem}: give it autoreset_mode='Disabled'; "
            "lanes are reset on request in every mode"
        )
    return mode


def _async_problem(vec: AsyncVectorEnv, mode: AutoresetMode) -> str | None:
    """What its processes would do wrong in this mode, if anything."""
    if mode is AutoresetMode.SAME_STEP:
        return "loses where an episode led if the environment writes observations in place"
    if mode is AutoresetMode.NEXT_STEP and not vec.shared_memory:
        return "without shared memory resets a lane once more after a reset on request"
    return None


def _success(info: Any, lanes: np.ndarray, num_lanes: int, what: str) -> np.ndarray | None:
    """What an info tells of success in these lanes; None if it tells nothing."""
    if not isinstance(info, Mapping):
        raise TypeError(f"{what} is {reprlib.repr(info)}, not a dict")
    told = success_in(info)
    return None if told is None else _flags(told, lanes, num_lanes, f"success in {what}")


def _flags(values: Any, lanes: np.ndarray, num_lanes: int, what: str) -> np.ndarray:
    """Truth values of these lanes; None is False, where a lane tells nothing."""
    array = _fitting(np.asarray(values), num_lanes, what)[lanes]
    if array.dtype.kind == "b":
        return array
    return np.array([value is not None and as_flag(value, what) for value in array], bool)


def _fitting(array: np.ndarray, num_lanes: int, what: str) -> np.ndarray:
    if array.shape != (num_lanes,):
        raise ValueError(f"{what} has shape {array.shape}; {num_lanes} lanes need ({num_lanes},)")
    return array


def _made(make_vec: MakeVec, num_lanes: int) -> VectorEnv[Any, Any, Any]:
    """A vector environment; an error where making it fails, or it is another."""
    try:
        vec = made(partial(make_vec, num_lanes))
    except gymnasium.error.Error as error:
        raise ConfigError(one_line(error)) from error
    what = f"make_vec({num_lanes}) must make a Gymnasium vector environment of so many lanes"
    check(isinstance(vec, VectorEnv), f"{what}, not a {type(vec).__name__}")
    check(vec.num_envs == num_lanes, f"{what}, not of {vec.num_envs}")
    return vec


def _failure(error: Exception) -> EnvironmentFault:
    return EnvironmentFault(f"the vector environment failed: {one_line(error)}")
