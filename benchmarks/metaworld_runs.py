"""What long runs on Meta-World came to: success on held-out goals and in training, by class.

Every run is evaluated once more, by the whole protocol: every held-out (class, goal), 10 episodes
with adaptation, 3 of a test. What FILE has of other seeds, by the same command, stays.

Call: python benchmarks/metaworld_runs.py RUN_DIR [RUN_DIR ...] --command "adaptax train ..."
      --out FILE [--episodes 10] [--lanes N]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from meta_runs import evaluated, write_runs

from adaptax.experiment.logger import Row, read_rows
from adaptax.experiment.run_dir import EVALUATIONS, PROGRESS

NUM_BINS = 40
"""Points of the training's curve."""
PREFIX = "train/success/"


def judged(run_dir: Path, **protocol: Any) -> dict[str, Any]:
    """One run: where it stands, its curves, and its last agent on all held-out tasks."""
    standing, evaluation = evaluated(run_dir, **protocol)
    held_out = evaluation.row()
    del held_out["tasks"]
    curve = [
        {
            "num_steps": row["num_steps"],
            "success": [success(episode) for episode in row["episodes"]],
            "test": success(row["test"]),
        }
        for row in read_rows(run_dir / EVALUATIONS)
    ]
    training = training_curve(read_rows(run_dir / PROGRESS))
    return {**standing, "held_out": held_out, "training": training, "curve": curve}


def training_curve(progress: list[Row]) -> list[dict[str, Any]]:
    """Return and success by class of the training's episodes, means over parts of the run."""
    names = sorted({name for row in progress for name in row if name.startswith(PREFIX)})
    points = []
    for i in range(NUM_BINS):
        part = progress[i * len(progress) // NUM_BINS : (i + 1) * len(progress) // NUM_BINS]
        if part:
            point = {"num_steps": part[-1]["num_steps"], "return": mean_of(part, "train/return")}
            classes = {name.removeprefix(PREFIX): mean_of(part, name) for name in names}
            points.append({**point, "success": mean_of(part, "train/success"), "classes": classes})
    return points


def mean_of(rows: list[Row], name: str) -> float | None:
    """Over the rows in which an episode ended; None if none did."""
    values = [row[name] for row in rows if row.get(name) is not None]
    return sum(values) / len(values) if values else None


def success(figures: Row) -> dict[str, Any]:
    """At any step, of an evaluation's episodes."""
    return {"mean": figures["success_mean"], "ci": figures["success_ci"]}


def report(name: str, row: dict[str, Any]) -> None:
    """Print what a run came to."""
    print(f"{name}, {row['num_steps']:,} steps, {row['seconds'] / 60:.0f} minutes; training, last:")
    last = row["training"][-1]
    print(f"  {last['success']:.2f}", {k: round(v, 2) for k, v in last["classes"].items()})
    held_out = row["held_out"]
    packaged = held_out["packaged_protocol"]["success_mean"]
    for label, figures in {"all": held_out, **held_out["classes"]}.items():
        test = figures["test"]
        low, high = test["success_ci"]
        any_step, at_end = test["success_mean"], test["final_success_mean"]
        print(f"  {label:24s} {any_step:.2f} [{low:.2f}, {high:.2f}], at the end {at_end:.2f}")
    print(f"  packaged evaluator: {packaged:.2f}")


def main() -> None:
    """Evaluate, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dirs", type=Path, nargs="+")
    parser.add_argument("--command", required=True, help="what trained them, SEED for the seed")
    parser.add_argument("--episodes", type=int, default=10, help="with adaptation, on each task")
    parser.add_argument("--lanes", type=int, help="on each task")
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    options = parser.parse_args()
    runs = []
    for run_dir in options.run_dirs:
        runs.append(judged(run_dir, num_episodes=options.episodes, num_lanes=options.lanes))
        report(run_dir.name, runs[-1])
    write_runs(options.out, options.command, runs)


if __name__ == "__main__":
    main()
