"""VPG-MAML: the policy gradient after adaptation, through the inner step; one step of Adam.

Finn et al. 2017, "Model-agnostic meta-learning" (arXiv 1703.03400), algorithm 3, with the plain
policy gradient as the outer update.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax

from adaptax.algorithms.meta.family import MAML, State, gradient_step, task_mean
from adaptax.algorithms.meta.meta_policy import Data, Distributions, MAMLConfig, MetaPolicy
from adaptax.core.config import check_positive
from adaptax.functional.policy_losses import policy_gradient_loss
from adaptax.learning.minibatches import ADAM, Figures


@dataclass(frozen=True)
class VPGMAMLConfig(MAMLConfig):
    """VPG-MAML; defaults are ProMP's for it."""

    lr: float = 1e-3
    """Adam's step size."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "lr")


class VPGMAML(MAML):
    """Vanilla policy gradient through adaptation."""

    name = "vpg-maml"
    config: VPGMAMLConfig

    def init(self, key: jax.Array) -> State:
        """Fresh parameters."""
        params = self.meta.init(key)
        return State(params, ADAM(self.config.lr).init(params))

    def update(self, state: State, data: Data) -> tuple[State, Figures]:
        """One gradient step."""
        return _update(self.meta, self.config.lr, state, data)


def loss(distributions: Distributions, data: Data) -> jax.Array:
    """-E[A log pi] after the last inner step, mean over tasks."""
    last = data[-1]
    log_prob = distributions[-1].log_prob(last.action)
    return task_mean(policy_gradient_loss(log_prob, last.credit), last.valid)


@partial(jax.jit, static_argnums=(0, 1))
def _update(meta: MetaPolicy, lr: float, state: State, data: Data) -> tuple[State, Figures]:
    return gradient_step(meta, lr, loss, state, data)
