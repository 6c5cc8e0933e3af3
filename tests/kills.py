"""Kills runs at random moments, resumes them, and compares with a run that nobody killed.

    python tests/kills.py [ALGORITHM ...] [--num-kills 20] [--seed 0] [--out results/kills.json]

A kill is `kill -9` by the process itself, from a timer that starts with a phase of the run: in
sampling, in an update, in an evaluation, while a snapshot is written, or anywhere.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from toys import EVALUATION, fingerprint, flags, point_suite, small_agent, suite_flags

from adaptax.algorithms.base import Algorithm
from adaptax.algorithms.registry import ALGORITHMS
from adaptax.core.snapshot import Snapshots
from adaptax.experiment import cli
from adaptax.experiment.evaluator import Evaluator
from adaptax.experiment.logger import read_rows
from adaptax.experiment.trainer import Trainer, TrainerConfig
from adaptax.sampling.sampler import Sampler

PHASES = {"anywhere": 0.5, "sampling": 0.01, "update": 0.02, "evaluation": 0.05, "snapshot": 0.1}
"""Longest delay of a kill after a phase begins, in seconds."""
ENDLESS = 1_000_000


def arm(phase: str, nth: int, delay: float) -> None:
    """Have this process kill itself `delay` seconds after a phase has begun for the nth time."""
    begun = Counter[str]()

    def begin(name: str) -> None:
        begun[name] += 1
        if name == phase and begun[name] == nth:
            threading.Timer(delay, os.kill, (os.getpid(), signal.SIGKILL)).start()

    def watched(cls: type[Any], method: str, name: str, *, after: bool = False) -> None:
        original = getattr(cls, method)

        def call(self: Any, *args: Any, **named: Any) -> Any:
            if not after:
                begin(name)
            result = original(self, *args, **named)
            if after:
                begin(name)
            return result

        setattr(cls, method, call)

    watched(Trainer, "_train", "anywhere")
    watched(Sampler, "_run", "sampling")
    watched(Sampler, "_run", "update", after=True)
    # Of an iteration that is one program it is not known where it is: before it, and after it.
    watched(Sampler, "draw", "sampling", after=True)
    watched(Sampler, "count", "update")
    watched(Evaluator, "evaluate", "evaluation")
    watched(Snapshots, "save", "snapshot")


def words(name: str, run_dir: Path, num_iterations: int) -> list[str]:
    """The command that trains an algorithm, small, on `point-goal`."""
    entry = ALGORITHMS[name]
    config = TrainerConfig(
        str(run_dir),
        num_iterations=num_iterations,
        snapshot_interval=2,
        evaluation_interval=3,
        evaluation=EVALUATION,
        quiet=True,
    )
    algorithm: Algorithm = small_agent(entry, point_suite(entry))
    settings = [*flags(config, "trainer"), *flags(algorithm.config, "algorithm")]
    return ["train", name, "point-goal", *settings, *suite_flags(entry)]


def one_life(rng: random.Random, command: list[str]) -> str:
    """Run a command in a process that is killed; the phase in which it was."""
    phase = rng.choice(list(PHASES))
    nth = 1 if phase in ("anywhere", "evaluation") else rng.randint(1, 4)
    delay = rng.uniform(0.0, PHASES[phase])
    program = [sys.executable, __file__, "--child", phase, str(nth), str(delay), *command]
    done = subprocess.run(program, capture_output=True, text=True, timeout=1800)
    assert done.returncode == -signal.SIGKILL, (done.returncode, done.stderr)
    return phase


def left_behind(run_dir: Path) -> tuple[Any, ...]:
    """The last snapshot and all rows, but for the time they took."""
    rows = [{**row, "seconds": None} for row in read_rows(run_dir / "progress.jsonl")]
    tree = Snapshots(run_dir / "snapshots").load(len(rows))
    evaluations = read_rows(run_dir / "evaluations.jsonl")
    return fingerprint((tree.get("state", {}), tree["sampler"])), rows, evaluations


def compare(name: str, num_kills: int, seed: int, place: Path) -> dict[str, Any]:
    """A run killed so many times beside one that was not: whether both left the same behind."""
    rng, killed, whole = random.Random(f"{name}-{seed}"), place / "killed", place / "whole"
    phases = [one_life(rng, words(name, killed, ENDLESS))]
    while len(phases) < num_kills:
        phases.append(one_life(rng, ["resume", str(killed)]))
    rows = read_rows(killed / "progress.jsonl") if (killed / "progress.jsonl").exists() else []
    num_iterations = len(rows) + 3
    cli.main(["resume", str(killed), "--num-iterations", str(num_iterations)])
    cli.main(words(name, whole, num_iterations))
    same = [a == b for a, b in zip(left_behind(killed), left_behind(whole), strict=True)]
    return {
        "algorithm": name,
        "kills": dict(Counter(phases)),
        "iterations": num_iterations,
        "state, rows, evaluations equal": same,
    }


def main() -> None:
    """The script."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("algorithms", nargs="*", default=list(ALGORITHMS))
    parser.add_argument("--num-kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="results/kills.json")
    options = parser.parse_args()
    found = []
    for name in options.algorithms:
        with tempfile.TemporaryDirectory() as place:
            found.append(compare(name, options.num_kills, options.seed, Path(place)))
        print(json.dumps(found[-1]), flush=True)
        Path(options.out).write_text(json.dumps(found, indent=2) + "\n")
    sys.exit(not all(all(row["state, rows, evaluations equal"]) for row in found))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        arm(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
        cli.main(sys.argv[5:])
    else:
        main()
