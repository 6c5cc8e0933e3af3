"""Records of experience. Axes: M member or task, N lane, T time, B batch, O obs, A action."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp

from adaptax.core.step import Array, Step

__all__ = ["Array", "Cache", "PyTree", "Rollout", "Step", "Transitions", "select", "zero_padding"]

PyTree = Any
"""Nested dicts, tuples and dataclasses of arrays."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Rollout:
    """Interaction of M members in N lanes over T steps, padded to its full size.

    In a lane, episodes follow one another without gaps and padding comes last: `valid` is True
    on a prefix of T. `terminated` is an absorbing state, `truncated` a time limit; both False on
    the last valid step means that the episode goes on in the next rollout.
    """

    obs: Array
    """[M, N, T, O] float32, or bool where the suite's spec says `binary`."""
    action: Array
    """[M, N, T, A] float32, or [M, N, T] int32 for discrete actions."""
    reward: Array
    """[M, N, T]"""
    next_obs: Array
    """[M, N, T, O]: what the step led to, never the observation after a reset."""
    terminated: Array
    """[M, N, T] bool"""
    truncated: Array
    """[M, N, T] bool"""
    valid: Array
    """[M, N, T] bool"""
    extras: dict[str, Array] = field(default_factory=dict)
    """What the actor and the pool add, each [M, N, T, ...]: `log_prob`, `success`, `info/NAME`."""
    initial_carry: PyTree = None
    """What the actor remembered before the first step, leading axes [M, N]."""
    final_carry: PyTree = None
    """What the actor remembers at the end, leading axes [M, N]."""
    initial_return: Array = None
    """[M, N]: undiscounted, of the part of the first episode that came before this rollout."""

    @property
    def ended(self) -> Array:
        """[M, N, T] bool: the valid steps that ended an episode, terminated or truncated."""
        return self.valid & (self.terminated | self.truncated)

    @property
    def steps(self) -> Rollout:
        """The rollout without what belongs to whole lanes, so that every leaf is [M, N, T, ...]."""
        return replace(self, initial_carry=None, final_carry=None, initial_return=None)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Cache:
    """Large arrays of a carry of which other leaves beside it say what counts.

    In a lane that does not step, those others stay as they were and the cache need not: what a step
    writes to it counts for nothing without them. So no step has to copy it.
    """

    arrays: PyTree
    """Leaves [M, N, ...]."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Transitions:
    """Steps without order, each [B, ...] or [M, B, ...]; or n of them taken as one."""

    obs: Array
    action: Array
    reward: Array
    """The reward; n steps taken as one: discounted to the first of them and summed."""
    next_obs: Array
    terminated: Array
    discount: Array
    """Factor on the value of `next_obs`: that of one step to the power n."""
    truncated: Array = None
    """Whether a time limit cut the episode; None unless the replay keeps it."""


def select(mask: Array, new: PyTree, old: PyTree) -> PyTree:
    """Leaf by leaf `new` where the mask over the leading axes is True, else `old`."""

    def pick(a: Array, b: Array) -> jax.Array:
        return jnp.where(mask.reshape(mask.shape + (1,) * (a.ndim - mask.ndim)), a, b)

    return jax.tree.map(pick, new, old)


def zero_padding(rollout: Rollout) -> Rollout:
    """The rollout with zeros wherever it is not valid, so that padding cannot reach a gradient."""
    zeros = jax.tree.map(jnp.zeros_like, rollout.steps)
    clean: Rollout = select(rollout.valid, rollout.steps, zeros)
    return replace(
        clean,
        initial_carry=rollout.initial_carry,
        final_carry=rollout.final_carry,
        initial_return=rollout.initial_return,
    )
