"""Where meta-learners stand: each with five seeds on several suites, compared on equal steps.

A learner is a group of seeds (`adaptax train --seeds`), on one core. What is there goes on from
its snapshots, what is finished is not run again. On MuJoCo every learner has the defaults of its
class, but for the better of two step sizes, each tried on a seed that the figures leave out. On
gridworld and recall all have the settings below.

    python benchmarks/standings.py tune [CASE[/LEARNER] ...] [--core C]   runs/standings/tuning
    python benchmarks/standings.py train [CASE[/LEARNER] ...] [--core C]  runs/standings
    python benchmarks/standings.py write    results/standings/*.json and docs/standings.md

`write` after `tune` says which step size is the better one, `write` after `train` what came of it.
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
from meta_runs import MACHINE
from turns import bound, check_known, read_json, with_table, write_json

from adaptax.experiment.comparison import compare
from adaptax.experiment.curves import RunGroup, load_groups
from adaptax.experiment.evaluation_table import figure_text
from adaptax.experiment.run_dir import CONFIG, GROUP
from adaptax.experiment.statistics import student_interval

ROOT = Path(__file__).parent.parent
OUT = ROOT / "results" / "standings"
RUNS = ROOT / "runs" / "standings"
TUNING = RUNS / "tuning"
TUNED = OUT / "tuning.json"
"""Returns of all episodes of a trial by case, learner and step size."""
PAGE = ROOT / "docs" / "standings.md"
SEEDS = "10:15"
TUNING_SEED = 0
STEP_SIZES = (1e-3, 3e-4)
"""The first is the default."""
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
    "varibad-generated": ("varibad", GENERATED),
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
    "varibad-generated": "VariBAD, weights generated, Bias-HyperInit",
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
    tuned: bool = False
    """Whether each learner has the better of `STEP_SIZES`."""


CASES = {
    "half-cheetah-vel": Case(
        "half-cheetah-vel",
        2_000_000,
        ON_POLICY,
        every="--evaluation.num-tasks 50",
        tuned=True,
    ),
    "half-cheetah-dir": Case(
        "half-cheetah-dir",
        2_000_000,
        ("rl2", "rl2-state", "rl2-generated", "varibad", "varibad-generated"),
        every="--evaluation.num-lanes 25",
        tuned=True,
    ),
    "ant-dir": Case(
        "ant-dir",
        1_000_000,
        ("rl2", "rl2-generated", "varibad"),
        every="--evaluation.num-lanes 25",
        own={"varibad": "--algorithm.no-cut-at-termination"},  # as RL2
        tuned=True,
    ),
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


def command(name: str, learner: str, step_size: float) -> list[str]:
    """What `adaptax` is told, but for the folder, seeds and steps."""
    case = CASES[name]
    algorithm, flags = LEARNERS[learner]
    if step_size != STEP_SIZES[0]:
        flags += f" --algorithm.lr {step_size}"
    words = shlex.split(" ".join([case.every, flags, case.own.get(algorithm, "")]))
    return ["train", algorithm, case.suite, "--recipe", "none", *words]


def run(words: list[str], folder: Path, core: int | None) -> None:
    """`adaptax` with the words, or what is there of it to its end."""
    words = ["resume", str(folder)] if has_run(folder) else [*words, "--run-dir", str(folder)]
    subprocess.run([*bound(core), sys.executable, "-m", "adaptax", *words], check=True)


def has_run(folder: Path) -> bool:
    """Whether a run or a group is there, finished or not."""
    return (folder / GROUP).exists() or (folder / CONFIG).exists()


def chosen(names: list[str]) -> Iterator[tuple[str, str]]:
    """Cases and learners by `CASE` or `CASE/LEARNER`; no names are all."""
    check_known(
        names, [*CASES, *(f"{name}/{own}" for name in CASES for own in CASES[name].learners)]
    )
    for name, case in CASES.items():
        for learner in case.learners:
            if not names or {name, f"{name}/{learner}"} & set(names):
                yield name, learner


def tune(options: argparse.Namespace) -> None:
    """Every step size, half as long as the figures are trained for, one after another."""
    for name, learner in chosen(options.names):
        for step_size in STEP_SIZES if CASES[name].tuned else ():
            limits = ["--seed", str(TUNING_SEED), "--num-steps", str(CASES[name].num_steps // 2)]
            words = [*command(name, learner, step_size), *limits]
            run(words, TUNING / name / f"{learner}-{step_size}", options.core)


def all_trials() -> dict[str, dict[str, dict[str, float]]]:
    """Those that are kept, and those that have been run here since."""
    returns = read_json(TUNED)
    for name, learner in chosen([]):
        for step_size in STEP_SIZES:
            trial = finished(TUNING / name / f"{learner}-{step_size}", CASES[name].num_steps // 2)
            if trial is not None:
                episodes = trial.runs[0].evaluations[-1]["episodes"]
                total = sum(episode["return_mean"] for episode in episodes)
                returns.setdefault(name, {}).setdefault(learner, {})[str(step_size)] = total
    return returns


def better(name: str, learner: str) -> float:
    """The step size whose return is higher; the default where not all were tried."""
    returns = read_json(TUNED).get(name, {}).get(learner, {})
    best = max(returns, key=returns.__getitem__) if len(returns) == len(STEP_SIZES) else None
    return float(best) if best else STEP_SIZES[0]


def place(name: str, learner: str) -> Path:
    """Where a learner's group is."""
    step_size = better(name, learner)
    return RUNS / name / (learner if step_size == STEP_SIZES[0] else f"{learner}-{step_size}")


def figured(name: str, learner: str) -> list[str]:
    """What `adaptax` is told for the page's figures, but for the folder."""
    limits = ["--seeds", SEEDS, "--num-steps", str(CASES[name].num_steps)]
    return [*command(name, learner, better(name, learner)), *limits]


def train(options: argparse.Namespace) -> None:
    """Whatever is chosen and not finished, one group after another."""
    for name, learner in chosen(options.names):
        run(figured(name, learner), place(name, learner), options.core)


def write() -> None:
    """Figures of whatever is there and finished, beside what is kept; the tables of the page."""
    OUT.mkdir(parents=True, exist_ok=True)
    write_json(TUNED, all_trials())
    for name, case in CASES.items():
        found = {
            learner: finished(place(name, learner), case.num_steps) for learner in case.learners
        }
        groups = {learner: group for learner, group in found.items() if group is not None}
        if BASELINE in groups:
            path = OUT / f"{name}.json"
            entries = read_json(path)
            entries |= {learner: entry(name, learner, groups) for learner in groups}
            told = {learner: entries[learner] for learner in case.learners if learner in entries}
            write_json(path, told)
    text = PAGE.read_text()
    for path in (OUT / f"{name}.json" for name in CASES):
        if not path.exists():
            continue
        rows = rows_of(json.loads(path.read_text()))
        text = with_table(text, f"<!-- {path.stem} -->", rows)
    PAGE.write_text(text)


def finished(folder: Path, num_steps: int) -> RunGroup | None:
    """The group, or the run, of a folder; None where a seed has not come to its end."""
    if not has_run(folder):
        return None
    group = load_groups([folder])[0]
    ends = [run.evaluations[-1]["num_steps"] if run.evaluations else 0 for run in group.runs]
    return group if min(ends) >= num_steps else None


def entry(name: str, learner: str, groups: dict[str, RunGroup]) -> dict[str, Any]:
    """What `adaptax compare` says of a learner and RL2; returns of every episode, command."""
    names = dict.fromkeys([BASELINE, learner])
    record = compare([replace(groups[known], name=known) for known in names])
    about: dict[str, Any] = record["groups"][-1]
    for part in ("directories", "profile", "scores", "steps_to_threshold", "name"):
        del about[part]
    runs = groups[learner].runs
    evaluated = [run.evaluations[-1]["episodes"] for run in runs]
    about["episodes"] = [[episode["return_mean"] for episode in row] for row in evaluated]
    about["beaten_by_rl2"] = [pair["probability_of_improvement"] for pair in record["pairs"]]
    about["command"] = shlex.join(["adaptax", *figured(name, learner)])
    context = ("algorithm", *MACHINE)
    return (
        about
        | {part: record[part] for part in ("suite", "score", "protocol")}
        | {part: runs[0].config.get(part) for part in context}
    )


def rows_of(entries: dict[str, dict[str, Any]]) -> Iterator[str]:
    """A table: returns of a first episode, a last one and all, and how often each beats RL2."""
    yield "| learner | first episode | last episode | all episodes | beats RL2 | seconds |"
    yield "|---|---|---|---|---|---|"
    for learner, about in entries.items():
        returns = np.array(about["episodes"])
        parts = [returns[:, 0], returns[:, -1], returns.sum(1)]
        cells = [figure_text(x.mean(), student_interval(x)) for x in parts]
        beaten = [(p["value"], *p["ci"]) for p in about["beaten_by_rl2"]]
        cells.append("".join(figure_text(1 - p, [1 - high, 1 - low]) for p, low, high in beaten))
        cells.append(f"{about['seconds']['median'] / len(returns):,.0f}")
        yield f"| {NAMES[learner]} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("tune", "train"):
        running = commands.add_parser(name)
        running.add_argument("names", nargs="*")
        running.add_argument("--core", type=int)
    commands.add_parser("write")
    options = parser.parse_args()
    if options.command == "write":
        write()
    else:
        (tune if options.command == "tune" else train)(options)


if __name__ == "__main__":
    main()
