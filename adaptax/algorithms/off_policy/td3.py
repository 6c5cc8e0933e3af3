"""TD3: DDPG with the lower of two critics, a smoothed target, and a policy that learns later.

Fujimoto et al. 2018, "Addressing function approximation error in actor-critic methods"
(arXiv 1802.09477), algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.off_policy.ddpg import (
    DDPGConfig,
    acting,
    check_space,
    critic_loss,
    init_networks,
    networks_for,
    policy_loss,
)
from adaptax.algorithms.off_policy.family import (
    Data,
    LearnerState,
    Networks,
    State,
    collect,
    descended,
    off_policy_optimizer,
    update,
    updated_target,
)
from adaptax.core.config import check_not_negative, check_positive
from adaptax.core.experience import PyTree, Transitions
from adaptax.core.products import product_options
from adaptax.core.spec import EnvSpec
from adaptax.functional.q_learning import td_target
from adaptax.sampling.actors import Actor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class TD3Config(DDPGConfig):
    """TD3; defaults are the paper's, section 6.1, and its authors' code."""

    policy_delay: int = 2
    """Gradient steps of the critics for every step of the policy and update of the targets."""
    target_update_interval: int = 1
    """Gradient steps of the policy from one update of the targets to the next."""
    target_noise_std: float = 0.2
    """Standard deviation of the noise on the target policy's actions; 0: they are not smoothed."""
    target_noise_clip: float = 0.5
    """Bound on that noise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "policy_delay", "target_noise_clip")
        check_not_negative(self, "target_noise_std")


class TD3(Algorithm[State, Data]):
    """Twin delayed deep deterministic policy gradient; `networks` is the family's `Networks`."""

    name = "td3"
    collects_in_program = True
    in_place = ("replay",)
    finite_metrics = ("critic_loss", "q")
    learned = (".learner.params", ".learner.target")
    config: TD3Config
    networks: Networks

    def __init__(self, config: TD3Config, spec: EnvSpec, networks: Networks | None = None) -> None:
        super().__init__(config, spec)
        check_space(self.name, spec)
        self.networks = networks_for(config.hidden_sizes, spec, 2, networks)
        self.num_cycles = config.num_cycles

    def init(self, key: jax.Array) -> State:
        """Fresh parameters, targets equal to them, nothing in the replay."""
        return init_networks(self.config, self.spec, self.networks, key)

    def collect(self, state: State, sampler: Sampler) -> Data:
        """Steps of the policy with noise."""
        return collect(
            self.config, state, sampler, acting(self.networks, state, self.config.noise_std)
        )

    def update(self, state: State, data: Data) -> tuple[State, Metrics]:
        """Steps into the replay, and gradient steps on minibatches of it."""
        return update(self.config, state, data, self.gradient_step)

    def gradient_step(
        self, learner: LearnerState, batch: Transitions, key: jax.Array
    ) -> tuple[LearnerState, Metrics]:
        """One step of the critics; every `policy_delay` steps also of policy and targets."""
        networks, adam = self.networks, off_policy_optimizer(self.config)
        # The policy's own steps are fewer; its step size falls with the critics' all the same.
        delayed = off_policy_optimizer(self.config, passes_per_update=self.config.policy_delay)
        target = self.smoothed_target(learner.target, batch, key)

        def critics(params: PyTree) -> tuple[jax.Array, Metrics]:
            return critic_loss(networks, params["critics"], batch, target)

        def policy(params: PyTree) -> tuple[jax.Array, Metrics]:
            return policy_loss(networks, params["policy"], learner.params["critics"], batch.obs)

        def policy_and_targets(learner: LearnerState) -> LearnerState:
            learner, _ = descended(learner, policy, {"policy": delayed})
            num = (learner.num_updates + 1) // self.config.policy_delay
            after = updated_target(self.config, num, learner.target, learner.params)
            return replace(learner, target=after)

        learner, figures = descended(learner, critics, {"critics": adam})
        due = (learner.num_updates + 1) % self.config.policy_delay == 0
        return jax.lax.cond(due, policy_and_targets, lambda same: same, learner), figures

    def smoothed_target(self, lagging: PyTree, batch: Transitions, key: jax.Array) -> jax.Array:
        """The target r + discount * min_i Q_i(s', clip(mu(s') + clip(noise))) [B] (lines 7, 8)."""
        config, networks = self.config, self.networks
        action = networks.policy.apply(lagging["policy"], batch.next_obs)
        noise = config.target_noise_std * jax.random.normal(key, action.shape)
        noise = jnp.clip(noise, -config.target_noise_clip, config.target_noise_clip)
        action = jnp.clip(action + noise, -1.0, 1.0)
        next_q = networks.critics.apply(lagging["critics"], batch.next_obs, action)
        return td_target(batch.reward, batch.discount, batch.terminated, jnp.min(next_q, axis=0))

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy without noise, always."""
        return acting(self.networks, state, 0.0)

    @property
    def compiler_options(self) -> dict[str, str]:
        """Those of products of a minibatch's rows."""
        return product_options(self.config.batch_size)
