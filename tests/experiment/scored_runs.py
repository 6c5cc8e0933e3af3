"""Folders of runs and of groups with scores of one's own on every task."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from adaptax.experiment.group import write_group

PROTOCOL = {"num_tasks": 3, "num_lanes": 1, "num_episodes": 2, "num_test_episodes": 0}
STEPS = (0, 1000, 2000, 3000)


def task(index: int, score: float, **params) -> dict:
    """A task with two episodes, the last of which brought the score."""
    params = params or {"target": float(index)}
    figures = {"returns": [score - 1.0, score], "success": [0.0, float(score > 1.0)]}
    return {"name": f"task-{index}", "params": params, **figures}


def row(iteration: int, num_steps: int, tasks: list[dict]) -> dict:
    episodes = []
    for k in range(2):
        figures = {"index": k + 1}
        for name, column in (("return", "returns"), ("success", "success")):
            mean = float(np.mean([t[column][k] for t in tasks]))
            figures |= {f"{name}_mean": mean, f"{name}_ci": [mean - 0.5, mean + 0.5]}
        episodes.append(figures)
    about = {"num_tasks": len(tasks), "num_available": 50, "held_out": True}
    gain = {"gain": {"mean": 1.0, "ci": None}}
    base = {"iteration": iteration, "num_steps": num_steps, "interval_over": "tasks"}
    return {**base, **about, "episodes": episodes, **gain, "tasks": tasks}


def make_run(directory: Path, seed: int, scores, name="ppo", params=({},) * 3, **changes) -> Path:
    """A run whose scores on the tasks grew from 0 to `scores` in equal parts."""
    directory.mkdir(parents=True)
    config = {
        "algorithm": {"name": name, "lr": 0.001},
        "suite": {"name": "point-goal", "radius": 1.0},
        "trainer": {"run_dir": str(directory), "seed": seed, "num_steps": STEPS[-1]},
        "seed": seed,
        "task_set": "abc",
        "protocol": {**PROTOCOL, "deterministic": False},
        "versions": {"adaptax": "0.1.0", "jax": "1"},
        "device": "cpu",
        "processor": "a chip",
        "num_cores": 2,
    }
    (directory / "config.json").write_text(json.dumps({**config, **changes}))
    shares = np.linspace(0.0, 1.0, len(STEPS))
    evaluations, progress = [], []
    for i, (steps, share) in enumerate(zip(STEPS, shares, strict=True)):
        tasks = [task(k, share * s, **params[k]) for k, s in enumerate(scores)]
        evaluations.append(row(i, steps, tasks))
        if i > 0:
            figures = {"num_steps": steps, "num_episodes": 10 * i, "seconds": 2.0 * i}
            returns = {"train/return": share, "train/return/episode_1": share}
            progress.append({"iteration": i, **figures, **returns})
    for log, rows in (("evaluations", evaluations), ("progress", progress)):
        (directory / f"{log}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return directory


def make_group(folder: Path, scores, **settings) -> Path:
    """A group whose seeds have the rows of scores [seeds, tasks]."""
    for seed, own in enumerate(scores):
        make_run(folder / f"seed-{seed}", seed, own, **settings)
    write_group(folder, range(len(scores)))
    return folder
