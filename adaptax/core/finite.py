"""Whether all numbers of a tree are finite, and which are not."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.experience import PyTree
from adaptax.core.snapshot import is_store


def not_finite(tree: PyTree) -> list[str]:
    """The paths of the leaves that hold a NaN or an infinity; other than arrays are passed over.

    So are stores: rows of a replay were looked at when they came.
    """
    leaves = [x for x in jax.tree.leaves(tree, is_leaf=is_store) if _is_number(x)]
    on_device = [x for x in leaves if isinstance(x, jax.Array)]
    on_host = [x for x in leaves if not isinstance(x, jax.Array)]
    if all(np.isfinite(x).all() for x in on_host) and bool(_all_finite(on_device)):
        return []  # as nearly always, and without looking for names
    named = jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_store)
    numbers = [(jax.tree_util.keystr(path), x) for path, x in named if _is_number(x)]
    return [name for name, x in numbers if not np.isfinite(np.asarray(x)).all()]


def _is_number(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray)) and jnp.issubdtype(leaf.dtype, jnp.inexact)


@jax.jit
def _all_finite(leaves: list[Any]) -> jax.Array:
    """Whether all of them are finite, as one answer, since each has to be fetched."""
    return jnp.array([jnp.isfinite(x).all() for x in leaves], bool).all()
