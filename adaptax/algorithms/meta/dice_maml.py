"""DICE-MAML: unbiased second derivatives by the magic box, in the inner step and around it.

Foerster et al. 2018, "DiCE: The infinitely differentiable Monte Carlo estimator" (arXiv
1802.05098), in MAML as in ProMP's repository; `outer_objective` "log_likelihood" is its VPG-DICE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.meta import vpg_maml
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
)
from adaptax.core.config import check_positive
from adaptax.core.experience import Rollout
from adaptax.core.spec import EnvSpec
from adaptax.functional.distributions import Distribution
from adaptax.functional.inner import dice_mean
from adaptax.learning.credited import Samples
from adaptax.learning.minibatches import ADAM
from adaptax.sampling.actors import Actor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class DICEMAMLConfig(MAMLConfig):
    """DICE-MAML; defaults are ProMP's for it, or measured (docs/defaults.md)."""

    meta_batch_size: int = 40
    """Tasks an iteration. DiCE's gradients have more noise than those of the family's others, which
    take fewer."""
    num_episodes: int = 20
    """Episodes on each task before every inner step and after the last, side by side."""
    lr: float = 3e-3
    """Adam's step size."""
    inner_lr: float = 0.03
    """Step size of the inner steps, at first if it is learned: 6 to 48 times as long, for a size,
    as those of the other objectives (docs/maml.md)."""
    inner_objective: Literal["likelihood_ratio", "log_likelihood", "dice"] = "dice"
    """Loss that an inner step minimises. Expected gradients of the three point the same way; their
    second derivatives differ."""
    outer_objective: Literal["dice", "log_likelihood"] = "dice"
    """What the outer step descends, of the policy after adaptation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "lr")


class DICEMAML(Algorithm[State, Data]):
    """MAML with the magic box; `networks` as in maml_family.py."""

    name = "dice-maml"
    collects_in_program = True
    data_by_task = True
    finite_metrics = ("policy_loss", "kl")
    config: DICEMAMLConfig

    def __init__(
        self, config: DICEMAMLConfig, spec: EnvSpec, networks: nn.Module | None = None
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
        dice = self.config.outer_objective == "dice"
        return collect(self.config, self.networks, state, sampler, dice=dice)

    def update(self, state: State, data: Data) -> tuple[State, Metrics]:
        """One gradient step."""
        outer_loss = loss if self.config.outer_objective == "dice" else vpg_maml.loss
        return adam_step(self.config, self.networks, self.config.lr, outer_loss, state, data)

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
    """-E[magic box of all actions so far, times adjusted reward] of the policy after adaptation.

    Each task's sum is divided by its number of valid steps.
    """
    log_prob = distribution.log_prob(samples.action)
    return jnp.mean(jax.vmap(dice_mean)(log_prob, samples.credit, samples.valid))
