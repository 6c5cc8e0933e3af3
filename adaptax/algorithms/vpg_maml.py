"""VPG-MAML: the policy gradient after adaptation, through the inner step; one step of Adam.

Finn et al. 2017, "Model-agnostic meta-learning" (arXiv 1703.03400), algorithm 3, with the plain
policy gradient as the outer update.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax

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
from adaptax.functional.minibatches import ADAM, Figures
from adaptax.functional.policy_losses import policy_gradient_loss
from adaptax.sampling.actor import Actor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class VPGMAMLConfig(MAMLConfig):
    """VPG-MAML; defaults are ProMP's for it."""

    lr: float = 1e-3
    """Adam's step size."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "lr")


class VPGMAML(Algorithm):
    """Vanilla policy gradient through adaptation."""

    name = "vpg-maml"
    config: VPGMAMLConfig

    def __init__(self, config: VPGMAMLConfig, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        self.meta = MetaPolicy(config, spec)
        self.lanes_per_task = config.num_episodes

    def init(self, key: jax.Array) -> State:
        """Fresh parameters."""
        params = self.meta.init(key)
        return State(params, ADAM(self.config.lr).init(params))

    def iteration(self, state: State, sampler: Sampler) -> tuple[State, Metrics]:
        """Episodes before and after adaptation to each task, then one gradient step."""
        data, returns = self.meta.collect(state.params, sampler, dice=False)
        state, figures = _update(self.meta, self.config.lr, state, data)
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
    """-E[A log pi] after the last inner step, mean over tasks."""
    last = data[-1]
    log_prob = distributions[-1].log_prob(last.action)
    return task_mean(policy_gradient_loss(log_prob, last.credit), last.valid)


@partial(jax.jit, static_argnums=(0, 1))
def _update(meta: MetaPolicy, lr: float, state: State, data: Data) -> tuple[State, Figures]:
    return gradient_step(meta, lr, loss, state, data)
