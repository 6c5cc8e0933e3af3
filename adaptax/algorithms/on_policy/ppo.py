"""PPO: the clipped ratio, several passes over the same data; the value learns by itself.

Schulman et al. 2017, "Proximal policy optimization algorithms" (arXiv 1707.06347), section 3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import jax

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.on_policy.family import (
    OnPolicyConfig,
    State,
    above,
    changes,
    critic_of,
    episodic_actor,
    fresh_state,
    iterate,
    network_of,
    prepare,
    reset_state,
)
from adaptax.core.config import check_positive
from adaptax.core.experience import PyTree, Rollout
from adaptax.core.spec import EnvSpec
from adaptax.functional.masking import masked_mean
from adaptax.functional.policy_losses import approx_kl, clip_fraction, clipped_ratio_loss
from adaptax.learning.estimator import CriticConfig
from adaptax.learning.minibatches import Figures, optimizer
from adaptax.learning.sequences import Batch, Passes
from adaptax.networks.actor_critic import ActorCritic
from adaptax.sampling.actors import Actor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class PPOConfig(OnPolicyConfig):
    """PPO; defaults are Pyrado's (conformance 4.5) where no other source is named."""

    num_epochs: int = 3
    """Passes of the policy over the data of an iteration."""
    clip_range: float = 0.1
    """Range of the ratio around 1."""
    batch_size: int = 64
    """Steps of a minibatch of the policy."""
    target_kl: float | None = None
    """The policy's passes end once a minibatch's KL is above one and a half times this."""
    critic: CriticConfig = field(default_factory=CriticConfig)
    """How the value is fitted, before the policy learns."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_epochs", "clip_range", "batch_size", "target_kl")


class PPO(Algorithm):
    """Proximal policy optimization."""

    name = "ppo"
    config: PPOConfig

    def __init__(self, config: PPOConfig, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        config.check_batch_size("batch_size", config.batch_size, spec)
        config.check_batch_size("critic.batch_size", config.critic.batch_size, spec)
        self.network = network_of(config, spec)

    def init(self, key: jax.Array) -> State:
        """Fresh parameters."""
        return fresh_state(self.config, self.network, self.spec, key, self._init_optimizers)

    def reset(self, state: State) -> State:
        """What was learned, with fresh optimizers and the first exploration."""
        return reset_state(self.config, state, self._init_optimizers)

    def iteration(self, state: State, sampler: Sampler) -> tuple[State, Metrics]:
        """Collect, fit the value, then the policy."""
        return iterate(self.config, self.network, state, sampler, _update)

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy."""
        return episodic_actor(self.network, state, deterministic)

    def _init_optimizers(self, params: PyTree) -> PyTree:
        return {
            "policy": optimizer(self.config).init({"policy": params["policy"]}),
            "value": optimizer(self.config.critic).init(params["value"]),
        }


def loss(
    clip_range: float, network: ActorCritic, params: PyTree, part: Batch
) -> tuple[jax.Array, Figures]:
    """-E[min(rho A, clip(rho, 1 - eps, 1 + eps) A)], rho the joint ratio; and its figures."""
    distribution = network.distribution(params, part.obs, part.memory, part.reset)
    log_prob = distribution.log_prob(part.action)
    terms = clipped_ratio_loss(log_prob, part.log_prob, part.advantage, clip_range)
    policy_loss = masked_mean(terms, part.valid)
    log_ratio = log_prob - part.log_prob
    return policy_loss, {
        "policy_loss": policy_loss,
        "approx_kl": masked_mean(approx_kl(log_ratio), part.valid),
        "clip_fraction": masked_mean(clip_fraction(log_ratio, clip_range), part.valid),
    }


@partial(jax.jit, static_argnums=(0, 1))
def _update(
    config: PPOConfig, network: ActorCritic, state: State, rollout: Rollout
) -> tuple[State, Figures]:
    """The value's passes over fixed targets, then the policy's over fixed advantages."""
    sequences, moments = prepare(state, rollout)
    key, value_key, policy_key = jax.random.split(state.key, 3)
    start = (state.params["value"], state.opt_state["value"])
    critic = critic_of(config, network)
    (value, value_opt), moments, batch, value_figures = critic.update(
        config.critic, start, moments, sequences, value_key
    )

    loss_of = partial(loss, config.clip_range, network)
    passes = Passes(config, loss_of, stop=above(config.target_kl))
    before = {"policy": state.params["policy"]}
    (after, policy_opt), figures = passes.run(
        (before, state.opt_state["policy"]), batch, policy_key
    )
    figures |= value_figures | changes(network, before, after, batch, loss_of)
    params, opt_state = {**after, "value": value}, {"policy": policy_opt, "value": value_opt}
    return State(params, opt_state, moments, key), figures
