"""Return before and after adaptation of trained runs, over many independent adaptations.

An evaluation adapts once to each held-out task. Where a family has two tasks, as
`half-cheetah-dir`, that says little: here every run is evaluated under several seeds, and the
intervals are over all pairs of seed and task. The mean of every task is told apart, so that one
sees whether both directions run.

    python benchmarks/maml_learning.py RUN_DIR [RUN_DIR ...] [--seeds 10] [--steps 3] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from adaptax.experiment.build import load_run
from adaptax.experiment.evaluator import Evaluator, EvaluatorConfig
from adaptax.experiment.logger import PROGRESS, read_rows
from adaptax.experiment.statistics import bootstrap_interval


def judged(run_dir: Path, num_seeds: int, num_steps: int) -> dict[str, Any]:
    """A run's returns after 0, 1, ... gradient steps."""
    trainer = load_run(run_dir)
    trainer.load()
    config = EvaluatorConfig(num_episodes=num_steps + 1)
    returns, tasks = [], ()
    for seed in range(num_seeds):
        evaluator = Evaluator(config, trainer.suite, seed)
        evaluation = evaluator.evaluate(trainer.algorithm, trainer.state)
        evaluator.close()
        returns.append(evaluation.returns)
        tasks = evaluation.tasks
    all_returns = np.stack(returns)  # [seeds, tasks, steps + 1]
    flat = all_returns.reshape(-1, num_steps + 1)
    last = read_rows(run_dir / PROGRESS)[-1]
    trainer.close()
    return {
        "run": run_dir.name,
        "iteration": trainer.iteration,
        "num_steps": last["num_steps"],
        "seconds": last["seconds"],
        "after_steps": [
            {"mean": float(x.mean()), "ci": [float(y) for y in bootstrap_interval(x)]}
            for x in flat.T
        ],
        "gain_ci": [float(y) for y in bootstrap_interval(flat[:, -1] - flat[:, 0])],
        "tasks": [
            {**task.params, "returns": means.tolist()}
            for task, means in zip(tasks, all_returns.mean(0), strict=True)
        ],
    }


def main() -> None:
    """Evaluate, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run_dirs", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=3, help="gradient steps")
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    rows = []
    for run_dir in options.run_dirs:
        rows.append(judged(run_dir, options.seeds, options.steps))
        print(
            f"{run_dir.name}, iteration {rows[-1]['iteration']}, {rows[-1]['num_steps']:,} steps, "
            f"{rows[-1]['seconds'] / 60:.0f} minutes"
        )
        for k, row in enumerate(rows[-1]["after_steps"]):
            low, high = row["ci"]
            print(f"  after {k} steps: {row['mean']:8.1f} [{low:.1f}, {high:.1f}]")
        if len(rows[-1]["tasks"]) <= 4:
            for task in rows[-1]["tasks"]:
                print(f"  {task}")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
