"""RL2 with PPO as the outer algorithm (Duan et al. 2016; Schulman et al. 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import flax.linen as nn
import jax

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.meta import rl2
from adaptax.algorithms.meta.rl2 import RL2Config
from adaptax.algorithms.on_policy import family, ppo2
from adaptax.algorithms.on_policy.family import State
from adaptax.core.config import check_positive
from adaptax.core.experience import Rollout
from adaptax.core.spec import EnvSpec
from adaptax.learning.minibatches import optimizer
from adaptax.networks.actor_critic import as_actor_critic
from adaptax.sampling.actors import Actor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class RL2PPOConfig(RL2Config):
    """RL2 with PPO; policy and value share one network."""

    clip_range: float = 0.2
    """Range of the ratio around 1."""
    value_coeff: float = 0.5
    """Weight of the value's loss, which is half the squared error."""
    clip_value: bool = False
    """Whether the value's loss is clipped, as in PPO2."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "clip_range")


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
        default = rl2.default_networks(config, spec, shared=True)
        self.networks = default if networks is None else as_actor_critic(networks)
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
        loss_of = partial(
            ppo2.loss,
            config,
            network,
            rl2.loss_entropy_coeff(config, state),
            entropy=partial(rl2.entropy, config),
        )
        after, _, figures = family.learn_jointly(config, network, state, sequences, loss_of)
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
