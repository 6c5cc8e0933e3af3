"""TRPO: the natural gradient, as far as a bound on the KL allows; the value is fitted by itself.

Schulman et al. 2015, "Trust region policy optimization" (arXiv 1502.05477), with generalised
advantage estimation (Schulman et al. 2016, arXiv 1506.02438).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, Protocol

import flax.linen as nn
import jax

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.on_policy import family
from adaptax.algorithms.on_policy.family import OnPolicyConfig, State
from adaptax.core.config import check_positive
from adaptax.core.experience import PyTree, Rollout
from adaptax.core.spec import EnvSpec
from adaptax.functional.distributions import Distribution
from adaptax.functional.masking import masked_mean
from adaptax.functional.policy_losses import likelihood_ratio_loss
from adaptax.functional.trust_region import Divergence, TrustRegion, trust_region_step
from adaptax.learning.estimator import FitSettings
from adaptax.learning.minibatches import optimizer
from adaptax.learning.sequences import Batch, Sequences
from adaptax.networks.actor_critic import part_of, with_part
from adaptax.sampling.actors import Actor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class TRPOConfig(OnPolicyConfig):
    """TRPO; the settings of an optimizer, `lr` for example, are the value's: the policy has none.

    Defaults of the policy's step are garage's, those of the value's fit Pyrado's; of the others
    docs/defaults.md says where they come from.
    """

    num_bptt_steps: int | None = None
    """Steps of the pieces that lanes are cut into for the value's fit, beyond whose start no
    gradient flows back; the policy's step is of whole lanes. None: whole lanes. Without a memory,
    and `shuffle` `auto`, minibatches are of single steps whatever it is."""
    num_epochs: int = 10
    """Passes of the value over the data of an iteration; the policy takes all at once."""
    monte_carlo_returns: bool = False
    """Whether the value learns Monte-Carlo returns rather than lambda-returns."""
    advantage_from: Literal["old", "new"] = "old"
    """Whether advantages are those of the value before its fit, or after."""
    trust_region: TrustRegion = field(default_factory=TrustRegion)
    """The policy's step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_epochs")


class TRPO(Algorithm[State, Rollout]):
    """Trust region policy optimization; `networks` is as `family.networks_for` says."""

    name = "trpo"
    config: TRPOConfig
    collects_in_program = True
    finite_metrics = ("loss_before", "kl")

    def __init__(
        self, config: TRPOConfig, spec: EnvSpec, networks: nn.Module | None = None
    ) -> None:
        super().__init__(config, spec)
        config.check_minibatches("num_minibatches", config.num_minibatches, spec)
        self.networks = family.networks_for(config, spec, networks)

    def init(self, key: jax.Array) -> State:
        """Fresh parameters."""
        make = partial(value_optimizer, self.config)
        return family.fresh_state(self.config, self.networks, self.spec, key, make)

    def collect(self, state: State, sampler: Sampler) -> Rollout:
        """Steps in every lane, or whole episodes."""
        return family.collect(self.config, self.actor(state), sampler)

    def update(self, state: State, data: Rollout) -> tuple[State, Metrics]:
        """The value's passes over fixed targets, then the policy's step on all of the batch."""
        return learn(self.config, self.networks, state, family.sequences_of(state, data))

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy."""
        return family.policy_actor(self.networks, state, deterministic=deterministic)


class Settings(FitSettings, family.Settings, Protocol):
    """Settings of TRPO and of RL2 with TRPO."""

    @property
    def trust_region(self) -> TrustRegion:
        """The policy's step."""


def value_optimizer(config: Settings, params: PyTree) -> PyTree:
    """The optimizers' state before training: the value's alone, for the policy has none."""
    return {"value": optimizer(config).init(part_of(params, "value"))}


def learn(
    config: Settings,
    network: Any,
    state: State,
    sequences: Sequences,
    entropy_coeff: float | jax.Array = 0.0,
    entropy: family.Entropy = family.plain_entropy,
) -> tuple[State, Metrics]:
    """The value's fit, then the policy's step on all of the batch; and figures.

    The policy sees whole sequences, whatever `num_bptt_steps` cuts for the value: from the middle
    of one, with what an old policy remembered, its KL would not be that of the policy that acts.
    """
    acted = state.params
    state, batch, value_figures = family.fit_critic(
        config, config, network, state, sequences, pieces=False
    )
    params, figures = policy_step(
        config.trust_region, network, state.params, batch, entropy_coeff, entropy
    )
    figures = family.with_kl_of_all(network, acted, params, batch, figures)
    state = replace(state, params=params, num_passes=state.num_passes + config.num_epochs)
    return family.with_obs_moments(state, sequences), figures | value_figures


def policy_step(
    settings: TrustRegion,
    network: Any,
    params: PyTree,
    batch: Batch,
    entropy_coeff: float | jax.Array = 0.0,
    entropy: family.Entropy = family.plain_entropy,
) -> tuple[PyTree, Metrics]:
    """The policy down -E[rho A] - entropy_coeff H, within a bound on the mean KL(old || new)."""

    def policy(policy_params: PyTree) -> Distribution:
        return batch.outputs(network, with_part(params, policy_params))[0]

    def mean_kl(after: Distribution) -> jax.Array:
        return masked_mean(before.kl(after), batch.valid)

    def objective(policy_params: PyTree) -> tuple[jax.Array, jax.Array]:
        after = policy(policy_params)
        log_prob = after.log_prob(batch.action)
        terms = likelihood_ratio_loss(log_prob, batch.log_prob, batch.advantage, batch.valid)
        bonus = masked_mean(entropy(after, batch.action), batch.valid)
        return masked_mean(terms, batch.valid) - entropy_coeff * bonus, mean_kl(after)

    old = part_of(params, "policy")
    before = jax.lax.stop_gradient(policy(old))
    new, figures = trust_region_step(objective, old, settings, Divergence(policy, mean_kl))
    figures["entropy"] = masked_mean(entropy(policy(new), batch.action), batch.valid)
    return with_part(params, new), figures
