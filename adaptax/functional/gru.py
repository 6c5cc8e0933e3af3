"""The gated recurrent unit's loop over time, with a backward pass of its own.

Automatic differentiation of the loop adds up the weights' gradient step by step and slices the
gates inside the loop, which on a CPU costs twice the time of the products. Here the loop back
through time holds one product and a few element-wise passes; everything else is done for the
whole sequence at once. Reverse mode only (twice is fine, forward mode is not).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

Residuals = tuple[Any, ...]


@jax.custom_vjp
def gru_sequence(
    weights: jax.Array,
    bias: jax.Array,
    gates: jax.Array,
    hidden: jax.Array,
    reset: jax.Array | None = None,
) -> jax.Array:
    """Hidden states [T, B, H] after each step (Cho et al. 2014).

    `weights` [H, 3 H] and `gates` [T, B, 3 H], the input's part, hold the reset gate r, the update
    gate u and the candidate c side by side; `bias` [H] belongs to the candidate's recurrent part;
    `hidden` [B, H] is the state before the first step; where `reset` [T, B] bool is given and
    True, the state is zero before that step.
    r = sigmoid(g_r + h W_r), u = sigmoid(g_u + h W_u), c = tanh(g_c + r (h W_c + bias)),
    h' = u h + (1 - u) c.
    """
    if len(gates) == 1:
        before = _cleared(hidden, None if reset is None else reset[0])
        own = jnp.split(before @ weights, 3, axis=-1)
        return _next(before, jnp.split(gates[0], 3, axis=-1), own, bias)[None]
    parts = jnp.split(weights, 3, axis=-1)

    def step(h: jax.Array, x: tuple[Any, jax.Array | None]) -> tuple[jax.Array, jax.Array]:
        gate, clear = x
        h = _cleared(h, clear)
        h = _next(h, gate, [h @ part for part in parts], bias)
        return h, h

    # Split before the loop: slices inside it would keep the compiler from vectorising the gates.
    return jax.lax.scan(step, hidden, (tuple(jnp.split(gates, 3, axis=-1)), reset))[1]


def _next(h: jax.Array, gate: Any, own: Any, bias: jax.Array) -> jax.Array:
    """The state [B, H] after `h`, of the gates' parts by the input and by `h` itself."""
    reset = jax.nn.sigmoid(gate[0] + own[0])
    update = jax.nn.sigmoid(gate[1] + own[1])
    candidate = jnp.tanh(gate[2] + reset * (own[2] + bias))
    return candidate + update * (h - candidate)


def _cleared(x: jax.Array, where: jax.Array | None) -> jax.Array:
    """The array [..., H] with zero rows where the mask [...], if there is one, is True."""
    return x if where is None else jnp.where(where[..., None], 0.0, x)


def _forward(
    weights: jax.Array,
    bias: jax.Array,
    gates: jax.Array,
    hidden: jax.Array,
    clear: jax.Array | None,
) -> tuple[jax.Array, Residuals]:
    states = gru_sequence(weights, bias, gates, hidden, clear)
    return states, (weights, bias, gates, hidden, clear, states)


def _backward(residuals: Residuals, grad: jax.Array) -> Residuals:
    weights, bias, gates, hidden, clear, states = residuals
    size = hidden.shape[-1]
    before = _cleared(jnp.concatenate([hidden[None], states[:-1]]), clear)
    own = before @ weights
    reset = jax.nn.sigmoid(gates[..., :size] + own[..., :size])
    update = jax.nn.sigmoid(gates[..., size : 2 * size] + own[..., size : 2 * size])
    own_candidate = own[..., 2 * size :] + bias
    candidate = jnp.tanh(gates[..., 2 * size :] + reset * own_candidate)
    # d h' / d (pre-activation): candidate, then reset gate, update gate and h W_c through it.
    by_candidate = (1 - update) * (1 - jnp.square(candidate))
    by_reset = by_candidate * own_candidate * reset * (1 - reset)
    by_update = (before - candidate) * update * (1 - update)
    by_own_candidate = by_candidate * reset
    transposed = weights.T

    def step(later: jax.Array, x: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
        direct, r, u, c, keep, cleared = x
        total = direct + later
        parts = jnp.concatenate([total * r, total * u, total * c], axis=-1)
        return _cleared(total * keep + parts @ transposed, cleared), total

    along = (grad, by_reset, by_update, by_own_candidate, update, clear)
    grad_hidden, total = jax.lax.scan(step, jnp.zeros_like(hidden), along, reverse=True)
    grad_own = jnp.concatenate(
        [total * by_reset, total * by_update, total * by_own_candidate], axis=-1
    )
    grad_gates = jnp.concatenate([grad_own[..., : 2 * size], total * by_candidate], axis=-1)
    grad_weights = jnp.einsum("tbh,tbg->hg", before, grad_own)
    return grad_weights, grad_own[..., 2 * size :].sum((0, 1)), grad_gates, grad_hidden, None


gru_sequence.defvjp(_forward, _backward)
