"""GymPool: any Gymnasium environment, in-process, one after another.

Environments are made and stepped singly, never as a Gymnasium vector environment, so that no
auto-reset enters: a step's observation is always what the action led to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np

from adaptax.core.errors import check, one_line
from adaptax.core.experience import PyTree
from adaptax.core.spec import EnvSpec
from adaptax.core.step import Step
from adaptax.envs.pools.episode_log import EpisodeLog
from adaptax.envs.pools.gym_spaces import (
    action_decoder,
    as_flag,
    as_float32,
    observation_encoder,
    reset_options,
    success_in,
)
from adaptax.envs.pools.pool import check_actions, check_reset, close_quietly
from adaptax.envs.task import Task

MakeEnv = Callable[[], gymnasium.Env[Any, Any]]


class GymPool:
    """P Gymnasium environments in this process; a task's parameters are the options of reset.

    `spec` is what `suites.gym.gym_spec` finds of them; its horizon cuts episodes, as does the
    environments' own time limit.
    """

    def __init__(self, make_env: MakeEnv, spec: EnvSpec, num_slots: int) -> None:
        check(num_slots > 0, f"num_slots must be greater than 0, not {num_slots}")
        self.spec, self.num_slots = spec, num_slots
        self._envs = [make_env() for _ in range(num_slots)]
        self._encode = observation_encoder(self._envs[0].observation_space)[1]
        self._decode = action_decoder(self._envs[0].action_space)[1]
        self._log = EpisodeLog(self.spec, num_slots)

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
        reward = np.zeros(len(slots), np.float32)
        terminated, truncated, success = np.zeros((3, len(slots)), bool)
        for k, slot in enumerate(slots.tolist()):
            reward[k], terminated[k], truncated[k], success[k] = self._step_one(slot, actions[k])
        return Step(
            reward=reward,
            next_obs=self._log.obs[slots],
            terminated=terminated,
            truncated=truncated,
            info={"success": success} if self.spec.has_success else {},
        )

    def save(self) -> PyTree:
        """The seed, the actions and the last observation of each slot's episode, each [P, ...]."""
        return self._log.save()

    def restore(self, saved: PyTree, tasks: Sequence[Task]) -> None:
        """Play the running episodes again up to where `save` stood; `tasks` are of the P slots."""
        self._log.play(saved, self, tasks)

    def simulation(self, slot: int) -> tuple[Any, Any]:
        """MuJoCo's model and data of a slot, to draw it; of environments that have them."""
        env: Any = self._envs[slot].unwrapped
        return env.model, env.data

    def close(self) -> None:
        """Close every environment."""
        for env in self._envs:
            close_quietly(env)
        self._log.running[:] = False

    def _reset_one(self, slot: int, seed: int, task: Task) -> None:
        try:
            native, _ = self._envs[slot].reset(seed=seed, options=reset_options(task.params))
            obs = self._encode(native)
        except (Exception, SystemExit) as error:
            raise self._log.fault(slot, one_line(error)) from error
        self._require_finite(slot, obs, "the observation after the reset")
        self._log.begin(slot, seed, obs)

    def _step_one(self, slot: int, action: np.ndarray) -> tuple[float, bool, bool, bool]:
        """Reward, terminated, truncated and success of one step in one slot."""
        if not self._log.running[slot]:
            raise self._log.fault(slot, "no running episode: reset it first")
        self._log.running[slot] = False  # After a fault below nobody knows where it stands.
        self._require_finite(slot, action, "the action")
        try:
            native, reward, terminated, truncated, info = self._envs[slot].step(
                self._decode(action)
            )
            obs, reward = self._encode(native), as_float32(reward, "the reward").item()
            terminated = as_flag(terminated, "terminated")
            truncated = as_flag(truncated, "truncated")
            told = success_in(info)
            success = told is not None and as_flag(told, "success")
        except (Exception, SystemExit) as error:
            raise self._log.fault(slot, one_line(error)) from error
        self._require_finite(slot, obs, "the observation")
        self._require_finite(slot, reward, "the reward")
        last = self._log.num_steps[slot] + 1 >= self.spec.horizon
        truncated = not terminated and (truncated or last)
        self._log.add(slot, action, obs, terminated or truncated)
        return reward, terminated, truncated, success

    def _require_finite(self, slot: int, values: np.ndarray | float, what: str) -> None:
        if not np.isfinite(values).all():
            self._log.require_finite(np.asarray(values)[None], np.array([slot]), what)
