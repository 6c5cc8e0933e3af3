"""Means and confidence intervals over tasks and over seeds.

Three intervals for three questions: the bootstrap over tasks (many tasks, one agent), the
stratified bootstrap over runs within tasks (Agarwal et al. 2021, "Deep reinforcement learning at
the edge of the statistical precipice", section 4.1), and Student's interval over a few seeds,
where a percentile bootstrap is too narrow: on 5 normal values it holds the mean in about 83 % of
samples instead of 95 %.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np

from adaptax.core.errors import check, unknown_name
from adaptax.core.rng import named_generator

Interval = tuple[np.ndarray, np.ndarray]
StatisticName = Literal["mean", "median", "interquartile_mean"]


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
    index = rng.integers(len(x), size=(num_resamples, len(x)))
    columns = x.reshape(len(x), -1).T
    draws = np.stack([measure(column[index], axis=1) for column in columns], axis=-1)
    return _percentiles(draws.reshape(num_resamples, *x.shape[1:]), confidence)


def stratified_bootstrap_interval(
    scores: np.ndarray,
    statistic: StatisticName = "interquartile_mean",
    confidence: float = 0.95,
    num_resamples: int = 2000,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap (low, high), each [], of a statistic over all of scores [runs, tasks].

    Runs are resampled within each task, apart from the other tasks; the tasks stay as they are
    (Agarwal et al. 2021, section 4.1).
    """
    scores = np.asarray(scores, np.float64)
    check(scores.ndim == 2 and scores.size > 0, f"expected [runs, tasks], not {scores.shape}")
    num_runs, num_tasks = scores.shape
    rng = named_generator(seed, "statistics", "stratified bootstrap")
    index = rng.integers(num_runs, size=(num_resamples, num_runs, num_tasks))
    draws = scores[index, np.arange(num_tasks)].reshape(num_resamples, -1)
    return _percentiles(_statistic(statistic)(draws, axis=1), confidence)


def student_interval(x: np.ndarray, confidence: float = 0.95) -> Interval:
    """Student's interval (low, high) of the mean over axis 0, for a few seeds.

    mean +- t * s / sqrt(n), exact for normal values (Student 1908); x [n, ...], n of 2 or more.
    """
    x = np.asarray(x, np.float64)
    check(x.ndim > 0 and len(x) > 1, f"expected at least two values, not {list(x.shape)}")
    _check_confidence(confidence)
    error = np.std(x, axis=0, ddof=1) / np.sqrt(len(x))
    half_width = _student_quantile(confidence, len(x) - 1) * error
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


def _student_quantile(confidence: float, degrees: int) -> float:
    """The t with P(|T| < t) = confidence.

    With t = sqrt(degrees) * tan(theta) the density of T is cos(theta)^(degrees - 1), up to a
    constant, on (-pi/2, pi/2); here summed by trapezes, right to about 1e-6.
    """
    theta = np.linspace(0.0, np.pi / 2.0, 20_001)
    density = np.cos(theta) ** (degrees - 1)
    mass = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    angle = np.interp(confidence, mass / mass[-1], theta)
    return float(np.sqrt(degrees) * np.tan(angle))


def _check_confidence(confidence: float) -> None:
    check(0.0 < confidence < 1.0, f"confidence must lie between 0 and 1, not {confidence}")
