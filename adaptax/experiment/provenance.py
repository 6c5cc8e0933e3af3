"""Where a run comes from: versions, machine, task set, protocol; and how runs differ in them."""

from __future__ import annotations

import platform
import subprocess
import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import jax

from adaptax.algorithms.base import Algorithm
from adaptax.core.compilation import processor_lines
from adaptax.core.config import to_dict
from adaptax.core.cores import usable_cores
from adaptax.core.errors import AdaptaxError, ConfigError
from adaptax.core.hyperparameters import set_for_networks
from adaptax.envs.suite import Suite
from adaptax.experiment.own_parts import WHERE_HANDED_IN
from adaptax.networks.actor_critic import FeedForward

PACKAGES = (
    *("adaptax", "jax", "jaxlib", "flax", "optax", "numpy", "scipy"),
    *("mujoco", "gymnasium", "metaworld", "cma"),
)
MACHINE = ("device", "processor", "num_cores", "engine")
"""What of the machine may change the rounding, and with it a run that is to go on bit for bit."""


def provenance(suite: Suite) -> dict[str, Any]:
    """What decides whether a run can be repeated bit for bit."""
    return {
        "task_set": suite.task_set_hash(),
        "versions": {name: _version(name) for name in PACKAGES}
        | {"python": platform.python_version()},
        "revision": _revision(),
        "device": _device(),
        "processor": _processor(),
        "engine": suite.engine,
        "num_cores": len(usable_cores()),
    }


@cache
def _revision() -> str | None:
    """The commit of the checkout that adaptax runs from, "-dirty" where files in it have changed.

    None where it is installed, or Git does not answer.
    """
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    git = ["git", f"--git-dir={root / '.git'}", f"--work-tree={root}"]
    command = [*git, "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return told.stdout.strip()


def own_networks(algorithm: Algorithm[Any, Any]) -> str | None:
    """MODULE:CLASS of networks that were handed in; None where they are those of the config."""
    networks = algorithm.networks
    if isinstance(networks, FeedForward):  # which is ours around the one that was handed in
        networks = networks.network
    if networks is None:
        return None
    with warnings.catch_warnings(action="ignore"):  # which the algorithm itself has given
        described = type(algorithm)(algorithm.config, algorithm.spec).networks
    if networks == described:
        return None
    return f"{type(networks).__module__}:{type(networks).__qualname__}"


def check_settings_of_networks(algorithm: Algorithm[Any, Any]) -> None:
    """Raise a ConfigError where settings describe networks, and others were handed in."""
    described = set_for_networks(algorithm.config)
    if described and own_networks(algorithm) is not None:
        raise ConfigError(
            f"{', '.join(described)} would have no effect: networks of your own were handed in; "
            "make them so and leave the setting out"
        )


def suite_settings(suite: Suite) -> dict[str, Any]:
    """What a run records of its suite: the name, and the settings where it has some."""
    return {"name": suite.name, **({} if suite.config is None else to_dict(suite.config))}


def check_networks(run_dir: Path, recorded: dict[str, Any], algorithm: Algorithm[Any, Any]) -> None:
    """Raise an AdaptaxError unless networks are of the class that the config of a run records."""
    described, own = recorded.get("algorithm"), own_networks(algorithm)
    trained = described.get("networks") if isinstance(described, dict) else None
    if own is None and trained is not None:
        raise AdaptaxError(
            f"{run_dir} was trained with networks of one's own, {trained}: hand them in again from "
            f"Python, networks=... of adaptax.load, {WHERE_HANDED_IN.removeprefix('adaptax.')}"
        )
    if own is not None and not _same_class(own, trained):
        raise AdaptaxError(
            f"{run_dir} was trained with {trained or 'the networks of its config'}, not with {own}"
        )


def _same_class(own: str, trained: Any) -> bool:
    """Whether two MODULE:CLASS are one; a program's own module goes by another name elsewhere."""
    parts = [str(path).partition(":") for path in (own, trained)]
    in_main = "__main__" in (module for module, _, _ in parts)
    return own == trained or (in_main and parts[0][2] == parts[1][2])


def differences(
    recorded: dict[str, Any], present: dict[str, Any], names: Sequence[str]
) -> list[str]:
    """What differs between two provenances, in the named fields and versions, one line each."""
    found = [
        f"{name} was {recorded.get(name)}, is {present.get(name)}"
        for name in names
        if recorded.get(name) != present.get(name)
    ]
    then = recorded.get("versions", {})
    for package, now in present["versions"].items():
        if then.get(package) != now:
            found.append(f"{package} was {then.get(package)}, is {now}")
    return found


def differences_between(
    runs: dict[Path, dict[str, Any]],
    names: Sequence[str] = ("device", "task_set", "protocol", "versions"),
) -> list[str]:
    """What stands against comparing runs, by directory what `config.json` holds; a line each.

    The named fields of it; task set and protocol of the evaluations if the suite is the same.
    """
    columns: dict[str, dict[Path, Any]] = {}
    for name in sorted({c["suite"]["name"] for c in runs.values()}):
        of_suite = {d: c for d, c in runs.items() if c["suite"]["name"] == name}
        if "task_set" in names:
            columns[f"task_set of {name}"] = {d: c.get("task_set") for d, c in of_suite.items()}
        if "protocol" in names:
            columns |= _columns("protocol", of_suite)
    if "versions" in names:
        columns |= _columns("versions", runs)
    for name in [n for n in names if n not in ("task_set", "protocol", "versions")]:
        columns[name] = {d: c.get(name) for d, c in runs.items()}
    return [
        f"{name} is " + ", ".join(f"{value} in {directory}" for value, directory in found.items())
        for name, by_run in columns.items()
        if len(found := _first_of_each(by_run.items())) > 1
    ]


def _columns(part: str, runs: dict[Path, dict[str, Any]]) -> dict[str, dict[Path, Any]]:
    """The fields of a part of the configs, each by run."""
    names = sorted({name for config in runs.values() for name in config.get(part, {})})
    return {
        f"{part}.{name}": {d: config.get(part, {}).get(name) for d, config in runs.items()}
        for name in names
    }


def _first_of_each(items: Iterable[tuple[Path, Any]]) -> dict[str, Path]:
    """The values that there are, as text, and for each a run that has it."""
    found: dict[str, Path] = {}
    for directory, value in items:
        found.setdefault(str(value), directory)
    return found


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _device() -> str:
    """What JAX computes on: its platform, and the model where it has one."""
    device = jax.local_devices()[0]
    kind = device.device_kind
    return device.platform if kind == device.platform else f"{device.platform} ({kind})"


def _processor() -> str:
    """The processor's model, where Linux tells it."""
    models = processor_lines("model name")
    return models[0].partition(":")[2].strip() if models else platform.machine()
