"""How long a person waits for the first row: from the command to a line in progress.jsonl.

Each pair is started with an empty folder of compiled programs (cold), once more so that everything
slow is there, and then `--repeats` times (warm). The first evaluation of an untrained agent comes
before the first row and is part of it. Other work on the machine spoils the figures.

    python benchmarks/starts.py [--repeats 3] [--out results/starts.json]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from turns import write_report

from adaptax.experiment.build import make_suite

PAIRS = (
    ("rl2-ppo", "point-goal"),
    ("promp", "point-goal"),
    ("ppo", "cartpole"),
    ("sac", "pendulum"),
    ("rl2-ppo", "half-cheetah-vel"),
    ("ppo", "half-cheetah"),
)


def seconds_to_first_row(algorithm: str, suite: str, caches: Path) -> float:
    """Wall-clock seconds from the command to the first row of the run's progress."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        program = Path(sys.executable).with_name("adaptax")
        command = [str(program), "train", algorithm, suite, "--run-dir", str(run)]
        start = time.monotonic()
        process = subprocess.Popen(
            [*command, "--num-iterations", "1"],
            env=os.environ | {"XDG_CACHE_HOME": str(caches)},
            stdout=subprocess.DEVNULL,
        )
        rows = run / "progress.jsonl"
        while not (rows.is_file() and rows.stat().st_size) and process.poll() is None:
            time.sleep(0.01)
        seconds = time.monotonic() - start
        if process.wait():
            raise SystemExit(f"{' '.join(command)} failed")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/starts.json"))
    args = parser.parse_args()
    rows = []
    for algorithm, suite in PAIRS:
        with tempfile.TemporaryDirectory() as caches:
            times = [
                seconds_to_first_row(algorithm, suite, Path(caches))
                for _ in range(2 + args.repeats)
            ]
        cold, warm = times[0], statistics.median(times[2:])
        rows.append({"algorithm": algorithm, "suite": suite, "cold": cold, "warm": warm})
        print(f"{algorithm:8s} {suite:18s} {cold:6.2f} s, warm {warm:5.2f} s", flush=True)
    write_report(args.out, {"seconds_to_first_row": rows}, make_suite("point-goal"))


if __name__ == "__main__":
    main()
