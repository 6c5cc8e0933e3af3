"""Trains for a while with early ends, evaluations and snapshots, and watches what grows.

    python benchmarks/soak.py --out FILE [--minutes 60] [--algorithm sac] [--suite half-cheetah]
        [--seeds 0:4]

The run, or the group, is the command line's, in a process of its own; from outside this one records
every ten seconds its memory (resident, MiB), the files of its directory, its threads, its open
files and its pace. The figures that count compare the last quarter of the time with the second.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from turns import write_report

from adaptax.experiment.logger import newest_row
from adaptax.experiment.run_dir import PROGRESS

SETTINGS = {
    "sac": [
        *("--algorithm.buffer-size", "20000"),
        *("--algorithm.num-initial-steps", "2000"),
        *("--algorithm.num-cycles", "4"),
        *("--algorithm.num-steps", "100"),
        *("--algorithm.num-updates", "25"),
        *("--algorithm.hidden-sizes", "64", "64"),
    ],
}
"""Flags with which a replay is full, and no longer growing, within minutes."""


def observe(process: psutil.Process, run_dir: Path, started: float) -> dict[str, float] | None:
    """What the run has by now, all seeds together; None before each has a row."""
    logs = sorted(run_dir.glob("seed-*")) or [run_dir]
    found = [newest_row(log / PROGRESS) for log in logs]
    rows = [row for row in found if row is not None]
    if len(rows) < len(logs):
        return None
    num_files = sum(len(files) for _, _, files in os.walk(run_dir))  # some go meanwhile
    return {
        "seconds": round(time.monotonic() - started, 1),
        "memory_mib": round(process.memory_info().rss / 2**20, 1),
        "num_files": num_files,
        "num_threads": process.num_threads(),
        "num_open_files": process.num_fds(),
        "iteration": min(row["iteration"] for row in rows),
        "num_steps": sum(row["num_steps"] for row in rows),
        "training_seconds": max(row["seconds"] for row in rows),
        "processor_seconds": round(sum(process.cpu_times()[:2]), 1),
    }


def summary(samples: list[dict[str, float]]) -> dict[str, Any]:
    """The second quarter of the time beside the last."""
    quarter = max(len(samples) // 4, 2)
    parts = {"second_quarter": samples[quarter : 2 * quarter], "last_quarter": samples[-quarter:]}
    found: dict[str, Any] = {}
    for name, part in parts.items():
        steps = part[-1]["num_steps"] - part[0]["num_steps"]
        seconds = part[-1]["training_seconds"] - part[0]["training_seconds"]
        own = part[-1]["processor_seconds"] - part[0]["processor_seconds"]
        found[name] = {
            "memory_mib": round(float(np.median([s["memory_mib"] for s in part])), 1),
            "num_files": max(s["num_files"] for s in part),
            "num_threads": max(s["num_threads"] for s in part),
            "num_open_files": max(s["num_open_files"] for s in part),
            "steps_per_second": round(steps / seconds) if seconds else None,
            # Evaluations and snapshots included, other processes on the machine not.
            "steps_per_processor_second": round(steps / own) if own else None,
        }
    return found


@contextmanager
def ending(process: subprocess.Popen[str]) -> Iterator[None]:
    """Whatever ends this process ends the run too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        yield
    finally:
        process.kill()


def soak(options: argparse.Namespace, run_dir: Path) -> dict[str, Any]:
    """The samples of a run, and what they come to."""
    command = ["train", options.algorithm, options.suite, "--run-dir", str(run_dir), "--quiet"]
    command += ["--num-iterations", "1000000000", "--evaluation-interval", "20"]
    command += ["--snapshot-interval", "5", *SETTINGS.get(options.algorithm, [])]
    command += [] if options.seeds is None else ["--seeds", options.seeds]
    program = [sys.executable, "-m", "adaptax.experiment.cli", *command]
    started, samples = time.monotonic(), []
    with subprocess.Popen(program, stderr=subprocess.PIPE, text=True) as process, ending(process):
        watched = psutil.Process(process.pid)
        while process.poll() is None and time.monotonic() - started < 60 * options.minutes:
            time.sleep(min(10.0, 6.0 * options.minutes))
            if (sample := observe(watched, run_dir, started)) is not None:
                samples.append(sample)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
    last = err.strip().splitlines()[-1:]
    if len(samples) < 8:
        raise SystemExit(f"the run gave {len(samples)} samples, too few: {last}")
    about = {"algorithm": options.algorithm, "suite": options.suite, "seeds": options.seeds}
    about |= {"minutes": options.minutes, "nice": os.nice(0)}
    about |= {"exit_code": process.returncode, "last_words": last}
    return {**about, **summary(samples), "samples": samples}


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--algorithm", default="sac")
    parser.add_argument("--suite", default="half-cheetah")
    parser.add_argument("--seeds", help="0:4 for a group of four in one program")
    parser.add_argument("--out", type=Path, required=True, help="JSON file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = soak(options, Path(place) / "run")
    write_report(options.out, found)
    print(json.dumps({k: v for k, v in found.items() if k != "samples"}, indent=2))


if __name__ == "__main__":
    main()
