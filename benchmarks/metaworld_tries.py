"""What helps on ML10 and ML1: settings tried for one to four million steps.

A try is the settings below and flags of its own. It is judged by its success in training, over the
last five iterations, and on ML10 on held-out pairs of class and goal: 50 after two episodes for
rl2-ppo, 25 after one gradient step for the MAML family. One that was ended before its end counts;
`num_steps` says so.

    python benchmarks/metaworld_tries.py run [ml10 | ml1 | ml10-maml | SETTING ...]
                                             [--seeds 0 1 2] [--core C]
    python benchmarks/metaworld_tries.py write      results/metaworld, the tables of the pages

`run` does what is not there yet.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from itertools import product
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
RESULTS = ROOT / "results" / "metaworld"
LAST = 5
"""Iterations that success in training is of."""
MIN_SEEDS = 3
"""Fewer have no interval."""


@dataclass(frozen=True)
class Tries:
    """Settings beside each other, in a file of figures and a table of the page."""

    name: str
    """NAME-tries.json, and the table between `<!-- NAME tries -->`."""
    num_iterations: int
    """Of a try that is not ended before."""
    least_iterations: int
    """That count."""
    base: str
    """Flags of all."""
    settings: dict[str, str]
    """By name: flags beside these, which come before them."""
    suite: str = "ml10"
    """That of all, judged on its held-out classes, too."""
    page: Path = ROOT / "docs" / "meta-world-ml10.md"
    """Which has the table."""
    suites: dict[str, str] = field(default_factory=dict)
    """By the beginning of a name, instead; judged by training alone."""
    algorithm: str = "rl2-ppo"
    """What is trained."""
    algorithms: dict[str, str] = field(default_factory=dict)
    """By name: what is trained instead."""

    def words(self, name: str, seed: int) -> list[str]:
        """The command line that trains one."""
        algorithm = self.algorithms.get(name, self.algorithm)
        suite = next((x for start, x in self.suites.items() if name.startswith(start)), self.suite)
        common = f"--seed {seed} --recipe none --num-iterations {self.num_iterations}"
        flags = f"{common} {self.base} {self.settings[name]}"
        return shlex.split(f"train {algorithm} {suite} {flags}")


BASE = """--evaluation-interval 30 --snapshot-interval 30 --evaluation.num-tasks 50
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
TRANSFORMER = "--algorithm.memory.kind transformer --algorithm.memory.context 200"
ML10 = Tries(
    "ml10",
    num_iterations=30,
    least_iterations=25,
    base=BASE,
    settings={
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
        "transformer": f"{RECIPE} {TRANSFORMER}",
        "varibad": RECIPE,
    },
    algorithms={"varibad": "varibad"},
)
ML1_BASE = """--evaluation-interval 100 --snapshot-interval 50
    --algorithm.meta-batch-size 20 --algorithm.num-episodes 2 --algorithm.num-bptt-steps 100
    --algorithm.num-minibatches 10 --algorithm.lr 5e-4 --algorithm.memory.size 128
    --algorithm.normalize-rewards --algorithm.reward-scale 0.01 --algorithm.no-normalize-obs
    --algorithm.init-std 0.5 --algorithm.normalize-advantage sequence
    --algorithm.entropy-method regularized --algorithm.entropy-coeff 0.001"""
AS_THEY_ARE = "--algorithm.no-normalize-rewards --algorithm.reward-scale 0.005"
ML1 = Tries(
    "ml1",
    num_iterations=100,
    least_iterations=40,
    base=ML1_BASE,
    settings={
        "push": "",
        "push-raw": AS_THEY_ARE,
        "push-raw-obs": f"{AS_THEY_ARE} --algorithm.normalize-obs",
        "push-raw-std": f"{AS_THEY_ARE} --algorithm.min-std 0.5 --algorithm.max-std 0.5",
        "pick-place": "",
        "pick-place-lr1e-3": "--algorithm.lr 1e-3",
        "pick-place-batch": "--algorithm.normalize-advantage batch",
        "pick-place-std1": "--algorithm.init-std 1.0",
        "pick-place-scale0.1": "--algorithm.reward-scale 0.1",
    },
    suites={"push": "ml1-push-v3", "pick-place": "ml1-pick-place-v3"},
    page=ROOT / "docs" / "meta-world-ml1.md",
)
MAML_BASE = """--evaluation-interval 20 --evaluation.num-tasks 25 --evaluation.num-test-episodes 1
    --algorithm.init-std 1.0 --algorithm.meta-batch-size 20 --algorithm.num-episodes 5
    --algorithm.no-normalize-obs"""
MAML = Tries(
    "ml10-maml",
    num_iterations=40,
    least_iterations=30,
    base=MAML_BASE,
    settings={
        "kl0.05": "--algorithm.trust-region.max-kl-step 0.05",
        "kl0.1": "--algorithm.trust-region.max-kl-step 0.1",
        "promp": "",
    },
    algorithm="trpo-maml",
    algorithms={"promp": "promp"},
)
ALL = (ML10, ML1, MAML)


def run(options: argparse.Namespace) -> None:
    """Train whatever of the chosen has not come to its end."""
    each = [(tries, name) for tries in ALL for name in tries.settings]
    wanted = set(options.names or (tries.name for tries in ALL))
    chosen = [(tries, name) for tries, name in each if {tries.name, name} & wanted]
    unknown = wanted - {x for tries, name in each for x in (tries.name, name)}
    if unknown:
        sys.exit(f"no such settings: {', '.join(sorted(unknown))}")
    for seed, (tries, name) in product(options.seeds, chosen):
        folder = RUNS / f"{name}-{seed}"
        if not finished(tries, folder):
            words = tries.words(name, seed)
            command = [*bound(options.core), sys.executable, "-m", "adaptax", *words]
            command += ["--run-dir", str(folder), "--overwrite", "--quiet"]
            subprocess.run(command, check=True)


def finished(tries: Tries, folder: Path) -> bool:
    """Whether a run came to its end."""
    rows = read_rows(folder / EVALUATIONS)
    return bool(rows) and rows[-1]["iteration"] == tries.num_iterations


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
    """Figures of all runs that are there, beside those of before, and the tables."""
    for tries in ALL:
        out = RESULTS / f"{tries.name}-tries.json"
        everything = read_json(out)
        for name in tries.settings:
            for path in sorted(RUNS.glob(f"{name}-[0-9]/{PROGRESS}")):
                if len(read_rows(path)) >= tries.least_iterations:
                    figures = judged(path.parent)
                    everything.setdefault(name, {})[str(figures["seed"])] = figures
        write_json(out, everything)
        with replacing(tries.page) as file:
            mark = f"<!-- {tries.name} tries -->"
            file.write(with_table(tries.page.read_text(), mark, table(tries, everything)).encode())


def shown(tries: Tries, name: str) -> str:
    """A setting in the table: flags that most have are in words, which the page explains."""
    flags = tries.settings[name]
    both = "pieces and rewards" if flags.startswith(RECIPE) else None
    rest = flags.removeprefix(RECIPE).strip()
    parts = [tries.algorithms.get(name), both, f"`{rest}`" if rest else None]
    return ", ".join(filter(None, parts))


def table(tries: Tries, everything: dict[str, dict[str, Any]]) -> list[str]:
    """A row a setting."""
    heads = ["suite"] * bool(tries.suites) + ["flags", "seeds", "million steps", "training"]
    figures = ["success"]
    if not tries.suites:
        heads, figures = [*heads, "held-out"], ["success", "held_out"]
    rows = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for name, by_seed in everything.items():
        runs = list(by_seed.values())
        ends = sorted({f"{run['num_steps'] / 1e6:.2g}" for run in runs})
        steps = " to ".join(dict.fromkeys([ends[0], ends[-1]]))
        cells = [x for start, x in tries.suites.items() if name.startswith(start)]
        cells += [shown(tries, name), str(len(runs)), steps]
        cells += [per_cent([run[key] for run in runs]) for key in figures]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


def main() -> None:
    """See the head of this file."""
    parser, commands = command_line(__doc__, run, write)
    running = commands["run"]
    names = [name for tries in ALL for name in (tries.name, *tries.settings)]
    running.add_argument("names", nargs="*", metavar="SETTING", help=", ".join(names))
    running.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    running.add_argument("--core", type=int)
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
