"""Transfer: a run that begins with what another one has learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from adaptax.algorithms.base import Algorithm
from adaptax.core.errors import ConfigError, check
from adaptax.core.experience import PyTree
from adaptax.core.snapshot import Snapshots, flatten, unflatten
from adaptax.experiment.run_dir import read_config
from adaptax.experiment.weights import weights_of


def learned_elsewhere(run_dir: Path, algorithm: Algorithm[Any, Any], state: PyTree) -> PyTree:
    """A fresh `state` with the weights that the newest snapshot of a run has.

    Raises a ConfigError that names what does not fit.
    """
    read_config(run_dir)
    own = flatten(state)
    names = weights_of(algorithm, own).keys()
    check(bool(names), f"{algorithm.name} has learned nothing that another run could begin with")
    _, tree = Snapshots(run_dir / "snapshots").read()
    theirs: dict[str, Any] = tree.get("state", {})
    there = weights_of(algorithm, theirs).keys()
    wrong = [_difference(name, theirs, own) for name in sorted(names | there)]
    if wrong := [line for line in wrong if line]:
        more = f" (and {len(wrong) - 1} more)" if wrong[1:] else ""
        raise ConfigError(f"cannot begin with what {run_dir} has learned: {wrong[0]}{more}")
    return unflatten(state, {**own, **{name: theirs[name] for name in names}})


def _difference(name: str, theirs: dict[str, Any], own: dict[str, Any]) -> str:
    """How a leaf of the state differs there and here; nothing where it fits."""
    there, here = (_kind(state.get(name)) for state in (theirs, own))
    return "" if there == here else f"{name} is {there} there and {here} here"


def _kind(leaf: Any) -> str:
    return "absent" if leaf is None else f"{np.asarray(leaf).dtype}{list(np.shape(leaf))}"
