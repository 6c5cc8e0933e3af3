"""A sweep that is killed and resumed, beside one that is not."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

SPACE = """
[algorithm]
init_std = {low = 0.01, high = 10.0, log = true}
elite_fraction = {low = 0.1, high = 0.9}
num_episodes = [1, 2]
"""


def program(*words: str) -> list[str]:
    return [sys.executable, "-m", "adaptax", *words]


def sweep_words(run_dir: Path, num_trials: int) -> list[str]:
    space = run_dir.with_suffix(".toml")
    space.write_text(SPACE)
    lengths = ["--num-iterations", "6", "--evaluation-interval", "2", "--snapshot-interval", "2"]
    size = ["--algorithm.population-size", "16", "--algorithm.num-tasks", "8"]
    size += ["--algorithm.hidden-sizes", "8", "--algorithm.elite-fraction", "0.5"]
    size += ["--evaluation.num-tasks", "5"]
    search = ["--space", str(space), "--trials", str(num_trials), "--num-processes", "1"]
    seeds = ["--seeds", "0:2", "--winner-seeds", "7,8", "--run-dir", str(run_dir)]
    return ["sweep", "cem", "point-goal", *search, *seeds, *lengths, *size]


def kill_in_trial(words: list[str], run_dir: Path, number: int, delay: float) -> None:
    """Run a command until a trial has begun and so many seconds have passed."""
    with subprocess.Popen(program(*words), stdout=subprocess.DEVNULL) as process:
        while not (run_dir / f"trial-{number:03d}").exists():
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.05)
        time.sleep(delay)
        assert process.poll() is None, "it ended before it could be killed"
        os.kill(process.pid, signal.SIGKILL)


def killed_and_whole(place: Path, num_trials: int, kills: tuple[int, ...]) -> tuple[dict, dict]:
    """What a sweep found that was killed in each of these trials, and one that was not."""
    killed, whole, rng = place / "killed", place / "whole", random.Random(0)
    words = sweep_words(killed, num_trials)
    for number in kills:
        kill_in_trial(words, killed, number, rng.uniform(0.5, 4.0))
        words = ["resume", str(killed)]
    for command in (words, sweep_words(whole, num_trials)):
        subprocess.run(program(*command), check=True)
    one, other = (json.loads((run_dir / "sweep.json").read_text()) for run_dir in (killed, whole))
    return one["found"], other["found"]


if __name__ == "__main__":
    found, expected = killed_and_whole(Path(sys.argv[1]), int(sys.argv[2]), (4, 12))
    print("equal:", found == expected)
    sys.exit(found != expected)
