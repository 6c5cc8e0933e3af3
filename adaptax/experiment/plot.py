"""Pictures of runs: how the return grows with training, and with episodes on a new task."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptax.core.errors import AdaptaxError
from adaptax.experiment.logger import (
    EVALUATIONS_FILE,
    PROGRESS_FILE,
    Row,
    episode_returns,
    read_rows,
)
from adaptax.experiment.statistics import student_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito 2008, apart under every common colour blindness; their yellow is too pale for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", ":", "-.")
GREY = "#808080"
SMOOTHING = 0.05
"""Share of a training curve that one point of its smoothed line is the mean of."""


@dataclass(frozen=True)
class Curve:
    """Means over x, all [n], and the 95 % interval of each."""

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    num_seeds: int = 1


@dataclass(frozen=True)
class Run:
    """What a run directory says about itself."""

    directory: Path
    settings: dict[str, Any]
    """`algorithm.NAME` and `suite.NAME`, nested settings joined by dots."""
    seed: int

    @property
    def name(self) -> str:
        """Algorithm and suite."""
        return f"{self.settings['algorithm.name']} on {self.settings['suite.name']}"

    def evaluations(self) -> list[Row]:
        """The rows of `evaluations.jsonl`, at least one."""
        return read_rows(self.directory / EVALUATIONS_FILE)

    def has_evaluations(self) -> bool:
        """Whether `evaluations.jsonl` is there and holds something."""
        path = self.directory / EVALUATIONS_FILE
        return path.is_file() and path.stat().st_size > 0


def plot_learning(run_dirs: Sequence[Path], out: Path) -> Figure:
    """Return over environment steps, written to `out` (PNG, PDF, SVG by its name).

    One run: training and held-out evaluation, first and last episode on a task. Several: one
    curve a group of seeds, of the last episode on held-out tasks (of training where any run has
    no evaluation), with Student's 95 % interval over seeds. Seeds with other steps are
    interpolated linearly, over the steps that all of the group's seeds have.
    """
    runs = _load_runs(run_dirs)
    figure, axes = _canvas("environment steps")
    axes.xaxis.set_major_formatter(_engineering())
    if len(runs) == 1:
        _draw_one_run(axes, runs[0])
        return _finish(figure, runs, out, "")
    held_out = all(run.has_evaluations() for run in runs)
    for i, (label, group) in enumerate(_groups(runs)):
        curves = [_evaluation_curve(run, -1) if held_out else _training_curve(run) for run in group]
        _draw(axes, _over_seeds(curves), label, i, marker="o" if held_out else "")
    what = "last episode on held-out tasks" if held_out else "training, smoothed"
    return _finish(figure, runs, out, what)


def plot_adaptation(run_dirs: Sequence[Path], out: Path) -> Figure:
    """Return over episodes on a held-out task, written to `out` (PNG, PDF, SVG by its name).

    Last evaluation of each run, and in grey that before training. Intervals of one run are over
    tasks, of several Student's over seeds.
    """
    from matplotlib.ticker import MaxNLocator

    runs = _load_runs(run_dirs)
    figure, axes = _canvas("episode on a new task")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    groups = _groups(runs)
    for i, (label, group) in enumerate(groups):
        rows = [run.evaluations()[-1] for run in group]
        steps = [_engineering()(n) for n in sorted({row["num_steps"] for row in rows})]
        label = f"{label}, {' to '.join(dict.fromkeys([steps[0], steps[-1]]))} steps"
        _draw(axes, _over_seeds([_adaptation_curve(row) for row in rows]), label, i, marker="o")
    for i, (_, group) in enumerate(groups):
        rows = [row for row in (run.evaluations()[0] for run in group) if row["iteration"] == 0]
        if rows:
            curve = _over_seeds([_adaptation_curve(row) for row in rows])
            _draw_untrained(axes, curve, "untrained agent" if i == 0 else "", len(groups) == 1)
    return _finish(figure, runs, out, "held-out tasks")


def _load_runs(run_dirs: Sequence[Path]) -> list[Run]:
    """The runs, each directory once."""
    if not run_dirs:
        raise AdaptaxError("no run directory to plot")
    return [_load_run(path) for path in dict.fromkeys(Path(d).resolve() for d in run_dirs)]


def _load_run(directory: Path) -> Run:
    path = directory / "config.json"
    if not path.is_file():
        raise AdaptaxError(f"{directory} is not a run directory: it has no config.json")
    try:
        config = json.loads(path.read_text())
        parts = {part: config[part] for part in ("algorithm", "suite")}
        seed = int(config["seed"])
        settings = _flat(parts)
        _ = settings["algorithm.name"], settings["suite.name"]
    except (ValueError, KeyError, TypeError) as error:
        raise AdaptaxError(f"{path} is not a run's configuration: {error!r}") from error
    return Run(directory, settings, seed)


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        flat |= (
            _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
        )
    return flat


def _groups(runs: list[Run]) -> list[tuple[str, list[Run]]]:
    """Runs by their settings, in the order given; what sets groups of a name apart is named."""
    members: dict[str, list[Run]] = {}
    for run in runs:
        members.setdefault(json.dumps(run.settings, sort_keys=True), []).append(run)
    groups = []
    for group in members.values():
        run = group[0]
        others = [g[0].settings for g in members.values() if g[0].name == run.name]
        differing = [
            f"{name.rpartition('.')[2]}={value}"
            for name, value in run.settings.items()
            if any(other.get(name) != value for other in others)
        ]
        distinct = len({r.seed for r in group}) == len(group)
        count = "1 seed" if len(group) == 1 else f"{len(group)} {'seeds' if distinct else 'runs'}"
        groups.append((", ".join([run.name, *differing, count]), group))
    return groups


def _training_columns(run: Run) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Steps and training returns, both [n], of first and last episode on a task, or of all."""
    rows = read_rows(run.directory / PROGRESS_FILE)
    steps = np.array([row["num_steps"] for row in rows], np.float64)
    first, last = np.array([episode_returns(row) for row in rows], np.float64).T
    columns = {"first episode on a task": first, "last episode on a task": last}
    if np.all(np.isnan(last)):
        columns = {"all episodes": np.array([r.get("train/return") for r in rows], np.float64)}
    known = {name: ~np.isnan(y) for name, y in columns.items()}
    return {name: (steps[known[name]], y[known[name]]) for name, y in columns.items()}


def _training_curve(run: Run) -> Curve:
    *_, (x, y) = _training_columns(run).values()
    if len(x) == 0:
        raise AdaptaxError(f"{run.directory} has no finished episode to plot yet")
    y = _smoothed(y)
    return Curve(x, y, y, y)


def _evaluation_curve(run: Run, episode: int) -> Curve:
    """Held-out return over steps of one episode of those on a task, counted as list items are."""
    rows = run.evaluations()
    return _curve([row["num_steps"] for row in rows], [row["episodes"][episode] for row in rows])


def _adaptation_curve(row: Row) -> Curve:
    return _curve([episode["index"] for episode in row["episodes"]], row["episodes"])


def _curve(x: Sequence[float], episodes: Iterable[Row]) -> Curve:
    figures = [(e["return_mean"], *e["return_ci"]) for e in episodes]
    return Curve(np.array(x, np.float64), *np.array(figures, np.float64).T)


def _over_seeds(curves: list[Curve]) -> Curve:
    """The mean of several curves with its 95 % interval, on x that all cover; one as it is."""
    if len(curves) == 1:
        return curves[0]
    x = np.unique(np.concatenate([c.x for c in curves]))
    x = x[(x >= max(c.x[0] for c in curves)) & (x <= min(c.x[-1] for c in curves))]
    if len(x) == 0:
        raise AdaptaxError("runs that differ only in their seed have no steps in common to average")
    y = np.stack([np.interp(x, c.x, c.mean) for c in curves])
    return Curve(x, np.mean(y, axis=0), *student_interval(y), len(curves))


def _smoothed(y: np.ndarray) -> np.ndarray:
    """Means over a window around each of y [n], cut off at both ends."""
    half = int(SMOOTHING * len(y) / 2)
    total = np.concatenate([[0.0], np.cumsum(y)])
    start = np.maximum(np.arange(len(y)) - half, 0)
    stop = np.minimum(np.arange(len(y)) + half + 1, len(y))
    return np.asarray((total[stop] - total[start]) / (stop - start))


def _draw_one_run(axes: Axes, run: Run) -> None:
    """Training thin, held-out evaluation with marks and intervals."""
    columns = _training_columns(run)
    for i, (name, (x, y)) in enumerate(reversed(columns.items())):
        axes.plot(x, y, color=COLOURS[i], alpha=0.25, linewidth=0.7)
        axes.plot(x, _smoothed(y), color=COLOURS[i], linewidth=1.2, label=f"training, {name}")
    if not run.has_evaluations():
        return
    several = all(len(row["episodes"]) > 1 for row in run.evaluations())
    for i, episode in enumerate(("last", "first") if several else ("",)):
        label = f"held-out tasks, {episode} episode" if several else "held-out tasks"
        _draw(axes, _evaluation_curve(run, -1 if i == 0 else 0), label, i, marker="o")


def _draw(axes: Axes, curve: Curve, label: str, number: int, *, marker: str) -> None:
    """One curve with its interval; its number chooses colour and style."""
    colour = COLOURS[number % len(COLOURS)]
    style = STYLES[number // len(COLOURS) % len(STYLES)]
    axes.plot(curve.x, curve.mean, style, color=colour, label=label, marker=marker, markersize=4)
    _draw_interval(axes, curve, colour)


def _draw_untrained(axes: Axes, curve: Curve, label: str, alone: bool) -> None:
    """The untrained agent in grey behind the others; with its interval if it is the only one."""
    width, marker = (1.5, "o") if alone else (0.8, "")
    axes.plot(
        *(curve.x, curve.mean), color=GREY, label=label, marker=marker, linewidth=width, zorder=1
    )
    if alone:
        _draw_interval(axes, curve, GREY)


def _draw_interval(axes: Axes, curve: Curve, colour: str) -> None:
    from matplotlib.collections import FillBetweenPolyCollection

    if len(curve.x) == 1:
        axes.vlines(curve.x, curve.low, curve.high, color=colour)
        return
    band = FillBetweenPolyCollection(
        *("x", curve.x, curve.low, curve.high), color=colour, alpha=0.2, linewidth=0
    )
    # Of two seeds it may be far wider than all curves; it is then cut off at the edge.
    axes.add_collection(band, autolim=curve.num_seeds != 2)


def _canvas(x_label: str) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.0, 4.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x_label)
    axes.set_ylabel("mean return of an episode (sum of rewards)")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _finish(figure: Figure, runs: list[Run], out: Path, what: str) -> Figure:
    """Title, legend below the axes, and the file."""
    axes = figure.axes[0]
    names = {run.name for run in runs}
    suites = {run.settings["suite.name"] for run in runs}
    title = suites.pop() if len(suites) == 1 else f"{len(suites)} suites"
    axes.set_title(names.pop() if len(names) == 1 else title)
    if axes.collections:
        over = "tasks" if len(runs) == 1 else "seeds (of one seed: over tasks)"
        what = f"{what}; shaded: 95 % interval over {over}".removeprefix("; ")
    _, labels = axes.get_legend_handles_labels()
    columns = 2 if max(map(len, labels)) < 48 else 1
    figure.set_figheight(4.5 + 0.17 * max(len(labels) / columns - 4, 0))  # inches
    font = {"fontsize": 8, "title_fontsize": 8}
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, title=what, **font)
    out = Path(out)
    allowed = figure.canvas.get_supported_filetypes()
    if out.suffix.removeprefix(".") not in allowed:
        raise AdaptaxError(f"cannot write a picture {out}: its name must end in .png, .pdf or .svg")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out)
    return figure


def _engineering() -> Any:
    from matplotlib.ticker import EngFormatter

    return EngFormatter(sep=" ")
