"""What the page of a report tells of a sweep: its two figures, its trials, what settings did."""

from __future__ import annotations

from html import escape
from pathlib import Path

import numpy as np

from adaptax.core.errors import AdaptaxError
from adaptax.experiment.console import shell_command
from adaptax.experiment.evaluation_table import figure_text
from adaptax.experiment.report_figures import colour, points_figure
from adaptax.experiment.report_page import Figure, plot, table
from adaptax.experiment.sweep_record import Plan, Record, read_sweep
from adaptax.experiment.sweep_space import Dimension

SHOWN = ("complete", "pruned")
"""States of trials that have a value."""


def sweep_section(run_dir: Path, figures: dict[str, Figure]) -> str:
    """The section of a sweep as HTML; what it draws goes into `figures`."""
    plan, found = read_sweep(run_dir)
    if found is None:
        way_on = shell_command("resume", run_dir)
        raise AdaptaxError(f"{run_dir} is not at its end: go on with `{way_on}`")
    slices = "".join(
        _slice(name, dimension, plan, found, figures) for name, dimension in plan.space.items()
    )
    return _about(plan, found) + _settings(plan, found) + slices + _trials(plan, found)


def _about(plan: Plan, found: Record) -> str:
    """What was searched, and the figures of the winner."""
    winner, training = found["winner"], plan.training
    what = f"{training.algorithm['name']} on {training.suite['name']}"
    pruned = (
        "; after five that came to their end, a trial was ended at an evaluation where the best "
        "it had had was below the median of the others there"
        if plan.prune
        else ""
    )
    rows = [
        (f"seeds {_seeds(seeds)}, {how}", figure_text(own["mean"], own["ci"]))
        for seeds, how, own in (
            (plan.seeds, "by which it was chosen", winner["searched"]),
            (plan.winner_seeds, "trained afterwards", winner["fresh"]),
        )
    ]
    caption = f"{plan.metric} of trial {winner['trial']}, the winner [95 % interval over seeds]"
    return (
        f"<p>{len(found['trials'])} settings of {escape(what)} were tried, each on seeds "
        f"{_seeds(plan.seeds)}, for the highest {plan.metric} after adaptation at the last "
        f"evaluation, mean over tasks and seeds{pruned}. The best of many is partly luck: the "
        "second figure, on seeds that no trial had, is the one to believe.</p>"
        + table(caption, ["seeds", plan.metric], rows)
    )


def _seeds(seeds: tuple[int, ...]) -> str:
    return ", ".join(map(str, seeds))


def _settings(plan: Plan, found: Record) -> str:
    """The space, what won, and how much each setting mattered."""
    importance = found["importance"] or {}
    rows = []
    for name, dimension in plan.space.items():
        share = f"{importance[name]:.2f}" if name in importance else ""
        won = _value(found["winner"]["settings"][name])
        rows.append((name, _searched(dimension), won, share))
    caption = "Settings; importance is the share of the difference between trials (PED-ANOVA)"
    return table(caption, ["setting", "searched", "winner", "importance"], rows)


def _searched(dimension: Dimension) -> str:
    if "choices" in dimension:
        return ", ".join(map(_value, dimension["choices"]))
    scale = ", log" if dimension["log"] else ""
    return f"{_value(dimension['low'])} to {_value(dimension['high'])}{scale}"


def _value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _slice(
    name: str, dimension: Dimension, plan: Plan, found: Record, figures: dict[str, Figure]
) -> str:
    """The value of every trial over one setting."""
    place, caption = f"slice-{len(figures)}", f"{plan.metric} of each trial over {name}"
    own = {state: [t for t in found["trials"] if t["state"] == state] for state in SHOWN}
    chosen = "choices" in dimension
    x = [[t["settings"][name] for t in trials] for trials in own.values()]
    places = [np.array([_value(v) for v in xs] if chosen else xs) for xs in x]
    values = [np.array([t["value"] for t in trials]) for trials in own.values()]
    figure = points_figure(SHOWN, places, values, (name, plan.metric))
    kind = "category" if chosen else "log" if dimension["log"] else "linear"
    figure["layout"]["xaxis"] |= {"type": kind}
    figures[place] = figure
    return plot(place, caption, [(state, colour(i)) for i, state in enumerate(SHOWN)], "")


def _trials(plan: Plan, found: Record) -> str:
    """All trials, the best first."""

    def rank(trial: Record) -> tuple[int, float]:
        order = [*SHOWN, "fail"].index(trial["state"])
        return order, 0.0 if trial["value"] is None else -trial["value"]

    rows = [
        (
            f"trial {trial['number']}",
            trial["state"] + (f": {trial['why']}" if "why" in trial else ""),
            "" if trial["value"] is None else figure_text(trial["value"], None),
            "" if trial["iteration"] is None else str(trial["iteration"]),
            *(_value(trial["settings"][name]) for name in plan.space),
        )
        for trial in sorted(found["trials"], key=rank)
    ]
    names = [name.partition(".")[2] for name in plan.space]
    caption = f"Trials, the best first; {plan.metric} is that of the last evaluation"
    return table(caption, ["trial", "state", plan.metric, "iteration", *names], rows)
