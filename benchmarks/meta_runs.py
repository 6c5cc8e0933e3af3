"""What long meta-training runs came to: curve, time, and returns before and after adaptation.

Every run is evaluated once more, on all held-out tasks. What FILE has of other seeds, by the same
command, stays.

    python benchmarks/meta_runs.py RUN_DIR [RUN_DIR ...] --command "adaptax train ..." --out FILE
        [--episodes K] [--lanes N] [--repeats R] [--deterministic]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from adaptax.experiment.build import load_run
from adaptax.experiment.evaluation import Evaluation
from adaptax.experiment.evaluator import Evaluator, EvaluatorConfig
from adaptax.experiment.logger import Row, read_rows
from adaptax.experiment.run_dir import EVALUATIONS, PROGRESS
from adaptax.experiment.statistics import bootstrap_interval

MACHINE = ("versions", "revision", "device", "processor", "num_cores")
CONTEXT = ("seed", "algorithm", "suite", "protocol", "task_set", *MACHINE)
"""Of `config.json`, what a reader needs to judge the figures."""


def evaluated(run_dir: Path, **protocol: Any) -> tuple[dict[str, Any], Evaluation]:
    """Where a run stands, and what its last agent does on all held-out tasks."""
    trainer = load_run(run_dir)
    trainer.load()
    held_out = trainer.suite.test.tasks
    config = EvaluatorConfig(num_tasks=None if held_out is None else len(held_out), **protocol)
    evaluator = Evaluator(config, trainer.suite, 0)
    evaluation = evaluator.evaluate(trainer.algorithm, trainer.state)
    evaluator.close()
    trainer.close()
    standing = standing_of(run_dir)
    return {**standing, "evaluation": evaluator.protocol(trainer.algorithm)}, evaluation


def standing_of(run_dir: Path) -> dict[str, Any]:
    """What made a run, and how far it came."""
    context = json.loads((run_dir / "config.json").read_text())
    last = read_rows(run_dir / PROGRESS)[-1]
    return {
        **{name: context.get(name) for name in CONTEXT},
        **{name: last[name] for name in ("iteration", "num_steps", "seconds")},
    }


def judged(run_dir: Path, **protocol: Any) -> dict[str, Any]:
    """One run: where it stands, its curve, and its last agent on all held-out tasks."""
    standing, evaluation = evaluated(run_dir, **protocol)
    row = evaluation.row()
    return {
        **standing,
        "episodes": returns(row),
        "gain": row["gain"],
        "tasks": [{**task["params"], "returns": task["returns"]} for task in row["tasks"]],
        "curve": [
            {"num_steps": point["num_steps"], "episodes": returns(point)}
            for point in read_rows(run_dir / EVALUATIONS)
        ],
    }


def returns(row: Row) -> list[dict[str, Any]]:
    """Of each episode of an evaluation."""
    return [{"mean": e["return_mean"], "ci": e["return_ci"]} for e in row["episodes"]]


def estimate(values: np.ndarray) -> dict[str, Any]:
    """Mean of values [n] and its 95 % bootstrap interval."""
    return {"mean": float(values.mean()), "ci": [float(x) for x in bootstrap_interval(values)]}


def write_runs(path: Path, command: str, runs: list[dict[str, Any]]) -> None:
    """With those of other seeds that the file has, by the same command only."""
    seeds, earlier = {run["seed"] for run in runs}, {"command": command, "runs": []}
    if path.exists():
        earlier = json.loads(path.read_text())
    if earlier["command"] != command:
        raise SystemExit(f"{path} has runs of another command: {earlier['command']}")
    others = [run for run in earlier["runs"] if run["seed"] not in seeds]
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {"command": command, "runs": sorted(runs + others, key=lambda run: run["seed"])}
    path.write_text(json.dumps(result, indent=2) + "\n")


def report(name: str, row: dict[str, Any]) -> None:
    """Print what a run came to."""
    print(
        f"{name}, iteration {row['iteration']}, {row['num_steps']:,} steps, "
        f"{row['seconds'] / 60:.0f} minutes"
    )
    for k, episode in enumerate(row["episodes"]):
        low, high = episode["ci"]
        print(f"  episode {k + 1}: {episode['mean']:8.1f} [{low:.1f}, {high:.1f}]")
    if len(row["tasks"]) <= 4:
        for task in row["tasks"]:
            print(f"  {task}")


def main() -> None:
    """Evaluate, print, and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dirs", type=Path, nargs="+")
    parser.add_argument("--command", required=True, help="what trained them, SEED for the seed")
    parser.add_argument("--episodes", type=int, help="in a row on each task")
    parser.add_argument("--lanes", type=int, help="on each task")
    parser.add_argument("--repeats", type=int, help="of each task, from the start")
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    options = parser.parse_args()
    runs = []
    for run_dir in options.run_dirs:
        runs.append(
            judged(
                run_dir,
                num_episodes=options.episodes,
                num_lanes=options.lanes,
                num_repeats=options.repeats,
                deterministic=options.deterministic,
            )
        )
        report(run_dir.name, runs[-1])
    write_runs(options.out, options.command, runs)


if __name__ == "__main__":
    main()
