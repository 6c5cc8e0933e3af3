"""Trust-region steps: the natural gradient by conjugate gradients, and a line search along it.

Schulman et al. 2015, "Trust region policy optimization" (arXiv 1502.05477), appendix C.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from adaptax.core.config import check_not_negative, check_positive
from adaptax.core.errors import check
from adaptax.core.experience import PyTree
from adaptax.core.hyperparameters import Hyperparameters

Product = Callable[[jax.Array], jax.Array]
"""A symmetric matrix as what it does to a vector [D]."""
LEAST_FLOAT32_EPS = 1e-6
"""Below it float32 gradients differ by rounding only: measured error 89 % at 1e-8."""
TINY = 1e-8


class Divergence(NamedTuple):
    """The mean KL from the old policy in two parts, which makes exact products cheaper."""

    policy: Callable[[PyTree], PyTree]
    """From parameters to the distributions over actions."""
    mean_kl: Callable[[PyTree], jax.Array]
    """The mean KL of these distributions from the old ones; least where they are those."""


@dataclass(frozen=True)
class TrustRegion(Hyperparameters):
    """How far a step may go and how it is found; defaults are garage's but for `base_eps`."""

    max_kl_step: float = 0.01
    """Greatest mean KL(old || new), in nats."""
    cg_iters: int = 10
    """Most iterations of conjugate gradients."""
    reg_coeff: float = 1e-5
    """Added to the Fisher matrix's diagonal (ProMP 0)."""
    backtrack_ratio: float = 0.8
    """Factor on the step at every try of the line search."""
    max_backtracks: int = 15
    """Tries of the line search, the full step included."""
    hvp: Literal["exact", "finite_difference"] = "exact"
    """How the Fisher matrix is multiplied with a vector."""
    base_eps: float = field(default=1e-5, metadata={"static": True})
    """Relative step of the finite differences (garage's own RL2-TRPO example; ProMP too)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "max_kl_step", "cg_iters", "max_backtracks", "base_eps")
        check_not_negative(self, "reg_coeff")
        ratio = self.backtrack_ratio
        check(0 < ratio < 1, f"backtrack_ratio must lie between 0 and 1, not {ratio}")
        _check_step(self.base_eps, jnp.float32)


def conjugate_gradient(
    product: Product, b: jax.Array, num_iterations: int = 10, tolerance: float = 1e-10
) -> jax.Array:
    """The x [D] with A x = b for a positive definite A (Hestenes and Stiefel 1952).

    Ends after `num_iterations`, or when the residual's squared norm is below `tolerance`.
    """

    def unfinished(state: tuple[Any, ...]) -> jax.Array:
        i, _, _, _, square = state
        return (i < num_iterations) & ~(square < tolerance)  # NaN goes on, and shows in the result

    def iterate(state: tuple[Any, ...]) -> tuple[Any, ...]:
        i, x, residual, direction, square = state
        image = product(direction)
        step = square / jnp.vdot(direction, image)
        residual = residual - step * image
        new_square = jnp.vdot(residual, residual)
        direction_next = residual + new_square / square * direction
        return i + 1, x + step * direction, residual, direction_next, new_square

    start = (0, jnp.zeros_like(b), b, b, jnp.vdot(b, b))
    return jax.lax.while_loop(unfinished, iterate, start)[1]


def hessian_product(f: Callable[[Any], jax.Array], at: Any) -> Callable[[Any], Any]:
    """Exact products with the Hessian of f at a point, by reverse mode over reverse mode.

    The point and the vectors are arrays [D], or trees of one structure. For f the mean
    KL(old || new) at the old parameters this is the Fisher matrix.
    """
    _, pull_back = jax.vjp(jax.grad(f), at)  # the Hessian is symmetric: J^T v = H v
    return lambda v: pull_back(v)[0]


def gauss_newton_product(
    inner: Callable[[jax.Array], PyTree], outer: Callable[[PyTree], jax.Array], at: jax.Array
) -> Product:
    """Exact products with J^T H J at a point [D]: inner's Jacobian J, outer's Hessian H.

    Where outer's gradient is zero, as a KL's is at the old policy, that is the Hessian of
    outer(inner(x)), without inner's second derivatives (Schraudolph 2002, "Fast curvature
    matrix-vector products", section 3). J v is the transpose of reverse mode, so that `inner` may
    have backward passes of its own, which forward mode would refuse.
    """
    output, pull_back = jax.vjp(inner, at)
    push_forward = jax.linear_transpose(pull_back, output)
    curvature = hessian_product(outer, output)
    return lambda v: pull_back(curvature(push_forward((v,))[0]))[0]


def finite_difference_product(
    f: Callable[[jax.Array], jax.Array], at: jax.Array, base_eps: float = 1e-5
) -> Product:
    """Products with the Hessian of f at a point [D] by central differences of its gradient.

    The step is base_eps (1 + |at|) / |v|. Raises a ConfigError where float32 would leave nothing
    but rounding.
    """
    _check_step(base_eps, at.dtype)
    gradient = jax.grad(f)

    def product(v: jax.Array) -> jax.Array:
        norm = jnp.linalg.norm(v)
        eps = base_eps * (1 + jnp.linalg.norm(at)) / jnp.where(norm > 0, norm, 1)
        return (gradient(at + eps * v) - gradient(at - eps * v)) / (2 * eps)

    return product


def trust_region_step(
    objective: Callable[[PyTree], tuple[jax.Array, jax.Array]],
    params: PyTree,
    settings: TrustRegion,
    divergence: Divergence | None = None,
) -> tuple[PyTree, dict[str, jax.Array]]:
    """Parameters that lower the loss within the trust region, or the same ones if none is found.

    `objective(params)` is (loss, mean KL from the given parameters). With g the loss's gradient
    and F the KL's Hessian: x = (F + reg I)^-1 g, scale = sqrt(2 max_kl / x^T (F + reg I) x), and
    of params - scale ratio^k x, k = 0, 1, ..., the first is taken that has a lower loss and a KL
    within the bound. `divergence` is that KL in two parts: given, exact products take less time.
    """
    flat, unravel = ravel_pytree(params)

    def both(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return objective(unravel(x))

    loss_before, gradient = jax.value_and_grad(lambda x: both(x)[0])(flat)
    if divergence is not None and settings.hvp == "exact":
        policy, mean_kl = divergence
        product = gauss_newton_product(lambda x: policy(unravel(x)), mean_kl, flat)
    elif settings.hvp == "exact":
        product = hessian_product(lambda x: both(x)[1], flat)
    else:
        product = finite_difference_product(lambda x: both(x)[1], flat, settings.base_eps)

    def fisher(v: jax.Array) -> jax.Array:
        return product(v) + settings.reg_coeff * v

    direction = conjugate_gradient(fisher, gradient, settings.cg_iters)
    curvature = jnp.vdot(direction, fisher(direction))
    scale = jnp.sqrt(2 * settings.max_kl_step / (curvature + TINY))
    new, num_tries, accepted = _line_search(both, flat, scale * direction, loss_before, settings)
    loss_after, kl = both(new)
    figures = {
        "loss_before": loss_before,
        "loss_after": loss_after,
        "kl": kl,
        "grad_norm": jnp.linalg.norm(gradient),
        "line_search_tries": num_tries,
        "line_search_accepted": accepted,
    }
    return unravel(new), {name: x.astype(jnp.float32) for name, x in figures.items()}


def _line_search(
    both: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
    start: jax.Array,
    full_step: jax.Array,
    loss_before: jax.Array,
    settings: TrustRegion,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The first acceptable point, or `start`; how many were tried; whether one was accepted.

    A step that is not finite is not tried at all.
    """

    def searching(state: tuple[Any, ...]) -> jax.Array:
        k, _, accepted = state
        return (k < settings.max_backtracks) & ~accepted

    def attempt(state: tuple[Any, ...]) -> tuple[Any, ...]:
        k, _, _ = state
        point = start - settings.backtrack_ratio**k * full_step
        loss, kl = both(point)
        accepted = (loss < loss_before) & (kl <= settings.max_kl_step)
        return k + 1, jnp.where(accepted, point, start), accepted

    usable = jnp.isfinite(full_step).all()
    first = jnp.where(usable, 0, settings.max_backtracks)
    last, point, accepted = jax.lax.while_loop(searching, attempt, (first, start, False))
    return point, jnp.where(usable, last, 0), jnp.asarray(accepted)


def _check_step(base_eps: float, dtype: Any) -> None:
    useful = base_eps >= LEAST_FLOAT32_EPS or np.dtype(dtype).itemsize > 4
    check(
        useful,
        f"base_eps {base_eps:g} is below {LEAST_FLOAT32_EPS:g}: in float32 the difference of two "
        "gradients so close together is rounding error; raise it, or compute in float64",
    )
