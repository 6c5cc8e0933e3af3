"""PPO2: PPO with one loss for policy and value, value clipping and an entropy bonus.

Schulman et al. 2017 (arXiv 1707.06347), equation 9, with the value clipping of OpenAI Baselines'
`ppo2`, where the name is from.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import flax.linen as nn
import jax

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.on_policy import family, ppo
from adaptax.algorithms.on_policy.family import OnPolicyConfig, State
from adaptax.core.config import check_not_negative, check_positive
from adaptax.core.errors import check
from adaptax.core.experience import PyTree, Rollout
from adaptax.core.spec import EnvSpec
from adaptax.functional.masking import masked_mean
from adaptax.learning.critics import ValueNetwork, ValueSource
from adaptax.learning.minibatches import optimizer
from adaptax.learning.sequences import Batch
from adaptax.sampling.actors import Actor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class PPO2Config(OnPolicyConfig):
    """PPO2; where the defaults come from: docs/defaults.md."""

    lr: float = 3e-4
    """Adam's step size."""
    num_epochs: int = 10
    """Passes over the data of an iteration."""
    num_minibatches: int = 64
    """Parts of a pass."""
    clip_range: float = 0.2
    """Range of the ratio around 1, and of the value around the old one."""
    value_coeff: float = 0.5
    """Weight of the value's loss, which is half the squared error."""
    entropy_coeff: float = 1e-3
    """Weight of the policy's entropy."""
    clip_value: bool = True
    """Whether the value's loss is clipped, by `clip_range` in what values are learned in: standard
    deviations with `normalize_returns`, else units of return, which later studies found unhelpful
    (Andrychowicz et al. 2021)."""
    monte_carlo_returns: bool = True
    """Whether the value learns Monte-Carlo returns rather than lambda-returns."""
    target_kl: float | None = None
    """The passes end once a minibatch's KL exceeds one and a half times this."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_epochs", "clip_range", "target_kl")
        check_not_negative(self, "value_coeff", "entropy_coeff")
        check(
            self.normalize_advantage != "none",
            "ppo2 standardises advantages: normalize_advantage must not be 'none'",
        )


class PPO2(Algorithm[State, Rollout]):
    """Proximal policy optimization with one optimizer; `networks` as `family.networks_for` says."""

    name = "ppo2"
    config: PPO2Config
    collects_in_program = True
    finite_metrics = ("loss_before", "kl")

    def __init__(
        self, config: PPO2Config, spec: EnvSpec, networks: nn.Module | None = None
    ) -> None:
        super().__init__(config, spec)
        config.check_minibatches("num_minibatches", config.num_minibatches, spec)
        self.networks = family.networks_for(config, spec, networks)

    def init(self, key: jax.Array) -> State:
        """Fresh parameters."""
        step = optimizer(self.config)
        return family.fresh_state(self.config, self.networks, self.spec, key, step.init)

    def collect(self, state: State, sampler: Sampler) -> Rollout:
        """Steps in every lane, or whole episodes."""
        return family.collect(self.config, self.actor(state), sampler)

    def update(self, state: State, data: Rollout) -> tuple[State, Metrics]:
        """Passes over shuffled minibatches."""
        config, network = self.config, self.networks
        loss_of = partial(loss, config, network, config.entropy_coeff)
        sequences = family.sequences_of(state, data)
        stop = family.kl_exceeds(config.target_kl)
        after, batch, figures = family.learn_jointly(
            config, network, state, sequences, loss_of, stop=stop
        )
        return after, figures | family.changes(network, state.params, after.params, batch, loss_of)

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy."""
        return family.policy_actor(self.networks, state, deterministic=deterministic)


class LossSettings(Protocol):
    """Settings of the joint loss."""

    @property
    def clip_range(self) -> float:
        """Range of the ratio around 1, and of the value around the old one."""

    @property
    def clip_value(self) -> bool:
        """Whether the value's loss is clipped."""

    @property
    def value_coeff(self) -> float:
        """Weight of the value's loss."""


def value_network(config: LossSettings) -> ValueNetwork:
    """The value as the network's output, whose loss is clipped or not."""
    return ValueNetwork(config.clip_range if config.clip_value else None)


def loss(
    config: LossSettings,
    network: Any,
    entropy_coeff: float | jax.Array,
    params: PyTree,
    batch: Batch,
    entropy: family.Entropy = family.plain_entropy,
    critic: ValueSource | None = None,
) -> tuple[jax.Array, Metrics]:
    """L_clip + value_coeff L_value - entropy_coeff H, and its figures.

    L_value is the mean error of the `critic`, by default half the value's squared error.
    """
    distribution, output = batch.outputs(network, params)
    policy_loss, figures = ppo.loss(config.clip_range, distribution, batch)
    critic = value_network(config) if critic is None else critic
    value_loss = masked_mean(critic.errors(output, batch), batch.valid)
    mean_entropy = masked_mean(entropy(distribution, batch.action), batch.valid)
    total = policy_loss + config.value_coeff * value_loss - entropy_coeff * mean_entropy
    return total, {**figures, "value_loss": value_loss, "entropy": mean_entropy}
