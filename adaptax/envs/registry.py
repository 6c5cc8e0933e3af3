"""Every task suite by name. Loading is late, so that listing names imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from adaptax.core.errors import unknown_name
from adaptax.core.plugins import plugins, sound_entries
from adaptax.envs.plugin_suites import ENTRY_POINTS, PluginSuite

if TYPE_CHECKING:
    from adaptax.envs.suite import Suite

Loaded = tuple[type[Any], Callable[[Any], "Suite"]]
GYM_PREFIX = "gym:"
ML1_PREFIX = "ml1-"


@dataclass(frozen=True)
class SuiteEntry:
    """One line of the registry."""

    name: str
    summary: str
    load: Callable[[], Loaded]
    """Imports and gives the config's class, and the function from config to suite."""


def _half_cheetah_vel() -> Loaded:
    from adaptax.envs.suites.locomotion import half_cheetah

    return half_cheetah.HalfCheetahVelConfig, half_cheetah.half_cheetah_vel


def _half_cheetah() -> Loaded:
    from adaptax.envs.suites.locomotion import half_cheetah_run

    return half_cheetah_run.HalfCheetahConfig, half_cheetah_run.half_cheetah


def _half_cheetah_dir() -> Loaded:
    from adaptax.envs.suites.locomotion import half_cheetah

    return half_cheetah.HalfCheetahDirConfig, half_cheetah.half_cheetah_dir


def _ant_vel() -> Loaded:
    from adaptax.envs.suites.locomotion import ant

    return ant.AntVelConfig, ant.ant_vel


def _ant_dir() -> Loaded:
    from adaptax.envs.suites.locomotion import ant

    return ant.AntDirConfig, ant.ant_dir


def _ant_dir_2d() -> Loaded:
    from adaptax.envs.suites.locomotion import ant

    return ant.AntDir2DConfig, ant.ant_dir_2d


def _ant_goal() -> Loaded:
    from adaptax.envs.suites.locomotion import ant

    return ant.AntGoalConfig, ant.ant_goal


def _humanoid_dir() -> Loaded:
    from adaptax.envs.suites.locomotion import humanoid

    return humanoid.HumanoidDirConfig, humanoid.humanoid_dir


def _walker_vel() -> Loaded:
    from adaptax.envs.suites.locomotion import walker

    return walker.WalkerVelConfig, walker.walker_vel


def _walker_params() -> Loaded:
    from adaptax.envs.suites.locomotion import walker

    return walker.WalkerParamsConfig, walker.walker_params


def _hopper_params() -> Loaded:
    from adaptax.envs.suites.locomotion import hopper

    return hopper.HopperParamsConfig, hopper.hopper_params


def _swimmer_vel() -> Loaded:
    from adaptax.envs.suites.locomotion import swimmer

    return swimmer.SwimmerVelConfig, swimmer.swimmer_vel


def _point_goal() -> Loaded:
    from adaptax.envs.suites import point_goal as point

    return point.PointGoalConfig, point.point_goal


def _point_goal_sparse() -> Loaded:
    from adaptax.envs.suites import point_goal as point

    return point.PointGoalSparseConfig, point.point_goal_sparse


def _point_corners() -> Loaded:
    from adaptax.envs.suites import point_corners

    return point_corners.PointCornersConfig, point_corners.point_corners


def _point_momentum() -> Loaded:
    from adaptax.envs.suites import point_corners

    return point_corners.PointMomentumConfig, point_corners.point_momentum


def _point_walls() -> Loaded:
    from adaptax.envs.suites import point_corners

    return point_corners.PointWallsConfig, point_corners.point_walls


def _bandit() -> Loaded:
    from adaptax.envs.suites import bandit

    return bandit.BanditConfig, bandit.bandit


def _tabular_mdp() -> Loaded:
    from adaptax.envs.suites import tabular_mdp as tabular

    return tabular.TabularMDPConfig, tabular.tabular_mdp


def _cartpole() -> Loaded:
    from adaptax.envs.suites import classic_control

    return classic_control.CartPoleConfig, classic_control.cart_pole


def _pendulum() -> Loaded:
    from adaptax.envs.suites import classic_control

    return classic_control.PendulumConfig, classic_control.pendulum


def _ml10() -> Loaded:
    from adaptax.envs.suites.metaworld import suite as metaworld

    return metaworld.MetaWorldConfig, metaworld.ml10


def _ml45() -> Loaded:
    from adaptax.envs.suites.metaworld import suite as metaworld

    return metaworld.MetaWorldConfig, metaworld.ml45


def _mt10() -> Loaded:
    from adaptax.envs.suites.metaworld import suite as metaworld

    return metaworld.MetaWorldConfig, metaworld.mt10


def _ml1(env_name: str) -> Loaded:
    from adaptax.envs.suites.metaworld import suite as metaworld

    return metaworld.MetaWorldConfig, partial(metaworld.ml1, env_name)


def _gym(env_id: str) -> Loaded:
    from adaptax.envs.pools import gym as gym_pool

    return gym_pool.GymConfig, partial(gym_pool.gym_id_suite, env_id)


SUITES = {
    entry.name: entry
    for entry in (
        SuiteEntry(
            "half-cheetah-vel",
            "MuJoCo: run at a target speed drawn from U(0, 2) m/s",
            _half_cheetah_vel,
        ),
        SuiteEntry("half-cheetah", "MuJoCo: Gymnasium's HalfCheetah-v5, one task", _half_cheetah),
        SuiteEntry("half-cheetah-dir", "MuJoCo: run forwards or backwards", _half_cheetah_dir),
        SuiteEntry("ant-vel", "MuJoCo: an ant at a target speed drawn from U(0, 3) m/s", _ant_vel),
        SuiteEntry("ant-dir", "MuJoCo: an ant forwards or backwards", _ant_dir),
        SuiteEntry("ant-dir-2d", "MuJoCo: an ant in any direction of the plane", _ant_dir_2d),
        SuiteEntry("ant-goal", "MuJoCo: an ant to a goal up to 3 m away", _ant_goal),
        SuiteEntry(
            "humanoid-dir", "MuJoCo: a humanoid in any direction of the plane", _humanoid_dir
        ),
        SuiteEntry(
            "walker-vel", "MuJoCo: a walker at a target speed drawn from U(0, 10) m/s", _walker_vel
        ),
        SuiteEntry(
            "walker-params",
            "MuJoCo: a walker of other masses, damping and friction",
            _walker_params,
        ),
        SuiteEntry(
            "hopper-params",
            "MuJoCo: a hopper of other masses, damping and friction",
            _hopper_params,
        ),
        SuiteEntry(
            "swimmer-vel",
            "MuJoCo: a swimmer at a target speed drawn from U(0.1, 0.2) m/s",
            _swimmer_vel,
        ),
        SuiteEntry("point-goal", "a point in the plane and a goal it is not told", _point_goal),
        SuiteEntry(
            "point-goal-sparse", "the same, rewarded only near the goal", _point_goal_sparse
        ),
        SuiteEntry(
            "point-corners",
            "a point and a goal at one of four corners, as in ProMP",
            _point_corners,
        ),
        SuiteEntry("point-momentum", "the same, actions changing the velocity", _point_momentum),
        SuiteEntry("point-walls", "the same, two walls with gaps on the way", _point_walls),
        SuiteEntry("bandit", "Bernoulli or Gaussian bandits of k arms and n pulls", _bandit),
        SuiteEntry("tabular-mdp", "random MDPs of 10 states and 5 actions", _tabular_mdp),
        SuiteEntry("cartpole", "Gymnasium's CartPole-v1, compiled", _cartpole),
        SuiteEntry("pendulum", "Gymnasium's Pendulum-v1, compiled", _pendulum),
        SuiteEntry(
            f"{ML1_PREFIX}TASK",
            "Meta-World ML1: one class, other goals, for example ml1-reach-v3",
            partial(_ml1, "TASK"),
        ),
        SuiteEntry("ml10", "Meta-World ML10: 10 classes, tested on 5 others", _ml10),
        SuiteEntry("ml45", "Meta-World ML45: 45 classes, tested on 5 others", _ml45),
        SuiteEntry("mt10", "Meta-World MT10: 10 classes whose goals are seen", _mt10),
        SuiteEntry(
            f"{GYM_PREFIX}ID",
            "any Gymnasium environment by its id, for example gym:CartPole-v1",
            partial(_gym, "ID"),
        ),
    )
}


def find_suite(name: str) -> SuiteEntry | PluginSuite:
    """The entry of ours or of an installed package; a ConfigError names the nearest match."""
    found = plugins(ENTRY_POINTS, _is_ours, name)
    if name in found:
        return PluginSuite.of(found[name])
    if name.startswith(GYM_PREFIX):
        env_id = name.removeprefix(GYM_PREFIX)
        return SuiteEntry(name, f"Gymnasium's {env_id}", partial(_gym, env_id))
    if name.startswith(ML1_PREFIX):
        task = name.removeprefix(ML1_PREFIX)
        return SuiteEntry(name, f"Meta-World ML1 of {task}", partial(_ml1, task))
    if name not in SUITES:
        raise unknown_name("suite", name, [*SUITES, *plugins(ENTRY_POINTS, _is_ours)])
    return SUITES[name]


def all_suites() -> list[SuiteEntry | PluginSuite]:
    """Ours, then those of installed packages."""
    others = plugins(ENTRY_POINTS, _is_ours)
    return [*SUITES.values(), *sound_entries(others.values(), PluginSuite.of)]


def _is_ours(name: str) -> bool:
    return name in SUITES or name.startswith((GYM_PREFIX, ML1_PREFIX))
