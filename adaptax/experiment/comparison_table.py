"""What `adaptax compare` shows: a table of the groups, and how sure each beats another."""

from __future__ import annotations

from typing import Any

from adaptax.experiment.evaluation_table import figure_text, print_fitting


def print_comparison(record: dict[str, Any]) -> None:
    """A table with a row for each group, a line for each pair."""
    from rich.console import Console

    console = Console()
    heading = f"{record['suite']}: {record['score']} [95 % interval over seeds]"
    console.print(heading, markup=False, soft_wrap=True, highlight=False)
    print_fitting(console, lambda between: _table(record, between))
    for pair in record["pairs"]:
        found = pair["probability_of_improvement"]
        text = figure_text(found["value"], found["ci"])
        line = f"probability that {pair['group']} beats {pair['other']} on a task: {text}"
        console.print(line, markup=False, soft_wrap=True, highlight=False)


def _table(record: dict[str, Any], between: str) -> Any:
    from rich.table import Table
    from rich.text import Text

    columns, rows = score_cells(record, between)
    table = Table()
    table.add_column(columns[0])
    for name in columns[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    for name, *cells in rows:
        table.add_row(Text(name), *cells)
    return table


def score_cells(record: dict[str, Any], between: str = " ") -> tuple[list[str], list[list[str]]]:
    """The names of the columns, and a row for each group, `between` figure and interval."""
    threshold = record["threshold"]
    columns = ["group", "seeds", "steps", "IQM", "mean", "median", "wall-clock"]
    if threshold is not None:
        columns.append(f"steps to {figure_text(threshold, None)}")
    rows = []
    for group in record["groups"]:
        seconds = group["seconds"]["median"]
        estimates = [group[name] for name in ("iqm", "mean", "median")]
        row = [group["name"], str(len(set(group["seeds"]))), f"{max(group['num_steps']):,}"]
        row += [figure_text(x["value"], x["ci"], between) for x in estimates]
        row.append("-" if seconds is None else f"{seconds:,.0f} s")
        if threshold is not None:
            row.append(_steps_text(group["steps_to_threshold"]))
        rows.append(row)
    return columns, rows


def _steps_text(steps: dict[str, Any]) -> str:
    """The median of the steps that runs took, and how many came to no end where some did not."""
    number = len(steps["of_runs"])
    text = "-" if steps["median"] is None else f"{steps['median']:,.0f}"
    return text if steps["known"] == number else f"{text} ({steps['known']} of {number})"
