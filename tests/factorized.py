"""What a program factorizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.extend

FACTORIZATIONS = ("qr", "geqrf", "householder_product", "lu", "cholesky")


def factorized(program: Callable[..., Any], *arguments: Any) -> list[tuple[int, ...]]:
    """Shapes of all that a program factorizes, loops and calls included."""
    return _found(jax.make_jaxpr(program)(*arguments).jaxpr)


def _found(jaxpr: Any) -> list[tuple[int, ...]]:
    shapes = []
    for equation in jaxpr.eqns:
        if equation.primitive.name in FACTORIZATIONS:
            shapes += [equation.invars[0].aval.shape]
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            shapes += _found(inner)
    return shapes
