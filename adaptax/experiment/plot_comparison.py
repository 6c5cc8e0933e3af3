"""The picture of a comparison: scores, learning curves, performance profiles, pairs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptax.experiment.comparison import learning_curves
from adaptax.experiment.curves import RunGroup, interval_words
from adaptax.experiment.plot import GREY, curve_style, draw_curve, engineering, save_picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLES = {"iqm": "interquartile mean", "mean": "mean", "median": "median"}


def plot_comparison(groups: Sequence[RunGroup], record: dict[str, Any], out: Path) -> Figure:
    """What `compare` found of the groups, written to `out` (PNG, PDF, SVG by its name)."""
    from matplotlib.figure import Figure

    several = bool(record["pairs"])
    height = 7.0 + 0.25 * max(len(groups) - 3, len(record["pairs"]) - 6, 0)  # inches
    figure = Figure(figsize=(10.0, height), dpi=150, layout="constrained")
    panels = figure.subplots(2, 2).ravel()
    for axes in panels:
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    _draw_estimates(panels[0], record)
    _draw_learning(panels[1], groups, record)
    _draw_profiles(panels[2], record)
    if several:
        _draw_pairs(panels[3], record)
    else:
        panels[3].remove()
    figure.suptitle(f"{record['suite']}: {record['score']}")
    handles, labels = panels[2].get_legend_handles_labels()
    title = "95 % intervals over seeds"
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": min(len(labels), 3)}
    figure.legend(handles, labels, **place, frameon=False, title=title)
    save_picture(figure, out)
    return figure


def _draw_estimates(axes: Axes, record: dict[str, Any]) -> None:
    """Points with their intervals: a block a statistic, a line a group in it."""
    groups = record["groups"]
    step = len(groups) + 1
    for i, name in enumerate(TITLES):
        for k, group in enumerate(groups):
            found, y = group[name], -(i * step + k)
            low, high = found["ci"] or 2 * [found["value"]]
            colour = curve_style(k)["color"]
            axes.plot(
                [low, high], [y, y], color=colour, linewidth=6, alpha=0.3, solid_capstyle="butt"
            )
            axes.plot(found["value"], y, color=colour, marker="o", markersize=5)
    middle = (len(groups) - 1) / 2
    axes.set_yticks([-(i * step + middle) for i in range(len(TITLES))], list(TITLES.values()))
    axes.set_xlabel(record["metric"])


def _draw_learning(axes: Axes, groups: Sequence[RunGroup], record: dict[str, Any]) -> None:
    for i, curve in enumerate(learning_curves(groups, record["metric"])):
        draw_curve(axes, curve, "", shaded=len(groups[i].runs) > 1, **curve_style(i))
    if record["threshold"] is not None:
        axes.axhline(record["threshold"], color=GREY, linewidth=0.8, linestyle=":")
    axes.xaxis.set_major_formatter(engineering())
    words = interval_words([group.runs for group in groups], held_out=False)
    axes.set_title(words.removeprefix("; "), fontsize=9)
    axes.set_xlabel("environment steps")
    axes.set_ylabel(f"mean {record['metric']}")


def _draw_profiles(axes: Axes, record: dict[str, Any]) -> None:
    levels = record["levels"]
    for i, group in enumerate(record["groups"]):
        profile, style = group["profile"], curve_style(i)
        number = len(group["seeds"])
        label = f"{group['name']}, {number} seed{'' if number == 1 else 's'}"
        axes.plot(levels, profile["value"], label=label, **style)
        if profile["ci"] is not None:
            axes.fill_between(levels, *profile["ci"], color=style["color"], alpha=0.17, lw=0)
    axes.set_xlabel(f"{record['metric']} x")
    axes.set_ylabel("share of seeds and tasks above x")
    axes.set_ylim(-0.02, 1.02)


def _draw_pairs(axes: Axes, record: dict[str, Any]) -> None:
    pairs = record["pairs"][::-1]
    for y, pair in enumerate(pairs):
        found = pair["probability_of_improvement"]
        low, high = found["ci"] or 2 * [found["value"]]
        axes.plot(
            [low, high], [y, y], color="#000000", linewidth=6, alpha=0.25, solid_capstyle="butt"
        )
        axes.plot(found["value"], y, color="#000000", marker="o", markersize=5)
    axes.set_yticks(range(len(pairs)), [f"{p['group']}\nbeats {p['other']}" for p in pairs])
    axes.axvline(0.5, color=GREY, linewidth=0.8, linestyle=":")
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.6, len(pairs) - 0.4)
    axes.set_xlabel("probability of a higher score on a task")
