"""What `sweep.json` holds: what a sweep does, and what it found."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from adaptax.core.config import from_dict
from adaptax.core.errors import AdaptaxError, check
from adaptax.core.files import parse_json, read_plain
from adaptax.experiment.choices import Metric
from adaptax.experiment.evaluation_table import figure_text
from adaptax.experiment.job import Job
from adaptax.experiment.run_dir import SWEEP
from adaptax.experiment.sweep_space import Settings, Space

Record = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """What a sweep does."""

    training: Job
    """What every trial has in common."""
    space: Space
    num_trials: int
    seeds: tuple[int, ...]
    """Seeds of every trial."""
    winner_seeds: tuple[int, ...]
    metric: Metric
    prune: bool
    num_processes: int | None
    """Trials at a time; None: one a core."""
    expected_iterations: int | None = None
    """Of a trial, where its limits do not say how many it has."""


@dataclass(frozen=True)
class Score:
    """A mean over seeds."""

    mean: float
    ci: tuple[float, ...] | None
    """The ends of Student's 95 % interval; None where one seed tells none."""
    of_seeds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check(self.ci is None or len(self.ci) == 2, f"an interval has two ends, not {self.ci}")


@dataclass(frozen=True)
class Tried:
    """A trial that has ended."""

    number: int
    state: Literal["complete", "pruned", "fail"]
    settings: Settings
    value: float | None
    """Its last score; None where it failed before one."""
    iteration: int | None
    """That of the last evaluation that was looked at."""
    scores: tuple[float, ...] = ()
    """At the end, of each seed."""
    why: str = ""
    """What it failed of."""

    def __post_init__(self) -> None:
        known = self.value is not None or self.state == "fail"
        check(known, f"trial {self.number} is {self.state} and has no value")


@dataclass(frozen=True)
class Winner:
    """The best trial's settings, trained anew."""

    trial: int
    settings: Settings
    searched: Score
    """That of the trial."""
    fresh: Score
    """That on seeds which no trial had."""


@dataclass(frozen=True)
class Found:
    """What a sweep writes down at its end."""

    trials: tuple[Tried, ...]
    importance: dict[str, float] | None
    """By setting, its share of the difference between trials; None where too few tell it."""
    winner: Winner

    def __post_init__(self) -> None:
        shares = [] if self.importance is None else self.importance.values()
        numbers = all(isinstance(share, int | float) for share in shares)
        check(numbers, f"importance must be numbers, not {self.importance}")


def is_sweep(run_dir: Path) -> bool:
    """Whether a folder holds a sweep."""
    return os.path.isfile(run_dir / SWEEP)  # which a name that is too long is not


def read_sweep(run_dir: Path) -> tuple[Plan, Record | None]:
    """The plan of a sweep, and what it found, a `Found` as JSON, where it has come to its end."""
    path = run_dir / SWEEP
    try:
        record = parse_json(read_plain(path))
        plan, found = from_dict(Plan, record["plan"], where="plan"), record["found"]
        if found is not None:
            told = from_dict(Found, found, where="found")
            for settings in (told.winner.settings, *(trial.settings for trial in told.trials)):
                check(plan.space.keys() <= settings.keys(), f"{settings} are not of its space")
        return plan, found
    except OSError as error:
        raise AdaptaxError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise AdaptaxError(f"{path} is not what a sweep writes: {error!r}") from None


def settings_in_words(settings: Settings) -> str:
    """Settings in a line, numbers with a few digits."""
    texts = {k: f"{v:.4g}" if isinstance(v, float) else str(v) for k, v in settings.items()}
    return ", ".join(f"{name.partition('.')[2]}={text}" for name, text in texts.items())


def in_words(record: Record) -> Iterator[str]:
    """What a sweep that is at its end has found, line by line."""
    plan, found = record["plan"], record["found"]
    states = Counter(trial["state"] for trial in found["trials"])
    yield f"{len(found['trials'])} trials: " + ", ".join(f"{n} {s}" for s, n in states.items())
    winner, seeds = found["winner"], plan["winner_seeds"]
    yield f"winner: trial {winner['trial']}, {settings_in_words(winner['settings'])}"
    yield (
        f"{plan['metric']} of the trial, which was chosen for it: {score_text(winner['searched'])} "
        f"(95 % interval over {len(plan['seeds'])} seeds)"
    )
    yield (
        f"{plan['metric']} on fresh seeds: {score_text(winner['fresh'])} "
        f"(95 % interval over {len(seeds)} seeds)"
    )


def score_text(score: Record) -> str:
    """A `Score` as JSON, with its interval."""
    return figure_text(score["mean"], score["ci"])
