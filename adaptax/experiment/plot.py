"""Pictures of runs: how the return grows with training, and with episodes on a new task."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from adaptax.core.errors import AdaptaxError
from adaptax.core.files import parse_json, read_plain, replacing
from adaptax.experiment.evaluation import tasks_in_words
from adaptax.experiment.logger import EVALUATIONS, PROGRESS, Row, read_rows
from adaptax.experiment.progress import episode_returns
from adaptax.experiment.run_dir import refuse_links, writing
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


@dataclass(frozen=True)
class Run:
    """What a run directory says about itself."""

    directory: Path
    name: str
    """Algorithm and suite."""
    settings: dict[str, Any]
    """`algorithm.NAME` and `suite.NAME`, nested settings joined by dots."""
    seed: int
    evaluations: list[Row]


def plot_learning(run_dirs: Sequence[Path], out: Path) -> Figure:
    """Return over environment steps, written to `out` (PNG, PDF, SVG by its name).

    One run: training and held-out evaluation, first and last episode on a task. Several: one
    curve a group of seeds, of the last episode on held-out tasks (of training where any run has
    no evaluation), with Student's 95 % interval over seeds. Seeds that differ in their steps are
    interpolated linearly, over the steps that all of the group have.
    """
    runs = _load_runs(run_dirs)
    figure, axes = _canvas("environment steps")
    axes.xaxis.set_major_formatter(_engineering())
    if len(runs) == 1:
        _draw_one_run(axes, runs[0])
        shading = _shading(runs, bool(runs[0].evaluations))
        return _finish(figure, runs, out, f"one seed{shading}")
    held_out = all(run.evaluations for run in runs)
    for i, (label, group) in enumerate(_groups(runs)):
        curves = [_evaluation_curve(run, -1) if held_out else _training_curve(run) for run in group]
        _draw(axes, _over_seeds(curves), label, **_style(i), marker="o" if held_out else "")
    what = f"last episode on {_tasks(runs)}" if held_out else "training, smoothed"
    return _finish(figure, runs, out, f"{what}{_shading(runs, held_out)}")


def plot_adaptation(run_dirs: Sequence[Path], out: Path) -> Figure:
    """Return over episodes on a held-out task, written to `out` (PNG, PDF, SVG by its name).

    Last evaluation of each run, and in grey that before training; intervals as in
    `plot_learning`, of a single run over tasks.
    """
    from matplotlib.ticker import MaxNLocator

    runs = _load_runs(run_dirs)
    figure, axes = _canvas("episode on a new task")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    for run in runs:
        if not run.evaluations:
            raise AdaptaxError(f"{run.directory} has no evaluation to plot ({EVALUATIONS})")
    groups = _groups(runs)
    for i, (label, group) in enumerate(groups):
        rows = [run.evaluations[-1] for run in group]
        steps = [_engineering()(n) for n in sorted({row["num_steps"] for row in rows})]
        label = f"{label}, {' to '.join(dict.fromkeys([steps[0], steps[-1]]))} steps"
        curve = _over_seeds([_adaptation_curve(row) for row in rows])
        _draw(axes, curve, label, **_style(i), marker="o")
    grey = {"color": GREY, "zorder": 1, "marker": "o" if len(groups) == 1 else ""}
    for i, (_, group) in enumerate(groups):
        rows = [row for row in (run.evaluations[0] for run in group) if row["iteration"] == 0]
        if rows:
            curve = _over_seeds([_adaptation_curve(row) for row in rows])
            _draw(axes, curve, "" if i else "untrained agent", **grey, shaded=len(groups) == 1)
    return _finish(figure, runs, out, f"{_tasks(runs)}{_shading(runs, True)}")


def _load_runs(run_dirs: Sequence[Path]) -> list[Run]:
    """The runs, each directory once."""
    if not run_dirs:
        raise AdaptaxError("no run directory to plot")
    return [_load_run(path) for path in dict.fromkeys(Path(d).resolve() for d in run_dirs)]


def _load_run(directory: Path) -> Run:
    refuse_links(directory)
    path = directory / "config.json"
    if not path.is_file():
        raise AdaptaxError(f"{directory} is not a run directory: it has no config.json")
    try:
        config = parse_json(read_plain(path))
        settings = _flat({part: config[part] for part in ("algorithm", "suite")})
        name = f"{settings['algorithm.name']} on {settings['suite.name']}"
        seed = int(config["seed"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise AdaptaxError(f"{path} is not a run's configuration: {error!r}") from error
    evaluations = checked_rows(directory / EVALUATIONS, _is_evaluation)
    return Run(directory, name, settings, seed, evaluations)


def checked_rows(path: Path, fits: Callable[[Row], bool]) -> list[Row]:
    """The rows of a log; an AdaptaxError names the first that does not fit."""
    rows = read_rows(path)
    for row in rows:
        if not fits(row):
            raise AdaptaxError(f"{path}, iteration {row['iteration']}: not a row that a run writes")
    return rows


def is_figure(value: Any) -> bool:
    """Whether a value of a row is a number that can be drawn, or none."""
    whole = isinstance(value, int) and abs(value) < 2**63
    return value is None or isinstance(value, float) or whole


def _is_training(row: Row) -> bool:
    """Whether a row of `progress.jsonl` has what curves are made of, in its types."""
    figures = [value for name, value in row.items() if name.startswith("train/return")]
    return row.get("num_steps") is not None and all(map(is_figure, [row["num_steps"], *figures]))


def _is_evaluation(row: Row) -> bool:
    """Whether a row of `evaluations.jsonl` has what curves are made of, in its types."""
    episodes, steps, over = (row.get(name) for name in ("episodes", "num_steps", "interval_over"))
    return (
        steps is not None
        and is_figure(steps)
        and isinstance(over, str | None)
        and isinstance(episodes, list)
        and len(episodes) > 0
        and all(isinstance(e, dict) and _is_episode(e) for e in episodes)
    )


def _is_episode(figures: dict[str, Any]) -> bool:
    index = figures.get("index")
    return index is not None and is_figure(index) and has_interval(figures, "return")


def has_interval(figures: dict[str, Any], of: str) -> bool:
    """Whether figures hold the mean of something, and the two ends of its interval or none."""
    if not {f"{of}_mean", f"{of}_ci"} <= figures.keys():
        return False
    mean, interval = figures[f"{of}_mean"], figures[f"{of}_ci"]
    pair = isinstance(interval, list) and len(interval) == 2 and all(map(is_figure, interval))
    return is_figure(mean) and (interval is None or pair)


def _flat(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        nested = isinstance(value, dict)
        flat |= _flat(value, f"{prefix}{name}.") if nested else {prefix + name: value}
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


def _training_returns(run: Run) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Steps and returns, both [n], of the first and last training episode on a task, or of all."""
    rows = checked_rows(run.directory / PROGRESS, _is_training)
    pairs = [episode_returns(row) for row in rows]
    columns: dict[str, Sequence[float | None]]
    columns = {"all episodes": [row.get("train/return") for row in rows]}
    if any(last is not None for _, last in pairs):
        first, last = zip(*pairs, strict=True)
        columns = {"first episode on a task": first, "last episode on a task": last}
    steps = np.array([row["num_steps"] for row in rows], np.float64)
    known = {name: np.array([y is not None for y in ys], bool) for name, ys in columns.items()}
    if not all(np.any(mask) for mask in known.values()):
        raise AdaptaxError(f"{run.directory} has no training return to plot yet ({PROGRESS})")
    return {
        name: (steps[mask], np.array(columns[name], np.float64)[mask])
        for name, mask in known.items()
    }


def _training_curve(run: Run) -> Curve:
    *_, (x, y) = _training_returns(run).values()
    y = _smoothed(y)
    return Curve(x, y, y, y)


def _evaluation_curve(run: Run, episode: int) -> Curve:
    """Held-out return over steps of one episode of those on a task, counted as list items are."""
    steps = [row["num_steps"] for row in run.evaluations]
    return _curve(steps, [row["episodes"][episode] for row in run.evaluations])


def _adaptation_curve(row: Row) -> Curve:
    return _curve([episode["index"] for episode in row["episodes"]], row["episodes"])


def _curve(x: Sequence[float], episodes: Iterable[Row]) -> Curve:
    figures = [(e["return_mean"], *(e["return_ci"] or 2 * [e["return_mean"]])) for e in episodes]
    return Curve(np.array(x, np.float64), *np.array(figures, np.float64).T)


def _over_seeds(curves: list[Curve]) -> Curve:
    """The mean of several curves on x that all cover; one as it is.

    With Student's 95 % interval, of two curves their range: the interval of two is so wide and
    so ragged that it hides everything.
    """
    if len(curves) == 1:
        return curves[0]
    x = np.unique(np.concatenate([c.x for c in curves]))
    x = x[(x >= max(c.x[0] for c in curves)) & (x <= min(c.x[-1] for c in curves))]
    if len(x) == 0:
        raise AdaptaxError("runs that differ only in their seed have no steps in common to average")
    y = np.stack([np.interp(x, c.x, c.mean) for c in curves])
    spread = student_interval(y) if len(y) > 2 else (np.min(y, axis=0), np.max(y, axis=0))
    return Curve(x, np.mean(y, axis=0), *spread)


def _smoothed(y: np.ndarray) -> np.ndarray:
    """Means over a window around each of y [n], cut off at both ends."""
    half = int(SMOOTHING * len(y) / 2)
    total = np.concatenate([[0.0], np.cumsum(y)])
    start = np.maximum(np.arange(len(y)) - half, 0)
    stop = np.minimum(np.arange(len(y)) + half + 1, len(y))
    return np.asarray((total[stop] - total[start]) / (stop - start))


def _draw_one_run(axes: Axes, run: Run) -> None:
    """Training thin, held-out evaluation with marks and intervals."""
    for i, (name, (x, y)) in enumerate(reversed(_training_returns(run).items())):
        axes.plot(x, y, color=COLOURS[i], alpha=0.25, linewidth=0.7)
        axes.plot(x, _smoothed(y), color=COLOURS[i], linewidth=1.2, label=f"training, {name}")
    if not run.evaluations:
        return
    several = all(len(row["episodes"]) > 1 for row in run.evaluations)
    for i, episode in enumerate(("last", "first") if several else ("",)):
        label = f"{_tasks([run])}, {episode} episode" if several else _tasks([run])
        _draw(axes, _evaluation_curve(run, -1 if i == 0 else 0), label, **_style(i), marker="o")


def _tasks(runs: list[Run]) -> str:
    """What the last evaluations of runs were on."""
    words = {tasks_in_words(run.evaluations[-1]) for run in runs}
    return words.pop() if len(words) == 1 else "tasks of the evaluation"


def _style(number: int) -> dict[str, Any]:
    """Colour and line style of the curve with this number."""
    round_, place = divmod(number, len(COLOURS))
    return {"color": COLOURS[place], "linestyle": STYLES[round_ % len(STYLES)]}


def _draw(axes: Axes, curve: Curve, label: str, *, shaded: bool = True, **style: Any) -> None:
    """One curve with its interval."""
    axes.plot(curve.x, curve.mean, label=label, markersize=4 if len(curve.x) <= 60 else 0, **style)
    if shaded and len(curve.x) > 1:
        axes.fill_between(curve.x, curve.low, curve.high, color=style["color"], alpha=0.17, lw=0)
    elif shaded:
        axes.vlines(curve.x, curve.low, curve.high, color=style["color"])


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
    _, labels = axes.get_legend_handles_labels()
    columns = 2 if max(map(len, labels)) < 46 else 1
    figure.set_figheight(4.5 + 0.17 * max(len(labels) / columns - 4, 0))  # inches
    font = {"fontsize": 8, "title_fontsize": 8}
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, title=what, **font)
    save_picture(figure, Path(out))
    return figure


def check_picture(out: Path) -> None:
    """Raise an AdaptaxError unless a picture can have this name."""
    from matplotlib.backend_bases import FigureCanvasBase

    if out.suffix.removeprefix(".") not in FigureCanvasBase.get_supported_filetypes():
        raise AdaptaxError(f"cannot write a picture {out}: its name must end in .png, .pdf or .svg")


def save_picture(figure: Figure, out: Path) -> None:
    """Write a picture whole or not at all; what was there goes, a link too."""
    from matplotlib.text import Text

    check_picture(out)
    for text in figure.findobj(Text):
        text.set_parse_math(False)  # names of ours and of others may have a $ in them
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out) as file:
            figure.savefig(file, format=out.suffix.removeprefix("."))


def _shading(runs: list[Run], held_out: bool) -> str:
    """What is shaded, for the legend's title."""
    groups = [group for _, group in _groups(runs)]
    sizes = [len(group) for group in groups]
    rows = [g[0].evaluations[-1] for g in groups if len(g) == 1 and held_out]
    rows = [row for row in rows if row["episodes"][-1]["return_ci"] is not None]
    over = {row.get("interval_over", "tasks") for row in rows}
    meanings = {
        "95 % interval over seeds": max(sizes) > 2,
        "range of two seeds": 2 in sizes,
        "95 % interval over tasks": "tasks" in over,
        "95 % interval over episodes": "episodes" in over,
    }
    present = [meaning for meaning, occurs in meanings.items() if occurs]
    return f"; shaded: {', '.join(present)}" if present else ""


def _engineering() -> Any:
    from matplotlib.ticker import EngFormatter

    return EngFormatter(sep=" ")
