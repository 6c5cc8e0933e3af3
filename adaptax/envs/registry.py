"""Every task suite by name. Loading is late, so that listing names imports nothing heavy."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from adaptax.core.errors import unknown_name
from adaptax.core.plugins import plugins, sound_entries
from adaptax.envs.plugin_suites import ENTRY_POINTS, PluginSuite

if TYPE_CHECKING:
    from adaptax.envs.suite import Suite

GYM_PREFIX = "gym:"
GYMNAX_PREFIX = "gymnax:"
XLAND_PREFIX = "xland:"
ML1_PREFIX = "ml1-"


@dataclass(frozen=True)
class SuiteEntry:
    """One line of the registry."""

    name: str
    summary: str
    where: str
    """MODULE:CONFIG:FUNCTION in adaptax.envs.suites: the config's class, and what makes the suite
    of a config."""
    argument: str | None = None
    """First argument of that function, where it makes several suites."""

    def load(self) -> tuple[type[Any], Callable[[Any], Suite]]:
        """Imports and gives the config's class, and the function from config to suite."""
        module_name, config, function = self.where.split(":")
        module = importlib.import_module(f"adaptax.envs.suites.{module_name}")
        make = getattr(module, function)
        if self.argument is not None:
            make = partial(make, self.argument)
        return getattr(module, config), make


SUITES = {
    entry.name: entry
    for entry in (
        SuiteEntry(
            "half-cheetah-vel",
            "MuJoCo: run at a target speed drawn from U(0, 2) m/s",
            "locomotion.half_cheetah:HalfCheetahVelConfig:half_cheetah_vel",
        ),
        SuiteEntry(
            "half-cheetah-vel-pearl",
            "the same as PEARL and VariBAD have it: U(0, 3) m/s, episodes of 200 steps",
            "locomotion.half_cheetah:HalfCheetahVelPearlConfig:half_cheetah_vel_pearl",
        ),
        SuiteEntry(
            "half-cheetah",
            "MuJoCo: Gymnasium's HalfCheetah-v5, one task",
            "locomotion.single_task:SingleTaskConfig:half_cheetah",
        ),
        SuiteEntry(
            "hopper",
            "MuJoCo: Gymnasium's Hopper-v5, one task",
            "locomotion.single_task:SingleTaskConfig:hopper",
        ),
        SuiteEntry(
            "walker",
            "MuJoCo: Gymnasium's Walker2d-v5, one task",
            "locomotion.single_task:SingleTaskConfig:walker",
        ),
        SuiteEntry(
            "half-cheetah-dir",
            "MuJoCo: run forwards or backwards",
            "locomotion.half_cheetah:HalfCheetahDirConfig:half_cheetah_dir",
        ),
        SuiteEntry(
            "ant-vel",
            "MuJoCo: an ant at a target speed drawn from U(0, 3) m/s",
            "locomotion.ant:AntVelConfig:ant_vel",
        ),
        SuiteEntry(
            "ant-dir",
            "MuJoCo: an ant forwards or backwards",
            "locomotion.ant:AntDirConfig:ant_dir",
        ),
        SuiteEntry(
            "ant-dir-2d",
            "MuJoCo: an ant in any direction of the plane",
            "locomotion.ant:AntDir2DConfig:ant_dir_2d",
        ),
        SuiteEntry(
            "ant-goal",
            "MuJoCo: an ant to a goal up to 3 m away",
            "locomotion.ant:AntGoalConfig:ant_goal",
        ),
        SuiteEntry(
            "humanoid-dir",
            "MuJoCo: a humanoid in any direction of the plane",
            "locomotion.humanoid:HumanoidDirConfig:humanoid_dir",
        ),
        SuiteEntry(
            "walker-vel",
            "MuJoCo: a walker at a target speed drawn from U(0, 10) m/s",
            "locomotion.walker:WalkerVelConfig:walker_vel",
        ),
        SuiteEntry(
            "walker-params",
            "MuJoCo: a walker of other masses, damping and friction",
            "locomotion.walker:WalkerParamsConfig:walker_params",
        ),
        SuiteEntry(
            "hopper-params",
            "MuJoCo: a hopper of other masses, damping and friction",
            "locomotion.hopper:HopperParamsConfig:hopper_params",
        ),
        SuiteEntry(
            "swimmer-vel",
            "MuJoCo: a swimmer at a target speed drawn from U(0.1, 0.2) m/s",
            "locomotion.swimmer:SwimmerVelConfig:swimmer_vel",
        ),
        SuiteEntry(
            "point-goal",
            "a point in the plane and a goal it is not told",
            "point_goal:PointGoalConfig:point_goal",
        ),
        SuiteEntry(
            "point-goal-sparse",
            "the same, rewarded only near the goal",
            "point_goal:PointGoalSparseConfig:point_goal_sparse",
        ),
        SuiteEntry(
            "point-corners",
            "a point and a goal at one of four corners, as in ProMP",
            "point_corners:PointCornersConfig:point_corners",
        ),
        SuiteEntry(
            "point-momentum",
            "the same, actions changing the velocity",
            "point_corners:PointMomentumConfig:point_momentum",
        ),
        SuiteEntry(
            "point-walls",
            "the same, two walls with gaps on the way",
            "point_corners:PointWallsConfig:point_walls",
        ),
        SuiteEntry(
            "bandit",
            "Bernoulli or Gaussian bandits of k arms and n pulls",
            "bandit:BanditConfig:bandit",
        ),
        SuiteEntry(
            "tabular-mdp",
            "random MDPs of 10 states and 5 actions",
            "tabular_mdp:TabularMDPConfig:tabular_mdp",
        ),
        SuiteEntry(
            "gridworld",
            "a grid of cells and a goal that is not seen, as in VariBAD",
            "gridworld:GridworldConfig:gridworld",
        ),
        SuiteEntry(
            "catch",
            "a falling pixel to be caught, seen as a picture of 16 x 16",
            "catch:CatchConfig:catch",
        ),
        SuiteEntry(
            "recall",
            "a cue at the first step, asked for ever later",
            "recall:RecallConfig:recall",
        ),
        SuiteEntry(
            "cartpole",
            "Gymnasium's CartPole-v1, compiled",
            "classic_control:CartPoleConfig:cart_pole",
        ),
        SuiteEntry(
            "pendulum",
            "Gymnasium's Pendulum-v1, compiled",
            "classic_control:PendulumConfig:pendulum",
        ),
        SuiteEntry(
            f"{ML1_PREFIX}TASK",
            "Meta-World ML1: one class, other goals, for example ml1-reach-v3",
            "metaworld.suite:MetaWorldConfig:ml1",
            "TASK",
        ),
        SuiteEntry(
            "ml10",
            "Meta-World ML10: 10 classes, tested on 5 others",
            "metaworld.suite:MLConfig:ml",
            "ml10",
        ),
        SuiteEntry(
            "ml25",
            "Meta-World ML25: 25 classes, tested on 4 others and one of them",
            "metaworld.suite:MLConfig:ml",
            "ml25",
        ),
        SuiteEntry(
            "ml45",
            "Meta-World ML45: 45 classes, tested on 5 others",
            "metaworld.suite:MLConfig:ml",
            "ml45",
        ),
        SuiteEntry(
            "mt10",
            "Meta-World MT10: 10 classes whose goals are seen",
            "metaworld.suite:MTConfig:mt",
            "mt10",
        ),
        SuiteEntry(
            "mt25",
            "Meta-World MT25: 25 classes whose goals are seen",
            "metaworld.suite:MTConfig:mt",
            "mt25",
        ),
        SuiteEntry(
            "mt50",
            "Meta-World MT50: all 50 classes, goals seen",
            "metaworld.suite:MTConfig:mt",
            "mt50",
        ),
        SuiteEntry(
            f"{GYM_PREFIX}ID",
            "any Gymnasium environment: gym:CartPole-v1, or gym:MODULE:ID of your own",
            "gym:GymConfig:gym_id_suite",
            "ID",
        ),
        SuiteEntry(
            f"{GYMNAX_PREFIX}ID",
            "any environment of gymnax, compiled, for example gymnax:Breakout-MinAtar",
            "adapters.gymnax_ids:GymnaxConfig:gymnax_suite",
            "ID",
        ),
        SuiteEntry(
            f"{XLAND_PREFIX}LAYOUT",
            "XLand-MiniGrid: unknown rules and goals in rooms, for example xland:R1-9x9",
            "adapters.xland:XLandConfig:xland",
            "LAYOUT",
        ),
    )
}
_MANY = {
    GYM_PREFIX: "Gymnasium's {}",
    GYMNAX_PREFIX: "gymnax's {}, compiled",
    XLAND_PREFIX: "XLand-MiniGrid on the layout {}",
    ML1_PREFIX: "Meta-World ML1 of {}",
}
"""Beginnings of names that stand for many suites, and what each of these is."""
PREFIXES = tuple(_MANY)


def find_suite(name: str) -> SuiteEntry | PluginSuite:
    """The entry of ours or of an installed package; a ConfigError names the nearest match."""
    found = plugins(ENTRY_POINTS, _is_ours, name)
    if name in found:
        return PluginSuite.of(found[name])
    for prefix, summary in _MANY.items():
        if name.startswith(prefix):
            which = name.removeprefix(prefix)
            general = next(entry for key, entry in SUITES.items() if key.startswith(prefix))
            return replace(general, name=name, summary=summary.format(which), argument=which)
    if name not in SUITES:
        others = plugins(ENTRY_POINTS, _is_ours)
        raise unknown_name("suite", name, [*SUITES, *others], _gymnasium_suites(name))
    return SUITES[name]


def module_of(name: str) -> str | None:
    """The module that a suite's name has imported, as in `gym:MODULE:ID`; None for others."""
    is_module_and_id = name.startswith(GYM_PREFIX) and name.count(":") > 1
    return name.removeprefix(GYM_PREFIX).rpartition(":")[0] if is_module_and_id else None


def all_suites() -> list[SuiteEntry | PluginSuite]:
    """Ours, then those of installed packages."""
    others = plugins(ENTRY_POINTS, _is_ours)
    return [*SUITES.values(), *sound_entries(others.values(), PluginSuite.of)]


def _gymnasium_suites(env_id: str) -> list[str]:
    """The suites of an environment of Gymnasium's; none where that has no such id."""
    import gymnasium

    if env_id not in gymnasium.registry:
        return []
    summary = f"Gymnasium's {env_id},"
    compiled = [entry.name for entry in SUITES.values() if summary in entry.summary]
    return [f"{GYM_PREFIX}{env_id}", *compiled]


def _is_ours(name: str) -> bool:
    return name in SUITES or name.startswith(PREFIXES)
