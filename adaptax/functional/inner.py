"""Inner adaptation: what a policy-gradient step descends, and the step, both to be differentiated.

A meta-gradient goes through the step and so through the objective's second derivative, in which
objectives whose expected gradients point the same way differ: the likelihood ratio keeps its
score-squared terms (Rothfuss et al. 2019, "ProMP", arXiv 1810.06784, section 5), the plain
log-likelihood loses them, and DiCE's is unbiased (Foerster et al. 2018, arXiv 1802.05098). The
plain one is `policy_losses.policy_gradient_loss`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from adaptax.core.experience import PyTree

Objective = Callable[[PyTree], tuple[jax.Array, Any]]
"""(parameters) -> (what to descend, anything besides)."""


def dice_loss(log_prob: jax.Array, reward: jax.Array, valid: jax.Array) -> jax.Array:
    """-magic_box(log pi of all actions up to t) r_t, [..., T] (Foerster et al. 2018, eq. 7).

    T is the time of one episode, `reward` already discounted. It may go on after the episode's last
    valid step, as one over a baseline does: there it is credit of all of the episode's actions.
    """
    past = jnp.cumsum(jnp.where(valid, log_prob, 0.0), axis=-1)
    return -magic_box(past) * reward


def dice_mean(log_prob: jax.Array, reward: jax.Array, valid: jax.Array) -> jax.Array:
    """The sum of `dice_loss` over episodes [N, T], by their number of valid steps."""
    total = jnp.sum(dice_loss(log_prob, reward, valid))
    return total / jnp.maximum(jnp.sum(valid), 1)


def magic_box(x: jax.Array) -> jax.Array:
    """1, with all derivatives of exp(x - the value of x) (Foerster et al. 2018, section 3.2)."""
    return jnp.exp(x - jax.lax.stop_gradient(x))


def inner_step(
    objective: Objective,
    params: PyTree,
    step_sizes: PyTree,
    *,
    first_order: bool = False,
) -> tuple[PyTree, Any]:
    """`params` less `step_sizes` times the objective's gradient; and what it gives besides.

    `objective(params)` is (value, anything); `step_sizes` has a number in the place of each array
    (Finn et al. 2017, arXiv 1703.03400, eq. 1). With `first_order` the gradient counts as a
    constant where the step is differentiated.
    """
    gradient, besides = jax.grad(objective, has_aux=True)(params)
    if first_order:
        gradient = jax.lax.stop_gradient(gradient)
    return jax.tree.map(lambda p, a, g: p - a * g, params, step_sizes, gradient), besides
