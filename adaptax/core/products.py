"""How a compiled program multiplies matrices on a CPU."""

from __future__ import annotations

from functools import cache

import jax

EIGEN = {"xla_cpu_experimental_ynn_fusion_type": ""}
"""No products for YNNPACK, which XLA gives them to by default: Eigen has them."""
LEAST_ROWS = 256
"""Rows of a product from which on Eigen is faster.

Measured on networks of 2 x 256 with jaxlib 0.10.2: with 256 rows SAC makes 1.3 times as many
updates a second on two cores, where YNNPACK's threads take the time of both and give the work of
one, and 1.1 times as many on one; with 64 rows DQN makes 0.7 times as many.
"""


def product_options(num_rows: int) -> dict[str, str]:
    """Compiler options for products of so many rows; none where this JAX does not know them."""
    return EIGEN if num_rows >= LEAST_ROWS and _known() else {}


@cache
def _known() -> bool:
    try:
        jax.jit(lambda: 0, compiler_options=EIGEN).lower().compile()
    except jax.errors.JaxRuntimeError:
        return False
    return True
