"""What `adaptax evaluate` shows: a table for people, JSON for programs."""

from __future__ import annotations

from typing import Any

from adaptax.experiment.trainer import Trainer


def evaluation_json(trainer: Trainer) -> dict[str, Any]:
    """The present state's evaluation and the untrained agent's on the same tasks."""
    return {
        "algorithm": trainer.algorithm.name,
        "suite": trainer.suite.name,
        "iteration": trainer.iteration,
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
    console.print(
        f"mean return on {report['num_tasks']} held-out tasks [95 % interval]", markup=False
    )
    table = Table()
    for name in ("episode", "trained", "untrained"):
        table.add_column(name, justify="right", no_wrap=True)
    with_success = report["episodes"][0]["success_mean"] is not None
    if with_success:
        table.add_column("success", justify="right", no_wrap=True)
    for own, other in zip(report["episodes"], report["untrained"]["episodes"], strict=True):
        cells = [str(own["index"]), _cell(own, "return"), _cell(other, "return")]
        table.add_row(*cells, *([_cell(own, "success")] if with_success else []))
    console.print(table)
    if len(report["episodes"]) > 1:
        gain, (low, high) = report["gain"]["mean"], report["gain"]["ci"]
        console.print(
            f"gain from first to last episode, paired by task: "
            f"{gain:+.2f} [{low:+.2f}, {high:+.2f}]",
            markup=False,
        )


def _cell(episode: dict[str, Any], name: str) -> str:
    low, high = episode[f"{name}_ci"]
    return f"{episode[f'{name}_mean']:.2f} [{low:.2f}, {high:.2f}]"
