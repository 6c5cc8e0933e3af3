"""Returns and advantages; time is the last axis, any axes before it.

The caller says where an episode ends: `terminated` (absorbing: nothing follows, value 0) and
`truncated` (cut: what would have followed is worth `next_value`). Entries that are not `valid`
(padding, on the tail of a lane) come out as 0 and never reach the others.
"""

from __future__ import annotations

from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.experience import Array

ArrayT = TypeVar("ArrayT", jax.Array, np.ndarray)


def gae(
    reward: jax.Array,
    value: jax.Array,
    next_value: jax.Array,
    *,
    terminated: jax.Array,
    truncated: jax.Array,
    valid: jax.Array,
    discount: float,
    gae_lambda: float,
) -> jax.Array:
    """Generalised advantage estimates, all arrays [..., T] (Schulman et al. 2016, eq. 16).

    delta_t = r_t + discount * (1 - terminated_t) * V(s'_t) - V(s_t), and
    A_t = delta_t + discount * gae_lambda * (1 - boundary_t) * A_{t+1}.
    The lambda-return is A_t + V(s_t).
    """
    goes_on = ~(terminated | truncated)
    delta = reward + discount * jnp.where(terminated, 0.0, next_value) - value
    delta = jnp.where(valid, delta, 0.0)
    decay = discount * gae_lambda * (goes_on & valid)
    return _discounted_sum(delta, decay)


def discounted_returns(
    reward: jax.Array,
    next_value: jax.Array,
    *,
    terminated: jax.Array,
    truncated: jax.Array,
    valid: jax.Array,
    discount: float,
) -> jax.Array:
    """Monte-Carlo returns [..., T]: R_t = r_t + discount * (R_{t+1}, or V(s'_t) where cut).

    Where the last valid step of a lane ends no episode, its tail is worth `next_value` too.
    """
    boundary = path_ends(terminated, truncated, valid)
    tail = jnp.where(boundary & ~terminated, discount * next_value, 0.0)
    own = jnp.where(valid, reward + tail, 0.0)
    return _discounted_sum(own, discount * (valid & ~boundary))


def path_ends(terminated: jax.Array, truncated: jax.Array, valid: jax.Array) -> jax.Array:
    """Where [..., T] an episode ends, or its lane does in the middle of it."""
    return terminated | truncated | last_valid(valid)


def last_valid(valid: jax.Array) -> jax.Array:
    """Where [..., T] the last valid step of each lane is."""
    return valid & ~jnp.concatenate([valid[..., 1:], jnp.zeros_like(valid[..., :1])], axis=-1)


def episode_index(terminated: ArrayT, truncated: ArrayT) -> ArrayT:
    """For every step the number [..., T] of episodes that ended before it in its lane."""
    ends = (terminated | truncated).astype(np.int32)
    return ends.cumsum(-1) - ends


def time_in_episode(terminated: Array, truncated: Array) -> jax.Array:
    """Steps since the episode's start, int [..., T], where lanes [..., T] hold whole episodes."""
    ends = terminated | truncated
    steps = jnp.arange(ends.shape[-1])
    starts = jnp.where(ends, steps + 1, 0)
    first = jnp.concatenate([jnp.zeros_like(starts[..., :1]), starts[..., :-1]], axis=-1)
    return steps - jax.lax.cummax(first, axis=first.ndim - 1)


def returns_so_far(reward: jax.Array, ends: jax.Array, start: jax.Array) -> jax.Array:
    """Undiscounted sums [..., T] of the rewards of each step's episode, its own included.

    `reward` is 0 where there is no step, `ends` [..., T] where an episode ends, `start` [...] what
    the first episode brings with it.
    """

    def step(total: jax.Array, x: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        own, end = x
        total = total + own
        return jnp.where(end, 0.0, total), total

    along = (jnp.moveaxis(reward, -1, 0), jnp.moveaxis(ends, -1, 0))
    return jnp.moveaxis(jax.lax.scan(step, start, along)[1], 0, -1)


def n_step_returns(
    reward: jax.Array, ends: jax.Array, valid: jax.Array, n: int, discount: float | jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Discounted sums of up to n rewards from every step on, all arrays [..., T] (Sutton 1988).

    (sums, the step that each sum ends with, how many it takes in): a sum ends where its episode
    `ends`, terminated or truncated, and where the lane does.
    """

    def later(x: jax.Array, k: int) -> jax.Array:
        return jnp.concatenate([x[..., k:], jnp.zeros_like(x[..., :k])], axis=-1)

    total, count, running = jnp.zeros_like(reward), jnp.zeros(reward.shape, jnp.int32), valid
    for k in range(min(n, reward.shape[-1])):
        running = running & later(valid, k)
        total += jnp.where(running, discount**k * later(reward, k), 0.0)
        count += running
        running = running & ~later(ends, k)
    last = jnp.arange(reward.shape[-1]) + jnp.maximum(count - 1, 0)
    return total, last, count


def _discounted_sum(x: jax.Array, decay: jax.Array) -> jax.Array:
    """y_t = x_t + decay_t * y_{t+1} along the last axis, y_T = 0 beyond the end."""

    def step(
        following: jax.Array, inputs: tuple[jax.Array, jax.Array]
    ) -> tuple[jax.Array, jax.Array]:
        own, factor = inputs
        total = own + factor * following
        return total, total

    time_first = (jnp.moveaxis(x, -1, 0), jnp.moveaxis(decay, -1, 0))
    _, y = jax.lax.scan(step, jnp.zeros_like(time_first[0][0]), time_first, reverse=True, unroll=8)
    return jnp.moveaxis(y, 0, -1)
