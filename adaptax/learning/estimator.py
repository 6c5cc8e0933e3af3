"""The estimator: what a value function says of experience, and how it is fitted to it.

Generalised advantage estimation (Schulman et al. 2016, arXiv 1506.02438).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp

from adaptax.core.experience import PyTree
from adaptax.functional.masking import masked_mean, masked_shift_positive, masked_standardize
from adaptax.functional.returns import discounted_returns, gae
from adaptax.functional.value_losses import explained_variance, squared_value_loss
from adaptax.learning.minibatches import Metrics, Passes, run_passes
from adaptax.learning.sequences import Batch, Sequences
from adaptax.networks.actor_critic import has_memory, with_part
from adaptax.networks.normalizer import EPSILON, Moments, restored, standardized, updated_moments

Scales = dict[str, Moments]
"""Running moments by what they are of: `return` (values are learned in its units) and `advantage`
(it is standardised by all so far, not by its batch); each is there only if it is in use."""
Normalization = Literal["none", "batch", "sequence", "running"]
"""Whose moments advantages are standardised by: nobody's, those of the whole batch, of each
sequence (where small rewards then count as large ones), or of all so far."""

Values = Callable[[Any, PyTree, Sequences], tuple[jax.Array, jax.Array]]
"""(network, parameters, sequences) -> values [B, T] of each observation and of its successor."""


class EstimatorSettings(Protocol):
    """Settings of advantages and of what a value learns."""

    @property
    def discount(self) -> float:
        """Factor on a reward for every step that it is away."""

    @property
    def gae_lambda(self) -> float:
        """Factor on the errors of later values."""

    @property
    def normalize_advantage(self) -> Normalization:
        """Whose moments the policy's advantages are standardised by."""

    @property
    def positive_advantage(self) -> bool:
        """Whether they are then shifted so that the smallest is just above 0."""


class FitSettings(Passes, Protocol):
    """Settings of how a value with an optimizer of its own is fitted."""

    @property
    def monte_carlo_returns(self) -> bool:
        """Whether targets are Monte-Carlo returns rather than lambda-returns."""

    @property
    def advantage_from(self) -> Literal["old", "new"]:
        """Whether advantages are those of the value before its fit, or after."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Estimate:
    """What a value function says of sequences, all [B, T]."""

    value: jax.Array
    """What `values` gave; the value itself, unless there are moments of returns."""
    advantage: jax.Array
    """Raw: in units of reward, never standardised."""
    target: jax.Array
    """What the network's output is fitted to."""


def network_values(
    network: Any, params: PyTree, sequences: Sequences
) -> tuple[jax.Array, jax.Array]:
    """The network's values [B, T] of every observation, and of what is seen after every step.

    With a memory, what is seen after a step is valued with what was remembered after it, but not
    across an episode's end. A trial is run as one sequence, one step longer; episodes in a row are
    run step by step, since a memory need not give its state in the middle of a sequence.
    """
    s = sequences
    if not has_memory(network):
        memory = network.initial(s.valid.shape)
        return tuple(network.apply(params, memory, x)[1][1] for x in (s.obs, s.next_obs))

    if s.trials:
        seen = jnp.concatenate([s.obs[:, :1], s.next_obs], axis=1)
        _, (_, value) = network.apply(params, s.memory, seen, method="sequence")
        return value[:, :-1], value[:, 1:]

    def step(memory: PyTree, x: tuple[jax.Array, ...]) -> tuple[PyTree, tuple[jax.Array, ...]]:
        obs, next_obs, reset = x
        memory, (_, value) = network.apply(params, memory, obs, reset)
        _, (_, next_value) = network.apply(params, memory, next_obs)
        return memory, (value, next_value)

    along = tuple(jnp.moveaxis(x, 1, 0) for x in (s.obs, s.next_obs, s.reset))
    _, (value, next_value) = jax.lax.scan(step, s.memory, along)
    return jnp.moveaxis(value, 0, 1), jnp.moveaxis(next_value, 0, 1)


def estimate(
    settings: EstimatorSettings,
    network: Any,
    params: PyTree,
    scales: Scales,
    sequences: Sequences,
    *,
    monte_carlo: bool = False,
    values: Values = network_values,
) -> tuple[Estimate, Scales]:
    """Values, raw advantages and targets; and the moments with these returns among them.

    `values`: where values come from, the network's output if nobody says otherwise.
    `monte_carlo`: targets are Monte-Carlo returns that bootstrap where a rollout or a time limit
    cuts them, instead of lambda-returns.
    """
    output, next_output = values(network, params, sequences)
    value, next_value = output, next_output
    if "return" in scales:
        value, next_value = (restored(x, scales["return"]) for x in (output, next_output))
    s, discount = sequences, settings.discount
    ends = {"terminated": s.terminated, "truncated": s.truncated, "valid": s.valid}
    advantage = gae(
        s.reward, value, next_value, **ends, discount=discount, gae_lambda=settings.gae_lambda
    )
    target = advantage + value
    if monte_carlo:
        target = discounted_returns(s.reward, next_value, **ends, discount=discount)
    if "return" in scales:
        scales = _with(scales, "return", target, s.valid)
        target = standardized(target, scales["return"])
    return Estimate(output, advantage, target), scales


def policy_advantage(
    settings: EstimatorSettings, advantage: jax.Array, valid: jax.Array, scales: Scales
) -> tuple[jax.Array, Scales]:
    """Advantages [B, T] as the policy's loss takes them; and the moments with these among them."""
    normalization = settings.normalize_advantage
    if normalization == "running":
        scales = _with(scales, "advantage", advantage, valid)
        advantage = jnp.where(valid, standardized(advantage, scales["advantage"]), 0.0)
    elif normalization == "batch":
        advantage = masked_standardize(advantage, valid)
    elif normalization == "sequence":
        advantage = jax.vmap(masked_standardize)(advantage, valid)
    elif "return" in scales:
        advantage = advantage / jnp.sqrt(scales["return"]["variance"] + EPSILON)
    if settings.positive_advantage:
        advantage = masked_shift_positive(advantage, valid)
    return advantage, scales


def fit_value(
    settings: FitSettings,
    network: Any,
    params: PyTree,
    start: tuple[PyTree, PyTree],
    batch: Batch,
    key: jax.Array,
) -> tuple[tuple[PyTree, PyTree], Metrics]:
    """Passes over shuffled minibatches of the value's squared error from the batch's targets.

    `start` is (the value's part of the parameters, optimizer's state), and so is the result.
    """

    def output(value_params: PyTree, minibatch: Batch) -> jax.Array:
        return minibatch.outputs(network, with_part(params, value_params))[1]

    def loss(value_params: PyTree, minibatch: Batch) -> tuple[jax.Array, Metrics]:
        terms = squared_value_loss(output(value_params, minibatch), minibatch.target)
        mean = 2 * masked_mean(terms, minibatch.valid)
        return mean, {"value_loss": mean}

    end, figures = run_passes(settings, loss, start, batch, key)
    return end, {
        "value_loss": figures["value_loss"],
        "value_grad_norm": figures["grad_norm"],
        "explained_variance": explained_variance(output(end[0], batch), batch.target, batch.valid),
    }


def _with(scales: Scales, name: str, x: jax.Array, valid: jax.Array) -> Scales:
    """The moments with the numbers x [B, T] among them."""
    return {**scales, name: updated_moments(scales[name], x[..., None], valid)}
