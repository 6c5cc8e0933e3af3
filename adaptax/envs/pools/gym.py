"""GymPool: any Gymnasium environment, in-process, one after another.

Environments are made and stepped singly, never as a Gymnasium vector environment, so that no
auto-reset enters: a step's observation is always what the action led to.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import gymnasium
import numpy as np

from adaptax.core.errors import AdaptaxError, EnvironmentFault, check, one_line
from adaptax.core.experience import PyTree
from adaptax.core.spec import Continuous, EnvSpec
from adaptax.core.step import Step, ends
from adaptax.envs.pools.episode_log import EpisodeLog
from adaptax.envs.pools.gym_spaces import (
    action_decoder,
    as_flag,
    as_float32,
    as_number,
    observation_encoder,
    reset_options,
    success_in,
)
from adaptax.envs.pools.pool import (
    AT_WORK,
    check_actions,
    check_reset,
    close_quietly,
    closed_on_error,
    idle,
)
from adaptax.envs.task import Task

Made = TypeVar("Made")
MakeEnv = Callable[[], gymnasium.Env[Any, Any]]


def made(make_env: Callable[[], Made]) -> Made:
    """An environment; an EnvironmentFault where making it fails in its own code."""
    try:
        env = make_env()
    except (AdaptaxError, gymnasium.error.Error, ImportError):
        raise
    except (Exception, SystemExit) as error:
        raise EnvironmentFault(f"an environment cannot be made: {one_line(error)}") from error
    is_one = isinstance(env, gymnasium.Env | gymnasium.vector.VectorEnv)
    check(is_one, f"what makes environments must make a Gymnasium one, not a {type(env).__name__}")
    return env


NOT_BY_EVERY_STEP = (
    "success is told by some steps only and does not count: it counts with the suite's setting "
    "late_success, or where the first step of an episode and all others tell it, False too"
)
_IN_USE = weakref.WeakValueDictionary[int, Any]()
"""The environments of all pools, by their ids."""


def _inner(env: gymnasium.Env[Any, Any]) -> Any:
    return getattr(env, "unwrapped", env)  # wrappers may be new around what is not


def _of_its_own(env: gymnasium.Env[Any, Any]) -> gymnasium.Env[Any, Any]:
    """The environment, unless a slot has it already: episodes would run into each other."""
    inner = _inner(env)
    check(
        _IN_USE.get(id(inner)) is not inner,
        f"{env} is made twice: what makes environments must make a new one at each call, "
        "lambda: Mine() and not lambda: mine",
    )
    _IN_USE[id(inner)] = inner
    return env


class GymPool:
    """P Gymnasium environments in this process; a task's parameters are the options of reset.

    `spec` is what `suites.gym.gym_spec` finds of them; its horizon cuts episodes, as does the
    environments' own time limit.
    """

    def __init__(self, make_env: MakeEnv, spec: EnvSpec, num_slots: int) -> None:
        check(num_slots > 0, f"num_slots must be greater than 0, not {num_slots}")
        self.spec, self.num_slots, self._make_env = spec, num_slots, make_env
        self._log = EpisodeLog(self.spec, num_slots)
        self._at_work, self._envs = AT_WORK.get(), list[gymnasium.Env[Any, Any]]()
        with closed_on_error(self):
            for _ in range(num_slots):
                self._at_work()
                self._envs.append(_of_its_own(made(make_env)))
        self._encode = observation_encoder(self._envs[0].observation_space)[1]
        self._decode = action_decoder(self._envs[0].action_space)[1]
        self._last_info: list[Mapping[str, Any]] = [{} for _ in range(num_slots)]

    def reset(self, slots: np.ndarray, seeds: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
        """Start an episode in each of K slots; gives obs [K, O]."""
        check_reset(slots, seeds, tasks)
        self._log.announce(slots, tasks)
        for slot, seed, task in zip(slots.tolist(), seeds.tolist(), tasks, strict=True):
            self._reset_one(slot, seed, task)
        obs: np.ndarray = self._log.obs[slots]
        return obs

    def step(self, slots: np.ndarray, actions: np.ndarray) -> Step:
        """Act in K slots; actions [K, *A], clipped to [-1, 1] and scaled, or integers."""
        check_actions(self.spec, actions, len(slots))
        # The precision of the log, so that an episode played again takes the very same actions.
        actions = actions.astype(self.spec.action.dtype)
        log = self._log
        log.require(log.running[slots], slots, "no running episode: reset it first")
        log.require_finite(actions, slots, "the action")
        last = log.num_steps[slots] + 1 >= self.spec.horizon
        log.running[slots] = False  # After a fault below nobody knows where they stand.
        every = slots.tolist()
        numbers = isinstance(self.spec.action, Continuous)
        native = self._decode(actions) if numbers else map(self._decode_one, every, actions)
        answers = [self._step_one(*each) for each in zip(every, native, strict=True)]
        obs, rewards, terminated, truncated, success = (
            np.array(x) for x in zip(*answers, strict=True)
        )
        reward = as_float32(rewards, "the reward")
        log.require_finite(obs, slots, "the observation")
        log.require_finite(reward, slots, "the reward")
        terminated, truncated = ends(self.spec, terminated, truncated, last)
        log.add(slots, actions, obs, terminated | truncated)
        return Step(
            reward=reward,
            next_obs=obs,
            terminated=terminated,
            truncated=truncated,
            info={"success": success} if self.spec.has_success else {},
        )

    def save(self) -> PyTree:
        """The seed, the actions and the last observation of each slot's episode, each [P, ...]."""
        return self._log.save()

    def restore(
        self, saved: PyTree, tasks: Sequence[Task], at_work: Callable[[], None] = idle
    ) -> None:
        """Play the running episodes again up to where `save` stood; `tasks` are of the P slots."""
        self._log.play(saved, self, tasks, at_work)

    def simulation(self, slot: int) -> tuple[Any, Any] | None:
        """MuJoCo's model and data of a slot, to draw it; None where it has none."""
        env: Any = self._envs[slot].unwrapped
        simulated = hasattr(env, "model") and hasattr(env, "data")
        return (env.model, env.data) if simulated else None

    def make_drawable(self) -> None:
        """Have environments render pictures, those that can; before any reset.

        One that `gymnasium.make` alone has made is made anew for it; another might come out
        otherwise, and is told to.
        """
        by_id = isinstance(self._make_env, partial) and self._make_env.func is gymnasium.make
        for slot, env in enumerate(self._envs):
            modes = env.metadata.get("render_modes", [])
            if env.render_mode is not None or "rgb_array" not in modes:
                continue
            if by_id:
                close_quietly(env)
                self._envs[slot] = self._make_env(render_mode="rgb_array")  # type: ignore[call-arg]
            else:
                with suppress(AttributeError):  # which `render` then says by giving no picture
                    env.unwrapped.render_mode = "rgb_array"

    def picture(self, slot: int) -> Any:
        """What the environment of a slot renders."""
        return self._envs[slot].render()

    def last_info(self, slot: int) -> dict[str, float]:
        """The numbers that the last step in a slot told."""
        told = self._last_info[slot]
        return {
            name: float(x) for name, x in told.items() if isinstance(x, (int, float, np.number))
        }

    def close(self) -> None:
        """Close every environment."""
        for env in self._envs:
            close_quietly(env)
            _IN_USE.pop(id(_inner(env)), None)
        self._log.running[:] = False

    def _reset_one(self, slot: int, seed: int, task: Task) -> None:
        self._at_work()
        try:
            native, _ = self._envs[slot].reset(seed=seed, options=reset_options(task.params))
            obs = self._encode(native)
        except (Exception, SystemExit) as error:
            raise self._log.fault(slot, one_line(error)) from error
        self._log.require_finite(obs[None], np.array([slot]), "the observation after the reset")
        self._log.begin(slot, seed, obs)

    def _decode_one(self, slot: int, action: np.ndarray) -> Any:
        """A choice as the environment takes it."""
        try:
            return self._decode(action)
        except ValueError as error:
            raise self._log.fault(slot, str(error)) from error

    def _step_one(self, slot: int, action: Any) -> tuple[np.ndarray, float, bool, bool, bool]:
        """Observation, reward, terminated, truncated and success of one step in one slot."""
        try:
            native, reward, terminated, truncated, info = self._envs[slot].step(action)
            self._last_info[slot] = info
            told = success_in(info)
            if told is not None and not self.spec.has_success:
                warnings.warn(NOT_BY_EVERY_STEP, stacklevel=2)
            return (
                self._encode(native).copy(),  # environments may write the next into the same array
                as_number(reward, "the reward"),
                as_flag(terminated, "terminated"),
                as_flag(truncated, "truncated"),
                told is not None and as_flag(told, "success"),
            )
        except (Exception, SystemExit) as error:
            raise self._log.fault(slot, one_line(error)) from error
