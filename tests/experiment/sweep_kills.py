"""A sweep that is killed and resumed, beside one that is not.

    python tests/experiment/sweep_kills.py FOLDER NUM_TRIALS [--on ray]

With `--on ray` the one that is killed runs on a cluster of two nodes' processes, the other here.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
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


CLUSTER = """
import sys
from ray.cluster_utils import Cluster
nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
nodes.add_node(num_cpus=1)
print("address", nodes.address, flush=True)
sys.stdin.read()
nodes.shutdown()
"""


@contextlib.contextmanager
def two_nodes() -> Iterator[dict[str, str]]:
    """A Ray cluster of two nodes' processes; the environment of programs that are to use it."""
    env = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    words = [sys.executable, "-c", CLUSTER]
    with subprocess.Popen(words, **pipes, text=True, env=env) as process:
        said = iter(process.stdout.readline, "")
        address = next(line.split()[1] for line in said if line.startswith("address"))
        yield {**env, "RAY_ADDRESS": address}
        process.stdin.close()


def kill_in_trial(words, run_dir: Path, number: int, delay: float, env=None) -> None:
    """Run a command until a trial has begun and so many seconds have passed."""
    with subprocess.Popen(program(*words), stdout=subprocess.DEVNULL, env=env) as process:
        while not (run_dir / f"trial-{number:03d}").exists():
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.05)
        time.sleep(delay)
        assert process.poll() is None, "it ended before it could be killed"
        os.kill(process.pid, signal.SIGKILL)


def killed_and_whole(
    place: Path, num_trials: int, kills: tuple[int, ...], on: str = "here"
) -> tuple[dict, dict]:
    """What a sweep found that was killed in each of these trials, and one here that was not."""
    killed, whole, rng = place / "killed", place / "whole", random.Random(0)
    with two_nodes() if on == "ray" else contextlib.nullcontext() as env:
        words = sweep_words(killed, num_trials)
        for number in kills:
            kill_in_trial([*words, "--on", on], killed, number, rng.uniform(0.5, 4.0), env)
            words = ["resume", str(killed)]
        subprocess.run(program(*words, "--on", on), check=True, env=env)
    subprocess.run(program(*sweep_words(whole, num_trials)), check=True)
    one, other = (json.loads((run_dir / "sweep.json").read_text()) for run_dir in (killed, whole))
    return one["found"], other["found"]


if __name__ == "__main__":
    on = sys.argv[4] if sys.argv[3:4] == ["--on"] else "here"
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    found, expected = killed_and_whole(folder, int(sys.argv[2]), (4, 12), on)
    print("equal:", found == expected)
    sys.exit(found != expected)
