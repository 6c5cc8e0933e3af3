"""Ten seeds as a group, one program for all, against as many runs one after another.

Commands as a person gives them, start and evaluations included, with programs that were compiled
before. A group cannot be faster than its seeds' processor time shared out over the cores, which
stands beside it. Other work on the machine spoils the figures.

    python benchmarks/seeds.py [--algorithm rl2-ppo] [--suite point-goal] [--repeats 2]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from recipes import finished
from turns import write_report

from adaptax.core.cores import usable_cores
from adaptax.experiment.build import make_suite


def seconds_of(*commands: list[str]) -> tuple[float, float]:
    """Wall-clock and processor seconds of `adaptax` commands, one after another."""
    program, start = str(Path(sys.executable).with_name("adaptax")), time.monotonic()
    spent = sum(finished([program, *words])[1] for words in commands)
    return time.monotonic() - start, spent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--algorithm", default="rl2-ppo")
    parser.add_argument("--suite", default="point-goal")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("results/seeds.json"))
    args = parser.parse_args()
    train = ["train", args.algorithm, args.suite]
    group, in_a_row = [], []
    with tempfile.TemporaryDirectory() as caches:
        os.environ["XDG_CACHE_HOME"] = caches
        for turn in range(1 + args.repeats):
            with tempfile.TemporaryDirectory() as folder:
                runs = [
                    [*train, "--seed", str(seed), "--run-dir", f"{folder}/{seed}"]
                    for seed in range(args.seeds if turn else 1)
                ]
                row = seconds_of(*runs)
                together = seconds_of(
                    [*train, "--seeds", f"0:{args.seeds}", "--run-dir", f"{folder}/group"]
                )
            if turn:  # the first one compiles
                group.append(together)
                in_a_row.append(row)
                print(f"group {together[0]:.1f} s, in a row {row[0]:.1f} s", flush=True)
    figures = {
        name: {
            "seconds": statistics.median(wall for wall, _ in times),
            "processor_seconds": statistics.median(spent for _, spent in times),
        }
        for name, times in (("group", group), ("in_a_row", in_a_row))
    }
    ratio = figures["in_a_row"]["seconds"] / figures["group"]["seconds"]
    bound = figures["group"]["processor_seconds"] / len(usable_cores())
    about = {"algorithm": args.algorithm, "suite": args.suite, "seeds": args.seeds}
    report = {**about, **figures, "times_as_fast": ratio, "least_seconds_of_the_group": bound}
    print(report)
    write_report(args.out, report, make_suite(args.suite))


if __name__ == "__main__":
    main()
