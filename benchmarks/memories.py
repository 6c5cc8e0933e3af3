"""What a memory costs per step of a trial: RL2's interaction and one pass of PPO, by kind.

Processor time, so that a busy machine counts less; all threads together. The best of repeats in
which the kinds take turns. Trials are one episode of `recall`. What the file has of other lengths
stays.

    python benchmarks/memories.py [--lengths 100 1000] [--repeats 3] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
from turns import about, write_json

from adaptax.algorithms.program import updated
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.sampling.sampler import Sampler

KINDS = ("gru", "lstm", "fast-weights", "min-gru", "lru", "transformer")
TRIALS, SIZE = 8, 64
Work = Callable[[], Any]


def work_of(kind: str, length: int) -> dict[str, Work]:
    """What is timed of a kind, `act` and `learn`."""
    suite = make_suite("recall", horizon=length)
    settings = {"meta_batch_size": TRIALS, "num_epochs": 1, "num_minibatches": 1}
    memory = {"kind": kind, "size": SIZE}
    algorithm = make_algorithm("rl2-ppo", suite.spec, **settings, memory=memory)
    state = algorithm.init(jax.random.key(0))
    sampler = Sampler(suite, suite.train, 0, "train")
    data = algorithm.collect(state, sampler)
    return {
        "act": lambda: algorithm.collect(state, sampler),
        "learn": lambda: updated(algorithm, state, data),
    }


def processor_seconds(run: Work) -> float:
    """Of a piece of work that was compiled before."""
    started = time.process_time()
    jax.block_until_ready(run())
    return time.process_time() - started


def costs(length: int, repeats: int) -> dict[str, dict[str, float]]:
    """Microseconds of processor time per step of a trial."""
    work = {kind: work_of(kind, length) for kind in KINDS}
    best: dict[str, dict[str, float]] = {kind: {} for kind in KINDS}
    for i in range(repeats + 1):
        for kind, parts in work.items():
            for name, run in parts.items():
                spent = 1e6 * processor_seconds(run) / (TRIALS * length)
                if i > 0:  # the first compiles
                    best[kind][name] = min(spent, best[kind].get(name, spent))
    return best


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/memories/cost.json"))
    args = parser.parse_args()
    report: dict[str, Any] = {"trials": TRIALS, "size": SIZE, "unit": "processor us a step"}
    if args.out.exists():
        report |= json.loads(args.out.read_text())
    for length in args.lengths:
        found = costs(length, args.repeats)
        for kind, parts in found.items():
            print(f"{length:5} {kind:13}", *(f"{k} {v:8.1f}" for k, v in parts.items()), flush=True)
        report[str(length)] = {**found, "about": about()}
        write_json(args.out, report)


if __name__ == "__main__":
    main()
