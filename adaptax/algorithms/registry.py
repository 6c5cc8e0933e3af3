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
    small_suite: dict[str, Any] = field(default_factory=dict)
    """Settings of `point-goal` for that run."""


def _nop() -> Loaded:
    from adaptax.algorithms.nop import NOP, NOPConfig

    return NOP, NOPConfig


def _cem() -> Loaded:
    from adaptax.algorithms.cem import CEM, CEMConfig

    return CEM, CEMConfig


def _cma_es() -> Loaded:
    from adaptax.algorithms.cma_es import CMAES, CMAESConfig

    return CMAES, CMAESConfig


def _reinforce() -> Loaded:
    from adaptax.algorithms.reinforce import Reinforce, ReinforceConfig

    return Reinforce, ReinforceConfig


def _a2c() -> Loaded:
    from adaptax.algorithms.a2c import A2C, A2CConfig

    return A2C, A2CConfig


def _ppo() -> Loaded:
    from adaptax.algorithms.ppo import PPO, PPOConfig

    return PPO, PPOConfig


def _ppo2() -> Loaded:
    from adaptax.algorithms.ppo2 import PPO2, PPO2Config

    return PPO2, PPO2Config


def _trpo() -> Loaded:
    from adaptax.algorithms.trpo import TRPO, TRPOConfig

    return TRPO, TRPOConfig


def _dqn() -> Loaded:
    from adaptax.algorithms.dqn import DQN, DQNConfig

    return DQN, DQNConfig


def _ddpg() -> Loaded:
    from adaptax.algorithms.ddpg import DDPG, DDPGConfig

    return DDPG, DDPGConfig


def _td3() -> Loaded:
    from adaptax.algorithms.td3 import TD3, TD3Config

    return TD3, TD3Config


def _sac() -> Loaded:
    from adaptax.algorithms.sac import SAC, SACConfig

    return SAC, SACConfig


def _svpg() -> Loaded:
    from adaptax.algorithms.svpg import SVPG, SVPGConfig

    return SVPG, SVPGConfig


def _rl2_ppo() -> Loaded:
    from adaptax.algorithms.rl2_ppo import RL2PPO, RL2PPOConfig

    return RL2PPO, RL2PPOConfig


def _rl2_trpo() -> Loaded:
    from adaptax.algorithms.rl2_trpo import RL2TRPO, RL2TRPOConfig

    return RL2TRPO, RL2TRPOConfig


def _promp() -> Loaded:
    from adaptax.algorithms.promp import ProMP, ProMPConfig

    return ProMP, ProMPConfig


def _trpo_maml() -> Loaded:
    from adaptax.algorithms.trpo_maml import TRPOMAML, TRPOMAMLConfig

    return TRPOMAML, TRPOMAMLConfig


def _vpg_maml() -> Loaded:
    from adaptax.algorithms.vpg_maml import VPGMAML, VPGMAMLConfig

    return VPGMAML, VPGMAMLConfig


def _dice_maml() -> Loaded:
    from adaptax.algorithms.dice_maml import DICEMAML, DICEMAMLConfig

    return DICEMAML, DICEMAMLConfig


_SMALL = {
    "num_lanes": 8,
    "num_tasks": 8,
    "min_steps": 320,
    "discount": 0.9,
    "hidden_sizes": (16,),
    "batch_size": 80,
}
"""Of the on-policy algorithms: two episodes on each of eight tasks."""
_SMALL_REPLAY = {
    "num_lanes": 8,
    "num_tasks": 8,
    "num_cycles": 4,
    "min_steps": 40,
    "memory_size": 5000,
    "num_init_memory_steps": 200,
    "batch_size": 32,
    "discount": 0.9,
    "polyak": 0.95,
    "hidden_sizes": (16,),
}
"""Of those that learn from replay: an episode on each of eight tasks, in four cycles."""
_SMALL_SEARCH = {"n_samples": 16, "num_tasks": 8, "num_episodes": 2}
"""Of search in parameter space: two episodes of every candidate on each of eight tasks."""
_SMALL_RL2 = {
    "meta_batch_size": 8,
    "episodes_per_trial": 2,
    "num_epochs": 4,
    "num_minibatches": 1,
    "embedding_size": 16,
    "hidden_size": 16,
    "lr": 0.01,
}
"""Of RL2: trials of two episodes on each of eight tasks."""
_SMALL_MAML = {"meta_batch_size": 8, "num_episodes": 8, "discount": 0.9, "hidden_sizes": (16,)}
"""Of the MAML family: eight episodes on each of eight tasks before adaptation, eight after."""

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
            "cem",
            "cross-entropy method: draw policies around a mean, move it to the best of them",
            _cem,
            {**_SMALL_SEARCH, "best_frac": 0.25, "extra_decay_time": 10},
        ),
        AlgorithmEntry(
            "cma-es",
            "covariance matrix adaptation: search that learns along which directions to draw",
            _cma_es,
            _SMALL_SEARCH,
        ),
        AlgorithmEntry(
            "reinforce",
            "policy gradient and nothing else, the shortest algorithm to read",
            _reinforce,
            {"num_lanes": 8, "num_episodes": 2, "hidden_sizes": (16,), "lr": 0.02},
        ),
        AlgorithmEntry(
            "a2c",
            "policy gradient with a learned value, one pass over the data",
            _a2c,
            {**_SMALL, "lr": 0.01},
        ),
        AlgorithmEntry(
            "ppo",
            "clipped policy ratios over several passes; the value is fitted by itself",
            _ppo,
            {
                **_SMALL,
                "lr": 3e-3,
                "normalize_obs": True,
                "critic": {"lr": 0.01, "batch_size": 80},
            },
        ),
        AlgorithmEntry(
            "ppo2",
            "PPO with policy, value and entropy in one loss",
            _ppo2,
            {**_SMALL, "lr": 0.01, "normalize_returns": True},
        ),
        AlgorithmEntry(
            "trpo",
            "natural-gradient steps within a bound on the change of the policy",
            _trpo,
            {
                **_SMALL,
                "lr": 0.01,
                "normalize_returns": True,
                "trust_region": {"max_kl_step": 0.05},
            },
        ),
        AlgorithmEntry(
            "dqn",
            "learns from replay what each discrete action is worth, and takes the best",
            _dqn,
            {**_SMALL_REPLAY, "lr": 3e-3, "optimizer": "adam", "max_grad_norm": 10.0},
            small_suite={"num_directions": 8},
        ),
        AlgorithmEntry(
            "ddpg",
            "learns from replay, a deterministic policy that climbs its critic",
            _ddpg,
            {**_SMALL_REPLAY, "lr": 3e-3},
        ),
        AlgorithmEntry(
            "td3",
            "DDPG with twin critics, a smoothed target and a policy that learns later",
            _td3,
            {**_SMALL_REPLAY, "lr": 3e-3},
        ),
        AlgorithmEntry(
            "sac",
            "learns from replay, a policy that seeks reward and entropy with twin critics",
            _sac,
            {**_SMALL_REPLAY, "lr": 3e-3},
        ),
        AlgorithmEntry(
            "svpg",
            "several A2C policies that share gradients and keep their distance",
            _svpg,
            {"num_particles": 2, "particle": {**_SMALL, "lr": 0.01, "batch_size": 80}},
        ),
        AlgorithmEntry(
            "rl2-ppo",
            "meta-RL: a recurrent agent that learns within its hidden state, trained by PPO",
            _rl2_ppo,
            _SMALL_RL2,
        ),
        AlgorithmEntry(
            "rl2-trpo",
            "meta-RL: the same agent trained by TRPO, as in the paper",
            _rl2_trpo,
            {**_SMALL_RL2, "trust_region": {"max_kl_step": 0.05}},
        ),
        AlgorithmEntry(
            "promp",
            "meta-RL: adapts by policy gradients; clipped ratios and a KL penalty outside",
            _promp,
            {**_SMALL_MAML, "lr": 0.01},
        ),
        AlgorithmEntry(
            "trpo-maml",
            "meta-RL: adapts by policy gradients; a natural-gradient step outside",
            _trpo_maml,
            {**_SMALL_MAML, "trust_region": {"max_kl_step": 0.05, "reg_coeff": 0.1}},
        ),
        AlgorithmEntry(
            "vpg-maml",
            "meta-RL: adapts by policy gradients; a plain policy gradient outside",
            _vpg_maml,
            {**_SMALL_MAML, "lr": 0.01},
        ),
        AlgorithmEntry(
            "dice-maml",
            "meta-RL: adapts by policy gradients; unbiased second derivatives by DiCE",
            _dice_maml,
            {**_SMALL_MAML, "lr": 0.01},
        ),
    )
}


def find_algorithm(name: str) -> AlgorithmEntry:
    """The registry's entry; raises a ConfigError that names the nearest match."""
    if name not in ALGORITHMS:
        raise unknown_name("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]
