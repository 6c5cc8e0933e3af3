"""TD3: DDPG with the lower of two critics, a smoothed target, and a policy that learns later.

Fujimoto et al. 2018, "Addressing function approximation error in actor-critic methods"
(arXiv 1802.09477), algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp

from adaptax.algorithms.off_policy.ddpg import DDPG, DDPGConfig, Networks
from adaptax.algorithms.off_policy.family import (
    Learner,
    Update,
    descended,
    optimizer,
    updated_target,
)
from adaptax.core.config import check_positive
from adaptax.core.experience import PyTree, Transitions
from adaptax.functional.q_learning import td_target
from adaptax.learning.minibatches import Figures


@dataclass(frozen=True)
class TD3Config(DDPGConfig):
    """TD3; defaults are the paper's, section 6.1, and its authors' code."""

    policy_delay: int = 2
    """Gradient steps of the critics to each of the policy and the targets."""
    target_noise_std: float = 0.2
    """Standard deviation of the noise on the target policy's actions."""
    target_noise_clip: float = 0.5
    """Bound on that noise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "policy_delay", "target_noise_std", "target_noise_clip")


class TD3(DDPG):
    """Twin delayed deep deterministic policy gradient."""

    name = "td3"
    config: TD3Config
    num_critics = 2

    @property
    def update(self) -> Update:
        """One gradient step."""
        return update


def update(
    config: TD3Config, networks: Networks, learner: Learner, batch: Transitions, key: jax.Array
) -> tuple[Learner, Figures]:
    """One gradient step of the critics; every `policy_delay` steps also of policy and targets."""
    target = smoothed_target(config, networks, learner.target, batch, key)
    step = partial(descended, optimizer(config), learner)
    critics, critics_opt, figures = step("critics", partial(networks.fitted, batch, target))
    num_updates = learner.num_updates + 1

    def taught(learner: Learner) -> tuple[PyTree, PyTree, PyTree]:
        policy, policy_opt, _ = step("policy", partial(networks.climbed, critics, batch.obs))
        num_taught = num_updates // config.policy_delay
        online = {"policy": policy, "critics": critics}
        return policy, policy_opt, updated_target(config, num_taught, learner.target, online)

    def left(learner: Learner) -> tuple[PyTree, PyTree, PyTree]:
        return learner.params["policy"], learner.opt_state["policy"], learner.target

    due = num_updates % config.policy_delay == 0
    policy, policy_opt, lagging = jax.lax.cond(due, taught, left, learner)
    return replace(
        learner,
        params={"policy": policy, "critics": critics},
        target=lagging,
        opt_state={"policy": policy_opt, "critics": critics_opt},
    ), figures


def smoothed_target(
    config: TD3Config, networks: Networks, lagging: PyTree, batch: Transitions, key: jax.Array
) -> jax.Array:
    """R + discount * min_i Q_i(s', clip(mu(s') + clip(noise))) [B] (algorithm 1, lines 7 and 8)."""
    action = networks.policy.apply(lagging["policy"], batch.next_obs)
    noise = config.target_noise_std * jax.random.normal(key, action.shape)
    noise = jnp.clip(noise, -config.target_noise_clip, config.target_noise_clip)
    action = jnp.clip(action + noise, -1.0, 1.0)
    next_value = jnp.min(networks.critics.apply(lagging["critics"], batch.next_obs, action), axis=0)
    return td_target(batch.reward, batch.discount, batch.terminated, next_value)
