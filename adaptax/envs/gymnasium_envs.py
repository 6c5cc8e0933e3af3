"""The locomotion families as plain Gymnasium environments, registered when this is imported.

    import gymnasium
    import adaptax.envs.gymnasium_envs

    env = gymnasium.make("adaptax/HalfCheetahVel-v1", target=1.2)

or, in one step, `gymnasium.make("adaptax.envs.gymnasium_envs:adaptax/HalfCheetahVel-v1")`.
Gymnasium 1.0 and later read no entry points, so that nothing less than an import registers them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import gymnasium
import numpy as np

from adaptax.core.config import from_dict
from adaptax.core.errors import check, unknown_name
from adaptax.envs.suite import Suite
from adaptax.envs.suites.locomotion import ant, half_cheetah, hopper, humanoid, swimmer, walker
from adaptax.envs.task import Task, plain_params

NAMESPACE, VERSION = "adaptax", "v1"
NO_HORIZON = 2**31 - 1
"""Steps: the time limit is Gymnasium's, given to `gymnasium.make` as `max_episode_steps`."""
FIRST_SLOT = np.zeros(1, np.int64)

FAMILIES: dict[str, tuple[type[Any], Callable[[Any], Suite]]] = {
    "HalfCheetahVel": (half_cheetah.HalfCheetahVelConfig, half_cheetah.half_cheetah_vel),
    "HalfCheetahDir": (half_cheetah.HalfCheetahDirConfig, half_cheetah.half_cheetah_dir),
    "AntVel": (ant.AntVelConfig, ant.ant_vel),
    "AntDir": (ant.AntDirConfig, ant.ant_dir),
    "AntDir2D": (ant.AntDir2DConfig, ant.ant_dir_2d),
    "AntGoal": (ant.AntGoalConfig, ant.ant_goal),
    "HumanoidDir": (humanoid.HumanoidDirConfig, humanoid.humanoid_dir),
    "WalkerVel": (walker.WalkerVelConfig, walker.walker_vel),
    "WalkerParams": (walker.WalkerParamsConfig, walker.walker_params),
    "HopperParams": (hopper.HopperParamsConfig, hopper.hopper_params),
    "SwimmerVel": (swimmer.SwimmerVelConfig, swimmer.swimmer_vel),
}
"""By name in Gymnasium's registry: the config's class, and the function from config to suite."""


class LocomotionEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """One task of a locomotion family: a pool of one slot, so that no formula is written twice.

    Settings are the task's parameters (what is left out comes from the first held-out task) and
    fields of the family's config. `reset(options=...)` changes the task for one episode.
    """

    def __init__(self, family: str, **settings: Any) -> None:
        if family not in FAMILIES:
            raise unknown_name("family", family, FAMILIES)
        check("horizon" not in settings, "give gymnasium.make max_episode_steps, not a horizon")
        config_class, _ = FAMILIES[family]
        names = {field.name for field in fields(config_class)}
        config = {name: settings.pop(name) for name in names & settings.keys()}
        config = {"num_threads": 1, **config, "horizon": NO_HORIZON}
        suite = _suite(family, from_dict(config_class, config))
        assert suite.test.tasks is not None
        first = suite.test.tasks[0]
        for name in settings.keys() - first.params.keys():
            raise unknown_name("setting", name, [*names - {"horizon"}, *first.params])
        self._task = _changed(first, settings)
        self._pool = suite.make_pool(1)
        spec = suite.spec
        shape = (spec.observation_size,)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, shape, np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (spec.action.size,), np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode, the same for the same seed and task."""
        super().reset(seed=seed)
        if seed is None:
            seed = int(self.np_random.integers(2**32))
        task = _changed(self._task, options or {})
        obs = self._pool.reset(FIRST_SLOT, np.array([seed % 2**32], np.uint32), [task])[0]
        return obs, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Act; the time limit is left to Gymnasium."""
        result = self._pool.step(FIRST_SLOT, np.asarray(action)[None])
        info = {name: float(values[0]) for name, values in result.info.items()}
        reward, terminated = float(result.reward[0]), bool(result.terminated[0])
        return result.next_obs[0], reward, terminated, False, info

    def close(self) -> None:
        """Free the simulation."""
        self._pool.close()


@functools.cache
def _suite(family: str, config: Any) -> Suite:
    """One for all environments that are made alike: each of its own would compile anew."""
    return FAMILIES[family][1](config)


def _changed(task: Task, params: dict[str, Any]) -> Task:
    """`task` with some parameters changed."""
    if not params:
        return task
    return Task(task.name, task.index, {**task.params, **plain_params(task.name, params)})


def _register() -> None:
    for family, (config_class, _) in FAMILIES.items():
        gymnasium.register(
            id=f"{NAMESPACE}/{family}-{VERSION}",
            entry_point=f"{__name__}:{LocomotionEnv.__name__}",
            max_episode_steps=config_class().horizon,
            kwargs={"family": family},
        )


_register()
