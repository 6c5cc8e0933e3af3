"""Every algorithm by name. Loading is late, so that listing names imports nothing heavy."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, is_dataclass
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

from adaptax.core.errors import check, one_line, unknown_name
from adaptax.core.plugins import described, loaded_class, plugins, sound_entries, summary_of

if TYPE_CHECKING:
    from adaptax.algorithms.base import Algorithm

ENTRY_POINTS = "adaptax.algorithms"
"""The group of installed packages' algorithms; each names MODULE:CLASS, as `where` does."""


@dataclass(frozen=True)
class AlgorithmEntry:
    """One line of the registry."""

    name: str
    summary: str
    where: str
    """MODULE:CLASS of the algorithm, from here if it begins with a dot; in the same module is its
    config's class, CLASSConfig."""

    def load(self) -> tuple[type[Algorithm[Any, Any]], type[Any]]:
        """Imports and gives the algorithm's class and its config's."""
        module_name, _, class_name = self.where.partition(":")
        module = importlib.import_module(module_name, __package__)
        return getattr(module, class_name), getattr(module, f"{class_name}Config")


ALGORITHMS = {
    entry.name: entry
    for entry in (
        AlgorithmEntry(
            "nop",
            "acts at random, learns nothing: a floor, and a way to time sampling",
            ".search.nop:NOP",
        ),
        AlgorithmEntry(
            "cem",
            "cross-entropy method: draw policies around a mean, move it to the best of them",
            ".search.cem:CEM",
        ),
        AlgorithmEntry(
            "cma-es",
            "covariance matrix adaptation: search that learns along which directions to draw",
            ".search.cma_es:CMAES",
        ),
        AlgorithmEntry(
            "reinforce",
            "policy gradient and nothing else, the shortest algorithm to read",
            ".on_policy.reinforce:Reinforce",
        ),
        AlgorithmEntry(
            "a2c",
            "policy gradient with a learned value, one pass over the data",
            ".on_policy.a2c:A2C",
        ),
        AlgorithmEntry(
            "ppo",
            "clipped policy ratios over several passes; the value is fitted by itself",
            ".on_policy.ppo:PPO",
        ),
        AlgorithmEntry(
            "ppo2", "PPO with policy, value and entropy in one loss", ".on_policy.ppo2:PPO2"
        ),
        AlgorithmEntry(
            "trpo",
            "natural-gradient steps within a bound on the change of the policy",
            ".on_policy.trpo:TRPO",
        ),
        AlgorithmEntry(
            "dqn",
            "learns from replay what each discrete action is worth, and takes the best",
            ".off_policy.dqn:DQN",
        ),
        AlgorithmEntry(
            "ddpg",
            "learns from replay, a deterministic policy that climbs its critic",
            ".off_policy.ddpg:DDPG",
        ),
        AlgorithmEntry(
            "td3",
            "DDPG with twin critics, a smoothed target and a policy that learns later",
            ".off_policy.td3:TD3",
        ),
        AlgorithmEntry(
            "sac",
            "learns from replay, a policy that seeks reward and entropy with twin critics",
            ".off_policy.sac:SAC",
        ),
        AlgorithmEntry(
            "svpg",
            "several A2C policies that share gradients and keep their distance",
            ".on_policy.svpg:SVPG",
        ),
        AlgorithmEntry(
            "rl2-ppo",
            "meta-RL: a recurrent agent that learns within its hidden state, trained by PPO",
            ".meta.rl2_ppo:RL2PPO",
        ),
        AlgorithmEntry(
            "rl2-trpo",
            "meta-RL: the same agent trained by TRPO, as in the paper",
            ".meta.rl2_trpo:RL2TRPO",
        ),
        AlgorithmEntry(
            "rl2-sac",
            "meta-RL: the same agent trained by SAC, on trials in replay",
            ".meta.rl2_sac:RL2SAC",
        ),
        AlgorithmEntry(
            "varibad",
            "meta-RL: acts on what it believes of its task, step by step, and how surely; with PPO",
            ".meta.varibad:VariBAD",
        ),
        AlgorithmEntry(
            "pearl",
            "meta-RL: infers its task from a few episodes; learns from replay, with SAC",
            ".meta.pearl:PEARL",
        ),
        AlgorithmEntry(
            "promp",
            "meta-RL: adapts by policy gradients; clipped ratios and a KL penalty outside",
            ".meta.promp:ProMP",
        ),
        AlgorithmEntry(
            "trpo-maml",
            "meta-RL: adapts by policy gradients; a natural-gradient step outside",
            ".meta.trpo_maml:TRPOMAML",
        ),
        AlgorithmEntry(
            "vpg-maml",
            "meta-RL: adapts by policy gradients; a plain policy gradient outside",
            ".meta.vpg_maml:VPGMAML",
        ),
        AlgorithmEntry(
            "dice-maml",
            "meta-RL: adapts by policy gradients; unbiased second derivatives by DiCE",
            ".meta.dice_maml:DICEMAML",
        ),
    )
}


def find_algorithm(name: str) -> AlgorithmEntry:
    """The entry of ours or of an installed package; a ConfigError names the nearest match."""
    found = plugins(ENTRY_POINTS, ALGORITHMS.__contains__, name)
    if name in ALGORITHMS:
        return ALGORITHMS[name]
    if name not in found:
        others = plugins(ENTRY_POINTS, ALGORITHMS.__contains__)
        raise unknown_name("algorithm", name, [*ALGORITHMS, *others])
    return _plugin(found[name])


def all_algorithms() -> list[AlgorithmEntry]:
    """Ours, then those of installed packages."""
    others = plugins(ENTRY_POINTS, ALGORITHMS.__contains__)
    return [*ALGORITHMS.values(), *sound_entries(others.values(), _plugin)]


def _plugin(point: EntryPoint) -> AlgorithmEntry:
    """The entry of an installed package's algorithm; a ConfigError where it is none."""
    from adaptax.algorithms.base import Algorithm

    algorithm: type[Any] = loaded_class(point, Algorithm, "adaptax.Algorithm")
    what = described(point)
    own_name = getattr(algorithm, "name", None)
    check(own_name == point.name, f"{what} calls itself {own_name!r}")
    entry = AlgorithmEntry(
        point.name, summary_of(algorithm), f"{point.module}:{algorithm.__qualname__}"
    )
    try:
        _, config_class = entry.load()
        sound, problem = is_dataclass(config_class()), "it is not a dataclass"
    except Exception as error:
        sound, problem = False, one_line(error)
    check(sound, f"{what} has no usable config {algorithm.__name__}Config beside it: {problem}")
    return entry
