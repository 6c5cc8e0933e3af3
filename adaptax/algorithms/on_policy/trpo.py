"""TRPO: the natural gradient, as far as a bound on the KL allows; the value learns by itself.

Schulman et al. 2015, "Trust region policy optimization" (arXiv 1502.05477), with generalised
advantage estimation (Schulman et al. 2016, arXiv 1506.02438).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import jax

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.on_policy.family import (
    OnPolicyConfig,
    State,
    critic_of,
    episodic_actor,
    fresh_state,
    iterate,
    network_of,
    prepare,
    reset_state,
)
from adaptax.core.config import check_positive
from adaptax.core.experience import PyTree, Rollout
from adaptax.core.spec import EnvSpec
from adaptax.functional.masking import masked_mean
from adaptax.functional.policy_losses import likelihood_ratio_loss
from adaptax.functional.trust_region import TrustRegion, trust_region_step
from adaptax.learning.minibatches import Figures, optimizer
from adaptax.learning.sequences import Batch
from adaptax.networks.actor_critic import ActorCritic
from adaptax.sampling.actors import Actor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class TRPOConfig(OnPolicyConfig):
    """TRPO; the settings of an optimizer, `lr` for example, are the value's: the policy has none.

    Defaults of the policy's step are garage's (conformance 2.7 and 7.2), those of the value's fit
    Pyrado's (4.4).
    """

    gae_lambda: float = 0.98
    num_epochs: int = 10
    """Passes of the value over the data of an iteration."""
    batch_size: int = 64
    """Steps of a minibatch of the value; the policy takes all at once."""
    monte_carlo_returns: bool = False
    """Whether the value learns Monte-Carlo returns rather than lambda-returns."""
    advantage_from: Literal["old", "new"] = "old"
    """Whether advantages are those of the value before its fit, or after."""
    trust_region: TrustRegion = field(default_factory=TrustRegion)
    """The policy's step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_epochs", "batch_size")


class TRPO(Algorithm):
    """Trust region policy optimization."""

    name = "trpo"
    config: TRPOConfig

    def __init__(self, config: TRPOConfig, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        config.check_batch_size("batch_size", config.batch_size, spec)
        self.network = network_of(config, spec)

    def init(self, key: jax.Array) -> State:
        """Fresh parameters."""
        return fresh_state(self.config, self.network, self.spec, key, self._init_optimizer)

    def reset(self, state: State) -> State:
        """What was learned, with a fresh optimizer and the first exploration."""
        return reset_state(self.config, state, self._init_optimizer)

    def iteration(self, state: State, sampler: Sampler) -> tuple[State, Metrics]:
        """Collect, fit the value, and take one step with the policy."""
        return iterate(self.config, self.network, state, sampler, _update)

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy."""
        return episodic_actor(self.network, state, deterministic)

    def _init_optimizer(self, params: PyTree) -> PyTree:
        return optimizer(self.config).init(params["value"])


def objective(
    network: ActorCritic, old: PyTree, batch: Batch, params: PyTree
) -> tuple[jax.Array, jax.Array]:
    """-E[rho A], rho the joint ratio, and the mean KL(old || new)."""
    inputs = (batch.obs, batch.memory, batch.reset)
    before = network.distribution(jax.lax.stop_gradient(old), *inputs)
    after = network.distribution(params, *inputs)
    terms = likelihood_ratio_loss(after.log_prob(batch.action), batch.log_prob, batch.advantage)
    loss = masked_mean(terms, batch.valid)
    return loss, masked_mean(before.kl(after), batch.valid)


@partial(jax.jit, static_argnums=(0, 1))
def _update(
    config: TRPOConfig, network: ActorCritic, state: State, rollout: Rollout
) -> tuple[State, Figures]:
    """The value's passes over fixed targets, then the policy's step on all batch."""
    sequences, moments = prepare(state, rollout)
    key, value_key = jax.random.split(state.key)
    (value, opt_state), moments, batch, value_figures = critic_of(config, network).update(
        config, (state.params["value"], state.opt_state), moments, sequences, value_key
    )
    old = {"policy": state.params["policy"]}
    new, figures = trust_region_step(
        partial(objective, network, old, batch), old, config.trust_region
    )
    entropy = network.distribution(new, batch.obs, batch.memory, batch.reset).entropy()
    figures |= value_figures | {"entropy": masked_mean(entropy, batch.valid)}
    return State({**new, "value": value}, opt_state, moments, key), figures
