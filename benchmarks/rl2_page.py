"""The tables of docs/rl2-tables.md, from what `rl2_tables.py` recorded."""

from __future__ import annotations

from typing import Any


def markdown(cells: dict[str, Any]) -> str:
    """A row for each player, a column for each cell."""
    heads = column_heads(cells)
    lines = ["| player | " + " | ".join(heads) + " |", "|---" * (1 + len(cells)) + "|"]
    names = list(next(iter(cells.values()))["players"])
    rows = {name: [cell["players"][name] for cell in cells.values()] for name in names}
    for kind, label in (("drawn", "RL2"), ("mode", "RL2, by its mode")):
        rows[label] = [cell.get("rl2", {}).get(kind) for cell in cells.values()]
    for label, entries in rows.items():
        if any(entries):
            lines.append("| " + " | ".join([label, *map(figure, entries)]) + " |")
    return "\n".join(lines)


def tuned_markdown(cells: dict[str, Any]) -> str:
    """The constant of each player that has one, in each cell."""
    heads = column_heads(cells)
    lines = ["| constant | values tried | " + " | ".join(heads) + " |"]
    lines.append("|---" * (2 + len(cells)) + "|")
    tunings = [cell["tuning"] for cell in cells.values()]
    for player in tunings[0]:
        if player != "num_tasks":
            tried = ", ".join(f"{value:g}" for value in tunings[0][player]["values"])
            best = [f"{tuning[player]['best']:g}" for tuning in tunings]
            lines.append("| " + " | ".join([player, tried, *best]) + " |")
    return "\n".join(lines)


def column_heads(cells: dict[str, Any]) -> list[str]:
    return [name.partition("-")[2].replace("x", ", ") for name in cells]


def figure(entry: dict[str, Any] | None) -> str:
    """A mean, and half the width of its interval."""
    if entry is None:
        return "not run"
    low, high = entry["ci"]
    return f"{entry['mean']:.2f} ± {(high - low) / 2:.2f}"
