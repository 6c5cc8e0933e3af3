"""A buffer of whole trials to learn from many times: a replay with a ring for each of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from adaptax.core.experience import Rollout, Transitions
from adaptax.core.spec import EnvSpec
from adaptax.learning.context import bare
from adaptax.learning.replay import Replay, ReplayConfig, add, clear, make_replay, read


def make_trials(
    num: int, length: int, spec: EnvSpec, discount: float, *, truncated: bool = False
) -> Replay:
    """Room for `num` trials of up to `length` steps, which keep `truncated` if that is asked."""
    config = ReplayConfig(length, num, truncated=truncated, whole=True)
    return make_replay(config, spec, discount)


def with_trials(
    trials: Replay, num_before: jax.Array, rollout: Rollout
) -> tuple[Replay, jax.Array]:
    """The buffer with new trials in place of the oldest, and the number of trials so far.

    Each lane of `rollout` [M, N, T] is a trial; `num_before` [] int32 is the number before these.
    """
    rows = jax.tree.map(lambda x: x.reshape(-1, 1, *x.shape[2:]), bare(rollout))
    rings = (num_before + jnp.arange(len(rows.valid))) % trials.config.num_rings
    return add(clear(trials, rings), rows, rings), num_before + len(rows.valid)


def read_trials(trials: Replay, rings: jax.Array) -> tuple[Transitions, jax.Array]:
    """The steps [B, T] of the trials in rings [B], and which are valid; zeros where they are not.

    A ring that has lost its trial has no valid step.
    """
    ages = jnp.arange(trials.config.size)
    valid = ages < trials.sizes[rings][:, None]

    def clean(x: Any) -> jax.Array:
        return jnp.where(valid.reshape(*valid.shape, *(1,) * (x.ndim - 2)), x, jnp.zeros_like(x))

    return jax.tree.map(clean, read(trials, rings[:, None], ages)), valid
