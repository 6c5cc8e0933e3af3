"""Weights: of an algorithm's state the leaves that acting and adapting take, and no others."""

from __future__ import annotations

from typing import Any

import jax

from adaptax.algorithms.base import Algorithm
from adaptax.core.errors import SnapshotError
from adaptax.core.experience import PyTree
from adaptax.core.snapshot import flatten, unflatten
from adaptax.experiment.console import shell_command

Kind = Algorithm[Any, Any] | type[Algorithm[Any, Any]]
WEIGHTS_ONLY = "weights_only"
"""What a snapshot's tree says of itself where its state is weights."""


def weights_of(algorithm: Kind, saved: dict[str, Any]) -> dict[str, Any]:
    """The leaves, by path, that `actor` and `adapt` need."""
    return {name: leaf for name, leaf in saved.items() if _is_weight(algorithm, name)}


def saved_state(algorithm: Algorithm[Any, Any], tree: dict[str, Any], key: jax.Array) -> PyTree:
    """The state that a snapshot's tree holds; where it is of weights only, the rest is fresh.

    Raises a SnapshotError where names, shapes or types are not those of the algorithm's state.
    """
    template, saved = algorithm.initial_state(key), tree.get("state", {})
    if tree.get(WEIGHTS_ONLY) is True:
        if others := sorted(name for name in saved if not _is_weight(algorithm, name)):
            raise SnapshotError(f"snapshot and configuration differ at {others[0]!r}")
        rest = {n: x for n, x in flatten(template).items() if not _is_weight(algorithm, n)}
        saved = {**rest, **saved}
    return unflatten(template, saved)


def check_resumable(tree: dict[str, Any], run_dir: Any, *, has_commands: bool) -> None:
    """Raise a SnapshotError where a snapshot is of weights only, which training cannot go on from.

    It lacks optimizers, replays and where interaction stood.
    """
    if tree.get(WEIGHTS_ONLY) is True:
        raise SnapshotError(not_resumable(run_dir, has_commands=has_commands))


def not_resumable(run_dir: Any, *, has_commands: bool = True) -> str:
    """What is said of weights that somebody would train on with."""
    again = f"adaptax.train(algorithm, suite, init_from={str(run_dir)!r})"
    if has_commands:
        again = shell_command("train", "ALGORITHM", "SUITE", "--init-from", run_dir)
    return (
        f"{run_dir} holds weights only, without optimizer and sampler, and cannot be resumed; "
        f"a new run begins with them by `{again}`"
    )


def _is_weight(algorithm: Kind, name: str) -> bool:
    return name.startswith((*algorithm.learned, *algorithm.acting))
