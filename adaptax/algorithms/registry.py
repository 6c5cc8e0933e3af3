"""Every algorithm by name. Loading is late, so that listing names imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from adaptax.core.errors import unknown_name

if TYPE_CHECKING:
    from adaptax.algorithms.base import Algorithm

Loaded = tuple[type["Algorithm"], type[Any]]


@dataclass(frozen=True)
class AlgorithmEntry:
    """One line of the registry."""

    name: str
    summary: str
    load: Callable[[], Loaded]
    """Imports and gives the algorithm's class and its config's."""
    small: dict[str, Any] = field(default_factory=dict)
    """Settings for a run of seconds on `point-goal`: what the property tests train with."""


def _nop() -> Loaded:
    from adaptax.algorithms.nop import NOP, NOPConfig

    return NOP, NOPConfig


def _reinforce() -> Loaded:
    from adaptax.algorithms.reinforce import Reinforce, ReinforceConfig

    return Reinforce, ReinforceConfig


def _rl2_ppo() -> Loaded:
    from adaptax.algorithms.rl2 import RL2PPO, RL2PPOConfig

    return RL2PPO, RL2PPOConfig


ALGORITHMS = {
    entry.name: entry
    for entry in (
        AlgorithmEntry(
            "nop",
            "acts at random, learns nothing: a floor, and a way to time sampling",
            _nop,
            {"num_lanes": 4},
        ),
        AlgorithmEntry(
            "reinforce",
            "policy gradient with a linear baseline, the shortest algorithm to read",
            _reinforce,
            {"num_lanes": 8, "hidden_sizes": (16,), "lr": 0.02},
        ),
        AlgorithmEntry(
            "rl2-ppo",
            "meta-RL: a recurrent agent that learns within its hidden state, trained by PPO",
            _rl2_ppo,
            {
                "meta_batch_size": 8,
                "episodes_per_trial": 2,
                "num_epochs": 4,
                "num_minibatches": 1,
                "embedding_size": 16,
                "hidden_size": 16,
                "lr": 0.01,
            },
        ),
    )
}


def find_algorithm(name: str) -> AlgorithmEntry:
    """The registry's entry; raises a ConfigError that names the nearest match."""
    if name not in ALGORITHMS:
        raise unknown_name("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]
