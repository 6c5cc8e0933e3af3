"""DICE-MAML: unbiased second derivatives by the magic box, in the inner step and around it.

Foerster et al. 2018, "DiCE: The infinitely differentiable Monte Carlo estimator" (arXiv
1802.05098), in MAML as in ProMP's repository; `outer_objective` "log_likelihood" is its VPG-DICE.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax

from adaptax.algorithms.meta import vpg_maml
from adaptax.algorithms.meta.family import State, gradient_step, task_mean
from adaptax.algorithms.meta.meta_policy import Data, Distributions, MetaPolicy
from adaptax.algorithms.meta.vpg_maml import VPGMAML, VPGMAMLConfig
from adaptax.core.spec import EnvSpec
from adaptax.functional.inner import dice_loss
from adaptax.learning.minibatches import Figures


@dataclass(frozen=True)
class DICEMAMLConfig(VPGMAMLConfig):
    """DICE-MAML; defaults are ProMP's for it."""

    inner_objective: Literal["likelihood_ratio", "log_likelihood", "dice"] = "dice"
    """What an inner step descends; equal gradients, different second derivatives."""
    outer_objective: Literal["dice", "log_likelihood"] = "dice"
    """What the outer step descends, of the policy after adaptation."""


class DICEMAML(VPGMAML):
    """MAML with the magic box."""

    name = "dice-maml"
    config: DICEMAMLConfig

    def __init__(self, config: DICEMAMLConfig, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        self.dice = config.outer_objective == "dice"

    def update(self, state: State, data: Data) -> tuple[State, Figures]:
        """One gradient step."""
        return _update(self.meta, self.config.lr, self.dice, state, data)


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
