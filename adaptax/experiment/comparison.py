"""Groups of runs beside each other: what they score on the same tasks, and how sure that is.

A score is of one run on one held-out task: the return (or the success) after adaptation, at the
last evaluation. A run has a score on every task and these depend on each other, so intervals draw
whole runs; `adaptax.experiment.statistics` says what else they may draw.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from itertools import combinations
from numbers import Real
from pathlib import Path
from typing import Any, get_args

import numpy as np

from adaptax.core.config import as_list
from adaptax.core.errors import AdaptaxError, check
from adaptax.experiment.choices import Metric
from adaptax.experiment.curves import (
    FOLDERS_WANTED,
    Curve,
    Run,
    RunGroup,
    check_one_suite,
    has_interval,
    is_figure,
    load_groups,
    over_seeds,
    score_curve,
    tasks_of,
)
from adaptax.experiment.logger import Row, after_adaptation, read_rows
from adaptax.experiment.pretrained import run_path
from adaptax.experiment.provenance import differences_between
from adaptax.experiment.run_dir import EVALUATIONS, PROGRESS
from adaptax.experiment.statistics import (
    Drawn,
    interquartile_score,
    mean_score,
    median_score,
    performance_profile,
    probability_of_improvement,
    scores_interval,
)

Record = dict[str, Any]
STATISTICS = {"iqm": interquartile_score, "mean": mean_score, "median": median_score}
INTERVALS: dict[str, Drawn] = {
    "ci": "runs",
    "ci_runs_and_tasks": "runs and tasks",
    "ci_runs_within_tasks": "runs within tasks",
}
"""By its name in JSON, what an interval draws."""
COLUMNS = {"return": "returns", "success": "success"}
"""By metric, the figures of a task in a row of evaluations."""
LEARNED = 0.9
"""How far the default threshold lies on the way from the untrained agents to the best group."""
NUM_LEVELS = 51
"""Scores at which a performance profile is known."""
FEW_SEEDS = 5
SAME_STEPS = 0.05
"""Share by which the lengths of trainings may differ without a word."""


def compare(
    groups: Sequence[RunGroup | str | Path],
    metric: Metric = "return",
    threshold: float | None = None,
) -> Record:
    """All figures of a comparison, as `adaptax compare --json` prints them.

    `groups` are folders of groups or of runs, those that differ in their seed only being one group,
    or what `load_groups` made of them.
    Raises an AdaptaxError where the groups were not evaluated alike; what else may make them
    incomparable is in `warnings`. `threshold` is that of the steps to a score.
    """
    names = get_args(Metric)
    check(metric in names, f"metric must be one of {', '.join(names)}, not {metric!r}")
    finite = threshold is None or (isinstance(threshold, Real) and math.isfinite(threshold))
    check(finite, f"threshold must be a finite number, not {threshold!r}")
    groups = _loaded(groups)
    _check_comparable(groups, metric)
    scores = [_scores(group, metric) for group in groups]
    # Of one seed, several runs of it too, no interval can be told.
    alone = [len({run.seed for run in group.runs}) == 1 for group in groups]
    classes = _classes(groups[0].runs[0].evaluations[-1])
    if threshold is None:
        threshold = _default_threshold(groups, metric)
    levels = np.linspace(min(x.min() for x in scores), max(x.max() for x in scores), NUM_LEVELS)
    each = list(zip(groups, scores, alone, strict=True))
    return {
        "suite": groups[0].runs[0].settings["suite.name"],
        "metric": metric,
        "score": score_in_words(groups, metric),
        "protocol": groups[0].runs[0].config.get("protocol"),
        "threshold": threshold,
        "warnings": _warnings(groups),
        "groups": [
            {
                **_about(group),
                **{name: _estimate(f, classes, one, own) for name, f in STATISTICS.items()},
                "profile": _profile(own, levels, one),
                "steps_to_threshold": _steps_to(group, metric, threshold),
                "seconds": _over_runs([_seconds(run) for run in group.runs]),
                "scores": own.tolist(),
            }
            for group, own, one in each
        ],
        "levels": levels.tolist(),
        "pairs": [
            {
                "group": one.name,
                "other": two.name,
                "probability_of_improvement": _estimate(
                    probability_of_improvement, classes, first or second, x, y
                ),
            }
            for (one, x, first), (two, y, second) in combinations(each, 2)
        ],
    }


def _loaded(groups: Sequence[RunGroup | str | Path]) -> list[RunGroup]:
    groups = as_list(groups, FOLDERS_WANTED)
    check(len(groups) > 0, f"expected folders of groups or runs, not {groups!r}")
    loaded = [group for group in groups if isinstance(group, RunGroup)]
    if loaded:
        check(len(loaded) == len(groups), "expected folders, or groups that are loaded, not both")
        return loaded
    return load_groups([run_path(path) for path in groups])


def learning_curves(groups: Sequence[RunGroup], metric: Metric) -> list[Curve]:
    """The mean score of each group over environment steps, with its interval over seeds."""
    return [over_seeds([score_curve(run, metric) for run in group.runs]) for group in groups]


def score_in_words(groups: Sequence[RunGroup], metric: Metric) -> str:
    """What a score is, and on which tasks."""
    runs = [run for group in groups for run in group.runs]
    row = runs[0].evaluations[-1]
    episode = "the test episodes" if "test" in row else "the last episode"
    episode = "an episode" if len(row["episodes"]) == 1 and "test" not in row else episode
    return f"{metric} of {episode} on {len(row['tasks'])} {tasks_of(runs)}"


def _check_comparable(groups: Sequence[RunGroup], metric: Metric) -> None:
    """Raise an AdaptaxError unless all runs were evaluated on the same tasks in the same way."""
    runs = [run for group in groups for run in group.runs]
    check_one_suite(runs)
    found = differences_between(_configs(runs), ("task_set", "protocol"))
    if found:
        raise AdaptaxError(f"these runs were not evaluated alike: {'; '.join(found)}")
    for run in runs:
        _check_scored(run, metric)
    first = runs[0]
    for run in runs:
        if _tasks(run) != _tasks(first):
            raise AdaptaxError(
                f"these runs were not evaluated alike: {run.directory} and {first.directory} "
                "have different tasks in their last evaluations"
            )


def _check_scored(run: Run, metric: Metric) -> None:
    """Raise an AdaptaxError unless the evaluations of a run tell the scores of the metric."""
    path = run.directory / EVALUATIONS
    if not run.evaluations:
        raise AdaptaxError(
            f"{run.directory} has no evaluation ({EVALUATIONS}): train it with an "
            "--evaluation-interval"
        )
    for row in run.evaluations:
        last = after_adaptation(row)
        tells = isinstance(last, dict) and has_interval(last, metric)
        known = all(episode["return_mean"] is not None for episode in row["episodes"])
        if not tells or not known or last[f"{metric}_mean"] is None:
            raise AdaptaxError(f"{path}, iteration {row['iteration']}, tells no {metric}")
    tasks = run.evaluations[-1].get("tasks")
    if not isinstance(tasks, list) or not tasks or not all(_is_task(t, metric) for t in tasks):
        raise AdaptaxError(f"{path}: its last row does not tell the tasks one by one")


def _is_task(task: Any, metric: Metric) -> bool:
    """Whether a task has a name, parameters, and a figure of each episode."""
    if not isinstance(task, dict) or not isinstance(task.get("params"), dict):
        return False
    parts = [task, task.get("test", task)]
    columns = [part.get(COLUMNS[metric]) if isinstance(part, dict) else None for part in parts]
    known = all(isinstance(x, list) and x and all(map(is_figure, x)) for x in columns)
    return known and isinstance(task.get("name"), str)


def _tasks(run: Run) -> list[tuple[str, Any]]:
    return [(task["name"], task["params"]) for task in run.evaluations[-1]["tasks"]]


def _classes(row: Row) -> list[str] | None:
    """The class of each task, where they have some."""
    names = [task["params"].get("class") for task in row["tasks"]]
    return None if None in names else [str(name) for name in names]


def _scores(group: RunGroup, metric: Metric) -> np.ndarray:
    """The score of each run on each task, [runs, tasks]."""
    return np.array([_task_scores(run, metric) for run in group.runs], np.float64)


def _task_scores(run: Run, metric: Metric) -> list[float]:
    """What a run scored on each task at its last evaluation."""
    column, scores = COLUMNS[metric], []
    for task in run.evaluations[-1]["tasks"]:
        episodes = task["test"][column] if "test" in task else task[column][-1:]
        if None in episodes:
            raise AdaptaxError(
                f"{run.directory / EVALUATIONS}: a {metric} on task {task['name']!r} is not finite"
            )
        scores.append(sum(episodes) / len(episodes))
    return scores


def _estimate(
    measure: Callable[..., np.ndarray],
    classes: list[str] | None,
    alone: bool,
    *scores: np.ndarray,
) -> Record:
    """A statistic with its intervals; None where a seed `alone` tells none."""
    record: Record = {"value": float(measure(*scores))}
    for name, drawn in INTERVALS.items():
        interval = None
        if not alone:
            low, high = scores_interval(measure, *scores, drawn=drawn, classes=classes)
            interval = [float(low), float(high)]
        record[name] = interval
    return record


def _profile(scores: np.ndarray, levels: np.ndarray, alone: bool) -> Record:
    """The share of scores above each level, with its interval over runs."""
    interval = None
    if not alone:
        ends = scores_interval(lambda x: performance_profile(x, levels), scores)
        interval = [end.tolist() for end in ends]
    return {"value": performance_profile(scores, levels).tolist(), "ci": interval}


def _about(group: RunGroup) -> Record:
    return {
        "name": group.name,
        "algorithm": group.runs[0].settings["algorithm.name"],
        "directories": [str(run.directory) for run in group.runs],
        "seeds": [run.seed for run in group.runs],
        "num_steps": [run.evaluations[-1]["num_steps"] for run in group.runs],
    }


def _default_threshold(groups: Sequence[RunGroup], metric: Metric) -> float | None:
    """Most of the way from the untrained agents to the best group; None where none has learned.

    What began with another run's networks is no untrained agent.
    """
    untrained, best = [], -np.inf
    for group in groups:
        curves = [score_curve(run, metric).mean for run in group.runs]
        first = [_is_untrained_at_first(run) for run in group.runs]
        untrained += [curve[0] for curve, known in zip(curves, first, strict=True) if known]
        best = max(best, float(np.mean([curve[-1] for curve in curves])))
    if not untrained or best <= np.mean(untrained):
        return None
    start = float(np.mean(untrained))
    return start + LEARNED * (best - start)


def _is_untrained_at_first(run: Run) -> bool:
    """Whether the first evaluation of a run is of fresh networks."""
    fresh = run.config["trainer"].get("init_from") is None
    return fresh and run.evaluations[0]["iteration"] == 0


def _steps_to(group: RunGroup, metric: Metric, threshold: float | None) -> Record | None:
    """Environment steps at the first evaluation whose mean is at least the threshold."""
    if threshold is None:
        return None
    curves = [score_curve(run, metric) for run in group.runs]
    reached = [c.x[c.mean >= threshold] for c in curves]
    return _over_runs([int(x[0]) if len(x) else None for x in reached])


def _seconds(run: Run) -> float | None:
    """Seconds of training, without evaluations and snapshots."""
    rows = read_rows(run.directory / PROGRESS)
    seconds = rows[-1].get("seconds") if rows else None
    return seconds if is_figure(seconds) else None


def _over_runs(figures: list[Any]) -> Record:
    """A figure of each run, None where it has none, and their median, which counts these last."""
    median = statistics.median(np.inf if x is None else x for x in figures)
    known = sum(x is not None for x in figures)
    return {"median": median if np.isfinite(median) else None, "known": known, "of_runs": figures}


def _configs(runs: Sequence[Run]) -> dict[Path, Record]:
    return {run.directory: run.config for run in runs}


def _warnings(groups: Sequence[RunGroup]) -> list[str]:
    """What may make the groups incomparable, or their intervals too narrow; a line each."""
    runs = [run for group in groups for run in group.runs]
    machine = ("device", "processor", "num_cores", "versions")
    found = differences_between(_configs(runs), machine)
    for name in (n for n in runs[0].shaping if n.startswith("suite.")):
        values = {str(run.settings.get(name)): run.directory for run in runs}
        if len(values) > 1:
            found.append(f"{name} is " + ", ".join(f"{v} in {d}" for v, d in values.items()))
    steps = sorted({run.evaluations[-1]["num_steps"] for run in runs})
    if steps[-1] > (1 + SAME_STEPS) * steps[0]:
        found.append(f"their last evaluations are at {steps[0]:,} to {steps[-1]:,} steps")
    lines = [f"these runs may not compare: {line}" for line in found]
    for group in groups:
        if differing := group.differences():
            more = f" (and {len(differing) - 1} more)" if differing[1:] else ""
            lines.append(
                f"{group.name} is not one training from several seeds: {differing[0]}{more}"
            )
        seeds = {run.seed for run in group.runs}
        if len(seeds) == 1:
            lines.append(f"{group.name} is one seed, of which no interval can be told")
        elif len(seeds) < FEW_SEEDS:
            lines.append(
                f"{group.name} is {len(seeds)} seeds: of fewer than {FEW_SEEDS} the intervals "
                "are too narrow"
            )
        if len(seeds) < len(group.runs):
            lines.append(f"{group.name} has a seed more than once, which tells nothing new")
    return lines
