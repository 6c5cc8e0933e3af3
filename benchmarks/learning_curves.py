"""How benchmarks of learning judge runs of several contenders and seeds: curves and intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from adaptax.experiment.statistics import bootstrap_interval, interquartile_mean

NUM_BINS = 20
"""Points of a learning curve."""
NUM_EVALUATIONS = 20
"""Episodes of the final policy's evaluation, acting by its mode."""


def learning(total_steps: int, episodes: list[tuple[int, float, int]]) -> dict[str, Any]:
    """The learning curve, and the mean return of episodes that ended in the last tenth of steps.

    `episodes` are (steps so far, mean return, number of episodes).
    """
    bins: list[list[tuple[float, int]]] = [[] for _ in range(NUM_BINS)]
    for steps, mean, count in episodes:
        bins[min(NUM_BINS * steps // total_steps, NUM_BINS - 1)].append((mean, count))

    def mean_of(pairs: list[tuple[float, int]]) -> float | None:
        total = sum(count for _, count in pairs)
        return sum(mean * count for mean, count in pairs) / total if total else None

    last = [pair for part in bins[-NUM_BINS // 10 :] for pair in part]
    return {"final_return": mean_of(last), "curve": [mean_of(part) for part in bins]}


def final_figures(runs: list[dict[str, Any]]) -> dict[str, list[float]]:
    """Interquartile mean over seeds with its 95 % bootstrap interval, of both final returns."""
    figures = {}
    for name in ("final_return", "evaluation"):
        values = np.array([run[name] for run in runs], float)
        low, high = bootstrap_interval(values, "interquartile_mean")
        figures[name] = [float(interquartile_mean(values)), float(low), float(high)]
    return figures


def runs_of(results: list[dict[str, Any]], case: str, contender: str) -> list[dict[str, Any]]:
    """Those of one contender in one case."""
    return [r for r in results if (r["case"], r["contender"]) == (case, contender)]


def plot_curves(
    results: list[dict[str, Any]],
    total_steps: Mapping[str, int],
    contenders: Mapping[str, Sequence[str]],
    path: Path,
) -> None:
    """Curves of all cases of `total_steps`: interquartile mean over seeds, and the range of all."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    from adaptax.experiment.plot import COLOURS

    number = len(total_steps)
    figure, axes = plt.subplots(1, number, figsize=(4 * number, 3), constrained_layout=True)
    for axis, (case, length) in zip(axes, total_steps.items(), strict=True):
        steps = (np.arange(NUM_BINS) + 0.5) * length / NUM_BINS
        for contender, colour in zip(contenders[case], COLOURS, strict=False):
            mine = runs_of(results, case, contender)
            if mine:
                curves = np.array([run["curve"] for run in mine], float)
                axis.plot(steps, interquartile_mean(curves, 0), color=colour, label=contender)
                axis.fill_between(steps, curves.min(0), curves.max(0), color=colour, alpha=0.15)
        axis.set(title=case, xlabel="environment steps", ylabel="return")
        axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)
