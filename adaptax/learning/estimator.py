"""The estimator: what a value function says of experience, and how it learns from it.

Generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438) with a value network that
has an optimizer of its own (`GAE.update`) or shares the policy's (`GAE.estimate` only).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import jax
import jax.numpy as jnp

from adaptax.core.config import check_positive, check_unit
from adaptax.core.experience import PyTree
from adaptax.functional.masking import masked_mean, masked_standardize
from adaptax.functional.returns import discounted_returns, gae
from adaptax.functional.value_losses import explained_variance, squared_value_loss
from adaptax.learning.minibatches import Figures, Schedule
from adaptax.learning.sequences import Batch, Descent, Passes, Sequences, as_batch
from adaptax.networks.actor_critic import Value
from adaptax.networks.normalizer import (
    EPSILON,
    Moments,
    restored,
    standardized,
    updated_moments,
)

Scales = dict[str, Moments]
"""Running moments by what they are of: `return` (values are learned in its units) and `advantage`
(it is standardised by all seen, not by its batch); each is there only if it is in use."""


class Fit(Descent, Protocol):
    """Settings of how a value function with an optimizer of its own is fitted."""

    @property
    def monte_carlo_returns(self) -> bool:
        """Whether targets are Monte-Carlo returns rather than lambda-returns."""

    @property
    def advantage_from(self) -> Literal["old", "new"]:
        """Whether advantages are those of the value before its fit, or after."""


@dataclass(frozen=True)
class CriticConfig:
    """Pyrado's settings of a value function with an optimizer of its own (conformance 4.4)."""

    num_epochs: int = 10
    """Passes over the data of an iteration."""
    batch_size: int = 64
    """Steps of a minibatch."""
    lr: float = 5e-4
    """Adam's step size."""
    lr_schedule: Schedule = "constant"
    """How the step size falls, from pass to pass."""
    lr_schedule_steps: int = 1000
    """Passes until a linear schedule is at 0, an exponential one at a tenth."""
    max_grad_norm: float | None = None
    monte_carlo_returns: bool = False
    """Whether targets are Monte-Carlo returns rather than lambda-returns."""
    advantage_from: Literal["old", "new"] = "old"
    """Whether advantages are those of the value before its fit, or after (the original's)."""

    def __post_init__(self) -> None:
        check_positive(self, "num_epochs", "batch_size", "lr", "lr_schedule_steps")
        check_positive(self, "max_grad_norm")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Estimate:
    """What a value function says of sequences, all [B, T]."""

    value: jax.Array
    """The network's output; the value itself, unless there are moments of returns."""
    advantage: jax.Array
    """Raw: in units of reward, never standardised."""
    target: jax.Array
    """What the network's output should have been."""


@dataclass(frozen=True)
class GAE:
    """A value network, and how advantages and targets come from it."""

    network: Value
    discount: float = 0.99
    gae_lambda: float = 0.95
    standardize_adv: bool = True
    """Whether `policy_advantage` standardises."""
    whole_sequences: bool = False
    """Whether minibatches are of whole sequences; a network with memory needs that."""

    def __post_init__(self) -> None:
        check_unit(self, "discount", "gae_lambda")

    def values(self, params: PyTree, sequences: Sequences) -> tuple[jax.Array, jax.Array]:
        """The network's output [B, T] for every observation and for every next one.

        With memory, the next observation is seen with what was remembered after the step, across
        no boundary.
        """
        s = sequences
        if not s.memory:
            return self.network.apply(params, s.obs)[0], self.network.apply(params, s.next_obs)[0]
        value, states = self.network.apply(params, s.obs, s.memory["value"], s.reset)
        following, _ = self.network.apply(params, s.next_obs[..., None, :], states)
        return value, following[..., 0]

    def output(self, params: PyTree, batch: Batch) -> jax.Array:
        """The network's output for every step of a batch."""
        memory = batch.memory.get("value")
        return self.network.apply(params, batch.obs, memory, batch.reset)[0]

    def explained_variance(self, params: PyTree, batch: Batch) -> jax.Array:
        """Share of the targets' variance that the network explains."""
        return explained_variance(self.output(params, batch), batch.target, batch.valid)

    def lambda_returns(self, advantage: jax.Array, value: jax.Array) -> jax.Array:
        """A + V [B, T] with raw advantages."""
        return advantage + value

    def estimate(
        self, params: PyTree, scales: Scales, sequences: Sequences, *, empirical: bool = False
    ) -> tuple[Estimate, Scales]:
        """Values, raw advantages and targets; and the moments with these returns seen.

        `empirical`: targets are Monte-Carlo returns that bootstrap where a rollout or a time limit
        cuts them, instead of lambda-returns.
        """
        output, next_output = self.values(params, sequences)
        value, next_value = output, next_output
        if "return" in scales:
            value, next_value = (restored(x, scales["return"]) for x in (output, next_output))
        s = sequences
        ends = {"terminated": s.terminated, "truncated": s.truncated, "valid": s.valid}
        advantage = gae(
            s.reward,
            value,
            next_value,
            **ends,
            discount=self.discount,
            gae_lambda=self.gae_lambda,
        )
        target = self.lambda_returns(advantage, value)
        if empirical:
            target = discounted_returns(s.reward, next_value, **ends, discount=self.discount)
        if "return" in scales:
            scales = _with(scales, "return", target, s.valid)
            target = standardized(target, scales["return"])
        return Estimate(output, advantage, target), scales

    def policy_advantage(
        self, advantage: jax.Array, valid: jax.Array, scales: Scales
    ) -> tuple[jax.Array, Scales]:
        """Advantages [B, T] as the policy's loss takes them; and the moments with these seen."""
        if "advantage" in scales:
            scales = _with(scales, "advantage", advantage, valid)
            return jnp.where(valid, standardized(advantage, scales["advantage"]), 0.0), scales
        if self.standardize_adv:
            return masked_standardize(advantage, valid), scales
        if "return" in scales:
            return advantage / jnp.sqrt(scales["return"]["variance"] + EPSILON), scales
        return advantage, scales

    def batch(self, sequences: Sequences, estimate: Estimate, advantage: jax.Array) -> Batch:
        """What is learned from, with the advantages that the policy takes."""
        whole = self.whole_sequences
        return as_batch(sequences, advantage, estimate.value, estimate.target, whole=whole)

    def update(
        self,
        config: Fit,
        start: tuple[PyTree, PyTree],
        scales: Scales,
        sequences: Sequences,
        key: jax.Array,
    ) -> tuple[tuple[PyTree, PyTree], Scales, Batch, Figures]:
        """Fit the value to targets that stay fixed over all passes.

        Of (parameters, optimizer's state) before, gives those after, and the batch that the
        policy learns from; `key` shuffles.
        """
        estimate, scales = self.estimate(
            start[0], scales, sequences, empirical=config.monte_carlo_returns
        )
        batch = self.batch(sequences, estimate, estimate.advantage)
        end, figures = self._fit(config, start, batch, key)
        raw = estimate.advantage
        if config.advantage_from == "new":
            raw = self.estimate(end[0], scales, sequences)[0].advantage
        advantage, scales = self.policy_advantage(raw, sequences.valid, scales)
        return end, scales, self.batch(sequences, estimate, advantage), figures

    def _fit(
        self, config: Fit, start: tuple[PyTree, PyTree], batch: Batch, key: jax.Array
    ) -> tuple[tuple[PyTree, PyTree], Figures]:
        """Passes over shuffled minibatches of the squared error."""

        def loss(params: PyTree, part: Batch) -> tuple[jax.Array, Figures]:
            terms = squared_value_loss(self.output(params, part), part.target)
            mean = 2 * masked_mean(terms, part.valid)
            return mean, {"value_loss": mean}

        end, figures = Passes(config, loss).run(start, batch, key)
        return end, {
            "value_loss": figures["value_loss"],
            "value_grad_norm": figures["grad_norm"],
            "explained_variance": self.explained_variance(end[0], batch),
        }


def _with(scales: Scales, name: str, x: jax.Array, valid: jax.Array) -> Scales:
    """The moments with the numbers x [B, T] seen too."""
    return {**scales, name: updated_moments(scales[name], x[..., None], valid)}
