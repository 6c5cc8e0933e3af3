"""Every task suite by name. Loading is late, so that listing names imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from adaptax.core.errors import unknown_name

if TYPE_CHECKING:
    from adaptax.envs.task import Suite

Loaded = tuple[type[Any], Callable[[Any], "Suite"]]
GYM_PREFIX = "gym:"


@dataclass(frozen=True)
class SuiteEntry:
    """One line of the registry."""

    name: str
    summary: str
    load: Callable[[], Loaded]
    """Imports and gives the config's class, and the function from config to suite."""


def _half_cheetah_vel() -> Loaded:
    from adaptax.envs.locomotion import half_cheetah

    return half_cheetah.HalfCheetahVelConfig, half_cheetah.half_cheetah_vel


def _half_cheetah_dir() -> Loaded:
    from adaptax.envs.locomotion import half_cheetah

    return half_cheetah.HalfCheetahDirConfig, half_cheetah.half_cheetah_dir


def _point_goal() -> Loaded:
    from adaptax.envs import point

    return point.PointGoalConfig, point.point_goal


def _point_goal_sparse() -> Loaded:
    from adaptax.envs import point

    return point.PointGoalSparseConfig, point.point_goal_sparse


def _bandit() -> Loaded:
    from adaptax.envs import bandit

    return bandit.BanditConfig, bandit.bandit


def _gym(env_id: str) -> Loaded:
    from adaptax.envs import gym_pool

    return gym_pool.GymConfig, partial(gym_pool.gym_id_suite, env_id)


SUITES = {
    entry.name: entry
    for entry in (
        SuiteEntry(
            "half-cheetah-vel",
            "MuJoCo: run at a target speed drawn from U(0, 2) m/s",
            _half_cheetah_vel,
        ),
        SuiteEntry("half-cheetah-dir", "MuJoCo: run forwards or backwards", _half_cheetah_dir),
        SuiteEntry("point-goal", "a point in the plane and a goal it is not told", _point_goal),
        SuiteEntry(
            "point-goal-sparse", "the same, rewarded only near the goal", _point_goal_sparse
        ),
        SuiteEntry("bandit", "Bernoulli bandits of k arms and n pulls", _bandit),
        SuiteEntry(
            f"{GYM_PREFIX}ID",
            "any Gymnasium environment by its id, for example gym:CartPole-v1",
            partial(_gym, "ID"),
        ),
    )
}


def find_suite(name: str) -> SuiteEntry:
    """The registry's entry; raises a ConfigError that names the nearest match."""
    if name.startswith(GYM_PREFIX):
        env_id = name.removeprefix(GYM_PREFIX)
        return SuiteEntry(name, f"Gymnasium's {env_id}", partial(_gym, env_id))
    if name not in SUITES:
        raise unknown_name("suite", name, SUITES)
    return SUITES[name]
