"""VariBAD's gridworld: what is learned beside the Bayes-optimal player and others.

    python benchmarks/gridworld.py players  expectations of reference players, a minute and 0.8 GB
    python benchmarks/gridworld.py table    results/gridworld/*.json -> docs/gridworld.md

What was learned is judged by `meta_runs.py`; docs/gridworld.md has the commands.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from players import gridworld_players as players_of
from turns import with_table, write_report

from adaptax.experiment.build import make_suite

ROOT = Path(__file__).parent.parent
OUT = ROOT / "results" / "gridworld"
PAGE = ROOT / "docs" / "gridworld.md"
LEARNERS = {
    "varibad-mode": "VariBAD, by its mode",
    "varibad": "VariBAD, as drawn",
    "rl2-ppo-mode": "RL2, by its mode",
    "rl2-ppo": "RL2, as drawn",
}
"""Names of JSON files, and what the page calls them."""


def players() -> None:
    """Mean return of each episode to every reference player, by exact expectation."""
    grid = players_of.Grid()
    path = players_of.optimal_path(grid)
    found = {
        "told the goal": players_of.informed_returns(grid),
        "Bayes-optimal": players_of.path_returns(grid, path),
        "posterior sampling": players_of.posterior_sampling_returns(grid),
        "random": players_of.random_returns(grid),
    }
    cells = [list(divmod(cell, grid.size)) for cell in path]
    result = {
        "players": {name: returns.tolist() for name, returns in found.items()},
        "optimal_path": cells[: max(path.index(goal) for goal in grid.goals) + 1],
    }
    write_report(OUT / "players.json", result, make_suite("gridworld"))
    for name, returns in found.items():
        print(f"{name:20s} {np.round(returns, 2)} {returns.sum():.2f}")


def table() -> None:
    """The page's table anew, between its two marks."""
    mark = "<!-- table -->"
    PAGE.write_text(with_table(PAGE.read_text(), mark, _lines()))


def _lines() -> Iterator[str]:
    yield "| player | seed | episode 1 | 2 | 3 | 4 | trial | of the optimum |"
    yield "|---" * 8 + "|"
    known = json.loads((OUT / "players.json").read_text())["players"]
    optimum = sum(known["Bayes-optimal"])
    for name, returns in known.items():
        yield _row(name, "", returns, optimum)
    for file, name in LEARNERS.items():
        if (OUT / f"{file}.json").exists():
            runs: list[dict[str, Any]] = json.loads((OUT / f"{file}.json").read_text())["runs"]
            for run in runs:
                returns = [episode["mean"] for episode in run["episodes"]]
                yield _row(name, str(run["seed"]), returns, optimum)


def _row(name: str, seed: str, returns: list[float], optimum: float) -> str:
    figures = [f"{x:.2f}" for x in (*returns, sum(returns))]
    return f"| {' | '.join([name, seed, *figures, f'{sum(returns) / optimum:.1%}'])} |"


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("command", choices=["players", "table"])
    {"players": players, "table": table}[parser.parse_args().command]()


if __name__ == "__main__":
    main()
