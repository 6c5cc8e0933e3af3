"""Success by class of task: in training, and on held-out tasks after adaptation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptax.core.config import as_list
from adaptax.core.errors import AdaptaxError
from adaptax.experiment.curves import (
    FOLDERS_WANTED,
    SMOOTHING,
    checked_rows,
    has_interval,
    is_figure,
    tasks_of_all,
)
from adaptax.experiment.logger import Row, after_adaptation
from adaptax.experiment.plot import COLOURS, save_picture
from adaptax.experiment.run_dir import EVALUATIONS, PROGRESS, refuse_links
from adaptax.experiment.statistics import student_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PREFIX = "train/success/"
Bar = tuple[float, float, float]
"""A share with the interval from low to high."""


def has_classes(run_dirs: Sequence[Path]) -> bool:
    """Whether every run's last evaluation tells success by class."""
    return all(
        _last_with_classes(run_dir) is not None for run_dir in as_list(run_dirs, FOLDERS_WANTED)
    )


def plot_classes(run_dirs: Sequence[Path], out: Path) -> Figure:
    """Success of each class, written to `out` (PNG, PDF, SVG by its name).

    Training: any success in an episode, mean of the last 5 % of iterations. Held out: the test
    episodes of the last evaluation. Of one run the intervals are over goals, of three and more
    over runs (Student's), of two their range.
    """
    from matplotlib.figure import Figure

    run_dirs = as_list(run_dirs, FOLDERS_WANTED)
    rows = [_last_with_classes(run_dir) for run_dir in run_dirs]
    if not rows or None in rows:
        raise AdaptaxError(f"no success by class to plot: {EVALUATIONS} of a run tells none")
    training = joined_bars([_training(run_dir) for run_dir in run_dirs])
    held_out = joined_bars([held_out_bars(row) for row in rows if row is not None])
    height = 1.6 + 0.22 * (len(training) + len(held_out))  # inches
    figure = Figure(figsize=(7.0, height), dpi=150, layout="constrained")
    ratios = [len(training) + 1, len(held_out) + 1]
    upper, lower = figure.subplots(2, 1, height_ratios=ratios, sharex=True)
    _draw(upper, training, "training classes, end of training", COLOURS[1])
    what = tasks_of_all(row for row in rows if row is not None)
    _draw(lower, held_out, f"{what}, after adaptation", COLOURS[0])
    lower.set_xlabel("share of episodes with success at any step")
    lower.set_xlim(0.0, 1.0)
    save_picture(figure, out)
    return figure


def _last_with_classes(run_dir: Path) -> Row | None:
    refuse_links(run_dir)
    rows = checked_rows(run_dir / EVALUATIONS, _classes_fit)
    return rows[-1] if rows and rows[-1].get("classes") else None


def _classes_fit(row: Row) -> bool:
    """Whether what a row of `evaluations.jsonl` tells of classes, if anything, is in its types."""
    classes = row.get("classes", {})
    return isinstance(classes, dict) and all(map(_is_class, classes.values()))


def _is_class(figures: Any) -> bool:
    episodes = figures.get("episodes") if isinstance(figures, dict) else None
    if not isinstance(episodes, list) or not episodes:
        return False
    last = after_adaptation(figures)
    return isinstance(last, dict) and has_interval(last, "success")


def _shares_fit(row: Row) -> bool:
    """Whether what a row of `progress.jsonl` tells of classes, if anything, is in its types."""
    return all(is_figure(value) for name, value in row.items() if name.startswith(PREFIX))


def _training(run_dir: Path) -> dict[str, Bar]:
    """The bars of one run, without an interval: its goals are not told apart in the log."""
    rows = checked_rows(run_dir / PROGRESS, _shares_fit)
    rows = rows[-max(1, round(SMOOTHING * len(rows))) :]
    names = dict.fromkeys(name for row in rows for name in row if name.startswith(PREFIX))
    columns = {name: np.array([r[name] for r in rows if name in r], np.float64) for name in names}
    means = {name: float(column.mean()) for name, column in columns.items()}
    return {name.removeprefix(PREFIX): (mean, mean, mean) for name, mean in means.items()}


def held_out_bars(row: Row) -> dict[str, Bar]:
    """Success of each class after adaptation, of one run."""
    bars = {}
    for name, figures in row["classes"].items():
        last = after_adaptation(figures)
        low, high = last["success_ci"] or 2 * [last["success_mean"]]
        bars[name] = (last["success_mean"], low, high)
    return bars


def joined_bars(runs: list[dict[str, Bar]]) -> dict[str, Bar]:
    """Means, over the runs that have a class, with intervals over them; a single run as it is."""
    if len(runs) == 1:
        return runs[0]
    bars = {}
    for name in dict.fromkeys(name for run in runs for name in run):
        shares = np.array([run[name][0] for run in runs if name in run], np.float64)
        low, high = student_interval(shares) if len(shares) > 2 else (shares.min(), shares.max())
        bars[name] = (float(shares.mean()), float(low), float(high))
    return bars


def _draw(axes: Axes, bars: dict[str, Bar], title: str, colour: str) -> None:
    names = list(bars)[::-1]
    mean, low, high = np.array([bars[name] for name in names], np.float64).reshape(-1, 3).T
    reach = np.clip(np.stack([mean - low, high - mean]), 0.0, None)
    axes.barh(names, mean, color=colour, xerr=reach, ecolor="#444444", height=0.7)
    axes.set_title(title, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
