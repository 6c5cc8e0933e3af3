"""Where a run comes from: versions, machine and task set, and how two runs differ in them."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax

from adaptax.envs.task import Suite

PACKAGES = (
    *("adaptax", "jax", "jaxlib", "flax", "optax", "numpy", "scipy"),
    *("mujoco", "gymnasium", "metaworld", "cma"),
)


def provenance(suite: Suite) -> dict[str, Any]:
    """What decides whether a run can be repeated bit for bit."""
    return {
        "task_set": suite.task_set_hash(),
        "versions": {name: _version(name) for name in PACKAGES}
        | {"python": platform.python_version()},
        "device": jax.default_backend(),
        "num_cores": len(os.sched_getaffinity(0)),
    }


def differences(recorded: dict[str, Any], present: dict[str, Any]) -> list[str]:
    """What differs between two provenances, one line each."""
    found = []
    for name in ("task_set", "device", "num_cores"):
        if recorded.get(name) != present[name]:
            found.append(f"{name} was {recorded.get(name)}, is {present[name]}")
    then = recorded.get("versions", {})
    for package, now in present["versions"].items():
        if then.get(package) != now:
            found.append(f"{package} was {then.get(package)}, is {now}")
    return found


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
