"""Every algorithm by name. Loading is late, so that listing names imports nothing heavy."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from adaptax.core.errors import unknown_name

if TYPE_CHECKING:
    from adaptax.algorithms.base import Algorithm


@dataclass(frozen=True)
class AlgorithmEntry:
    """One line of the registry."""

    name: str
    summary: str
    where: str
    """MODULE:CLASS of the algorithm in adaptax.algorithms; its config's class is CLASSConfig."""
    small: dict[str, Any] = field(default_factory=dict)
    """Settings for a run of seconds on `point-goal`: what the property tests train with."""
    small_suite: dict[str, Any] = field(default_factory=dict)
    """Settings of `point-goal` for that run."""

    def load(self) -> tuple[type[Algorithm], type[Any]]:
        """Imports and gives the algorithm's class and its config's."""
        module_name, _, class_name = self.where.partition(":")
        module = importlib.import_module(f"adaptax.algorithms.{module_name}")
        return getattr(module, class_name), getattr(module, f"{class_name}Config")


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
_SMALL_DETERMINISTIC = {**_SMALL_REPLAY, "hidden_sizes": (32,), "lr": 1e-3}
"""Of deterministic policies: with 16 units and 3e-3 two seeds of TD3 in twelve learn little."""
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
_SMALL_PEARL = {
    "num_train_tasks": 16,
    "num_tasks_sample": 4,
    "num_initial_steps": 40,
    "num_steps_prior": 40,
    "num_extra_rl_steps_posterior": 40,
    "num_updates": 20,
    "meta_batch_size": 4,
    "batch_size": 32,
    "embedding_batch_size": 16,
    "replay_buffer_size": 2000,
    "latent_dim": 2,
    "hidden_sizes": (16,),
    "encoder_hidden_sizes": (16,),
    "reward_scale": 1.0,
    "discount": 0.9,
    "soft_target_tau": 0.05,
    "policy_lr": 3e-3,
    "qf_lr": 3e-3,
    "context_lr": 3e-3,
}
"""Of PEARL: two episodes on the prior and two on what was inferred, on four of 16 tasks."""

ALGORITHMS = {
    entry.name: entry
    for entry in (
        AlgorithmEntry(
            "nop",
            "acts at random, learns nothing: a floor, and a way to time sampling",
            "nop:NOP",
            {"num_lanes": 4},
        ),
        AlgorithmEntry(
            "cem",
            "cross-entropy method: draw policies around a mean, move it to the best of them",
            "cem:CEM",
            {**_SMALL_SEARCH, "best_frac": 0.25, "extra_decay_time": 10},
        ),
        AlgorithmEntry(
            "cma-es",
            "covariance matrix adaptation: search that learns along which directions to draw",
            "cma_es:CMAES",
            _SMALL_SEARCH,
        ),
        AlgorithmEntry(
            "reinforce",
            "policy gradient and nothing else, the shortest algorithm to read",
            "reinforce:Reinforce",
            {"num_lanes": 8, "num_episodes": 2, "hidden_sizes": (16,), "lr": 0.02},
        ),
        AlgorithmEntry(
            "a2c",
            "policy gradient with a learned value, one pass over the data",
            "a2c:A2C",
            {**_SMALL, "lr": 0.01},
        ),
        AlgorithmEntry(
            "ppo",
            "clipped policy ratios over several passes; the value is fitted by itself",
            "ppo:PPO",
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
            "ppo2:PPO2",
            {**_SMALL, "lr": 0.01, "normalize_returns": True},
        ),
        AlgorithmEntry(
            "trpo",
            "natural-gradient steps within a bound on the change of the policy",
            "trpo:TRPO",
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
            "dqn:DQN",
            {
                **_SMALL_REPLAY,
                "num_updates": "auto",
                "n_step": 1,
                "eps_schedule_gamma": 0.95,
                "lr": 3e-3,
                "optimizer": "adam",
                "max_grad_norm": 10.0,
            },
            small_suite={"num_directions": 8},
        ),
        AlgorithmEntry(
            "ddpg",
            "learns from replay, a deterministic policy that climbs its critic",
            "ddpg:DDPG",
            _SMALL_DETERMINISTIC,
        ),
        AlgorithmEntry(
            "td3",
            "DDPG with twin critics, a smoothed target and a policy that learns later",
            "td3:TD3",
            _SMALL_DETERMINISTIC,
        ),
        AlgorithmEntry(
            "sac",
            "learns from replay, a policy that seeks reward and entropy with twin critics",
            "sac:SAC",
            {**_SMALL_REPLAY, "lr": 3e-3},
        ),
        AlgorithmEntry(
            "svpg",
            "several A2C policies that share gradients and keep their distance",
            "svpg:SVPG",
            {"num_particles": 2, "particle": {**_SMALL, "lr": 0.01, "batch_size": 80}},
        ),
        AlgorithmEntry(
            "rl2-ppo",
            "meta-RL: a recurrent agent that learns within its hidden state, trained by PPO",
            "rl2_ppo:RL2PPO",
            _SMALL_RL2,
        ),
        AlgorithmEntry(
            "rl2-trpo",
            "meta-RL: the same agent trained by TRPO, as in the paper",
            "rl2_trpo:RL2TRPO",
            {**_SMALL_RL2, "trust_region": {"max_kl_step": 0.05}},
        ),
        AlgorithmEntry(
            "pearl",
            "meta-RL: infers its task from a few episodes; learns from replay, with SAC",
            "pearl:PEARL",
            _SMALL_PEARL,
        ),
        AlgorithmEntry(
            "promp",
            "meta-RL: adapts by policy gradients; clipped ratios and a KL penalty outside",
            "promp:ProMP",
            {**_SMALL_MAML, "lr": 0.01},
        ),
        AlgorithmEntry(
            "trpo-maml",
            "meta-RL: adapts by policy gradients; a natural-gradient step outside",
            "trpo_maml:TRPOMAML",
            {**_SMALL_MAML, "trust_region": {"max_kl_step": 0.05, "reg_coeff": 0.1}},
        ),
        AlgorithmEntry(
            "vpg-maml",
            "meta-RL: adapts by policy gradients; a plain policy gradient outside",
            "vpg_maml:VPGMAML",
            {**_SMALL_MAML, "lr": 0.01},
        ),
        AlgorithmEntry(
            "dice-maml",
            "meta-RL: adapts by policy gradients; unbiased second derivatives by DiCE",
            "dice_maml:DICEMAML",
            {**_SMALL_MAML, "lr": 0.01},
        ),
    )
}


def find_algorithm(name: str) -> AlgorithmEntry:
    """The registry's entry; raises a ConfigError that names the nearest match."""
    if name not in ALGORITHMS:
        raise unknown_name("algorithm", name, ALGORITHMS)
    return ALGORITHMS[name]
