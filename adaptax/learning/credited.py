"""Rollouts as policy-gradient objectives take them: every action with the credit that it gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp

from adaptax.core.experience import Array, Rollout, select
from adaptax.learning.processors import (
    DiceSamples,
    ProcessorConfig,
    TaskSamples,
    process_dice_samples,
    process_samples,
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Samples:
    """Whole episodes on M tasks as objectives take them; zero where not valid."""

    obs: jax.Array
    """[M, N, T, O]"""
    action: jax.Array
    log_prob: jax.Array
    """[M, N, T], of the policy that acted."""
    credit: jax.Array
    """[M, N, T]: what an action is weighted by: its advantage, or DiCE's adjusted reward.

    The latter goes on after an episode's end; it is 0 in lanes without one.
    """
    adj_avg_rewards: jax.Array
    """[M, N, T]: rewards standardised over all tasks."""
    valid: jax.Array


def credited(
    config: ProcessorConfig, horizon: int, history: Sequence[Rollout], *, dice: bool
) -> Samples:
    """The last rollout of `history` with every action's credit, task by task.

    Credit is the advantage over a baseline or, with `dice`, the adjusted reward; then every episode
    has a lane of its own. With `baseline_fit="previous"` the baseline is fitted to the rollout
    before the last one.
    """
    needed = history[-2:] if config.baseline_fit == "previous" else history[-1:]
    return _credited(config, horizon, dice, [rollout.steps for rollout in needed])


@partial(jax.jit, static_argnums=(1, 2))
def _credited(config: ProcessorConfig, horizon: int, dice: bool, history: list[Rollout]) -> Samples:
    weights = None
    for rollout in history:
        processed = _processed(config, horizon, rollout, weights, dice)
        weights = processed.weights
    if isinstance(processed, DiceSamples):
        rollout, credit = processed.paths, processed.adjusted_reward
    else:
        credit = processed.advantage
    samples = Samples(
        obs=rollout.obs,
        action=rollout.action,
        log_prob=rollout.extras["log_prob"],
        credit=credit,
        adj_avg_rewards=processed.adj_avg_rewards,
        valid=rollout.valid,
    )
    zeros = jax.tree.map(jnp.zeros_like, samples)
    clean: Samples = select(samples.valid, samples, zeros)
    return replace(clean, credit=credit)


def _processed(
    config: ProcessorConfig,
    horizon: int,
    rollout: Rollout,
    weights: Array | None,
    dice: bool,
) -> TaskSamples | DiceSamples:
    if dice:
        return process_dice_samples(rollout, config, horizon, weights)
    return process_samples(rollout, config, weights)
