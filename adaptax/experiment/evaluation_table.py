"""What `adaptax evaluate` shows: a table for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from adaptax.experiment.evaluation import repeats_in_words, tasks_in_words
from adaptax.experiment.logger import after_adaptation
from adaptax.experiment.provenance import provenance
from adaptax.experiment.trainer import Trainer

LARGE = 100.0
"""Figures from here on are shown without decimals."""
SMALL = 0.01
"""Figures below, their intervals too, are shown with two digits that count."""


def evaluation_json(trainer: Trainer) -> dict[str, Any]:
    """The present state's evaluation and the untrained agent's on the same tasks."""
    return {
        "algorithm": trainer.algorithm.name,
        "suite": trainer.suite.name,
        "iteration": trainer.iteration,
        "seed": trainer.config.seed,
        "protocol": trainer.protocol(),
        **provenance(trainer.suite),
        **trainer.evaluate().row(),
        "untrained": trainer.evaluate_untrained().row(),
    }


def print_evaluation(trainer: Trainer) -> None:
    """A table with a row for each episode on a new task."""
    from rich.console import Console

    report = evaluation_json(trainer)
    console = Console()
    console.print(f"{report['algorithm']} on {report['suite']}, iteration {report['iteration']}")
    console.print(_heading(report), markup=False, soft_wrap=True)
    print_fitting(console, lambda between: _table(report, between))
    if len(report["episodes"]) > 1:
        gain, ends = report["gain"]["mean"], report["gain"]["ci"] or []
        form = f"+{_form(gain, *ends)}"
        interval = f" [{', '.join(format(end, form) for end in ends)}]" if ends else ""
        pairs = {"tasks": "task", "repeats": "repeat"}.get(report["interval_over"], "lane")
        console.print(
            f"gain from first to last episode, paired by {pairs}: {gain:{form}}{interval}",
            markup=False,
            soft_wrap=True,
        )

    if report.get("classes"):
        _print_classes(console, report)


def _heading(report: dict[str, Any]) -> str:
    """What the figures are means of, and their intervals over."""
    listed, available = report["num_tasks"], report["num_available"]
    part = "" if available in (None, listed) else f", the first of {available}"
    words = tasks_in_words(report)
    on = f"{'the' if words == 'task' else listed} {words}{part}{repeats_in_words(report)}"
    text = f"mean return on {on}"
    if report["interval_over"] == "episodes":
        lanes = report["protocol"]["num_lanes"]
        return f"{text}, {lanes} episodes [95 % interval over them]" if lanes > 1 else text
    if report["interval_over"] == "repeats":
        return f"{text} [95 % interval over these]"
    return f"{text} [95 % interval]"


def _table(report: dict[str, Any], between: str) -> Any:
    """Episodes with their figures, `between` mean and interval of each."""
    from rich.table import Table

    table = Table()
    with_success = report["episodes"][0]["success_mean"] is not None
    for name in ("episode", "trained", "untrained", *(["success"] if with_success else [])):
        table.add_column(name, justify="right", no_wrap=True)
    rows = [(str(own["index"]), own) for own in report["episodes"]]
    others = list(report["untrained"]["episodes"])
    if "test" in report:
        rows.append(("after", report["test"]))
        others.append(report["untrained"]["test"])
    for (name, own), other in zip(rows, others, strict=True):
        cells = [name, _cell(own, "return", between), _cell(other, "return", between)]
        table.add_row(*cells, *([_cell(own, "success", between)] if with_success else []))
    return table


def print_fitting(console: Any, make: Callable[[str], Any]) -> None:
    """Print a table of which every digit can be read, intervals below the means where it is wide.

    In a file or a pipe lines may be as long as they have to.
    """
    from rich.console import Console

    boundless = Console(width=10_000)
    table = make(" ")
    if boundless.measure(table).maximum > console.width and console.is_terminal:
        table = make("\n")
    width = max(console.width, boundless.measure(table).maximum)
    Console(file=console.file, width=width, force_terminal=console.is_terminal).print(table)


def _print_classes(console: Any, report: dict[str, Any]) -> None:
    """Success of each class after adaptation, and what the packaged evaluator would say of it."""
    from rich.table import Table

    packaged = report.get("packaged_protocol")

    def make(between: str) -> Any:
        table = Table(title="success after adaptation, in the test episodes")
        for name in ("class", "at any step", "at the last step"):
            table.add_column(name, no_wrap=True)
        if packaged:
            table.add_column("packaged evaluator", justify="right")
        for name, figures in {**report["classes"], "all": report}.items():
            last = after_adaptation(figures)
            cells = [name, *(_cell(last, n, between) for n in ("success", "final_success"))]
            if packaged:
                cells.append(f"{packaged['classes'].get(name, packaged['success_mean']):.2f}")
            table.add_row(*cells)
        return table

    print_fitting(console, make)
    if packaged:
        console.print(f"packaged evaluator: {packaged['about']}", markup=False)


def _cell(episode: dict[str, Any], name: str, between: str = " ") -> str:
    return figure_text(episode[f"{name}_mean"], episode[f"{name}_ci"], between)


def figure_text(figure: float, interval: list[float] | None, between: str = " ") -> str:
    """A figure, and its interval where it has one."""
    form = _form(figure, *interval or []) if abs(figure) < LARGE else ".0f"
    if interval is None:
        return f"{figure:{form}}"
    low, high = interval
    return f"{figure:{form}}{between}[{low:{form}}, {high:{form}}]"


def _form(*figures: float) -> str:
    """How to write figures that stand side by side: with two decimals, unless all are small."""
    return ".2g" if 0 < max(map(abs, figures)) < SMALL else ".2f"
