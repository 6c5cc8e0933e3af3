"""What benchmarks share: command lines, work bound to a core, timing side by side, figures."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from adaptax.core.files import replacing
from adaptax.envs.suite import Suite
from adaptax.experiment.build import make_suite
from adaptax.experiment.provenance import provenance

WARM_UP = 2
"""Rounds that compile."""


def median_milliseconds(work: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each; they take turns, so that a busy moment hits all."""
    spent: dict[str, list[float]] = {name: [] for name in work}
    for i in range(rounds + WARM_UP):
        for name, run in work.items():
            started = time.perf_counter()
            jax.block_until_ready(run())
            if i >= WARM_UP:
                spent[name].append(1e3 * (time.perf_counter() - started))
    return {name: float(np.median(times)) for name, times in spent.items()}


def bound(core: int | None) -> list[str]:
    """What binds a command to a core; None: to none."""
    return [] if core is None else ["taskset", "-c", str(core)]


def read_json(path: Path) -> Any:
    """What `write_json` wrote; an empty dict where nothing is yet."""
    return json.loads(path.read_text()) if path.exists() else {}


def write_json(path: Path, figures: Any) -> None:
    """A file of JSON, whole or not at all; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write((json.dumps(figures, indent=2) + "\n").encode())


def with_table(page: str, mark: str, rows: Iterable[str]) -> str:
    """A page's text with the rows between two marks."""
    before, _, after = page.split(mark)
    return "\n\n".join([before + mark, "\n".join(rows), mark + after])


def check_known(names: Iterable[str], known: Iterable[str]) -> None:
    """Exit where a name that was given is none of those that there are."""
    every = list(known)
    if others := [name for name in names if name not in every]:
        raise SystemExit(f"{', '.join(others)}: none of {', '.join(every)}")


def command_line(
    description: str | None, *functions: Callable[[argparse.Namespace], None]
) -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """A parser of a command for each function, `options.function`; and each command's own."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for function in functions:
        commands.add_parser(function.__name__).set_defaults(function=function)
    return parser, commands.choices


def about(suite: Suite | None = None) -> dict[str, Any]:
    """What figures were measured by and on: command, versions, revision, machine, task set."""
    found = provenance(make_suite("cartpole") if suite is None else suite)
    for part in ("task_set", "engine") if suite is None else ():
        del found[part]
    script = Path(sys.argv[0])
    command = shlex.join(["python", f"{script.parent.name}/{script.name}", *sys.argv[1:]])
    return {"command": command, **found}


def write_report(path: Path, report: dict[str, Any], suite: Suite | None = None) -> None:
    """A benchmark's figures as JSON, with what they were measured by and on."""
    write_json(path, {**report, "about": about(suite)})
