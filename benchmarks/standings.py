"""Where meta-learners stand: each with five seeds on several suites, compared on equal steps.

A learner is a group of seeds (`adaptax train --seeds`), on one core. What is there goes on from
its snapshots, what is finished is not run again. On MuJoCo every learner has the defaults of its
class: nobody's settings were looked for. On gridworld and recall all have the settings below.

    python benchmarks/standings.py train [CASE[/LEARNER] ...] [--core C]   into runs/standings
    python benchmarks/standings.py write     results/standings/CASE.json and docs/standings.md
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from adaptax.core.files import replacing
from adaptax.experiment.comparison import compare
from adaptax.experiment.curves import RunGroup, load_groups
from adaptax.experiment.evaluation_table import figure_text
from adaptax.experiment.run_dir import GROUP
from adaptax.experiment.statistics import student_interval

ROOT = Path(__file__).parent.parent
OUT = ROOT / "results" / "standings"
RUNS = ROOT / "runs" / "standings"
PAGE = ROOT / "docs" / "standings.md"
SEEDS = "10:15"
GENERATED = "--algorithm.heads.kind generated"
LEARNERS = {
    "rl2": ("rl2-ppo", ""),
    "rl2-state": ("rl2-ppo", "--algorithm.heads.kind state"),
    "rl2-generated": ("rl2-ppo", GENERATED),
    "rl2-kaiming": ("rl2-ppo", f"{GENERATED} --algorithm.heads.init kaiming"),
    "rl2-transformer": ("rl2-ppo", "--algorithm.memory transformer"),
    "rl2-lru": ("rl2-ppo", "--algorithm.memory lru"),
    "rl2-lstm": ("rl2-ppo", "--algorithm.memory lstm"),
    "rl2-min-gru": ("rl2-ppo", "--algorithm.memory min-gru"),
    "varibad": ("varibad", ""),
}
"""By name: an algorithm, and what it is given on every suite."""
NAMES = {
    "rl2": "RL2, a GRU",
    "rl2-state": "RL2, the observation beside the memory",
    "rl2-generated": "RL2, weights generated, Bias-HyperInit",
    "rl2-kaiming": "RL2, weights generated, Kaiming",
    "rl2-transformer": "RL2, a transformer",
    "rl2-lru": "RL2, an LRU",
    "rl2-lstm": "RL2, an LSTM",
    "rl2-min-gru": "RL2, a minimal GRU",
    "varibad": "VariBAD",
}
"""What the page calls them."""
BASELINE = "rl2"
ON_POLICY = ("rl2", "rl2-state", "rl2-generated", "rl2-kaiming", "varibad")


@dataclass(frozen=True)
class Case:
    """A suite, how long to train there, and with what."""

    suite: str
    num_steps: int
    learners: tuple[str, ...]
    every: str = ""
    """Flags of every learner."""
    own: dict[str, str] = field(default_factory=dict)
    """Flags by algorithm."""


CASES = {
    "half-cheetah-vel": Case(
        "half-cheetah-vel", 2_000_000, ON_POLICY, every="--evaluation.num-tasks 50"
    ),
    "half-cheetah-dir": Case(
        "half-cheetah-dir", 2_000_000, ON_POLICY, every="--evaluation.num-lanes 25"
    ),
    "ant-dir": Case("ant-dir", 1_000_000, ON_POLICY, every="--evaluation.num-lanes 25"),
    "gridworld": Case(
        "gridworld",
        6_144_000,
        ON_POLICY,
        every="--algorithm.meta-batch-size 256 --algorithm.num-epochs 4 "
        "--algorithm.num-minibatches 8 --algorithm.lr-schedule linear "
        "--algorithm.lr-schedule-steps 1600 --algorithm.entropy-method regularized "
        "--algorithm.entropy-schedule linear --evaluation-interval 100 "
        "--evaluation.num-tasks 21 --evaluation.num-lanes 10",
        own={
            "rl2-ppo": "--algorithm.entropy-coeff 0.02",
            "varibad": "--algorithm.entropy-coeff 0.05 --algorithm.latent-size 16 "
            "--algorithm.hidden-sizes 64 64 --algorithm.memory.size 64 "
            "--algorithm.reward-from next_obs --algorithm.kl-coeff 0.1 "
            "--algorithm.buffer-size 5000 --algorithm.num-elbo-updates 5 "
            "--algorithm.elbo-batch-size 32 --algorithm.num-elbo-terms 20",
        },
    ),
    "recall": Case(
        "recall",
        1_600_000,
        ("rl2", "rl2-lstm", "rl2-min-gru", "rl2-lru", "rl2-transformer"),
        every="--algorithm.memory.size 64 --algorithm.hidden-sizes 64 "
        "--algorithm.meta-batch-size 64 --algorithm.num-epochs 4 --algorithm.num-minibatches 4 "
        "--algorithm.discount 0 --algorithm.gae-lambda 0 --algorithm.lr 1e-3 "
        "--algorithm.entropy-method regularized --algorithm.entropy-coeff 0.02 "
        "--evaluation.num-lanes 25",
    ),
}
"""By name."""


def command(case: Case, learner: str) -> list[str]:
    """What `adaptax` is told, but for the folder."""
    algorithm, flags = LEARNERS[learner]
    words = shlex.split(" ".join([case.every, flags, case.own.get(algorithm, "")]))
    limits = ["--seeds", SEEDS, "--num-steps", str(case.num_steps)]
    return ["train", algorithm, case.suite, "--recipe", "none", *limits, *words]


def train(options: argparse.Namespace) -> None:
    """Whatever is chosen and not finished, one group after another."""
    for name, case in CASES.items():
        for learner in case.learners:
            if options.names and not {name, f"{name}/{learner}"} & set(options.names):
                continue
            folder = RUNS / name / learner
            begun = (folder / GROUP).exists()
            words = ["resume", str(folder)] if begun else command(case, learner)
            own = [] if begun else ["--run-dir", str(folder)]
            bound = [] if options.core is None else ["taskset", "-c", str(options.core)]
            subprocess.run([*bound, sys.executable, "-m", "adaptax", *words, *own], check=True)


def write() -> None:
    """Every case that two learners have finished: its figures, and its table on the page."""
    OUT.mkdir(parents=True, exist_ok=True)
    for name, case in CASES.items():
        groups = {learner: finished(case, RUNS / name / learner) for learner in case.learners}
        known = {learner: group for learner, group in groups.items() if group is not None}
        if len(known) > 1:
            with replacing(OUT / f"{name}.json") as file:
                file.write((json.dumps(compared(case, known), indent=2) + "\n").encode())
    text = PAGE.read_text()
    for path in sorted(OUT.glob("*.json")):
        mark = f"<!-- {path.stem} -->"
        before, _, after = text.split(mark)
        lines = "\n".join(rows_of(json.loads(path.read_text())))
        text = "\n\n".join([before + mark, lines, mark + after])
    PAGE.write_text(text)


def finished(case: Case, folder: Path) -> RunGroup | None:
    """A learner's group; None where a seed has not come to its end."""
    if not (folder / GROUP).exists():
        return None
    group = load_groups([folder])[0]
    ends = [run.evaluations[-1]["num_steps"] if run.evaluations else 0 for run in group.runs]
    return group if min(ends) >= case.num_steps else None


def compared(case: Case, groups: dict[str, RunGroup]) -> dict[str, Any]:
    """What `adaptax compare` says of the groups, the returns of every episode, the commands."""
    record = compare([replace(group, name=learner) for learner, group in groups.items()])
    for about, group in zip(record["groups"], groups.values(), strict=True):
        evaluated = [run.evaluations[-1]["episodes"] for run in group.runs]
        about["episodes"] = [[episode["return_mean"] for episode in row] for row in evaluated]
        about["command"] = shlex.join(["adaptax", *command(case, about["name"])])
        for name in ("directories", "profile", "scores"):
            del about[name]
    del record["levels"]
    config = next(iter(groups.values())).runs[0].config
    context = {name: config[name] for name in ("versions", "device", "processor", "num_cores")}
    return {**context, **record}


def rows_of(record: dict[str, Any]) -> Iterator[str]:
    """A table: returns of a first episode, a last one and all, and how often each beats RL2."""
    yield "| learner | first episode | last episode | all episodes | beats RL2 | seconds |"
    yield "|---|---|---|---|---|---|"
    against = {
        pair["other"]: pair["probability_of_improvement"]
        for pair in record["pairs"]
        if pair["group"] == BASELINE
    }
    for group in record["groups"]:
        returns = np.array(group["episodes"])
        parts = [returns[:, 0], returns[:, -1], returns.sum(1)]
        cells = [figure_text(x.mean(), student_interval(x)) for x in parts]
        worse = against.get(group["name"])  # how often RL2 beats it
        low, high = worse["ci"] if worse else (0.0, 0.0)
        cells.append(figure_text(1 - worse["value"], [1 - high, 1 - low]) if worse else "")
        cells.append(f"{group['seconds']['median'] / len(returns):,.0f}")
        yield f"| {NAMES[group['name']]} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("train")
    training.add_argument("names", nargs="*")
    training.add_argument("--core", type=int)
    commands.add_parser("write")
    options = parser.parse_args()
    train(options) if options.command == "train" else write()


if __name__ == "__main__":
    main()
