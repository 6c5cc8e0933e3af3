"""Linear recurrences over time by an associative scan (Blelloch 1990, "Prefix sums", 1.4)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

Affine = tuple[jax.Array, jax.Array]
"""x -> decay x + drive."""


def linear_recurrence(
    decay: jax.Array, drive: jax.Array, start: jax.Array, reset: jax.Array | None = None
) -> jax.Array:
    """States [B, T, N] of x_t = decay_t x_{t-1} + drive_t, with x_0 = `start` [B, N].

    `decay` broadcasts to `drive` [B, T, N]; both may be complex. Where `reset` [B, T] is given and
    True, x is zero before that step.
    """
    decay = jnp.broadcast_to(decay, drive.shape)
    if reset is not None:
        decay = jnp.where(reset[..., None], 0.0, decay)
    drive = drive.at[:, 0].add(decay[:, 0] * start)

    def after(first: Affine, second: Affine) -> Affine:
        return first[0] * second[0], first[1] * second[0] + second[1]

    return jax.lax.associative_scan(after, (decay, drive), axis=1)[1]
