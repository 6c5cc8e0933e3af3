"""Parts of one's own: what of a run on record no command can make, and Python hands in again."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from adaptax.algorithms.registry import find_algorithm
from adaptax.core.config import flat
from adaptax.core.errors import ConfigError
from adaptax.envs.registry import find_suite
from adaptax.experiment.console import shell_command

WHERE_HANDED_IN = "adaptax.load_run, load_group, export_run and write_videos"
"""What takes a suite and networks of one's own again."""


def own_parts(config: dict[str, Any]) -> dict[str, str]:
    """The algorithm, suite and networks of a run's config that no name stands for, in words."""
    settings = _settings(config)
    found = dict[str, str]()
    algorithm, suite = settings.get("algorithm.name"), settings.get("suite.name")
    try:
        if isinstance(algorithm, str):
            find_algorithm(algorithm)
    except ConfigError:
        found["algorithm"] = f"the algorithm {algorithm}, which is not known here"
    if isinstance(suite, str) and is_own_suite(config["suite"]):
        found["suite"] = f"the suite {suite}, which is not known here"
    if settings.get("algorithm.networks") is not None:
        found["networks"] = f"the networks {settings['algorithm.networks']}"
    return found


def is_own_suite(recorded: dict[str, Any]) -> bool:
    """Whether the suite that a run has on record is a person's own, whatever it is called.

    No name that is known stands for it, or it lacks the settings that one of that name has.
    """
    try:
        entry = find_suite(recorded["name"])
    except ConfigError:
        return True
    return set(recorded) == {"name"} and bool(fields(entry.load()[0]))


def own_functions(config: dict[str, Any]) -> list[str]:
    """The functions among a run's settings, in words; it acts without, but cannot go on."""
    return [
        f"the function {value} as {name.removesuffix('.function')}"
        for name, value in _settings(config).items()
        if name.endswith(".function")  # which stands for it in what is written down
    ]


def loading(run_dir: Path, config: dict[str, Any], *, group: bool = False, more: str = "") -> str:
    """The call that has a run, or a group, in Python; `more` are further arguments."""
    own = own_parts(config)
    if "algorithm" in own:
        return _made_again(group)
    given = "".join(f", {part}={part}" for part in own)
    return f"adaptax.load_{'group' if group else 'run'}({str(run_dir)!r}{given}{more})"


def going_on(run_dir: Path, config: dict[str, Any], *, group: bool = False) -> str:
    """The command that goes on with a run, or a group; the call where none can."""
    if own_functions(config):
        return f"{_made_again(group)}.resume()"
    if own_parts(config):
        return f"{loading(run_dir, config, group=group)}.resume()"
    return shell_command("resume", run_dir)


def _made_again(group: bool) -> str:
    return f"{'Group(config, seeds' if group else 'Trainer(config'}, algorithm, suite)"


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    return flat({table: config.get(table, {}) for table in ("algorithm", "suite", "trainer")})
