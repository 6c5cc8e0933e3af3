"""What commands take, from words to settings, and from what is wrong with them to one line."""

from __future__ import annotations

import contextlib
import difflib
import io
import re
import sys
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import tyro
from tyro.conf import Positional

from adaptax.core.errors import ConfigError

C = TypeVar("C")
RunDir = Annotated[Positional[str], tyro.conf.arg(metavar="RUN_DIR")]


@dataclass(frozen=True)
class ListArgs:
    """Algorithms and task suites, one line each."""

    json: bool = False
    """Machine-readable."""


@dataclass(frozen=True)
class ResumeArgs:
    """Go on exactly where the newest snapshot stands."""

    run_dir: RunDir
    num_iterations: int | None = None
    """Iterations in all, instead of the limits that the run had."""
    quiet: bool = False
    """No progress on the console, whatever the run was started with."""


@dataclass(frozen=True)
class EvaluateArgs:
    """Return per episode of adaptation on held-out tasks, with 95 % intervals over tasks."""

    run_dir: RunDir
    num_tasks: int | None = None
    """Held-out tasks; this and what follows by default as in training."""
    num_lanes: int | None = None
    """Independent runs on each task, averaged: more make the intervals narrower."""
    num_episodes: int | None = None
    """Episodes in a row on each task."""
    num_test_episodes: int | None = None
    """Episodes of the agent after those."""
    deterministic: bool = False
    """Act by the mode of the policy."""
    json: bool = False
    """Machine-readable."""


@dataclass(frozen=True)
class PlotArgs:
    """Learning curves and adaptation curves, means and 95 % intervals."""

    run_dirs: Positional[tuple[str, ...]]
    out: str | None = None
    """File of the learning curve, the adaptation curve beside it; by default in the run's
    directory, or here for several runs."""


@dataclass(frozen=True)
class VideoArgs:
    """The first episode on a held-out task beside the one after adaptation (MuJoCo suites)."""

    run_dir: RunDir
    out: str | None = None
    """File, .gif or .webp; by default video.gif in the run's directory."""
    task: int = 0
    """Which of the held-out tasks, counted from 0."""
    num_episodes: int | None = None
    """Episodes in a row before the last one; by default as in training."""
    stride: int = 4
    """Steps from one picture to the next."""
    size: int = 240
    """Pixels of each picture's sides."""
    deterministic: bool = False
    """Act by the mode of the policy."""


@dataclass(frozen=True)
class DoctorArgs:
    """Versions, cores, GL backend and measured steps per second."""

    json: bool = False
    """Machine-readable."""


def parse(cls: type[C], args: list[str], prog: str) -> C:
    """The dataclass `cls` from flags; raises a one-line ConfigError instead of tyro's box."""
    box = io.StringIO()
    try:
        with contextlib.redirect_stderr(box):
            return tyro.cli(cls, args=args, prog=prog)
    except SystemExit as stop:
        if not stop.code:
            raise
        raise ConfigError(_one_line(box.getvalue()) + f"; see {prog} --help") from None


PHRASES = (
    (r"^Error parsing ", ""),
    (r"invalid literal for int\(\) with base 10: ", "expected an integer, not "),
    (r"could not convert string to float: ", "expected a number, not "),
    (
        r"no type matching \S+ could be instantiated from \[(.*?)\]\..*(an integer|a number).*",
        r"expected \2 or None, not \1",
    ),
    (r"^Missing from [\w ]+: (\S+).*", r"\1 is missing"),
    (r"(\. Expected 1 values)?\.$", ""),
)
"""Tyro's words and ours."""


def _one_line(box: str) -> str:
    """The message of tyro's error box: its first paragraph, and the nearest flag if any.

    Where the output is not UTF-8 the box has no frame, but its title and a rule come first.
    """
    lines = [line.strip("│ ") for line in box.splitlines()]
    lines = [line for line in lines if line and line[0] not in "╭╰"]
    rules = [i for i, line in enumerate(lines) if set(line) <= set("─-")]
    if "╭" not in box:
        lines, rules = lines[2:], [i - 2 for i in rules[1:]]
    message = " ".join(lines[: rules[0] if rules else None])
    for theirs, ours in PHRASES:
        message = re.sub(theirs, ours, message)
    given = re.search(r"--[\w.-]+", message)
    hints = [line.split()[0].strip(",") for line in lines if re.match(r"--\w", line)]
    if given and message.startswith("Unrecognized") and hints:
        nearest = difflib.get_close_matches(given[0], hints, n=1, cutoff=0.0)[0]
        message += f"; did you mean {nearest}?"
    return message or "wrong arguments"


def full_flag(arg: str, short: set[str]) -> str:
    """A flag as tyro knows it: `--seed` is `--trainer.seed`, `--algorithm.memory` its kind."""
    arg = re.sub(r"^--algorithm\.memory(?==|$)", "--algorithm.memory.kind", arg)
    name = re.split("[=.]", arg.removeprefix("--").removeprefix("no-"))[0].replace("-", "_")
    return f"--trainer.{arg[2:]}" if arg.startswith("--") and name in short else arg


def one_line_warning(message: Warning | str, *about: Any, **more: Any) -> None:
    """Show a warning as one line on stderr; takes the place of `warnings.showwarning`."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(message))  # Gymnasium colours its warnings
    print(f"adaptax: warning: {text}", file=sys.stderr)
