"""Gymnasium environments as suites: registered ones by their ids, your own with lists of tasks."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv

from adaptax.core.config import check_positive
from adaptax.core.errors import ConfigError, EnvironmentFault, check, one_line, unknown_name
from adaptax.core.imports import import_permitted
from adaptax.core.spec import EnvSpec
from adaptax.envs.placement import check_places, placed
from adaptax.envs.pools.gym import GymPool, MakeEnv, made
from adaptax.envs.pools.gym_spaces import (
    action_decoder,
    observation_encoder,
    picture_in,
    reset_options,
    success_in,
)
from adaptax.envs.pools.pool import close_quietly
from adaptax.envs.pools.process_crew import in_worker
from adaptax.envs.pools.vector import vector_pool
from adaptax.envs.pools.vector_lanes import MakeVec, VectorLanes
from adaptax.envs.suite import Suite, within_limits
from adaptax.envs.task import Params, Task, Tasks, one_of, train_and_test

AnyEnv = gymnasium.Env[Any, Any]
TRIAL_SECONDS = 300.0
"""What making an environment, its first reset and its first step may take in a worker."""


@dataclass(frozen=True)
class GymConfig:
    """A registered Gymnasium environment as a suite of one task."""

    horizon: int | None = None
    """Steps of an episode; None takes the environment's own time limit."""
    num_workers: int = 0
    """Worker processes that run the environments; 0 runs them in this process."""
    num_ray_actors: int = 0
    """Ray actors that run the environments, on as many machines as the cluster has; 0: none."""
    late_success: bool = False
    """Whether success counts that only some steps tell of, such as the last of an episode; what
    the first step tells of counts anyway."""

    def __post_init__(self) -> None:
        check_positive(self, "horizon")


def gym_id_suite(env_id: str, config: GymConfig) -> Suite:
    """The suite `gym:ENV_ID` of a registered environment, such as CartPole-v1.

    MODULE:ID stands for one that is registered when MODULE is imported.
    """
    module, colon, registered = env_id.rpartition(":")
    if colon:
        import_permitted(module, f"the suite 'gym:{env_id}'")
    if registered not in gymnasium.registry:
        raise unknown_name("Gymnasium environment", registered, gymnasium.registry)
    make_env = partial(gymnasium.make, env_id, disable_env_checker=True)
    try:
        return gym_suite(
            f"gym:{env_id}",
            make_env,
            horizon=config.horizon,
            num_workers=config.num_workers,
            num_ray_actors=config.num_ray_actors,
            late_success=config.late_success,
        )
    except (gymnasium.error.Error, ImportError) as error:
        raise ConfigError(f"{env_id}: {error}") from error


def gym_suite(
    name: str,
    make_env: MakeEnv,
    *,
    train: Tasks | None = None,
    test: Tasks | None = None,
    horizon: int | None = None,
    trial_episodes: int = 1,
    num_workers: int = 0,
    num_ray_actors: int = 0,
    late_success: bool = False,
) -> Suite:
    """A suite of `make_env`'s environments with listed tasks.

    `train` and `test` hold one dict a task, given to `env.reset(options=...)`; a number, string or
    array stands for {"value": it}. A `TaskRange` draws them. Without `train` there is one task
    without parameters; without `test` evaluation is on the training tasks.
    `num_workers` processes or `num_ray_actors` run the environments, if any: slow ones gain by it.
    `late_success` counts success that only some steps tell of, such as the last of an episode; what
    the first step tells of counts anyway.
    """
    check_makes("gym_suite", make_env)
    check_places(num_workers, num_ray_actors)
    train_tasks, test_tasks = train_and_test(name, train, test)
    about = (make_env, horizon, trial_episodes, one_of(train_tasks).params)
    spec: EnvSpec = _spec_in_worker(name, *about) if num_workers > 0 else gym_spec(*about)
    spec = replace(spec, has_success=spec.has_success or late_success)
    pool = partial(GymPool, make_env, spec)
    suite = Suite(name, spec, train_tasks, test_tasks, pool)
    return placed(suite, num_workers, num_ray_actors)


def check_makes(what: str, make: Any) -> None:
    """Raise a ConfigError where an environment stands in the place of what makes them."""
    takes = f"{what} takes a function that makes environments"
    check(callable(make), f"{takes}, not {reprlib.repr(make)}")


def gym_spec(
    make_env: MakeEnv,
    horizon: int | None = None,
    trial_episodes: int = 1,
    params: Params | None = None,
) -> EnvSpec:
    """Sizes and protocol of `make_env`'s environments.

    One is made and takes one step, on the task `params`, to see whether it reports success.
    """
    env = made(make_env)
    try:
        size, _ = observation_encoder(env.observation_space)
        picture = picture_in(env.observation_space)
        action, _ = action_decoder(env.action_space)
        limit = within_limits(horizon, _limits(env), env)
        success = success_in(_trial_step(env, params or {}))
    finally:
        close_quietly(env)
    known = success is not None
    return EnvSpec(size, action, limit, trial_episodes, has_success=known, picture=picture)


def _spec_in_worker(name: str, *about: Any) -> EnvSpec:
    """`gym_spec` where a trial step that hangs or crashes ends no more than itself."""
    try:
        spec: EnvSpec = in_worker(gym_spec, *about, timeout=TRIAL_SECONDS)
    except EnvironmentFault as error:
        raise EnvironmentFault(f"a trial step of {name!r}: {error}") from error.__cause__
    return spec


def vector_suite(
    name: str,
    make_vec: MakeVec,
    *,
    train: Tasks | None = None,
    test: Tasks | None = None,
    horizon: int | None = None,
    trial_episodes: int = 1,
    late_success: bool = False,
) -> Suite:
    """A suite of the vector environments that `make_vec(num_envs)` makes; else as `gym_suite`."""
    check_makes("vector_suite", make_vec)
    train_tasks, test_tasks = train_and_test(name, train, test)
    spec = vector_spec(make_vec, horizon, trial_episodes, one_of(train_tasks))
    spec = replace(spec, has_success=spec.has_success or late_success)
    return Suite(name, spec, train_tasks, test_tasks, partial(vector_pool, make_vec, spec))


def vector_spec(make_vec: MakeVec, horizon: int | None, trial_episodes: int, task: Task) -> EnvSpec:
    """Sizes and protocol of `make_vec`'s environments.

    One with a single lane is made and takes a step on `task`, to see whether it reports success.
    """
    lanes = VectorLanes(make_vec, 1)
    try:
        vec = lanes.vec
        own = [getattr(layer, "max_episode_steps", None) for layer in (vec.spec, vec)]
        if isinstance(vec.unwrapped, SyncVectorEnv):
            own += _limits(vec.unwrapped.envs[0])
        limit = within_limits(horizon, own, vec, can_cut=lanes.can_reset_one)
        lanes.reset_all(0, task)
        idle = np.zeros(lanes.action.shape, lanes.action.dtype)
        step, _ = lanes.step([lanes.decode(idle)])
    finally:
        close_quietly(lanes.vec)
    size, known = lanes.observation_size, "success" in step.info
    picture = picture_in(lanes.vec.single_observation_space)
    return EnvSpec(size, lanes.action, limit, trial_episodes, has_success=known, picture=picture)


def _limits(env: AnyEnv) -> list[int | None]:
    """The time limits of the environment and its wrappers; None where one has none."""
    limits = []
    layer: Any = env
    while layer is not None:
        limits.append(layer.spec.max_episode_steps if layer.spec else None)
        limits.append(getattr(layer, "_max_episode_steps", None))
        layer = layer.env if isinstance(layer, gymnasium.Wrapper) else None
    return limits


def _trial_step(env: AnyEnv, params: Params) -> dict[str, Any]:
    """The info of the first step of an episode on the task `params`, by a random action."""
    try:
        begun = env.reset(seed=0, options=reset_options(params))
        if not (isinstance(begun, tuple) and len(begun) == 2):
            raise TypeError("its reset gives something else than an observation and an info")
        env.action_space.seed(0)
        _, _, _, _, info = env.step(env.action_space.sample())
        if not isinstance(info, Mapping):
            raise TypeError(f"what a step tells beside is {reprlib.repr(info)}, not a dict")
        return dict(info)
    except (Exception, SystemExit) as error:
        raise EnvironmentFault(f"{env} failed in a trial step: {one_line(error)}") from error
