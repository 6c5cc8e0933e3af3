"""A2C: the policy gradient with a learned value, all of it one loss and one optimizer.

Mnih et al. 2016, "Asynchronous methods for deep reinforcement learning" (arXiv 1602.01783), in its
synchronous form: one pass over the data of an iteration.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import jax
import optax

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.on_policy.family import (
    OnPolicyConfig,
    State,
    check_not_negative,
    critic_of,
    episodic_actor,
    fresh_state,
    iterate,
    learn_jointly,
    network_of,
    reset_state,
)
from adaptax.core.config import check_positive
from adaptax.core.experience import PyTree, Rollout
from adaptax.core.spec import EnvSpec
from adaptax.functional.masking import masked_mean
from adaptax.functional.policy_losses import policy_gradient_loss
from adaptax.functional.value_losses import squared_value_loss
from adaptax.learning.minibatches import Figures, optimizer
from adaptax.learning.sequences import Batch, Passes
from adaptax.networks.actor_critic import ActorCritic
from adaptax.sampling.actors import Actor
from adaptax.sampling.sampler import Sampler

AS_IN_TORCH = partial(optax.rmsprop, decay=0.99, eps=1e-5, eps_in_sqrt=False)
"""RMSprop as PyTorch has it, which Pyrado and Stable-Baselines3 use."""


@dataclass(frozen=True)
class A2CConfig(OnPolicyConfig):
    """A2C; defaults are Pyrado's (conformance 4.3) where no other source is named."""

    value_coeff: float = 0.5
    """Weight of the value's loss, which is half the squared error."""
    entropy_coeff: float = 1e-3
    """Weight of the policy's entropy."""
    batch_size: int = 32
    """Steps of a minibatch."""
    num_epochs: ClassVar[int] = 1
    """Passes over the data of an iteration."""
    monte_carlo_returns: bool = True
    """Whether the value learns Monte-Carlo returns rather than lambda-returns."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "batch_size")
        check_not_negative(self, "value_coeff", "entropy_coeff")


class A2C(Algorithm):
    """Advantage actor-critic."""

    name = "a2c"
    config: A2CConfig

    def __init__(self, config: A2CConfig, spec: EnvSpec) -> None:
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
        """Collect and make one pass."""
        return iterate(self.config, self.network, state, sampler, _update)

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy."""
        return episodic_actor(self.network, state, deterministic)

    def _init_optimizer(self, params: PyTree) -> PyTree:
        return optimizer(self.config, make=AS_IN_TORCH).init(params)


def loss(
    config: A2CConfig, network: ActorCritic, params: PyTree, part: Batch
) -> tuple[jax.Array, Figures]:
    """-E[A log pi] + value_coeff E[(y - V)^2] / 2 - entropy_coeff H, and its terms."""
    distribution = network.distribution(params, part.obs, part.memory, part.reset)
    value = critic_of(config, network).output(params["value"], part)
    terms = {
        "policy_loss": policy_gradient_loss(distribution.log_prob(part.action), part.advantage),
        "value_loss": squared_value_loss(value, part.target),
        "entropy": distribution.entropy(),
    }
    means = {name: masked_mean(x, part.valid) for name, x in terms.items()}
    total = means["policy_loss"] + config.value_coeff * means["value_loss"]
    return total - config.entropy_coeff * means["entropy"], means


@partial(jax.jit, static_argnums=(0, 1))
def _update(
    config: A2CConfig, network: ActorCritic, state: State, rollout: Rollout
) -> tuple[State, Figures]:
    """One pass over shuffled minibatches."""
    passes = Passes(config, partial(loss, config, network), AS_IN_TORCH)
    empirical = config.monte_carlo_returns
    return learn_jointly(config, network, state, rollout, passes, empirical=empirical)
