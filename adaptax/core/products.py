"""How a compiled program multiplies matrices on a CPU."""

from __future__ import annotations

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib.version

EIGEN = {"xla_cpu_experimental_ynn_fusion_type": ""}
"""No products for YNNPACK, which XLA gives them to by default: Eigen has them."""
LEAST_ROWS = 256
"""Rows of a product from which on Eigen is faster.

Measured on networks of 2 x 256 with jaxlib 0.10.2: with 256 rows SAC makes 1.3 times as many
updates a second on two cores, where YNNPACK's threads take the time of both and give the work of
one, and 1.1 times as many on one; with 64 rows DQN makes 0.7 times as many.
"""
LEAST_SIZE, MOST_NUMBERS = 64, 2**18
"""Least rows and columns, and most numbers, of a matrix that is transposed before a product: small
ones are not worth it, and large ones leave the cache."""


def product_options(num_rows: int) -> dict[str, str]:
    """Compiler options for products of so many rows; none where this JAX does not know them."""
    return EIGEN if num_rows >= LEAST_ROWS and _known() else {}


def alike_in_every_row() -> dict[str, str]:
    """Compiler options with which a row of a product hardly depends on the rows beside it.

    Eigen's do by a rounding, in a few sizes. YNNPACK's do in more until jaxlib 0.12, with 64 rows
    and layers of 256 for example, but there they are as in programs of whole iterations.
    """
    return EIGEN if jaxlib.version.__version_info__ >= (0, 12) and _known() else {}


@cache
def _known() -> bool:
    try:
        jax.jit(lambda: 0, compiler_options=EIGEN).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True


def dot_general(inputs: jax.Array, kernel: jax.Array, dimensions: Any, **_: Any) -> jax.Array:
    """What `flax.linen.Dense(..., dot_general=dot_general)` multiplies by: [..., I] [I, O].

    The gradients of a layer are products with one matrix transposed. Eigen takes 1.4 times as
    long over a product of 256 x 256 if it has to transpose, so on a CPU wide ones are transposed
    before. There are no forward-mode derivatives.
    """
    assert dimensions == (((inputs.ndim - 1,), (0,)), ((), ())), dimensions
    return _product(inputs, kernel)


@jax.custom_vjp
def _product(inputs: jax.Array, kernel: jax.Array) -> jax.Array:
    return inputs @ kernel


def _forward(inputs: jax.Array, kernel: jax.Array) -> tuple[jax.Array, Any]:
    return inputs @ kernel, (inputs, kernel)


def _backward(operands: Any, grads: jax.Array) -> tuple[jax.Array, jax.Array]:
    inputs, kernel = operands
    rows = inputs.reshape(-1, inputs.shape[-1])
    wide = len(rows) >= LEAST_ROWS and min(kernel.shape) >= LEAST_SIZE

    def transposed(matrix: jax.Array) -> jax.Array:
        return _transposed_before(matrix) if wide and matrix.size <= MOST_NUMBERS else matrix.T

    of_kernel = transposed(rows) @ grads.reshape(-1, grads.shape[-1])
    return grads @ transposed(kernel), of_kernel


_product.defvjp(_forward, _backward)


def _transposed_before(matrix: jax.Array) -> jax.Array:
    def apart(matrix: jax.Array) -> jax.Array:
        # Else XLA would make it part of the product.
        transposed: jax.Array = jax.lax.optimization_barrier(matrix.T)  # type: ignore[no-untyped-call]
        return transposed

    return jax.lax.platform_dependent(matrix, cpu=apart, default=jnp.transpose)
