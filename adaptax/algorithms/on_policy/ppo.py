"""PPO: the clipped ratio, several passes over the same data; the value is fitted by itself.

Schulman et al. 2017, "Proximal policy optimization algorithms" (arXiv 1707.06347), section 3.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import flax.linen as nn
import jax

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.on_policy import family
from adaptax.algorithms.on_policy.family import OnPolicyConfig, State
from adaptax.core.config import check_positive
from adaptax.core.experience import PyTree, Rollout
from adaptax.core.hyperparameters import Hyperparameters
from adaptax.core.spec import EnvSpec
from adaptax.functional.distributions import Distribution
from adaptax.functional.masking import masked_mean
from adaptax.functional.policy_losses import approx_kl, clip_fraction, clipped_ratio_loss
from adaptax.learning.minibatches import optimizer, run_passes
from adaptax.learning.schedules import Schedule
from adaptax.learning.sequences import Batch
from adaptax.networks.actor_critic import part_of, with_part
from adaptax.sampling.actors import Actor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class CriticConfig(Hyperparameters):
    """How a value of its own is fitted; defaults are Pyrado's but for `advantage_from`."""

    num_epochs: int = 10
    """Passes over the data of an iteration."""
    num_minibatches: int = 32
    """Parts of a pass."""
    lr: float = 5e-4
    """Adam's step size."""
    lr_schedule: Schedule = "constant"
    """How the step size falls, from pass to pass."""
    lr_schedule_steps: int | None = None
    """Passes until a linear or cosine schedule is at 0, an exponential one at a tenth; None: the
    whole run."""
    max_grad_norm: float | None = None
    """Bound on the norm of the gradient."""
    monte_carlo_returns: bool = False
    """Whether targets are Monte-Carlo returns rather than lambda-returns."""
    advantage_from: Literal["old", "new"] = "old"
    """Whether advantages are those of the value before its fit, or after (Pyrado)."""

    @property
    def passes_per_iteration(self) -> int:
        """Passes over the data of an iteration."""
        return self.num_epochs

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_epochs", "num_minibatches", "lr", "lr_schedule_steps")
        check_positive(self, "max_grad_norm")


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """PPO; where the defaults come from: docs/defaults.md."""

    lr: float = 3e-4
    """Adam's step size of the policy."""
    num_epochs: int = 10
    """Passes of the policy over the data of an iteration."""
    clip_range: float = 0.2
    """Range of the ratio around 1."""
    target_kl: float | None = None
    """The policy's passes end once a minibatch's KL exceeds one and a half times this."""
    critic: CriticConfig = field(default_factory=CriticConfig)
    """How the value is fitted, before the policy learns."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_epochs", "clip_range", "target_kl")


class PPO(Algorithm[State, Rollout]):
    """Proximal policy optimization; `networks` is as `family.networks_for` says."""

    name = "ppo"
    config: PPOConfig
    collects_in_program = True
    finite_metrics = ("loss_before", "kl")

    def __init__(self, config: PPOConfig, spec: EnvSpec, networks: nn.Module | None = None) -> None:
        super().__init__(config, spec)
        config.check_minibatches("num_minibatches", config.num_minibatches, spec)
        config.check_minibatches("critic.num_minibatches", config.critic.num_minibatches, spec)
        self.networks = family.networks_for(config, spec, networks)

    def init(self, key: jax.Array) -> State:
        """Fresh parameters."""

        def init_optimizers(params: PyTree) -> PyTree:
            return {
                "policy": optimizer(self.config).init(part_of(params, "policy")),
                "value": optimizer(self.config.critic).init(part_of(params, "value")),
            }

        return family.fresh_state(self.config, self.networks, self.spec, key, init_optimizers)

    def collect(self, state: State, sampler: Sampler) -> Rollout:
        """Steps in every lane, or whole episodes."""
        return family.collect(self.config, self.actor(state), sampler)

    def update(self, state: State, data: Rollout) -> tuple[State, Metrics]:
        """The value's passes over fixed targets, then the policy's over fixed advantages."""
        config, network = self.config, self.networks
        sequences, acted = family.sequences_of(state, data), state.params
        state, batch, value_figures = family.fit_critic(
            config, config.critic, network, state, sequences
        )

        def loss_of(policy_params: PyTree, minibatch: Batch) -> tuple[jax.Array, Metrics]:
            distribution, _ = minibatch.outputs(network, with_part(state.params, policy_params))
            return loss(config.clip_range, distribution, minibatch)

        key, shuffle_key = jax.random.split(state.key)
        (policy_params, opt_state), figures = run_passes(
            config,
            loss_of,
            (part_of(state.params, "policy"), state.opt_state["policy"]),
            batch,
            shuffle_key,
            stop=family.kl_exceeds(config.target_kl),
        )
        params = with_part(state.params, policy_params)
        figures |= family.changes(network, acted, params, batch, loss_of) | value_figures
        state = replace(
            state,
            params=params,
            opt_state={**state.opt_state, "policy": opt_state},
            num_passes=state.num_passes + config.num_epochs,
            key=key,
        )
        return family.with_obs_moments(state, sequences), figures

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy."""
        return family.policy_actor(self.networks, state, deterministic=deterministic)


def loss(clip_range: float, distribution: Distribution, batch: Batch) -> tuple[jax.Array, Metrics]:
    """-E[min(rho A, clip(rho, 1 - c, 1 + c) A)], rho the joint ratio; and its figures."""
    log_prob = distribution.log_prob(batch.action)
    terms = clipped_ratio_loss(log_prob, batch.log_prob, batch.advantage, clip_range, batch.valid)
    policy_loss = masked_mean(terms, batch.valid)
    log_ratio = log_prob - batch.log_prob
    return policy_loss, {
        "policy_loss": policy_loss,
        "approx_kl": masked_mean(approx_kl(log_ratio), batch.valid),
        "clip_fraction": masked_mean(clip_fraction(log_ratio, clip_range), batch.valid),
    }
