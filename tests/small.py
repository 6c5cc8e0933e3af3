"""Settings of every algorithm for a run of seconds on `point-goal`."""

from __future__ import annotations

from typing import Any

_SMALL = {
    "num_lanes": 8,
    "num_tasks": 8,
    "num_steps": 320,
    "discount": 0.9,
    "hidden_sizes": (16,),
    "num_minibatches": 4,
}
"""Of the on-policy algorithms: two episodes on each of eight tasks."""
_SMALL_REPLAY = {
    "num_lanes": 8,
    "num_tasks": 8,
    "num_cycles": 4,
    "num_steps": 40,
    "buffer_size": 5000,
    "num_initial_steps": 80,
    "batch_size": 32,
    "discount": 0.9,
    "tau": 0.05,
    "hidden_sizes": (16,),
}
"""Of those that learn from replay: an episode on each of eight tasks, in four cycles."""
_SMALL_DETERMINISTIC = {**_SMALL_REPLAY, "hidden_sizes": (32,), "lr": 1e-3}
"""Of deterministic policies: with 16 units and 3e-3 two seeds of TD3 in twelve learn little."""
_SMALL_SEARCH = {"population_size": 16, "num_tasks": 8, "num_episodes": 2}
"""Of search in parameter space: two episodes of every candidate on each of eight tasks."""
_SMALL_RL2 = {
    "meta_batch_size": 8,
    "num_episodes": 2,
    "num_epochs": 4,
    "num_minibatches": 1,
    "hidden_sizes": (16,),
    "memory": {"kind": "gru", "size": 16},
    "lr": 0.01,
}
"""Of RL2: trials of two episodes on each of eight tasks."""
_SMALL_MAML = {
    "meta_batch_size": 8,
    "num_episodes": 8,
    "discount": 0.9,
    "hidden_sizes": (16,),
    "init_std": 1.0,  # as for trpo; and ProMP's KL is then large enough to be adapted to
}
"""Of the MAML family: eight episodes on each of eight tasks before adaptation, eight after."""
_SMALL_PEARL = {
    "num_train_tasks": 16,
    "meta_batch_size": 4,
    "num_initial_steps": 40,
    "num_prior_steps": 40,
    "num_extra_posterior_steps": 40,
    "num_updates": 20,
    "num_update_tasks": 4,
    "batch_size": 32,
    "context_size": 16,
    "buffer_size": 2000,
    "latent_size": 2,
    "hidden_sizes": (16,),
    "encoder_hidden_sizes": (16,),
    "reward_scale": 1.0,
    "discount": 0.9,
    "tau": 0.05,
    "policy_lr": 3e-3,
    "critic_lr": 3e-3,
    "encoder_lr": 3e-3,
}
"""Of PEARL: two episodes on the prior and two on what was inferred, on four of 16 tasks."""

SMALL: dict[str, dict[str, Any]] = {
    "nop": {"num_lanes": 4},
    "cem": {**_SMALL_SEARCH, "elite_fraction": 0.25, "extra_std_generations": 10},
    "cma-es": _SMALL_SEARCH,
    "reinforce": {"num_lanes": 8, "num_episodes": 2, "hidden_sizes": (16,), "lr": 0.02},
    "a2c": {**_SMALL, "lr": 0.01},
    "ppo": {
        **_SMALL,
        "lr": 3e-3,
        "normalize_obs": True,
        "critic": {"lr": 0.01, "num_minibatches": 4},
    },
    "ppo2": {**_SMALL, "lr": 0.01, "normalize_returns": True},
    "trpo": {
        **_SMALL,
        # Narrower first policies make what rounding does larger, by way of conjugate gradients.
        "init_std": 1.0,
        "lr": 0.01,
        "normalize_returns": True,
        "trust_region": {"max_kl_step": 0.05, "reg_coeff": 0.1},
    },
    "dqn": {
        **_SMALL_REPLAY,
        "num_updates": "auto",
        "n_step": 1,
        "reward_scale": 1.0,
        "epsilon_decay": 0.95,
        "lr": 3e-3,
        "tau": 1.0,
        "target_update_interval": 100,
    },
    "ddpg": _SMALL_DETERMINISTIC,
    "td3": _SMALL_DETERMINISTIC,
    "sac": {**_SMALL_REPLAY, "lr": 3e-3},
    "svpg": {"num_particles": 2, "particle": {**_SMALL, "lr": 0.01}},
    "rl2-ppo": _SMALL_RL2,
    "rl2-trpo": {**_SMALL_RL2, "trust_region": {"max_kl_step": 0.05}},
    "rl2-sac": {
        "meta_batch_size": 8,
        "num_episodes": 2,
        "num_initial_trials": 8,
        "buffer_size": 200,
        "num_updates": 20,
        "batch_size": 16,
        "hidden_sizes": (16,),
        "memory": {"kind": "gru", "size": 16},
        "head_hidden_sizes": (16,),
        "discount": 0.9,
        "tau": 0.05,
        "lr": 3e-3,
    },
    "varibad": {
        **_SMALL_RL2,
        "latent_size": 2,
        "decoder_hidden_sizes": (16,),
        "buffer_size": 24,
        "num_elbo_updates": 2,
        "elbo_batch_size": 8,
        "num_elbo_terms": 8,
    },
    "pearl": _SMALL_PEARL,
    "promp": {**_SMALL_MAML, "lr": 0.01},
    "trpo-maml": {**_SMALL_MAML, "trust_region": {"max_kl_step": 0.05, "reg_coeff": 0.1}},
    "vpg-maml": {**_SMALL_MAML, "lr": 0.01},
    "dice-maml": {**_SMALL_MAML, "lr": 0.01},
}
"""By name; an algorithm that is not here is trained with its defaults."""
SMALL_SUITE: dict[str, dict[str, Any]] = {"dqn": {"num_directions": 8}}
"""Settings of `point-goal` for that run."""
