"""A2C: the policy gradient with a learned value, all of it one loss and one optimizer.

Mnih et al. 2016, "Asynchronous methods for deep reinforcement learning" (arXiv 1602.01783), in its
synchronous form: one pass over the data of an iteration.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import flax.linen as nn
import jax
import optax

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.on_policy import family
from adaptax.algorithms.on_policy.family import OnPolicyConfig, State
from adaptax.core.config import check_not_negative
from adaptax.core.experience import PyTree, Rollout
from adaptax.core.spec import EnvSpec
from adaptax.functional.masking import masked_mean
from adaptax.functional.policy_losses import policy_gradient_loss
from adaptax.functional.value_losses import squared_value_loss
from adaptax.learning.minibatches import optimizer
from adaptax.learning.sequences import Batch
from adaptax.sampling.actors import Actor
from adaptax.sampling.sampler import Sampler

RMSPROP = partial(optax.rmsprop, decay=0.99, eps=1e-5, eps_in_sqrt=False)
"""RMSprop as PyTorch has it, which Pyrado and Stable-Baselines3 use."""


@dataclass(frozen=True)
class A2CConfig(OnPolicyConfig):
    """A2C; where the defaults come from: docs/defaults.md."""

    num_steps: int = 128
    """Environment steps of an iteration in all lanes, equally many in each; they go on where the
    last iteration stopped."""
    lr: float = 2e-3
    """Step size of the gradient optimizer."""
    init_std: float = field(default=1.0, metadata={"static": True})
    """Standard deviation of the first policy's actions."""
    max_grad_norm: float | None = 0.5
    """Bound on the norm of the gradient (Stable-Baselines3)."""
    value_coeff: float = 0.5
    """Weight of the value's loss, which is half the squared error."""
    entropy_coeff: float = 1e-3
    """Weight of the policy's entropy."""
    num_minibatches: int = 1
    """Parts of the pass over the data of an iteration: one, since the gradient is of the policy
    that acted (Mnih et al. 2016)."""
    num_epochs: ClassVar[int] = 1
    """Passes over the data of an iteration."""
    monte_carlo_returns: bool = False
    """Whether the value learns Monte-Carlo returns rather than lambda-returns."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self, "value_coeff", "entropy_coeff")


class A2C(Algorithm[State, Rollout]):
    """Advantage actor-critic; `networks` is as `family.networks_for` says."""

    name = "a2c"
    config: A2CConfig
    collects_in_program = True
    finite_metrics = ("loss_before", "kl")

    def __init__(self, config: A2CConfig, spec: EnvSpec, networks: nn.Module | None = None) -> None:
        super().__init__(config, spec)
        config.check_minibatches("num_minibatches", config.num_minibatches, spec)
        self.networks = family.networks_for(config, spec, networks)

    def init(self, key: jax.Array) -> State:
        """Fresh parameters."""
        step = optimizer(self.config, make=RMSPROP)
        return family.fresh_state(self.config, self.networks, self.spec, key, step.init)

    def collect(self, state: State, sampler: Sampler) -> Rollout:
        """Steps in every lane, or whole episodes."""
        return family.collect(self.config, self.actor(state), sampler)

    def update(self, state: State, data: Rollout) -> tuple[State, Metrics]:
        """One pass over shuffled minibatches."""
        loss_of = partial(loss, self.config, self.networks)
        sequences = family.sequences_of(state, data)
        after, batch, figures = family.learn_jointly(
            self.config, self.networks, state, sequences, loss_of, make=RMSPROP
        )
        more = family.changes(self.networks, state.params, after.params, batch, loss_of)
        return after, figures | more

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy."""
        return family.policy_actor(self.networks, state, deterministic=deterministic)


def loss(
    config: A2CConfig, network: Any, params: PyTree, batch: Batch
) -> tuple[jax.Array, Metrics]:
    """-E[A log pi] + value_coeff E[(y - V)^2] / 2 - entropy_coeff H, and its terms."""
    distribution, value = batch.outputs(network, params)
    terms = {
        "policy_loss": policy_gradient_loss(distribution.log_prob(batch.action), batch.advantage),
        "value_loss": squared_value_loss(value, batch.target),
        "entropy": distribution.entropy(),
    }
    means = {name: masked_mean(x, batch.valid) for name, x in terms.items()}
    total = means["policy_loss"] + config.value_coeff * means["value_loss"]
    return total - config.entropy_coeff * means["entropy"], means
