"""TRPO-MAML: a natural-gradient step, bounded by the KL of the policies after adaptation.

Finn et al. 2017, "Model-agnostic meta-learning" (arXiv 1703.03400), section 4.2 and algorithm 3,
with the step of Schulman et al. 2015 (arXiv 1502.05477). The loss's gradient and the Fisher
matrix's products are exact, both through the inner step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import jax

from adaptax.algorithms.meta.family import MAML, State, mean_kls, task_mean
from adaptax.algorithms.meta.meta_policy import Data, Distributions, MAMLConfig, MetaPolicy
from adaptax.core.experience import PyTree
from adaptax.functional.policy_losses import likelihood_ratio_loss
from adaptax.functional.trust_region import Divergence, TrustRegion, trust_region_step
from adaptax.learning.minibatches import Figures


@dataclass(frozen=True)
class TRPOMAMLConfig(MAMLConfig):
    """TRPO-MAML."""

    trust_region: TrustRegion = field(default_factory=lambda: TrustRegion(reg_coeff=0.0))
    """The outer step; defaults are ProMP's, but for the exact products."""


class TRPOMAML(MAML):
    """Trust region policy optimization through adaptation."""

    name = "trpo-maml"
    config: TRPOMAMLConfig

    def init(self, key: jax.Array) -> State:
        """Fresh parameters."""
        return State(self.meta.init(key), opt_state={})

    def update(self, state: State, data: Data) -> tuple[State, Figures]:
        """One step within the trust region."""
        return _update(self.meta, state, data)


def objective(
    meta: MetaPolicy, before: Distributions, data: Data, params: PyTree
) -> tuple[jax.Array, jax.Array]:
    """-E[rho A] and KL(before || after), both after the last inner step and means over tasks."""
    after, last = meta.unroll(params, data), data[-1]
    log_prob = after[-1].log_prob(last.action)
    policy_loss = task_mean(likelihood_ratio_loss(log_prob, last.log_prob, last.credit), last.valid)
    kl = mean_kls(before[-1:], after[-1:], data[-1:])[0]
    return policy_loss + meta.exploration_loss(data, after), kl


@partial(jax.jit, static_argnums=0)
def _update(meta: MetaPolicy, state: State, data: Data) -> tuple[State, Figures]:
    config = meta.config
    assert isinstance(config, TRPOMAMLConfig)
    before = jax.lax.stop_gradient(meta.unroll(state.params, data))
    divergence = Divergence(
        policy=lambda params: meta.unroll(params, data)[-1],
        mean_kl=lambda after: task_mean(before[-1].kl(after), data[-1].valid),
    )
    params, figures = trust_region_step(
        partial(objective, meta, before, data), state.params, config.trust_region, divergence
    )
    return State(params, state.opt_state), figures
