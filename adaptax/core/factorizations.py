"""Factorizations of matrices that do not wait for each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


def one_by_one(of_one: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """A function under `jax.vmap` of which entries are computed one after another.

    For what factorizes a matrix. jaxlib 0.10 shares the matrices of a batch out among its threads
    and waits for them within one of these: where two batches of a program do so at once on two
    threads, both wait for good.
    """
    sequential: Any = jax.custom_batching.sequential_vmap
    wrapped: Callable[..., jax.Array] = sequential(of_one)
    return wrapped
