"""Critics: where values of experience come from, and what the value's part of a network learns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from adaptax.core.errors import check
from adaptax.core.experience import PyTree
from adaptax.core.precision import in_64_bits
from adaptax.functional.returns import discounted_returns
from adaptax.functional.two_hot import two_hot_loss, two_hot_value
from adaptax.functional.value_losses import clipped_value_loss, squared_value_loss
from adaptax.learning.baselines import fit_baseline, linear_features, predict_baseline
from adaptax.learning.estimator import network_values
from adaptax.learning.sequences import Batch, Sequences


class ValueSource(Protocol):
    """Where values come from, and the loss of the network's value output."""

    def values(
        self, network: Any, params: PyTree, sequences: Sequences
    ) -> tuple[jax.Array, jax.Array]:
        """Values [B, T] of every observation, and of what is seen after every step."""

    def errors(self, output: jax.Array, batch: Batch) -> jax.Array:
        """The loss at each step, axes those of `batch.valid`, of what the network says there."""


@dataclass(frozen=True)
class ValueNetwork:
    """The network's output is the value, and learns by its squared error."""

    clip_range: float | None = None
    """How far from the old value a new one counts, as in PPO2; None: however far."""

    def values(
        self, network: Any, params: PyTree, sequences: Sequences
    ) -> tuple[jax.Array, jax.Array]:
        """What the network says."""
        return network_values(network, params, sequences)

    def errors(self, output: jax.Array, batch: Batch) -> jax.Array:
        """Half the squared error from the target, clipped or not."""
        if self.clip_range is None:
            return squared_value_loss(output, batch.target)
        return clipped_value_loss(output, batch.value, batch.target, self.clip_range)


@dataclass(frozen=True)
class TwoHotNetwork:
    """The network gives logits of a distribution over bins of values."""

    bins: jax.Array
    """[K] as `symlog_bins` has them."""

    def values(
        self, network: Any, params: PyTree, sequences: Sequences
    ) -> tuple[jax.Array, jax.Array]:
        """The values that the network's logits stand for."""
        value, next_value = (
            two_hot_value(self._logits(x, sequences.valid), self.bins)
            for x in network_values(network, params, sequences)
        )
        return value, next_value

    def errors(self, output: jax.Array, batch: Batch) -> jax.Array:
        """Cross-entropies in nats from the two-hot of the target."""
        return two_hot_loss(output, batch.target, self.bins)

    def _logits(self, output: jax.Array, valid: jax.Array) -> jax.Array:
        expected = (*valid.shape, len(self.bins))
        told = f"critic 'two_hot' needs networks that give {len(self.bins)} logits for a value"
        check(output.shape == expected, f"{told}: {list(expected)}, not {list(output.shape)}")
        return output


@dataclass(frozen=True)
class LinearBaseline:
    """A linear fit to the returns of all trials at once, in place of a network.

    It is fitted to the Monte-Carlo returns of an iteration's trials and evaluated on the same
    trials; returns end with the trial, or where it is cut. Features are those of the MAML family's
    baselines, of what the agent sees and of the time in the trial, in units of the longest trial,
    since powers of thousands of steps are badly conditioned.
    """

    discount: float

    def values(
        self, network: Any, params: PyTree, sequences: Sequences
    ) -> tuple[jax.Array, jax.Array]:
        """What the fit says, whatever the network does."""
        s = sequences
        ends = {"terminated": s.terminated, "truncated": s.truncated, "valid": s.valid}
        seen = jnp.concatenate([s.obs[:, :1], s.next_obs], axis=1)
        value = in_64_bits(_fitted, self.discount, seen, s.reward, ends).astype(s.reward.dtype)
        return value[:, :-1], value[:, 1:]

    def errors(self, output: jax.Array, batch: Batch) -> jax.Array:
        """Half the squared error of the fit, for the log; no gradient reaches the network."""
        return squared_value_loss(batch.value, batch.target)


def _fitted(
    discount: float, seen: jax.Array, reward: jax.Array, ends: dict[str, jax.Array]
) -> jax.Array:
    """Values [B, T + 1] of what is seen before and after every step of B trials."""
    valid, length = ends["valid"], reward.shape[1]
    returns = discounted_returns(reward, jnp.zeros_like(reward), discount=discount, **ends)
    known = jnp.concatenate([valid[:, :1], valid], axis=1)
    time = jnp.broadcast_to(jnp.arange(length + 1), known.shape)
    features = linear_features(seen, time, known, time_scale=length)
    before = jnp.where(valid[..., None], features[:, :-1], 0.0)
    weights = fit_baseline(before[None], returns[None], valid[None])
    return predict_baseline(features[None], weights)[0]
