"""VPG-MAML: the policy gradient after adaptation, through the inner step; one step of Adam.

Finn et al. 2017, "Model-agnostic meta-learning" (arXiv 1703.03400), algorithm 3, with the plain
policy gradient as the outer update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import flax.linen as nn
import jax

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.meta.maml_family import (
    Data,
    MAMLConfig,
    State,
    actor_of,
    adam_step,
    adapted_actor,
    collect,
    init_moments,
    init_params,
    policy_for,
    task_mean,
)
from adaptax.core.config import check_positive
from adaptax.core.experience import Rollout
from adaptax.core.spec import EnvSpec
from adaptax.functional.distributions import Distribution
from adaptax.functional.policy_losses import policy_gradient_loss
from adaptax.learning.credited import Samples
from adaptax.learning.minibatches import ADAM
from adaptax.sampling.actors import Actor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class VPGMAMLConfig(MAMLConfig):
    """VPG-MAML; defaults are ProMP's for it, or measured (docs/defaults.md)."""

    lr: float = 1e-3
    """Adam's step size."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "lr")


class VPGMAML(Algorithm[State, Data]):
    """Vanilla policy gradient through adaptation; `networks` as in maml_family.py."""

    name = "vpg-maml"
    collects_in_program = True
    data_by_task = True
    finite_metrics = ("policy_loss", "kl")
    config: VPGMAMLConfig

    def __init__(
        self, config: VPGMAMLConfig, spec: EnvSpec, networks: nn.Module | None = None
    ) -> None:
        super().__init__(config, spec, policy_for(config, spec, networks))
        self.lanes_per_task = config.num_episodes
        self.trained_episodes = config.num_inner_steps + 1

    def init(self, key: jax.Array) -> State:
        """Fresh parameters."""
        params = init_params(self.config, self.networks, self.spec, key)
        moments = init_moments(self.config, self.spec)
        return State(params, ADAM(self.config.lr).init(params), moments)

    def collect(self, state: State, sampler: Sampler) -> Data:
        """Episodes on new tasks before every inner step and after the last."""
        return collect(self.config, self.networks, state, sampler)

    def update(self, state: State, data: Data) -> tuple[State, Metrics]:
        """One gradient step."""
        return adam_step(self.config, self.networks, self.config.lr, loss, state, data)

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy before adaptation."""
        return actor_of(self.networks, state, deterministic)

    def adapt(
        self, state: State, actor: Actor, history: Sequence[Rollout], *, deterministic: bool = False
    ) -> Actor:
        """One inner step further, on the last rollout."""
        config, policy, horizon = self.config, self.networks, self.spec.horizon
        return adapted_actor(config, policy, horizon, state, actor, history, deterministic)


def loss(distribution: Distribution, samples: Samples) -> jax.Array:
    """-E[A log pi], mean over tasks, of the policy after adaptation on its episodes."""
    log_prob = distribution.log_prob(samples.action)
    return task_mean(policy_gradient_loss(log_prob, samples.credit), samples.valid)
