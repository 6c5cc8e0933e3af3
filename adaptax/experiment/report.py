"""What `adaptax evaluate` shows: a table for people, JSON for programs."""

from __future__ import annotations

from typing import Any

from adaptax.experiment.provenance import provenance
from adaptax.experiment.trainer import Trainer

LARGE = 100.0
"""Figures from here on are shown without decimals."""


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
    from rich.table import Table

    report = evaluation_json(trainer)
    console = Console()
    console.print(f"{report['algorithm']} on {report['suite']}, iteration {report['iteration']}")
    listed, available = report["num_tasks"], report["num_available"]
    part = "" if available in (None, listed) else f", the first of {available}"
    console.print(f"mean return on {listed} held-out tasks{part} [95 % interval]", markup=False)
    table = Table()
    for name in ("episode", "trained", "untrained"):
        table.add_column(name, justify="right", no_wrap=True)
    with_success = report["episodes"][0]["success_mean"] is not None
    if with_success:
        table.add_column("success", justify="right", no_wrap=True)
    for own, other in zip(report["episodes"], report["untrained"]["episodes"], strict=True):
        cells = [str(own["index"]), _cell(own, "return"), _cell(other, "return")]
        table.add_row(*cells, *([_cell(own, "success")] if with_success else []))
    if "test" in report:
        own, other = report["test"], report["untrained"]["test"]
        cells = ["after", _cell(own, "return"), _cell(other, "return"), _cell(own, "success")]
        table.add_row(*cells[: len(table.columns)])
    console.print(table)
    if len(report["episodes"]) > 1:
        gain, (low, high) = report["gain"]["mean"], report["gain"]["ci"]
        console.print(
            f"gain from first to last episode, paired by task: "
            f"{gain:+.2f} [{low:+.2f}, {high:+.2f}]",
            markup=False,
        )

    if report.get("classes"):
        _print_classes(console, report)


def _print_classes(console: Any, report: dict[str, Any]) -> None:
    """Success of each class after adaptation, and what the packaged evaluator would say of it."""
    from rich.table import Table

    packaged = report.get("packaged_protocol")
    table = Table(title="success after adaptation, in the test episodes")
    for name in ("class", "at any step", "at the last step"):
        table.add_column(name, no_wrap=True)
    if packaged:
        table.add_column("packaged evaluator", justify="right")
    rows = {**report["classes"], "all": report}
    for name, figures in rows.items():
        last = figures.get("test", figures["episodes"][-1])
        cells = [name, _cell(last, "success"), _cell(last, "final_success")]
        if packaged:
            theirs = packaged["classes"].get(name, packaged["success_mean"])
            cells.append(f"{theirs:.2f}")
        table.add_row(*cells)
    console.print(table)
    if packaged:
        console.print(f"packaged evaluator: {packaged['about']}", markup=False)


def _cell(episode: dict[str, Any], name: str) -> str:
    mean, (low, high) = episode[f"{name}_mean"], episode[f"{name}_ci"]
    digits = 2 if abs(mean) < LARGE else 0
    return f"{mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
