"""What commands take, from words to settings, and from what is wrong with them to one line."""

from __future__ import annotations

import contextlib
import difflib
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints

import tyro
from tyro.conf import Positional

from adaptax.core.errors import ConfigError
from adaptax.experiment.choices import Metric, VideoFormat, Where

C = TypeVar("C")
Import = Annotated[str | None, tyro.conf.arg(name="import", metavar="MODULE")]
YesOrNo = Annotated[bool | None, tyro.conf.arg(metavar="")]
"""Two flags, and neither of them may be given."""
RunDir = Annotated[Positional[str], tyro.conf.arg(metavar="RUN_DIR")]


@dataclass(frozen=True)
class ListArgs:
    """Algorithms and task suites, one line each."""

    recipes: bool = False
    """Recipes instead: settings that were found to work for an algorithm on a suite."""
    json: bool = False
    """Machine-readable."""


@dataclass(frozen=True)
class TrainArgs:
    """What `train` takes beside settings."""

    seeds: str | None = None
    """Train from several seeds, 0:8 (0 to 7) or 0,3,5, each in a folder of RUN_DIR."""
    on: Where = "here"
    """Where several seeds are trained: here, or each as a task of a Ray cluster."""


@dataclass(frozen=True)
class SweepArgs:
    """What `sweep` takes beside settings."""

    space: str | None = None
    """File of TOML: the settings to search, each with its range or its choices."""
    trials: int = 50
    """Settings to try, each on all of `seeds`."""
    seeds: str = "0:3"
    """Seeds of every trial, as for `train`; two or more."""
    winner_seeds: str | None = None
    """Fresh seeds to train the winner on; by default the five after the trials'."""
    metric: Metric = "return"
    """What is maximised: after adaptation at the last evaluation, mean over tasks and seeds."""
    prune: bool = True
    """End a trial at an evaluation where the best it has had is below the median of others."""
    num_processes: int | None = None
    """Trials at a time; by default one a core, or one a CPU of the cluster."""
    on: Where = "here"
    """Where trials are trained: here, or each as a task of a Ray cluster."""


@dataclass(frozen=True)
class ResumeArgs:
    """Go on exactly where the newest snapshot stands."""

    run_dir: RunDir
    """Directory of a run, a group or a sweep."""
    num_iterations: int | None = None
    """Iterations in all; with any of these three the limits that the run had count no more."""
    num_steps: int | None = None
    """Environment steps in all."""
    max_seconds: float | None = None
    """Seconds of training in all."""
    imports: Import = None
    """The module of a run on gym:MODULE:ID, whose code is run if you say so."""
    quiet: bool = False
    """No progress on the console, whatever the run was started with."""
    num_workers: Annotated[int | None, tyro.conf.arg(name="suite.num-workers")] = None
    """Processes that hold the environments (of a group, those of every member) from here on, which
    changes no data; 0 is this one."""
    on: Where = "here"
    """Where the seeds of a group are trained: here, or each as a task of a Ray cluster."""


@dataclass(frozen=True)
class EvaluateArgs:
    """Return per episode of adaptation on held-out tasks, with 95 % intervals."""

    run_dir: RunDir
    """Directory of a run or a group, or pretrained:NAME."""
    num_tasks: int | None = None
    """Held-out tasks; this and what follows by default as in training."""
    num_lanes: int | None = None
    """Independent runs on each task, averaged: more make the intervals narrower. For the MAML
    family the episodes of one gradient step."""
    num_repeats: int | None = None
    """How often each task is run from the start, with an adaptation of its own, averaged."""
    num_episodes: int | None = None
    """Episodes in a row on each task."""
    num_exploration_episodes: int | None = None
    """How many of these pass before the agent adapts for the first time; it does after each one
    from then on."""
    num_test_episodes: int | None = None
    """Episodes of the agent after those."""
    deterministic: YesOrNo = None
    """Act by the mode of the policy; --no-deterministic: draw from it."""
    best: bool = False
    """The snapshot with the highest return in training, instead of the newest."""
    imports: Import = None
    """The module of a run on gym:MODULE:ID, whose code is run if you say so."""
    json: bool = False
    """Machine-readable."""


@dataclass(frozen=True)
class PlotArgs:
    """Learning curves and adaptation curves, means and 95 % intervals."""

    run_dirs: Annotated[Positional[tuple[str, ...]], tyro.conf.arg(metavar="RUN_DIR")]
    """Directories of runs or groups, or pretrained:NAME; runs that differ in their seed are one."""
    out: str | None = None
    """File of the learning curve, the others beside it; by default in the directory of the run or
    the group, or here for several."""


@dataclass(frozen=True)
class CompareArgs:
    """Groups of seeds beside each other, on the same held-out tasks, with 95 % intervals."""

    groups: Annotated[Positional[tuple[str, ...]], tyro.conf.arg(metavar="GROUP")]
    """Folders of groups (`train --seeds`) or of runs; runs that differ in their seed are one."""
    out: str | None = None
    """File of the picture; by default comparison.png here, with --json none."""
    metric: Metric = "return"
    """What is compared, after adaptation."""
    threshold: float | None = None
    """Score to which steps are counted; by default nine tenths of the way from the untrained agents
    to the best group."""
    json: bool = False
    """Machine-readable."""


@dataclass(frozen=True)
class ReportArgs:
    """One page that opens without a network: curves, tasks, videos, protocol, settings."""

    groups: Annotated[Positional[tuple[str, ...]], tyro.conf.arg(metavar="GROUP")]
    """Folders of groups or of runs, as for `compare`, or of sweeps."""
    out: str = "report.html"
    """File of the page."""
    metric: Metric = "return"
    """What scores and curves are of."""


@dataclass(frozen=True)
class VideoArgs:
    """The first episode on a held-out task beside one after adaptation, from the same start."""

    run_dir: RunDir
    """Directory of a run, or pretrained:NAME."""
    out: str | None = None
    """File, .gif, .webp or .mp4; by default video.gif in the run's directory. Where several classes
    are filmed, each has a file of its own with its name behind this one."""
    task: int | None = None
    """Number of the held-out task, from 0, in the order in which evaluations run them; by default
    the first, of each class if there are several, up to ten of them."""
    num_episodes: int | None = None
    """Episodes in a row before the last one; by default as in an evaluation of the run."""
    stride: int = 4
    """Steps from one picture to the next."""
    size: int = 240
    """Height of each picture in pixels, at most 1024; MuJoCo's pictures are as wide."""
    deterministic: bool = False
    """Act by the mode of the policy."""
    imports: Import = None
    """The module of a run on gym:MODULE:ID, whose code is run if you say so."""
    best: bool = False
    """The snapshot with the highest return in training, instead of the newest."""


@dataclass(frozen=True)
class ExportArgs:
    """A folder for others: weights, settings, figures, and a card for the Hugging Face Hub."""

    run_dir: RunDir
    """Directory of a run."""
    out: Annotated[Positional[str], tyro.conf.arg(metavar="DIR")]
    """New folder."""
    best: bool = False
    """The snapshot with the highest return in training, instead of the newest."""
    video: VideoFormat | None = None
    """Film it, as `adaptax video` does."""
    imports: Import = None
    """The module of a run on gym:MODULE:ID, whose code is run if you say so."""


@dataclass(frozen=True)
class ImportArgs:
    """A run directory of a folder that `adaptax export` wrote, whoever sent it."""

    source: Annotated[Positional[str], tyro.conf.arg(metavar="DIR")]
    """Folder of the export."""
    run_dir: RunDir
    """New directory."""


@dataclass(frozen=True)
class DoctorArgs:
    """Versions, cores, GL backend and measured steps per second."""

    json: bool = False
    """Machine-readable."""


def parse(cls: type[C], args: list[str], prog: str) -> C:
    """The dataclass `cls` from flags; raises a one-line ConfigError instead of tyro's box."""
    box = io.StringIO()
    words = _yes_or_no(cls)
    args = [word for arg in args for word in words.get(arg.replace("_", "-"), [arg])]
    try:
        with contextlib.redirect_stderr(box):
            return tyro.cli(cls, args=args, prog=prog)
    except SystemExit as stop:
        if not stop.code:
            raise
        message = _one_line(box.getvalue())
        given = re.search(r"--[\w.-]+", message)
        if given and message.startswith("Unrecognized"):
            meant = nearest_flag(given[0], list(_flags(cls)))
            message += f"; did you mean {meant}?" if meant else ""
        raise ConfigError(f"{message}; see {prog} --help") from None


def _yes_or_no(cls: type[Any]) -> dict[str, list[str]]:
    """What tyro is to read in place of the flags of YesOrNo, of which it knows nothing."""
    hints = get_type_hints(cls, include_extras=True)
    flags = [name.replace("_", "-") for name, hint in hints.items() if hint == YesOrNo]
    yes = {f"--{flag}": [f"--{flag}", "True"] for flag in flags}
    return yes | {f"--no-{flag}": [f"--{flag}", "False"] for flag in flags}


PHRASES = (
    (
        r"Could not find valid parse for arguments: (\[.*?,.*?\])",
        r"expected values of its type with spaces between, such as 64 64, not \1",
    ),
    (r"^Error parsing ", ""),
    (r"invalid literal for int\(\) with base 10: ", "expected an integer, not "),
    (r"could not convert string to float: ", "expected a number, not "),
    (
        r"no type matching \S*\{([\w,]+)\}\S* could be instantiated from \[(.*?)\]\."
        r".*(an integer|a number).*",
        r"expected \3 or \1, not \2",
    ),
    (r"^Missing from [\w ]+: (\S+).*", r"\1 is missing"),
    (r"(\. Expected 1 values)?\.$", ""),
)
"""Tyro's words and ours."""


def _one_line(box: str) -> str:
    """The message of tyro's error box: its first paragraph.

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
    return message or "wrong arguments"


FLAGS_ELSEWHERE = {
    "total-timesteps": "--num-steps",
    "max-iter": "--num-iterations",
    "eval-freq": "--evaluation-interval",
    "save-dir": "--run-dir",
    "tensorboard": "--trackers",
    "tensorboard-log": "--trackers",
    "n-steps": "--algorithm.num-steps",
    "n-envs": "--algorithm.num-lanes",
    "n-epochs": "--algorithm.num-epochs",
    "learning-rate": "--algorithm.lr",
    "gamma": "--algorithm.discount",
    "ent-coef": "--algorithm.entropy-coeff",
    "vf-coef": "--algorithm.value-coeff",
    "eps-clip": "--algorithm.clip-range",
    "net-arch": "--algorithm.hidden-sizes",
    "learning-starts": "--algorithm.num-initial-steps",
    "gradient-steps": "--algorithm.num-updates",
}
"""What other toolkits call settings, and our flags; docs/coming-from.md has more of them."""


def nearest_flag(given: str, flags: Sequence[str]) -> str | None:
    """The flag that a wrong one is meant to be: by another toolkit's name, or by its spelling.

    Of what has a kind it is that, `--algorithm.heads.kind`. By spelling the only one that it is the
    beginning of goes first. The room, `algorithm` say, only decides between flags that are as near
    without it.
    """
    given = given.replace("_", "-")
    if (kind := f"{given}.kind") in flags:
        return kind
    if (ours := FLAGS_ELSEWHERE.get(_name(given))) in flags:
        return ours

    def likeness(flag: str) -> tuple[float, float]:
        return _likeness(_name(given), _name(flag)), _likeness(given, flag)

    begun = [flag for flag in flags if _name(flag).startswith(_name(given))]
    if len({_name(flag) for flag in begun}) == 1:
        return max(begun, key=likeness)
    nearest = max(flags, key=likeness)
    return nearest if likeness(nearest)[0] >= 0.6 else None


def _name(flag: str) -> str:
    """A flag without dashes and room."""
    return flag.removeprefix("--").rpartition(".")[2]


def _likeness(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()


def _flags(cls: type[Any], room: str = "--") -> Iterator[str]:
    """The flags of a dataclass, those of dataclasses within it too; the trainer's without room."""
    for name, hint in get_type_hints(cls, include_extras=True).items():
        flag = f"{room}{name.replace('_', '-')}"
        if isinstance(hint, type) and is_dataclass(hint):
            yield from _flags(hint, "--" if flag == "--trainer" else f"{flag}.")
        elif hint == YesOrNo or get_origin(hint) is not Annotated:  # some are words without a flag
            yield flag
        if hint in (bool, YesOrNo):
            yield f"{room}no-{name.replace('_', '-')}"


def full_flag(arg: str, short: set[str]) -> str:
    """A flag as tyro knows it: `--seed` is `--trainer.seed`, `--algorithm.memory` its kind."""
    arg = re.sub(r"^--algorithm\.memory(?==|$)", "--algorithm.memory.kind", arg)
    name = re.split("[=.]", arg.removeprefix("--").removeprefix("no-"))[0].replace("-", "_")
    return f"--trainer.{arg[2:]}" if arg.startswith("--") and name in short else arg


def flag_value(args: Sequence[str], flag: str) -> str | None:
    """What comes after the last of a flag, or after its `=`; None where it is not given."""
    for i, arg in reversed(list(enumerate(args))):
        name, equals, value = arg.partition("=")
        if name.replace("-", "_") == flag.replace("-", "_"):
            return value if equals else "".join(args[i + 1 : i + 2])
    return None
