"""Whether all numbers of a tree are finite, and which are not."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.batch import PyTree


def not_finite(tree: PyTree) -> list[str]:
    """The paths of the leaves that hold a NaN or an infinity; other than arrays are passed over."""
    numbers = {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        if isinstance(leaf, (jax.Array, np.ndarray)) and jnp.issubdtype(leaf.dtype, jnp.inexact)
    }
    on_host = {name: x for name, x in numbers.items() if isinstance(x, np.ndarray)}
    on_device = {name: x for name, x in numbers.items() if name not in on_host}
    found = {name: bool(np.isfinite(x).all()) for name, x in on_host.items()}
    found |= zip(on_device, np.asarray(_finite(list(on_device.values()))), strict=True)
    return [name for name in numbers if not found[name]]


@jax.jit
def _finite(leaves: list[Any]) -> jax.Array:
    """Of each leaf whether all of it is finite, as one answer, since each has to be fetched."""
    return jnp.array([jnp.isfinite(x).all() for x in leaves], bool)
