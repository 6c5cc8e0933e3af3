"""DICE-MAML: unbiased second derivatives by the magic box, in the inner step and around it.

Foerster et al. 2018, "DiCE: The infinitely differentiable Monte Carlo estimator" (arXiv
1802.05098), in MAML as in ProMP's repository; `outer_objective` "log_likelihood" is its VPG-DICE.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax

from adaptax.algorithms import vpg_maml
from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.maml import (
    Data,
    Distributions,
    MAMLConfig,
    MetaPolicy,
    State,
    check_finite,
    gradient_step,
    task_mean,
)
from adaptax.core.batch import Rollout
from adaptax.core.config import check_positive
from adaptax.core.spec import EnvSpec
from adaptax.functional.inner import dice_loss
from adaptax.functional.minibatches import ADAM, Figures
from adaptax.sampling.actor import Actor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class DICEMAMLConfig(MAMLConfig):
    """DICE-MAML; defaults are ProMP's for it."""

    inner_objective: Literal["likelihood_ratio", "log_likelihood", "dice"] = "dice"
    """What an inner step descends; equal gradients, different second derivatives."""
    outer_objective: Literal["dice", "log_likelihood"] = "dice"
    """What the outer step descends, of the policy after adaptation."""
    lr: float = 1e-3
    """Adam's step size."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "lr")


class DICEMAML(Algorithm):
    """MAML with the magic box."""

    name = "dice-maml"
    config: DICEMAMLConfig

    def __init__(self, config: DICEMAMLConfig, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        self.meta = MetaPolicy(config, spec)
        self.lanes_per_task = config.num_episodes

    def init(self, key: jax.Array) -> State:
        """Fresh parameters."""
        params = self.meta.init(key)
        return State(params, ADAM(self.config.lr).init(params))

    def iteration(self, state: State, sampler: Sampler) -> tuple[State, Metrics]:
        """Episodes before and after adaptation to each task, then one gradient step."""
        dice = self.config.outer_objective == "dice"
        data, returns = self.meta.collect(state.params, sampler, dice=dice)
        state, figures = _update(self.meta, self.config.lr, dice, state, data)
        check_finite(figures)
        return state, {**returns, **figures}

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy before adaptation."""
        return self.meta.actor(state.params, deterministic)

    def adapt(
        self,
        state: State,
        actor: Actor,
        history: Sequence[Rollout],
        *,
        deterministic: bool = False,
    ) -> Actor:
        """One inner step further, on the last rollout."""
        return self.meta.adapt(state.params, actor, history, deterministic)


def loss(distributions: Distributions, data: Data) -> jax.Array:
    """-E[magic box of all actions so far, times adjusted reward] after the last inner step.

    Each task's sum is divided by its number of valid steps, padding left out.
    """
    last = data[-1]
    log_prob = distributions[-1].log_prob(last.action)
    return task_mean(dice_loss(log_prob, last.credit, last.valid), last.valid)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _update(
    meta: MetaPolicy, lr: float, dice: bool, state: State, data: Data
) -> tuple[State, Figures]:
    return gradient_step(meta, lr, loss if dice else vpg_maml.loss, state, data)
