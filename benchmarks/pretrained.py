"""The agents that come with adaptax: how they are trained, and what they come to.

python benchmarks/pretrained.py train NAME   in runs/pretrained/NAME; minutes to an hour of a core
python benchmarks/pretrained.py ship NAME    its best snapshot to adaptax/experiment/shipped/NAME
                                             and what it comes to, to results/pretrained.json
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from rl2_cells import CELLS, RL2
from turns import read_json

import adaptax
from adaptax.experiment.logger import read_rows
from adaptax.experiment.pretrained import FOLDER
from adaptax.experiment.reproduce import command_of
from adaptax.experiment.run_dir import read_config

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "results" / "pretrained.json"
RUNS = ROOT / "runs" / "pretrained"
AGENTS: dict[str, dict[str, Any]] = {
    # The recipe of the pair as it was then, with a step size that does not fall, for twice as long.
    "half-cheetah-vel": {
        "algorithm_or_name": "rl2-ppo",
        "suite_or_name": "half-cheetah-vel",
        "algorithm": {"lr_schedule": "constant"},
        "num_iterations": 782,
        "evaluation": {"num_lanes": None},
    },
    "point-goal": {
        "algorithm_or_name": "promp",
        "suite_or_name": "point-goal",
        "recipe": "none",
        "algorithm": {
            "meta_batch_size": 40,
            "num_episodes": 20,
            "init_std": 1.0,
            "min_std": 1e-6,
            "normalize_obs": False,
            # A return that is felt over ten steps of the twenty; two inner steps, so that three
            # episodes in a row are three stages.
            "discount": 0.9,
            "num_inner_steps": 2,
            "inner_lr": 0.3,
            "lr": 3e-3,
            "clip_range": 0.3,
            "init_kl_coeff": 5e-4,
            "adaptive_kl": False,
        },
        "num_iterations": 200,
        "evaluation_interval": 50,
        "snapshot_interval": 50,
        "evaluation": {"num_tasks": 50, "num_lanes": 20},
    },
    # The settings of benchmarks/rl2_tables.py for 5 arms and 10 pulls, for a third of its time.
    "bandit": {
        "algorithm_or_name": "rl2-ppo",
        "suite_or_name": "bandit",
        "recipe": "none",
        "algorithm": {**RL2, **CELLS["bandit-5x10"].algorithm},
        "num_iterations": 500,
        "evaluation_interval": 50,
        "snapshot_interval": 50,
        "evaluation": {"num_tasks": 100, "num_lanes": 10},
    },
}


BEST = {"point-goal"}
"""Agents that were at their best long before the end; others are shipped as they ended."""


def train(name: str, run_dir: Path) -> None:
    """Train one of them from seed 0."""
    settings = dict(AGENTS[name])
    names = settings.pop("algorithm_or_name"), settings.pop("suite_or_name")
    adaptax.train(*names, run_dir=run_dir, seed=0, **settings).close()


def ship(name: str, run_dir: Path) -> None:
    """Put a run's newest snapshot into the package, or its best, by the return in training."""
    shutil.rmtree(FOLDER / name, ignore_errors=True)
    folder = adaptax.export_run(run_dir, FOLDER / name, best=name in BEST)
    config, rows = read_config(folder), read_rows(folder / "evaluations.jsonl")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    about = {
        "command": command_of(config, [config["seed"]]),
        "seed": config["seed"],
        **{field: config[field] for field in ("versions", "processor", "device", "task_set")},
        "seconds": read_rows(folder / "progress.jsonl")[-1]["seconds"],
        **{field: rows[-1][field] for field in ("iteration", "num_steps", "num_tasks", "gain")},
        "episodes": rows[-1]["episodes"],
        "untrained": rows[0]["episodes"],
        "bytes": size,
    }
    found = read_json(RESULTS)
    RESULTS.write_text(json.dumps({**found, name: about}, indent=2) + "\n")


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=("train", "ship"))
    parser.add_argument("name", choices=AGENTS)
    parser.add_argument("run_dir", nargs="?", type=Path, help="by default in runs/pretrained")
    options = parser.parse_args()
    run_dir = options.run_dir or RUNS / options.name
    (train if options.what == "train" else ship)(options.name, run_dir)


if __name__ == "__main__":
    main()
