"""GymPool: any Gymnasium environment, in-process, one after another; and its tasks and suites.

Environments are made and stepped singly, never as a Gymnasium vector environment, so that no
auto-reset enters: a step's observation is always what the action led to.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import gymnasium
import numpy as np

from adaptax.core.batch import PyTree
from adaptax.core.config import check_positive
from adaptax.core.errors import ConfigError, EnvironmentFault, check
from adaptax.core.spec import Continuous, EnvSpec
from adaptax.envs.gym_spaces import action_decoder, observation_encoder
from adaptax.envs.pool import StepResult, check_actions
from adaptax.envs.task import Params, Suite, Task, TaskList

Env = gymnasium.Env[Any, Any]
MakeEnv = Callable[[], Env]


@dataclass(frozen=True)
class GymConfig:
    """A registered Gymnasium environment as a suite of one task."""

    horizon: int | None = None
    """Steps of an episode; None takes the environment's own time limit."""

    def __post_init__(self) -> None:
        check_positive(self, "horizon")


def gym_id_suite(env_id: str, config: GymConfig) -> Suite:
    """The suite `gym:ENV_ID` of a registered environment, such as CartPole-v1."""
    if env_id not in gymnasium.registry:
        nearest = difflib.get_close_matches(env_id, gymnasium.registry, n=1)
        hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
        raise ConfigError(f"unknown Gymnasium environment {env_id!r}{hint}")
    make_env = partial(gymnasium.make, env_id, disable_env_checker=True)
    try:
        return gym_suite(f"gym:{env_id}", make_env, horizon=config.horizon)
    except gymnasium.error.Error as error:
        raise ConfigError(f"{env_id}: {error}") from error


def gym_suite(
    name: str,
    make_env: MakeEnv,
    *,
    train: Sequence[Params] | None = None,
    test: Sequence[Params] | None = None,
    horizon: int | None = None,
    trial_episodes: int = 1,
) -> Suite:
    """A suite of `make_env`'s environments with listed tasks.

    `train` and `test` hold one dict a task, given to `env.reset(options=...)`. Without `train`
    there is one task without parameters; without `test` evaluation is on the training tasks.
    """
    train = [{}] if train is None else train
    train_tasks = TaskList(name if test is None else f"{name}-train", train)
    test_tasks = train_tasks if test is None else TaskList(f"{name}-test", test)
    spec = gym_spec(make_env, horizon, trial_episodes, train[0])
    pool = partial(GymPool, make_env, horizon=horizon, spec=spec)
    return Suite(name, spec, train_tasks, test_tasks, pool)


def gym_spec(
    make_env: MakeEnv,
    horizon: int | None = None,
    trial_episodes: int = 1,
    params: Params | None = None,
) -> EnvSpec:
    """Sizes and protocol of `make_env`'s environments.

    One is made and takes one step, on the task `params`, to see whether it reports success.
    """
    env = make_env()
    try:
        size, _ = observation_encoder(env.observation_space)
        action, _ = action_decoder(env.action_space)
        limit = _horizon(env, horizon)
        success = _success(_trial_step(env, params or {}))
    finally:
        env.close()
    return EnvSpec(size, action, limit, trial_episodes, has_success=success is not None)


class GymPool:
    """P Gymnasium environments in this process; a task's parameters are the options of reset.

    `horizon` cuts episodes, as does the environments' own time limit where that is shorter.
    `spec` is what `gym_spec` gave, found anew if left out.
    """

    def __init__(
        self,
        make_env: MakeEnv,
        num_slots: int,
        horizon: int | None = None,
        spec: EnvSpec | None = None,
    ) -> None:
        check(num_slots > 0, f"num_slots must be greater than 0, not {num_slots}")
        self.spec, self.num_slots = spec or gym_spec(make_env, horizon), num_slots
        self._envs = [make_env() for _ in range(num_slots)]
        self._encode = observation_encoder(self._envs[0].observation_space)[1]
        self._decode = action_decoder(self._envs[0].action_space)[1]
        self._tasks: list[Task | None] = [None] * num_slots
        continuous = isinstance(self.spec.action, Continuous)
        action_shape = (self.spec.action.size,) if continuous else ()
        # What a restore plays again: the seed and the actions of each slot's episode.
        self._seeds = np.zeros(num_slots, np.uint32)
        self._actions = np.zeros(
            (num_slots, self.spec.horizon, *action_shape), np.float32 if continuous else np.int32
        )
        self._num_steps = np.zeros(num_slots, np.int64)
        self._running = np.zeros(num_slots, bool)
        self._obs = np.zeros((num_slots, self.spec.observation_size), np.float32)

    def reset(self, slots: np.ndarray, seeds: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
        """Start an episode in each of K slots; gives obs [K, O]."""
        for slot, seed, task in zip(slots.tolist(), seeds.tolist(), tasks, strict=True):
            self._reset_one(slot, seed, task)
        obs: np.ndarray = self._obs[slots]
        return obs

    def step(self, slots: np.ndarray, actions: np.ndarray) -> StepResult:
        """Act in K slots; actions [K, A], clipped to [-1, 1] and scaled, or [K] integers."""
        check_actions(self.spec, actions, len(slots))
        reward = np.zeros(len(slots), np.float32)
        terminated, truncated, success = np.zeros((3, len(slots)), bool)
        for k, slot in enumerate(slots.tolist()):
            reward[k], terminated[k], truncated[k], success[k] = self._step_one(slot, actions[k])
        return StepResult(self._obs[slots], reward, terminated, truncated, success)

    def save(self) -> PyTree:
        """The seed, the actions and the last observation of each slot's episode, each [P, ...]."""
        return {
            "seeds": self._seeds.copy(),
            "actions": self._actions.copy(),
            "num_steps": self._num_steps.copy(),
            "running": self._running.copy(),
            "obs": self._obs.copy(),
        }

    def restore(self, saved: PyTree, tasks: Sequence[Task]) -> None:
        """Play the running episodes again up to where `save` stood; `tasks` are of the P slots."""
        if np.shape(saved["actions"]) != self._actions.shape:
            raise EnvironmentFault(
                f"the saved actions have shape {np.shape(saved['actions'])}; "
                f"this pool of {self.num_slots} slots takes {self._actions.shape}"
            )
        self._tasks[:] = tasks
        self._seeds[:], self._actions[:] = saved["seeds"], saved["actions"]
        self._num_steps[:], self._obs[:] = saved["num_steps"], saved["obs"]
        self._running[:] = False
        for slot in np.flatnonzero(saved["running"]).tolist():
            self._replay(slot, tasks[slot])

    def close(self) -> None:
        """Close every environment."""
        for env in self._envs:
            env.close()
        self._running[:] = False

    def _replay(self, slot: int, task: Task) -> None:
        """Bring one slot to the recorded point of its episode, which must look as recorded."""
        actions = self._actions[slot, : self._num_steps[slot]].copy()
        recorded = self._obs[slot].copy()
        self._reset_one(slot, int(self._seeds[slot]), task)
        for action in actions:
            if self._running[slot]:
                self._step_one(slot, action)
        if not (self._running[slot] and np.array_equal(self._obs[slot], recorded)):
            raise self._fault(
                slot,
                "the saved episode, played again, led elsewhere: "
                "the environment is not deterministic given its seed",
            )

    def _reset_one(self, slot: int, seed: int, task: Task) -> None:
        self._seeds[slot], self._tasks[slot], self._num_steps[slot] = seed, task, 0
        self._running[slot] = False
        try:
            obs, _ = self._envs[slot].reset(seed=seed, options=_options(task.params))
            self._obs[slot] = self._encode(obs)
        except Exception as error:
            raise self._fault(slot, _line(error)) from error
        if not np.isfinite(self._obs[slot]).all():
            raise self._fault(slot, "the observation after the reset is not finite")
        self._running[slot] = True

    def _step_one(self, slot: int, action: np.ndarray) -> tuple[float, bool, bool, bool]:
        """Reward, terminated, truncated and success of one step in one slot."""
        if not self._running[slot]:
            raise self._fault(slot, "no running episode: reset it first")
        self._running[slot] = False  # After a fault below nobody knows where the episode stands.
        record = self._actions[slot]
        record[self._num_steps[slot]] = action
        try:
            # The action as recorded, in the record's precision: a replay gives the same one.
            native = self._decode(record[self._num_steps[slot]])
            obs, reward, terminated, truncated, info = self._envs[slot].step(native)
            self._obs[slot] = self._encode(obs)
            reward, success = float(reward), bool(_success(info))
        except Exception as error:
            raise self._fault(slot, _line(error)) from error
        if not (np.isfinite(reward) and np.isfinite(self._obs[slot]).all()):
            raise self._fault(slot, "the observation or the reward is not finite")
        self._num_steps[slot] += 1
        truncated = not terminated and (truncated or self._num_steps[slot] >= self.spec.horizon)
        self._running[slot] = not (terminated or truncated)
        return reward, terminated, truncated, success

    def _fault(self, slot: int, problem: str) -> EnvironmentFault:
        task = self._tasks[slot]
        name = repr(task.name) if task else "none"
        return EnvironmentFault(
            f"slot {slot}, step {self._num_steps[slot]}, task {name}: {problem}"
        )


def _horizon(env: Env, horizon: int | None) -> int:
    """The shortest of `horizon` and the time limits of the environment and its wrappers."""
    check(horizon is None or horizon > 0, f"horizon must be greater than 0, not {horizon}")
    limits = [horizon]
    layer: Any = env
    while layer is not None:
        limits.append(layer.spec.max_episode_steps if layer.spec else None)
        limits.append(getattr(layer, "_max_episode_steps", None))
        layer = layer.env if isinstance(layer, gymnasium.Wrapper) else None
    known = [limit for limit in limits if limit is not None]
    check(len(known) > 0, f"{env} has no time limit: give a horizon, in steps")
    return min(known)


def _trial_step(env: Env, params: Params) -> dict[str, Any]:
    """The info of the first step of an episode on the task `params`, by a random action."""
    try:
        env.reset(seed=0, options=_options(params))
        env.action_space.seed(0)
        return env.step(env.action_space.sample())[4]
    except Exception as error:
        raise EnvironmentFault(f"{env} failed in a trial step: {_line(error)}") from error


def _options(params: Params) -> dict[str, Any] | None:
    return dict(params) if params else None


def _success(info: dict[str, Any]) -> Any:
    """What a step's info says of success; None if it says nothing."""
    return info.get("success", info.get("is_success"))


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
