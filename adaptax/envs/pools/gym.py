"""GymPool: any Gymnasium environment, in-process, one after another; and its tasks and suites.

Environments are made and stepped singly, never as a Gymnasium vector environment, so that no
auto-reset enters: a step's observation is always what the action led to.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from adaptax.core.config import check_positive
from adaptax.core.errors import ConfigError, EnvironmentFault, check, one_line
from adaptax.core.spec import EnvSpec
from adaptax.envs.pools.episode_log import EpisodeLog
from adaptax.envs.pools.gym_spaces import (
    action_decoder,
    observation_encoder,
    reset_options,
    success_in,
)
from adaptax.envs.pools.placement import placed
from adaptax.envs.pools.pool import StepResult, check_actions, check_reset
from adaptax.envs.suite import Suite
from adaptax.envs.task import Params, Task, task_lists

if TYPE_CHECKING:  # worker processes import this module, and do without JAX
    from adaptax.core.experience import PyTree

Env = gymnasium.Env[Any, Any]
MakeEnv = Callable[[], Env]


@dataclass(frozen=True)
class GymConfig:
    """A registered Gymnasium environment as a suite of one task."""

    horizon: int | None = None
    """Steps of an episode; None takes the environment's own time limit."""
    num_workers: int = 0
    """Worker processes that run the environments; 0 runs them in this process."""
    num_ray_actors: int = 0
    """Ray actors that run the environments, on as many machines as the cluster has; 0: none."""

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
        return gym_suite(
            f"gym:{env_id}",
            make_env,
            horizon=config.horizon,
            num_workers=config.num_workers,
            num_ray_actors=config.num_ray_actors,
        )
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
    num_workers: int = 0,
    num_ray_actors: int = 0,
) -> Suite:
    """A suite of `make_env`'s environments with listed tasks.

    `train` and `test` hold one dict a task, given to `env.reset(options=...)`. Without `train`
    there is one task without parameters; without `test` evaluation is on the training tasks.
    `num_workers` processes or `num_ray_actors` run the environments, if any: slow ones gain by it.
    """
    train_tasks, test_tasks = task_lists(name, train, test)
    spec = gym_spec(make_env, horizon, trial_episodes, train_tasks.tasks[0].params)
    pool = partial(GymPool, make_env, horizon=horizon, spec=spec)
    suite = Suite(name, spec, train_tasks, test_tasks, pool)
    return placed(suite, num_workers, num_ray_actors)


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
        success = success_in(_trial_step(env, params or {}))
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
        self._log = EpisodeLog(self.spec, num_slots)

    def reset(self, slots: np.ndarray, seeds: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
        """Start an episode in each of K slots; gives obs [K, O]."""
        check_reset(slots, seeds, tasks)
        self._log.announce(slots, tasks)
        for slot, seed, task in zip(slots.tolist(), seeds.tolist(), tasks, strict=True):
            self._reset_one(slot, seed, task)
        obs: np.ndarray = self._log.obs[slots]
        return obs

    def step(self, slots: np.ndarray, actions: np.ndarray) -> StepResult:
        """Act in K slots; actions [K, *A], clipped to [-1, 1] and scaled, or integers."""
        check_actions(self.spec, actions, len(slots))
        # The precision of the log, so that an episode played again takes the very same actions.
        actions = actions.astype(self.spec.action.dtype)
        reward = np.zeros(len(slots), np.float32)
        terminated, truncated, success = np.zeros((3, len(slots)), bool)
        for k, slot in enumerate(slots.tolist()):
            reward[k], terminated[k], truncated[k], success[k] = self._step_one(slot, actions[k])
        return StepResult(self._log.obs[slots], reward, terminated, truncated, success)

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
            env.close()
        self._log.running[:] = False

    def _reset_one(self, slot: int, seed: int, task: Task) -> None:
        try:
            native, _ = self._envs[slot].reset(seed=seed, options=reset_options(task.params))
            obs = self._encode(native)
        except Exception as error:
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
            obs, reward, success = self._encode(native), float(reward), bool(success_in(info))
        except Exception as error:
            raise self._log.fault(slot, one_line(error)) from error
        self._require_finite(slot, obs, "the observation")
        self._require_finite(slot, reward, "the reward")
        last = self._log.num_steps[slot] + 1 >= self.spec.horizon
        truncated = not terminated and (truncated or last)
        self._log.add(slot, action, obs, terminated or truncated)
        return reward, terminated, truncated, success

    def _require_finite(self, slot: int, values: np.ndarray | float, what: str) -> None:
        self._log.require_finite(np.asarray(values)[None], np.array([slot]), what)


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
        env.reset(seed=0, options=reset_options(params))
        env.action_space.seed(0)
        return env.step(env.action_space.sample())[4]
    except Exception as error:
        raise EnvironmentFault(f"{env} failed in a trial step: {one_line(error)}") from error
