"""TRPO-MAML: a natural-gradient step, bounded by the KL of the policies after adaptation.

Finn et al. 2017, "Model-agnostic meta-learning" (arXiv 1703.03400), section 3.2 and algorithm 3,
with the step of Schulman et al. 2015 (arXiv 1502.05477). The loss's gradient and the Fisher
matrix's products are exact, both through the inner step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import flax.linen as nn
import jax

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.meta.maml_family import (
    Data,
    Distributions,
    MAMLConfig,
    Stages,
    State,
    actor_of,
    adapted_actor,
    collect,
    exploration_loss,
    init_moments,
    init_params,
    mean_kls,
    policy_for,
    return_metrics,
    seen,
    task_mean,
    unroll,
    with_experience,
)
from adaptax.core.experience import PyTree, Rollout
from adaptax.core.spec import EnvSpec
from adaptax.functional.policy_losses import likelihood_ratio_loss
from adaptax.functional.trust_region import Divergence, TrustRegion, trust_region_step
from adaptax.sampling.actors import Actor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class TRPOMAMLConfig(MAMLConfig):
    """TRPO-MAML."""

    trust_region: TrustRegion = field(default_factory=lambda: TrustRegion(reg_coeff=0.0))
    """The outer step; defaults are ProMP's, but for the exact products."""


class TRPOMAML(Algorithm[State, Data]):
    """Trust region policy optimization through adaptation; `networks` as in maml_family.py."""

    name = "trpo-maml"
    collects_in_program = True
    data_by_task = True
    finite_metrics = ("loss_before", "loss_after", "kl")
    config: TRPOMAMLConfig

    def __init__(
        self, config: TRPOMAMLConfig, spec: EnvSpec, networks: nn.Module | None = None
    ) -> None:
        super().__init__(config, spec, policy_for(config, spec, networks))
        self.lanes_per_task = config.num_episodes
        self.trained_episodes = config.num_inner_steps + 1

    def init(self, key: jax.Array) -> State:
        """Fresh parameters."""
        params = init_params(self.config, self.networks, self.spec, key)
        return State(params, {}, init_moments(self.config, self.spec))

    def collect(self, state: State, sampler: Sampler) -> Data:
        """Episodes on new tasks before every inner step and after the last."""
        return collect(self.config, self.networks, state, sampler)

    def objective(
        self, before: Distributions, stages: Stages, params: PyTree
    ) -> tuple[jax.Array, jax.Array]:
        """-E[rho A] and KL(before || after), both after adaptation and means over tasks."""
        after, last = unroll(self.config, self.networks, params, stages), stages[-1]
        log_prob = after[-1].log_prob(last.action)
        terms = likelihood_ratio_loss(log_prob, last.log_prob, last.credit, last.valid)
        loss = task_mean(terms, last.valid) + exploration_loss(self.config, stages, after)
        return loss, mean_kls(before[-1:], after[-1:], stages[-1:])[0]

    def update(self, state: State, data: Data) -> tuple[State, Metrics]:
        """One step within the trust region."""
        config, policy = self.config, self.networks
        stages = seen(data.stages, state.moments)
        before = jax.lax.stop_gradient(unroll(config, policy, state.params, stages))
        divergence = Divergence(
            policy=lambda params: unroll(config, policy, params, stages)[-1],
            mean_kl=lambda after: task_mean(before[-1].kl(after), stages[-1].valid),
        )
        objective = partial(self.objective, before, stages)
        params, metrics = trust_region_step(
            objective, state.params, config.trust_region, divergence
        )
        moments = with_experience(state.moments, data.stages)
        return State(params, state.opt_state, moments), return_metrics(data) | metrics

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy before adaptation."""
        return actor_of(self.networks, state, deterministic)

    def adapt(
        self, state: State, actor: Actor, history: Sequence[Rollout], *, deterministic: bool = False
    ) -> Actor:
        """One inner step further, on the last rollout."""
        config, policy, horizon = self.config, self.networks, self.spec.horizon
        return adapted_actor(config, policy, horizon, state, actor, history, deterministic)
