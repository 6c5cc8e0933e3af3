"""Context: the steps of a task that its latent variable is inferred from."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp

from adaptax.core.experience import Rollout, Transitions


def context_tokens(steps: Transitions | Rollout, *, next_obs: bool) -> jax.Array:
    """What a context is made of, (o, a, r) and o' if asked for: [..., F]; rewards as they came."""
    parts = [steps.obs, steps.action, steps.reward[..., None]]
    return jnp.concatenate([*parts, steps.next_obs] if next_obs else parts, axis=-1)


def bare(rollout: Rollout) -> Rollout:
    """The steps alone, without extras."""
    return replace(rollout.steps, extras={})


def in_a_row(rollout: Rollout) -> Rollout:
    """The steps with all episodes of a task one after another, [M, 1, N * T].

    A ring then holds, and forgets, one episode after another, however lanes held them.
    """
    return jax.tree.map(lambda x: x.reshape(len(x), 1, -1, *x.shape[3:]), bare(rollout))


def joined(rollouts: list[Rollout], length: int) -> Rollout:
    """The steps of rollouts of the same M tasks in a row, [M, 1, T], padded.

    T is `length` times a power of two, so that few sizes come up however long episodes are.
    """
    rows = jax.tree.map(lambda *xs: jnp.concatenate(xs, axis=2), *map(in_a_row, rollouts))
    num_steps = rows.valid.shape[2]
    padding = length * (1 << (-(-num_steps // length) - 1).bit_length()) - num_steps
    return jax.tree.map(
        lambda x: jnp.pad(x, [(0, 0), (0, 0), (0, padding), *[(0, 0)] * (x.ndim - 3)]), rows
    )
