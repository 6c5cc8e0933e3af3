"""RL2 with TRPO as the outer algorithm, as in the paper (Duan et al. 2016; Schulman et al. 2015).

The policy's step is the natural gradient through the whole recurrent network; the value, a
recurrent network of its own as in the paper, is fitted by gradient descent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import flax.linen as nn
import jax

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.meta import rl2
from adaptax.algorithms.meta.rl2 import RL2Config
from adaptax.algorithms.on_policy import trpo
from adaptax.algorithms.on_policy.family import State
from adaptax.core.experience import Rollout
from adaptax.core.spec import EnvSpec
from adaptax.functional.trust_region import TrustRegion
from adaptax.networks.actor_critic import checked_actor_critic
from adaptax.sampling.actors import Actor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class RL2TRPOConfig(RL2Config):
    """RL2 with TRPO; `lr`, epochs and minibatches are those of the value's fit."""

    num_bptt_steps: int | None = None
    """Steps of the pieces that trials are cut into for the value's fit, beyond whose start no
    gradient flows back; the policy's step is of whole trials. None: whole trials."""
    gae_lambda: float = 0.98
    """Lambda of the advantages: 0 trusts the value after one step, 1 only after all of them."""
    max_grad_norm: float = 1.0
    """Bound on the norm of the gradient of the value's squared error."""
    advantage_from: Literal["old", "new"] = "old"
    """Whether advantages are those of the value before its fit, or after."""
    trust_region: TrustRegion = field(default_factory=TrustRegion)
    """The policy's step."""


class RL2TRPO(Algorithm[State, Rollout]):
    """TRPO over trials; `networks` has an ActorCritic's call signature, over trials' inputs."""

    name = "rl2-trpo"
    config: RL2TRPOConfig
    collects_in_program = True
    trained_episodes: int
    finite_metrics = ("kl", "value_loss")

    def __init__(
        self, config: RL2TRPOConfig, spec: EnvSpec, networks: nn.Module | None = None
    ) -> None:
        super().__init__(config, spec)
        default = rl2.default_networks(config, spec, shared=False)
        space, size = spec.action, rl2.input_size(spec)
        self.networks = default if networks is None else checked_actor_critic(networks, space, size)
        self.trained_episodes = rl2.trial_length(config, spec)

    def init(self, key: jax.Array) -> State:
        """Fresh parameters."""
        size, make = rl2.input_size(self.spec), partial(trpo.value_optimizer, self.config)
        return rl2.init_state(self.config, self.networks, self.spec, size, key, make)

    def collect(self, state: State, sampler: Sampler) -> Rollout:
        """One trial on each of `meta_batch_size` tasks."""
        return rl2.collect(self.config, self.actor(state), sampler)

    def update(self, state: State, data: Rollout) -> tuple[State, Metrics]:
        """A fit of the value, and a step of the policy on all trials."""
        config, network = self.config, self.networks
        state = rl2.with_reward_moments(state, data)
        sequences = rl2.sequences_of(config, network, self.spec, state, data)
        coeff, entropy = rl2.loss_entropy_coeff(config, state), partial(rl2.entropy, config)
        state, figures = trpo.learn(config, network, state, sequences, coeff, entropy)
        return state, figures | rl2.trial_returns(data, self.trained_episodes)

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
