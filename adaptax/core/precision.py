"""Arithmetic in 64 bits within programs that are else in 32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


def in_64_bits(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of arrays gives where JAX has 64-bit types, under `vmap` as well.

    By `jax.enable_x64` alone it would be traced with these types, but `vmap` of a program that it
    is in would work out its operations anew without them.
    """

    @jax.custom_batching.custom_vmap
    def call(*arguments: Any) -> Any:
        return function(*arguments)

    @call.def_vmap
    def _call(axis_size: int, in_batched: list[Any], *arguments: Any) -> tuple[Any, Any]:
        axes = jax.tree.map(lambda batched: 0 if batched else None, tuple(in_batched))
        results = in_64_bits(jax.vmap(function, axes, axis_size=axis_size), *arguments)
        return results, jax.tree.map(lambda _: True, results)

    with jax.enable_x64(True):
        return call(*arguments)
