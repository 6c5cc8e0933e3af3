"""What helps rl2-ppo on ML10: settings tried for 1.2 million steps.

A try is the settings below and flags of its own. It is judged by its success in training, over the
last 200,000 steps, and on 50 held-out pairs of class and goal after one episode with adaptation.
One that was ended after a million steps counts; `num_steps` says so.

    python benchmarks/metaworld_tries.py run [SETTING ...] [--seeds 0 1 2] [--core C]
    python benchmarks/metaworld_tries.py write      results/metaworld, the table of the page

`run` does what is not there yet.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from metaworld_runs import PREFIX, mean_of
from turns import bound, command_line, read_json, with_table, write_json

from adaptax.core.files import replacing
from adaptax.experiment.logger import read_rows
from adaptax.experiment.run_dir import EVALUATIONS, PROGRESS
from adaptax.experiment.statistics import student_interval

ROOT = Path(__file__).parent.parent
RUNS = ROOT / "runs" / "metaworld-tries"
OUT = ROOT / "results" / "metaworld" / "ml10-tries.json"
"""Figures by setting and seed."""
PAGE = ROOT / "docs" / "meta-world.md"
MARK = "<!-- tries -->"
LAST = 5
"""Iterations, of 40,000 steps, that success in training is of."""
MIN_SEEDS = 3
"""Fewer have no interval."""
NUM_ITERATIONS = 30
LEAST_ITERATIONS = 25
BASE = f"""--recipe none --num-iterations {NUM_ITERATIONS} --suite.num-workers 0
    --evaluation-interval 30 --snapshot-interval 30 --evaluation.num-tasks 50
    --evaluation.num-episodes 2 --evaluation.num-test-episodes 1
    --algorithm.meta-batch-size 40 --algorithm.num-episodes 2 --algorithm.num-minibatches 2
    --algorithm.lr 1e-3 --algorithm.lr-schedule linear --algorithm.reward-scale 0.005
    --algorithm.no-normalize-obs --algorithm.memory.size 128 --algorithm.init-std 1.0
    --algorithm.normalize-advantage sequence --algorithm.entropy-method regularized
    --algorithm.entropy-coeff 0.002 --algorithm.entropy-schedule linear"""
PIECES = "--algorithm.num-bptt-steps 100"
TEN = "--algorithm.num-minibatches 10"
REWARDS = "--algorithm.normalize-rewards --algorithm.reward-scale 0.01"
BOUNDS = "--algorithm.min-std 0.5 --algorithm.max-std 1.5 --algorithm.tanh-mean"
RECIPE = f"{PIECES} {TEN} {REWARDS}"
SETTINGS = {
    "base": "",
    "std0.5": "--algorithm.init-std 0.5",
    "bptt100": f"{PIECES} {TEN}",
    "bptt100-std0.5-mb20": f"{PIECES} --algorithm.num-minibatches 20 --algorithm.init-std 0.5",
    "norm": REWARDS,
    "bptt100-norm": RECIPE,
    "bptt100-norm-lr5e-4": f"{RECIPE} --algorithm.lr 5e-4",
    "bptt100-norm-bounds": f"{RECIPE} {BOUNDS}",
    "generated": f"{RECIPE} --algorithm.heads.kind generated",
    "state": f"{RECIPE} --algorithm.heads.kind state",
    "gru256": f"{RECIPE} --algorithm.memory.size 256",
    "no-memory": f"{RECIPE} --algorithm.memory.kind none",
    "two-hot": f"{RECIPE} --algorithm.critic two_hot",
    "linear": f"{RECIPE} --algorithm.critic linear",
    "episodes4": f"{RECIPE} --algorithm.num-episodes 4 --algorithm.meta-batch-size 20",
    "transformer": f"{RECIPE} --algorithm.memory.kind transformer --algorithm.memory.context 200",
    "varibad": RECIPE,
}
"""By name: flags beside the base's, which come before them."""
ALGORITHMS = {"varibad": "varibad"}
"""By name of a setting: what is trained, where it is not rl2-ppo."""


def run(options: argparse.Namespace) -> None:
    """Train whatever of the chosen has not come to its end."""
    for seed in options.seeds:
        for name in options.names or SETTINGS:
            folder = RUNS / f"{name}-{seed}"
            if not finished(folder):
                algorithm = ALGORITHMS.get(name, "rl2-ppo")
                words = shlex.split(f"train {algorithm} ml10 --seed {seed} {BASE} {SETTINGS[name]}")
                command = [*bound(options.core), sys.executable, "-m", "adaptax", *words]
                command += ["--run-dir", str(folder), "--overwrite", "--quiet"]
                subprocess.run(command, check=True)


def finished(folder: Path) -> bool:
    """Whether a run came to its end."""
    rows = read_rows(folder / EVALUATIONS)
    return bool(rows) and rows[-1]["iteration"] == NUM_ITERATIONS


def judged(folder: Path) -> dict[str, Any]:
    """What a run came to."""
    progress = read_rows(folder / PROGRESS)[-LAST:]
    evaluation = read_rows(folder / EVALUATIONS)[-1]
    at_the_end = evaluation["iteration"] == progress[-1]["iteration"]
    config = json.loads((folder / "config.json").read_text())
    classes = sorted(name for name in progress[-1] if name.startswith(PREFIX))
    return {
        "seed": config["trainer"]["seed"],
        "num_steps": progress[-1]["num_steps"],
        "seconds": progress[-1]["seconds"],
        "success": mean_of(progress, "train/success"),
        "return": mean_of(progress, "train/return"),
        "classes": {name.removeprefix(PREFIX): mean_of(progress, name) for name in classes},
        "held_out": evaluation["test"]["success_mean"] if at_the_end else None,
        **{name: config[name] for name in ("algorithm", "versions", "device", "processor")},
    }


def per_cent(figures: list[float | None]) -> str:
    """Mean of those that there are, its interval where they are enough, their number if not all."""
    values = 100 * np.array([figure for figure in figures if figure is not None])
    some = f" ({len(values)} of them)" if len(values) < len(figures) else ""
    if len(values) < MIN_SEEDS:
        return f"{values.mean():.0f}{some}"
    low, high = student_interval(values)
    return f"{values.mean():.0f} [{low:.0f}, {high:.0f}]{some}"


def write(options: argparse.Namespace) -> None:
    """Figures of all runs that are there, beside those of before, and the table."""
    everything = read_json(OUT)
    for name in SETTINGS:
        for path in sorted(RUNS.glob(f"{name}-[0-9]/{PROGRESS}")):
            if len(read_rows(path)) >= LEAST_ITERATIONS:
                figures = judged(path.parent)
                everything.setdefault(name, {})[str(figures["seed"])] = figures
    write_json(OUT, everything)
    rows = ["| flags | seeds | million steps | training | held-out |", "|---|---|---|---|---|"]
    for name, by_seed in everything.items():
        runs = list(by_seed.values())
        cells = [per_cent([run[key] for run in runs]) for key in ("success", "held_out")]
        flags = f"`{SETTINGS[name]}`" if SETTINGS[name] else ""
        if name in ALGORITHMS:
            flags = f"{ALGORITHMS[name]}, {flags}"
        ends = sorted({f"{run['num_steps'] / 1e6:.2g}" for run in runs})
        steps = " to ".join(dict.fromkeys([ends[0], ends[-1]]))
        rows.append(f"| {flags} | {len(runs)} | {steps} | {' | '.join(cells)} |")
    with replacing(PAGE) as file:
        file.write(with_table(PAGE.read_text(), MARK, rows).encode())


def main() -> None:
    """See the head of this file."""
    parser, commands = command_line(__doc__, run, write)
    running = commands["run"]
    running.add_argument("names", nargs="*", metavar="SETTING", help=", ".join(SETTINGS))
    running.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    running.add_argument("--core", type=int)
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
