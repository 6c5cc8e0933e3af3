"""PPO2: PPO with one loss for policy and value, value clipping and an entropy bonus.

Schulman et al. 2017 (arXiv 1707.06347), equation 9, with the value clipping of OpenAI Baselines'
`ppo2`, where the name is from.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.on_policy import ppo
from adaptax.algorithms.on_policy.family import (
    OnPolicyConfig,
    State,
    above,
    check_not_negative,
    critic_of,
    episodic_actor,
    fresh_state,
    iterate,
    learn_jointly,
    network_of,
    reset_state,
)
from adaptax.core.config import check_positive
from adaptax.core.errors import check
from adaptax.core.experience import PyTree, Rollout
from adaptax.core.spec import EnvSpec
from adaptax.functional.masking import masked_mean
from adaptax.functional.value_losses import clipped_value_loss, squared_value_loss
from adaptax.learning.minibatches import Figures, optimizer
from adaptax.learning.sequences import Batch, Passes
from adaptax.networks.actor_critic import ActorCritic
from adaptax.sampling.actors import Actor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class PPO2Config(OnPolicyConfig):
    """PPO2; defaults are Pyrado's (conformance 4.5) where no other source is named."""

    num_epochs: int = 3
    """Passes over the data of an iteration."""
    clip_range: float = 0.1
    """Range of the ratio around 1, and of the value around the old one."""
    value_coeff: float = 0.5
    """Weight of the value's loss, which is half the squared error."""
    entropy_coeff: float = 1e-3
    """Weight of the policy's entropy."""
    batch_size: int = 32
    """Steps of a minibatch."""
    clip_value: bool = True
    """Whether the value's loss is clipped; its range is in units of return, which later studies
    found unhelpful (Andrychowicz et al. 2021)."""
    monte_carlo_returns: bool = True
    """Whether the value learns Monte-Carlo returns rather than lambda-returns."""
    target_kl: float | None = None
    """The passes end once a minibatch's KL is above one and a half times this."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_epochs", "clip_range", "batch_size", "target_kl")
        check_not_negative(self, "value_coeff", "entropy_coeff")
        check(self.standardizer != "none", "ppo2 standardises advantages: standardizer is 'none'")


class PPO2(Algorithm):
    """Proximal policy optimization with one optimizer."""

    name = "ppo2"
    config: PPO2Config

    def __init__(self, config: PPO2Config, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        config.check_batch_size("batch_size", config.batch_size, spec)
        self.network = network_of(config, spec)

    def init(self, key: jax.Array) -> State:
        """Fresh parameters."""
        return fresh_state(self.config, self.network, self.spec, key, self._init_optimizer)

    def reset(self, state: State) -> State:
        """What was learned, with a fresh optimizer and the first exploration."""
        return reset_state(self.config, state, self._init_optimizer)

    def iteration(self, state: State, sampler: Sampler) -> tuple[State, Metrics]:
        """Collect, then learn in several passes."""
        return iterate(self.config, self.network, state, sampler, _update)

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy."""
        return episodic_actor(self.network, state, deterministic)

    def _init_optimizer(self, params: PyTree) -> PyTree:
        return optimizer(self.config).init(params)


def loss(
    config: PPO2Config, network: ActorCritic, params: PyTree, part: Batch
) -> tuple[jax.Array, Figures]:
    """L_clip + value_coeff L_value - entropy_coeff H, and its figures."""
    policy_loss, figures = ppo.loss(config.clip_range, network, params, part)
    value = critic_of(config, network).output(params["value"], part)
    terms = squared_value_loss(value, part.target)
    if config.clip_value:
        terms = clipped_value_loss(value, part.value, part.target, config.clip_range)
    distribution = network.distribution(params, part.obs, part.memory, part.reset)
    value_loss = masked_mean(terms, part.valid)
    entropy = masked_mean(distribution.entropy(), part.valid)
    total = policy_loss + config.value_coeff * value_loss - config.entropy_coeff * entropy
    return total, {**figures, "value_loss": value_loss, "entropy": entropy}


@partial(jax.jit, static_argnums=(0, 1))
def _update(
    config: PPO2Config, network: ActorCritic, state: State, rollout: Rollout
) -> tuple[State, Figures]:
    """Passes over shuffled minibatches."""
    passes = Passes(config, partial(loss, config, network), stop=above(config.target_kl))
    empirical = config.monte_carlo_returns
    return learn_jointly(config, network, state, rollout, passes, empirical=empirical)
