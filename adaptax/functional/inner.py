"""Inner adaptation: what a policy-gradient step descends, and the step, both to be differentiated.

A meta-gradient goes through the step and so through the objective's second derivative, in which
objectives with equal gradients differ: the likelihood ratio keeps its score-squared terms
(Rothfuss et al. 2019, "ProMP", arXiv 1810.06784, section 4), the plain log-likelihood loses them,
and DiCE's is unbiased (Foerster et al. 2018, arXiv 1802.05098). The plain one is
`policy_losses.policy_gradient_loss`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from adaptax.core.batch import PyTree

Objective = Callable[[PyTree, PyTree], tuple[jax.Array, Any]]
"""Of (parameters, batch): what to descend, and anything besides."""


def likelihood_ratio_loss(
    log_prob: jax.Array, old_log_prob: jax.Array, advantage: jax.Array
) -> jax.Array:
    """-rho A, same shape; rho the joint ratio to the policy that acted.

    Where both are the same policy, its first two derivatives are those of the low-variance
    curvature objective (Rothfuss et al. 2019, eq. 11).
    """
    return -jnp.exp(log_prob - old_log_prob) * advantage


def dice_loss(log_prob: jax.Array, reward: jax.Array, valid: jax.Array) -> jax.Array:
    """-magic_box(log pi of all actions up to t) r_t, [..., T] (Foerster et al. 2018, eq. 7).

    T is the time of one episode, `reward` already discounted.
    """
    past = jnp.cumsum(jnp.where(valid, log_prob, 0.0), axis=-1)
    return -magic_box(past) * reward


def magic_box(x: jax.Array) -> jax.Array:
    """1, with all derivatives of exp(x - the value of x) (Foerster et al. 2018, section 3.2)."""
    return jnp.exp(x - jax.lax.stop_gradient(x))


def inner_step(
    objective: Objective,
    params: PyTree,
    step_sizes: PyTree,
    batch: PyTree,
    *,
    first_order: bool = False,
) -> tuple[PyTree, Any]:
    """`params` less `step_sizes` times the objective's gradient; and what it gives besides.

    `objective(params, batch)` is (value, anything); `step_sizes` has a number in the place of each
    array (Finn et al. 2017, arXiv 1703.03400, eq. 1). The batch counts as a constant; with
    `first_order` the gradient does too, where the step is differentiated.

    With H the objective's Hessian, the step's derivative pulls v back to v - H (step_sizes v). H's
    products are taken forwards over reverse, which measured twice as fast as the reverse over
    reverse that would come by itself. Where the step is vmapped, `params` must be mapped too: of
    what comes back by outputs that depend on nothing mapped, JAX 0.10 counts every copy.
    """

    def gradient(at: PyTree, data: PyTree) -> tuple[PyTree, Any]:
        return jax.grad(objective, has_aux=True)(at, data)

    @jax.custom_vjp
    def step(at: PyTree, sizes: PyTree, data: PyTree) -> tuple[PyTree, Any]:
        slope, besides = gradient(at, data)
        return jax.tree.map(lambda p, a, g: p - a * g, at, sizes, slope), besides

    def forward(*inputs: PyTree) -> tuple[Any, Any]:
        return step(*inputs), inputs

    def backward(inputs: Any, cotangent: Any) -> tuple[PyTree, PyTree, None]:
        (at, sizes, data), (direction, of_besides) = inputs, cotangent
        along = jax.tree.map(jnp.multiply, sizes, direction)
        slope, curved = jax.jvp(lambda x: gradient(x, data)[0], (at,), (along,))
        if first_order:
            curved = jax.tree.map(jnp.zeros_like, curved)
        _, pull_back = jax.vjp(lambda x: objective(x, data)[1], at)
        (indirect,) = pull_back(of_besides)
        to_params = jax.tree.map(lambda v, h, i: v - h + i, direction, curved, indirect)
        to_sizes = jax.tree.map(
            lambda v, g, a: -jnp.sum(v * g).reshape(a.shape), direction, slope, sizes
        )
        return to_params, to_sizes, None

    step.defvjp(forward, backward)
    sizes = jax.tree.map(jnp.asarray, step_sizes)
    moved: tuple[PyTree, Any] = step(params, sizes, batch)
    return moved
