"""RL2 with PPO as the outer algorithm (Duan et al. 2016; Schulman et al. 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import flax.linen as nn
import jax

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.meta import rl2
from adaptax.algorithms.meta.rl2 import RL2Config
from adaptax.algorithms.on_policy import family, ppo2
from adaptax.algorithms.on_policy.family import State
from adaptax.core.config import check_positive
from adaptax.core.errors import check
from adaptax.core.experience import Rollout
from adaptax.core.spec import EnvSpec
from adaptax.functional.two_hot import symlog_bins
from adaptax.learning.critics import LinearBaseline, TwoHotNetwork, ValueSource
from adaptax.learning.minibatches import optimizer
from adaptax.learning.sequences import Sequences
from adaptax.networks.actor_critic import checked_actor_critic
from adaptax.sampling.actors import Actor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class RL2PPOConfig(RL2Config):
    """RL2 with PPO; policy and value share one network."""

    clip_range: float = 0.2
    """Range of the ratio around 1."""
    value_coeff: float = 0.5
    """Weight of the value's loss, half the squared error or what the critic's is."""
    critic: Literal["squared_error", "two_hot", "linear"] = "squared_error"
    """Where values come from: the network, by its squared error; by cross-entropy, as a
    distribution over bins of returns; or a linear fit to each iteration's returns."""
    num_bins: int = 101
    """Bins of a `two_hot` critic."""
    max_return: float = 10_000.0
    """Size of the largest return that these tell apart, after `reward_scale`."""
    clip_value: bool = False
    """Whether the loss of a `squared_error` critic is clipped, as in PPO2."""

    @property
    def value_bins(self) -> int | None:
        """Bins whose logits the network gives for a value; None: it gives a number."""
        return self.num_bins if self.critic == "two_hot" else None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "clip_range", "max_return")
        check(self.num_bins >= 2, f"num_bins must be at least 2, not {self.num_bins}")
        check(
            self.critic != "linear" or not self.normalize_returns,
            "critic 'linear' needs normalize_returns off: it is fitted to returns as they are",
        )
        check(
            not self.clip_value or self.critic == "squared_error",
            f"clip_value needs critic 'squared_error', not {self.critic!r}: it clips that loss",
        )


def check_critic(config: RL2PPOConfig, spec: EnvSpec) -> None:
    """Raise a ConfigError where the critic does not go with what is observed."""
    fits = config.critic != "linear" or spec.picture is None
    check(fits, "critic 'linear' does not take pictures")


def critic_of(config: RL2PPOConfig) -> ValueSource:
    """The critic that the config describes."""
    if config.critic == "two_hot":
        return TwoHotNetwork(symlog_bins(config.num_bins, config.max_return))
    if config.critic == "linear":
        return LinearBaseline(config.discount)
    return ppo2.value_network(config)


def learn(
    config: RL2PPOConfig, network: Any, state: State, sequences: Sequences
) -> tuple[State, Metrics]:
    """The state after passes of PPO over trials, and their figures."""
    critic = critic_of(config)
    loss_of = partial(
        ppo2.loss,
        config,
        network,
        rl2.loss_entropy_coeff(config, state),
        entropy=partial(rl2.entropy, config),
        critic=critic,
    )
    after, _, figures = family.learn_jointly(
        config, network, state, sequences, loss_of, values=critic.values
    )
    return after, figures


class RL2PPO(Algorithm[State, Rollout]):
    """PPO2 over trials; `networks` has an ActorCritic's call signature, over trials' inputs."""

    name = "rl2-ppo"
    config: RL2PPOConfig
    collects_in_program = True
    trained_episodes: int
    finite_metrics = ("approx_kl", "value_loss")

    def __init__(
        self, config: RL2PPOConfig, spec: EnvSpec, networks: nn.Module | None = None
    ) -> None:
        super().__init__(config, spec)
        check_critic(config, spec)
        bins = config.value_bins
        default = rl2.default_networks(config, spec, shared=True, value_bins=bins)
        space, size = spec.action, rl2.input_size(spec)
        self.networks = (
            default if networks is None else checked_actor_critic(networks, space, size, bins)
        )
        self.trained_episodes = rl2.trial_length(config, spec)

    def init(self, key: jax.Array) -> State:
        """Fresh parameters."""
        step, size = optimizer(self.config), rl2.input_size(self.spec)
        return rl2.init_state(self.config, self.networks, self.spec, size, key, step.init)

    def collect(self, state: State, sampler: Sampler) -> Rollout:
        """One trial on each of `meta_batch_size` tasks."""
        return rl2.collect(self.config, self.actor(state), sampler)

    def update(self, state: State, data: Rollout) -> tuple[State, Metrics]:
        """Passes of PPO over the trials."""
        config, network = self.config, self.networks
        state = rl2.with_reward_moments(state, data)
        sequences = rl2.sequences_of(config, network, self.spec, state, data)
        after, figures = learn(config, network, state, sequences)
        return after, rl2.trial_returns(data, self.trained_episodes) | figures

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy at the start of a trial."""
        return rl2.trial_actor(self.networks, self.spec, state, deterministic=deterministic)

    def adapt(
        self,
        state: State,
        actor: Actor,
        history: Sequence[Rollout],
        *,
        deterministic: bool = False,
    ) -> Actor:
        """Go on from the memory at the end of the last rollout."""
        return rl2.adapted(actor, history, deterministic=deterministic)
