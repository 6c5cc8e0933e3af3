"""Pictures of runs: how the return grows with training, and with episodes on a new task."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptax.core.errors import AdaptaxError
from adaptax.core.files import replacing
from adaptax.experiment.curves import (
    Curve,
    Run,
    adaptation_curve,
    check_one_suite,
    evaluation_curve,
    groups_of,
    interval_words,
    load_runs,
    over_seeds,
    smoothed,
    tasks_of,
    training_curves,
    training_returns,
)
from adaptax.experiment.run_dir import EVALUATIONS, writing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito 2008, apart under every common colour blindness; their yellow is too pale for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", "--", ":", "-.")
GREY = "#808080"


def plot_learning(run_dirs: Sequence[Path], out: Path) -> Figure:
    """Return over environment steps, written to `out` (PNG, PDF, SVG by its name).

    One run: training and held-out evaluation, first and last episode on a task. Several: one
    curve a group of seeds, of the last episode on held-out tasks (of training where any run has
    no evaluation), with Student's 95 % interval over seeds. Seeds that differ in their steps are
    interpolated linearly, over the steps that all of the group have.
    """
    runs = load_runs(run_dirs)
    check_one_suite(runs)
    figure, axes = _canvas("environment steps")
    axes.xaxis.set_major_formatter(engineering())
    if len(runs) == 1:
        _draw_one_run(axes, runs[0])
        shading = interval_words([runs], bool(runs[0].evaluations))
        return _finish(figure, runs, out, f"one seed{shading}")
    held_out = all(run.evaluations for run in runs)
    groups = groups_of(runs)
    for i, (label, group) in enumerate(groups):
        curves = [evaluation_curve(r, -1) for r in group] if held_out else training_curves(group)
        draw_curve(
            axes, over_seeds(curves), label, **curve_style(i), marker="o" if held_out else ""
        )
    what = f"last episode on {tasks_of(runs)}" if held_out else "training, smoothed"
    shading = interval_words([group for _, group in groups], held_out)
    return _finish(figure, runs, out, f"{what}{shading}")


def plot_adaptation(run_dirs: Sequence[Path], out: Path) -> Figure:
    """Return over episodes on a held-out task, written to `out` (PNG, PDF, SVG by its name).

    Last evaluation of each run, and in grey that before training; intervals as in
    `plot_learning`, of a single run over tasks.
    """
    from matplotlib.ticker import MaxNLocator

    runs = load_runs(run_dirs)
    check_one_suite(runs)
    figure, axes = _canvas("episode on a new task")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    for run in runs:
        if not run.evaluations:
            raise AdaptaxError(f"{run.directory} has no evaluation to plot ({EVALUATIONS})")
    groups = groups_of(runs)
    for i, (label, group) in enumerate(groups):
        rows = [run.evaluations[-1] for run in group]
        steps = [engineering()(n) for n in sorted({row["num_steps"] for row in rows})]
        label = f"{label}, {' to '.join(dict.fromkeys([steps[0], steps[-1]]))} steps"
        curve = over_seeds([adaptation_curve(row) for row in rows])
        draw_curve(axes, curve, label, **curve_style(i), marker="o")
    grey = {"color": GREY, "zorder": 1, "marker": "o" if len(groups) == 1 else ""}
    for i, (_, group) in enumerate(groups):
        rows = [row for row in (run.evaluations[0] for run in group) if row["iteration"] == 0]
        if rows:
            curve = over_seeds([adaptation_curve(row) for row in rows])
            draw_curve(axes, curve, "" if i else "before training", **grey, shaded=len(groups) == 1)
    shading = interval_words([group for _, group in groups], held_out=True)
    return _finish(figure, runs, out, f"{tasks_of(runs)}{shading}")


def _draw_one_run(axes: Axes, run: Run) -> None:
    """Training thin, held-out evaluation with marks and intervals."""
    for i, (name, (x, y)) in enumerate(reversed(training_returns(run).items())):
        axes.plot(x, y, color=COLOURS[i], alpha=0.25, linewidth=0.7)
        axes.plot(x, smoothed(y), color=COLOURS[i], linewidth=1.2, label=f"training, {name}")
    if not run.evaluations:
        return
    several = all(len(row["episodes"]) > 1 for row in run.evaluations)
    for i, episode in enumerate(("last", "first") if several else ("",)):
        label = f"{tasks_of([run])}, {episode} episode" if several else tasks_of([run])
        draw_curve(
            axes, evaluation_curve(run, -1 if i == 0 else 0), label, **curve_style(i), marker="o"
        )


def curve_style(number: int) -> dict[str, Any]:
    """Colour and line style of the curve with this number."""
    round_, place = divmod(number, len(COLOURS))
    return {"color": COLOURS[place], "linestyle": STYLES[round_ % len(STYLES)]}


def draw_curve(axes: Axes, curve: Curve, label: str, *, shaded: bool = True, **style: Any) -> None:
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
    axes.set_title(names.pop() if len(names) == 1 else runs[0].settings["suite.name"])
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


def engineering() -> Any:
    """Ticks as 2.5 M."""
    from matplotlib.ticker import EngFormatter

    return EngFormatter(sep=" ")
