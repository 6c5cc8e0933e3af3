"""Rollouts as policy-gradient objectives see them: every action with the credit that it gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from adaptax.core.experience import Rollout, select
from adaptax.learning.processors import (
    Features,
    ProcessorConfig,
    process_dice_samples,
    process_samples,
)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Samples:
    """Whole episodes on M tasks as objectives see them; zero where not valid."""

    obs: jax.Array
    """[M, N, T, O]"""
    action: jax.Array
    log_prob: jax.Array
    """[M, N, T], of the policy that acted."""
    credit: jax.Array
    """[M, N, T]: what an action is weighted by: its advantage, or DiCE's adjusted reward."""
    adj_avg_rewards: jax.Array
    """[M, N, T]: rewards standardised over all tasks."""
    valid: jax.Array


def credited(
    config: ProcessorConfig,
    features: Features,
    max_path_length: int,
    history: Sequence[Rollout],
    *,
    dice: bool,
) -> Samples:
    """The last rollout of `history`, judged task by task on the host.

    Credit is the advantage over a baseline of `features` or, with `dice`, the adjusted reward; then
    every episode has a lane of its own. With `fit="previous"` baselines are those of the rollout
    before the last one.
    """
    rollout = history[-1]
    earlier = history[-2] if config.fit == "previous" and len(history) > 1 else None
    if dice:
        judge = partial(process_dice_samples, max_path_length=max_path_length, config=config)
        weights = None if earlier is None else judge(earlier).weights
        paths = judge(rollout, weights=weights)
        credit, standardized, rollout = paths.adjusted_reward, paths.adj_avg_rewards, paths.paths
    else:
        weights = None if earlier is None else process_samples(earlier, config, features).weights
        estimated = process_samples(rollout, config, features, weights)
        credit, standardized = estimated.advantage, estimated.adj_avg_rewards
    return _without_padding(
        Samples(
            obs=rollout.obs,
            action=rollout.action,
            log_prob=rollout.extras["log_prob"],
            credit=credit,
            adj_avg_rewards=standardized,
            valid=rollout.valid,
        )
    )


@jax.jit
def _without_padding(samples: Samples) -> Samples:
    zeros = jax.tree.map(jnp.zeros_like, samples)
    clean: Samples = select(samples.valid, samples, zeros)
    return clean
