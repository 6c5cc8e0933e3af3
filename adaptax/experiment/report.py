"""`adaptax report`: one page that tells what was run, how well it did, and how that was found."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from adaptax.core.config import as_list
from adaptax.core.errors import AdaptaxError
from adaptax.core.files import read_plain, replacing
from adaptax.experiment.choices import Metric
from adaptax.experiment.comparison import Record, compare, learning_curves
from adaptax.experiment.comparison_table import score_cells
from adaptax.experiment.curves import (
    FOLDERS_WANTED,
    Curve,
    RunGroup,
    adaptation_curve,
    interval_words,
    over_seeds,
    tasks_of,
)
from adaptax.experiment.evaluation_table import figure_text
from adaptax.experiment.plot import GREY
from adaptax.experiment.plot_classes import Bar, has_classes, held_out_bars, joined_bars
from adaptax.experiment.recipe import CLASS_DEFAULTS
from adaptax.experiment.report_figures import (
    NamedCurve,
    check_plotly,
    classes_figure,
    colour,
    curves_figure,
    map_figure,
    points_figure,
)
from adaptax.experiment.report_page import Figure, page, plot, table
from adaptax.experiment.reproduce import (
    command_of,
    differing_from,
    from_python,
    recipe_of,
    setting_words,
    trainings,
)
from adaptax.experiment.run_dir import MOST_VIDEOS, VIDEO_KINDS, videos_of, writing
from adaptax.experiment.sweep_report import sweep_section

BEFORE = "before training"
MOST_PARAMETERS = 3
"""Parameters of tasks that are drawn at most."""


def write_report(
    groups: Sequence[RunGroup],
    out: Path,
    sweeps: Sequence[Path] = (),
    metric: Metric = "return",
) -> Record:
    """Write the page of these groups to `out`, whole or not at all; what `compare` found of them.

    The `sweeps` that some of them are the winners of have sections before them.

    Raises an AdaptaxError where they do not compare, or Plotly is not installed.
    """
    check_plotly()
    sweeps = as_list(sweeps, FOLDERS_WANTED)
    record = compare(groups, metric)
    text = Report(groups, record).page(sweeps)
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out) as file:
            file.write(text.encode())
    return record


class Report:
    """The sections of a page; what they draw is gathered in `figures`."""

    def __init__(self, groups: Sequence[RunGroup], record: Record) -> None:
        self.groups, self.record = groups, record
        self.names = [group.name for group in groups]
        self.tasks = groups[0].runs[0].evaluations[-1]["tasks"]
        self.figures: dict[str, Figure] = {}

    def page(self, sweeps: Sequence[Path] = ()) -> str:
        """The whole page."""
        sweeps = list(dict.fromkeys(path.resolve() for path in sweeps))
        places: list[str | Path] = [path.name for path in sweeps]
        if len(set(places)) < len(places):
            places = [*sweeps]
        parts = [
            *(
                (f"Sweep {place}", sweep_section(path, self.figures))
                for place, path in zip(places, sweeps, strict=True)
            ),
            ("Scores", self._scores()),
            ("Learning", self._learning()),
            ("Adaptation", self._adaptation()),
            ("Tasks", self._tasks()),
            ("Classes", self._classes()),
            ("Videos", self._videos()),
            ("Protocol", self._protocol()),
            ("What was run", "".join(map(self._run, self.groups))),
        ]
        sections = [(heading, content) for heading, content in parts if content]
        title = f"{' and '.join(self.names)} on {self.record['suite']}"
        made = f"Made by adaptax {version('adaptax')}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC."
        return page(title, made, sections, self.figures)

    def _curves(self) -> list[tuple[str, str]]:
        """Name and colour of each group's."""
        return [(name, colour(i)) for i, name in enumerate(self.names)]

    def _scores(self) -> str:
        """The table of the comparison, its warnings, and how likely one beats another."""
        record = self.record
        columns, rows = score_cells(record)
        caption = f"{record['score']} [95 % interval over seeds]"
        warnings = "".join(f'<p class="warning">{escape(w)}</p>' for w in record["warnings"])
        return warnings + table(caption, columns, rows) + self._pairs() + self._profile()

    def _pairs(self) -> str:
        rows = [
            (f"{pair['group']} beats {pair['other']}", figure_text(found["value"], found["ci"]))
            for pair in self.record["pairs"]
            for found in [pair["probability_of_improvement"]]
        ]
        caption = (
            "probability that a run of the first scores higher on a task than one of the other"
        )
        return table(caption, ["pair", "probability"], rows) if rows else ""

    def _profile(self) -> str:
        levels = np.array(self.record["levels"])
        curves = []
        for group in self.record["groups"]:
            profile = group["profile"]
            value = np.array(profile["value"])
            ends = 2 * [value] if profile["ci"] is None else map(np.array, profile["ci"])
            curves.append(Curve(levels, value, *ends))
        titles = (f"{self.record['metric']} x", "share above x")
        caption = "Share of seeds and tasks that scored above x (performance profile)"
        return self._drawn("profile", caption, curves, titles)

    def _drawn(self, name: str, caption: str, curves: list[Curve], titles: tuple[str, str]) -> str:
        """A curve for each group, as a figure and as a table."""
        named: list[NamedCurve] = [(n, c, {}) for n, c in zip(self.names, curves, strict=True)]
        self.figures[name] = curves_figure(named, *titles)
        return plot(name, caption, self._curves(), _curve_table(caption, titles[0], named))

    def _shading(self) -> str:
        return interval_words([group.runs for group in self.groups], held_out=True)

    def _learning(self) -> str:
        curves = learning_curves(self.groups, self.record["metric"])
        caption = f"Mean {self.record['score']}, over training{self._shading()}"
        titles = ("environment steps", self.record["metric"])
        return self._drawn("learning", caption, curves, titles)

    def _adaptation(self) -> str:
        """The metric over the episodes on a task, after training and before."""
        named: list[NamedCurve] = []
        metric = self.record["metric"]
        for group in self.groups:
            rows = [run.evaluations[-1] for run in group.runs]
            curves = [adaptation_curve(row, metric) for row in rows]
            named.append((group.name, over_seeds(curves), {}))
        shown = self._curves()
        # A group each: their agents before training differ, and equal ones are no more seeds.
        for group in self.groups:
            first = [run.evaluations[0] for run in group.runs]
            before = [adaptation_curve(row, metric) for row in first if row["iteration"] == 0]
            if before:
                name = BEFORE if len(self.groups) == 1 else f"{group.name}, {BEFORE}"
                named.append((name, over_seeds(before), {"color": GREY, "dash": "dot"}))
        if len(named) > len(self.groups):
            shown.append((BEFORE, GREY))
        self.figures["adaptation"] = curves_figure(named, "episode on a new task", metric)
        self.figures["adaptation"]["layout"]["xaxis"]["dtick"] = max(1, len(named[0][1].x) // 10)
        words = tasks_of([run for group in self.groups for run in group.runs])
        caption = f"Mean {metric} of each episode in a row on {words}{self._shading()}"
        return plot("adaptation", caption, shown, _curve_table(caption, "episode", named))

    def _tasks(self) -> str:
        """Scores of each task, over its parameters and as a table."""
        scores = [np.array(group["scores"]) for group in self.record["groups"]]
        means = [own.mean(axis=0) for own in scores]
        drawn = "".join(self._over_parameter(*found, means) for found in self._parameters())
        columns = ["task", "parameters", *self.names]
        rows = [
            (
                task["name"],
                _parameters_text(task["params"]),
                *(_spread(own[:, i]) for own in scores),
            )
            for i, task in enumerate(self.tasks)
        ]
        caption = f"{self.record['metric']} of each task: mean over seeds (lowest to highest)"
        return drawn + table(caption, columns, rows)

    def _parameters(self) -> Iterator[tuple[str, np.ndarray]]:
        """Parameters that differ between tasks: numbers [tasks], or places [tasks, 2]."""
        found = 0
        for name in self.tasks[0]["params"]:
            try:
                values = np.array([task["params"].get(name) for task in self.tasks], np.float64)
            except (TypeError, ValueError):  # words, or arrays of several lengths
                continue
            if values.ndim == 2 and values.shape[1] == 1:
                values = values[:, 0]
            fits = values.ndim == 1 or values.shape[1:] == (2,)
            if fits and np.all(np.isfinite(values)) and len(np.unique(values, axis=0)) > 1:
                yield name, values
                found += 1
            if found == MOST_PARAMETERS:
                return

    def _over_parameter(self, name: str, values: np.ndarray, means: list[np.ndarray]) -> str:
        metric, number = self.record["metric"], len(self.figures)
        if values.ndim == 1:
            place, caption = f"tasks-{number}", f"Mean {metric} of each task over its {name}"
            x = [values] * len(means)
            self.figures[place] = points_figure(self.names, x, means, (name, metric))
            return plot(place, caption, self._curves(), "")
        ends = (float(np.min(means)), float(np.max(means)))
        maps = []
        for i, own in enumerate(means):
            place, caption = f"tasks-{number + i}", f"Mean {metric} at each {name}: {self.names[i]}"
            titles = (f"{name}[0]", f"{name}[1]")
            self.figures[place] = map_figure(values, own, ends, titles)
            maps.append(plot(place, caption, [], ""))
        return f'<div class="maps">{"".join(maps)}</div>'

    def _classes(self) -> str:
        """Success of each class after adaptation, where tasks have classes."""
        rows = [[run.evaluations[-1] for run in group.runs] for group in self.groups]
        if not has_classes([run.directory for group in self.groups for run in group.runs]):
            return ""
        bars = [joined_bars([held_out_bars(row) for row in own]) for own in rows]
        self.figures["classes"] = classes_figure(self.names, bars)
        caption = "Share of episodes with success at any step after adaptation, by class"
        columns = ["class", *self.names]
        names = dict.fromkeys(name for own in bars for name in own)
        cells = [(name, *(_bar_text(own.get(name)) for own in bars)) for name in names]
        return plot("classes", caption, self._curves(), table(caption, columns, cells))

    def _videos(self) -> str:
        """What `adaptax video` has made of the runs."""
        found = []
        for group in self.groups:
            for run in group.runs:
                for path in _videos(run.directory):
                    kind = path.stem.removeprefix("video").replace("-", ", ", 1)
                    about = f"{group.name}, seed {run.seed}{kind}"
                    what = escape(f"{about}: before and after adaptation")
                    shown = _moving(path, what)
                    found.append(f"<details><summary>{what}</summary>{shown}</details>")
        return "".join(found)

    def _protocol(self) -> str:
        """How the scores came about, in words."""
        row = self.groups[0].runs[0].evaluations[-1]
        protocol = self.record["protocol"] or {}
        words = tasks_of([run for group in self.groups for run in group.runs])
        number, available = len(self.tasks), row.get("num_available")
        part = "" if available in (None, number) else f", the first of {available}"
        where = f"the {words}" if number == 1 else f"each of {number} {words}"
        lanes, test = protocol.get("num_lanes", 1), protocol.get("num_test_episodes", 0)
        times = protocol.get("num_repeats", 1)
        ways = [] if lanes == 1 else [f"in each of {lanes} lanes"]
        ways += [] if times == 1 else [f"{times} times from the start"]
        averaged = f" {' and '.join(ways)}, whose figures are averaged," if ways else ""
        episodes = len(row["episodes"])
        first = protocol.get("num_exploration_episodes", 1)
        adapts = "adapts after each" if first == 1 else f"adapts after each from number {first} on"
        does = f"{episodes} episodes in a row and {adapts}" if episodes > 1 else "an episode"
        after = f", then {test} test episodes, each from where these left the agent" if test else ""
        acts = "by the mode of" if protocol.get("deterministic") else "drawn from"
        score = self.record["score"].partition(" on ")[0]
        on = escape(f"{where} of {self.record['suite']}{part}")
        does = escape(f"{averaged} {does}{after}")
        return f"""<p>On {on}, an agent that is told nothing of the task
runs{does}. Its actions are {acts} its policy. The return of an episode is the
sum of its rewards; the score of a run on a task is the {score}, at the last evaluation.</p>
<p>IQM is the mean of the middle half of all scores of seeds and tasks, the median that of the
tasks' means. Intervals are percentile bootstraps that draw whole seeds: they say how much another
training from other seeds might differ, on these tasks. What is shaded around curves is said above
them; over seeds it is Student's interval.
</p>"""

    def _run(self, group: RunGroup) -> str:
        """What one group was: commands, settings, versions, machine."""
        run = group.runs[0]
        about = {
            "device": run.config.get("device"),
            "processor": run.config.get("processor"),
            "cores": run.config.get("num_cores"),
            "task set": run.config.get("task_set"),
            **(run.config.get("versions") or {}),
        }
        rows = [(name, str(value)) for name, value in about.items() if value is not None]
        return (
            f"<h3>{escape(group.name)}</h3>"
            + "".join(_training(*each) for each in trainings(group.runs))
            + f"<details><summary>Versions and machine</summary>"
            f"{table('Versions and machine', ['what', 'is'], rows)}</details>"
        )


def _training(config: dict[str, Any], seeds: Sequence[int]) -> str:
    """What trained these seeds: recipe, command, settings."""
    recipe, names = recipe_of(config)
    told, command = from_python(config), command_of(config, seeds)
    how = f"<p>{escape(told)}</p>" if told else f"<pre>{escape(command)}</pre>"
    changed = [(name, setting_words(x)) for name, x in differing_from(recipe, config)]
    usual = "those of the recipe" if recipe is not CLASS_DEFAULTS else "the defaults"
    settings = table(f"Settings that are not {usual}", ["setting", "value"], changed)
    return f"<p>{escape(names)}</p>{how}{settings if changed else ''}"


def _spread(scores: np.ndarray) -> str:
    mean, low, high = (
        figure_text(float(x), None) for x in (scores.mean(), scores.min(), scores.max())
    )
    return mean if len(scores) == 1 else f"{mean} ({low} to {high})"


def _bar_text(bar: Bar | None) -> str:
    return "" if bar is None else figure_text(bar[0], list(bar[1:]))


def _parameters_text(params: dict[str, Any]) -> str:
    """The parameters of a task, each with a few digits."""
    return "; ".join(f"{name} {_rounded(value)}" for name, value in params.items())


def _rounded(value: Any) -> str:
    if isinstance(value, list):
        return f"({', '.join(map(_rounded, value))})"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _curve_table(caption: str, x_title: str, curves: Sequence[NamedCurve]) -> str:
    """Curves as a table with a row for each x that one of them has."""
    rows: dict[float, list[str]] = {}
    for i, (_, curve, _) in enumerate(curves):
        ends = zip(curve.x, curve.mean, curve.low, curve.high, strict=True)
        for x, mean, low, high in ends:
            cells = rows.setdefault(float(x), [""] * len(curves))
            cells[i] = figure_text(mean, [low, high] if high > low else None)
    body = [(f"{x:,.6g}", *cells) for x, cells in sorted(rows.items())]
    return table(caption, [x_title, *(name for name, _, _ in curves)], body)


def check_page(out: Path) -> None:
    """Raise an AdaptaxError unless a page can have this name."""
    if out.suffix not in (".html", ".htm"):
        raise AdaptaxError(f"cannot write a page {out}: its name must end in .html")


def _videos(directory: Path) -> list[Path]:
    """What `adaptax video` has left in a run's directory, one of each name."""
    paths = [*(directory / f"video{kind}" for kind in VIDEO_KINDS), *videos_of(directory)]
    found: dict[str, Path] = {}
    for kind in VIDEO_KINDS:
        for path in paths:
            if path.suffix == kind and path.is_file():
                found.setdefault(path.stem, path)
    return [found[stem] for stem in sorted(found)][:MOST_VIDEOS]


def _moving(path: Path, what: str) -> str:
    """A video as an element that holds all of it."""
    kind = VIDEO_KINDS[path.suffix]
    source = f"data:{kind};base64,{base64.b64encode(read_plain(path)).decode()}"
    if kind.startswith("video"):
        return f'<video aria-label="{what}" controls loop muted playsinline src="{source}"></video>'
    return f'<img alt="{what}" src="{source}">'
