"""Means and confidence intervals over tasks and over seeds.

Three intervals for three questions: the bootstrap over tasks (many tasks, one agent), the
bootstrap of scores [runs, tasks], of a statistic over all of them (Agarwal et al. 2021, "Deep
reinforcement learning at the edge of the statistical precipice"), and Student's interval over a
few seeds, where a percentile bootstrap is too narrow: on 5 normal values it holds the mean in
about 83 % of samples instead of 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from adaptax.core.errors import check, unknown_name
from adaptax.core.rng import named_generator

Interval = tuple[np.ndarray, np.ndarray]
Drawn = Literal["runs", "runs and tasks", "runs within tasks"]
StatisticName = Literal["mean", "median", "interquartile_mean"]
MOST_DRAWN = 1_000_000
"""Numbers, or comparisons of two, that a bootstrap has in memory at a time."""


def interquartile_mean(x: np.ndarray, axis: int | None = None) -> np.ndarray:
    """The mean of the middle half of the values along `axis`; None is over all of them.

    A quarter of the values, rounded down, is left out at each end (Agarwal et al. 2021,
    section 4.3). With fewer than four values this is the mean.
    """
    values = np.sort(np.ravel(x) if axis is None else np.moveaxis(x, axis, 0), axis=0)
    cut = len(values) // 4
    return np.asarray(np.mean(values[cut : len(values) - cut], axis=0))


def bootstrap_interval(
    x: np.ndarray,
    statistic: StatisticName = "mean",
    confidence: float = 0.95,
    num_resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap (low, high) of a statistic over tasks (Efron 1979).

    x [n] gives numbers [], x [n, E] gives [E]; a task is drawn with all its columns. One task
    gives an interval of width 0; NaN in a column makes that column's interval NaN.
    """
    x = np.asarray(x, np.float64)
    check(x.ndim in (1, 2) and len(x) > 0, f"expected values [n] or [n, E], not {list(x.shape)}")
    measure = _statistic(statistic)
    rng = named_generator(seed, "statistics", "bootstrap")
    columns, size, draws = x.reshape(len(x), -1).T, max(1, MOST_DRAWN // len(x)), []
    for start in range(0, num_resamples, size):
        index = rng.integers(len(x), size=(min(size, num_resamples - start), len(x)))
        draws.append(np.stack([measure(column[index], axis=1) for column in columns], axis=-1))
    return _percentiles(np.concatenate(draws).reshape(num_resamples, *x.shape[1:]), confidence)


def mean_score(scores: np.ndarray) -> np.ndarray:
    """The mean of scores [..., runs, tasks]."""
    return np.asarray(scores.mean(axis=(-2, -1)))


def median_score(scores: np.ndarray) -> np.ndarray:
    """The median over tasks of their means over runs, of scores [..., runs, tasks]."""
    return np.asarray(np.median(scores.mean(axis=-2), axis=-1))


def interquartile_score(scores: np.ndarray) -> np.ndarray:
    """The mean of the middle half of all scores [..., runs, tasks]."""
    return interquartile_mean(scores.reshape(*scores.shape[:-2], -1), axis=-1)


def probability_of_improvement(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """How likely a run of x [..., runs, tasks] scores higher on a task than a run of y does.

    The share of pairs of runs, ties as half, averaged over tasks: the Mann-Whitney U statistic
    over its largest value (Agarwal et al. 2021, section 4.3).
    """
    mine, others = x[..., :, None, :], y[..., None, :, :]
    return np.asarray(((mine > others) + 0.5 * (mine == others)).mean(axis=(-3, -2, -1)))


def performance_profile(scores: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """The share of scores [..., runs, tasks] above each level [L], as [..., L].

    Agarwal et al. 2021, equation 2.
    """
    return np.asarray((scores[..., None] > levels).mean(axis=(-3, -2)))


def scores_interval(
    measure: Callable[..., np.ndarray],
    *groups: np.ndarray,
    drawn: Drawn = "runs",
    classes: Sequence[str] | None = None,
    confidence: float = 0.95,
    num_resamples: int = 2000,
) -> Interval:
    """Percentile bootstrap (low, high) of `measure(*groups)`, each [runs, tasks] on the same tasks.

    `measure` takes leading axes, one of which are the resamples. `drawn` says what they are of:
    "runs" draws whole runs, for runs that each have a score on every task, which depend on each
    other; "runs and tasks" tasks as well, the same for all groups, and within their `classes`
    where they have some; "runs within tasks" runs apart for each task, for scores that are of as
    many independent runs (Agarwal et al. 2021, section 4.1).
    """
    groups = tuple(np.asarray(scores, np.float64) for scores in groups)
    for scores in groups:
        check(scores.ndim == 2 and scores.size > 0, f"expected [runs, tasks], not {scores.shape}")
    rng = named_generator(0, "statistics", "stratified bootstrap")
    # A measure of two groups compares all of their runs.
    comparisons = groups[0].shape[1] * math.prod(len(scores) for scores in groups)
    size = max(1, MOST_DRAWN // comparisons)
    draws = []
    for start in range(0, num_resamples, size):
        number = min(size, num_resamples - start)
        draws.append(measure(*_resampled(rng, groups, drawn, classes, number)))
    return _percentiles(np.concatenate(draws), confidence)


def _resampled(
    rng: np.random.Generator,
    groups: tuple[np.ndarray, ...],
    drawn: Drawn,
    classes: Sequence[str] | None,
    number: int,
) -> list[np.ndarray]:
    """So many resamples of each group, [number, runs, tasks]."""
    num_tasks = groups[0].shape[1]
    tasks = np.arange(num_tasks)[None, None]
    if drawn == "runs and tasks":
        labels = np.array([""] * num_tasks if classes is None else classes)
        tasks = np.concatenate(
            [
                rng.choice(np.flatnonzero(labels == label), (number, 1, np.sum(labels == label)))
                for label in dict.fromkeys(labels)
            ],
            axis=-1,
        )
    width = num_tasks if drawn == "runs within tasks" else 1
    return [
        scores[rng.integers(len(scores), size=(number, len(scores), width)), tasks]
        for scores in groups
    ]


def student_interval(x: np.ndarray, confidence: float = 0.95) -> Interval:
    """Student's interval (low, high) of the mean over axis 0, for a few seeds.

    mean +- t * s / sqrt(n), exact for normal values (Student 1908); x [n, ...], n of 2 or more.
    """
    x = np.asarray(x, np.float64)
    check(x.ndim > 0 and len(x) > 1, f"expected at least two values, not {list(x.shape)}")
    _check_confidence(confidence)
    from scipy.special import stdtrit

    error = np.std(x, axis=0, ddof=1) / np.sqrt(len(x))
    half_width = stdtrit(len(x) - 1, (1.0 + confidence) / 2.0) * error
    return np.mean(x, axis=0) - half_width, np.mean(x, axis=0) + half_width


def _statistic(name: str) -> Callable[..., np.ndarray]:
    functions: dict[str, Callable[..., np.ndarray]] = {
        "mean": np.mean,
        "median": np.median,
        "interquartile_mean": interquartile_mean,
    }
    if name not in functions:
        raise unknown_name("statistic", name, functions)
    return functions[name]


def _percentiles(draws: np.ndarray, confidence: float) -> Interval:
    """The central `confidence` of draws [R, ...], over axis 0."""
    _check_confidence(confidence)
    low, high = np.quantile(draws, [(1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0], axis=0)
    return low, high


def _check_confidence(confidence: float) -> None:
    check(0.0 < confidence < 1.0, f"confidence must lie between 0 and 1, not {confidence}")
