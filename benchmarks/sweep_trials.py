"""Trials of a sweep as one program, or as processes: the processor time that each takes.

    python benchmarks/sweep_trials.py [--trials 4] [--seeds 2]

The trials differ in their step size alone, so that one program can be all of them: a `Group` whose
members have settings of their own. As processes each trial is a group of its seeds, as `adaptax
sweep` has it, one a core at a time. Programs are compiled and kept before. A short and a long
training tell what a trial costs to begin from what its iterations do. Writes
results/sweep_trials.json.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from turns import write_report

from adaptax.core.compilation import keep_compiled_programs

OUT = Path(__file__).parent.parent / "results" / "sweep_trials.json"
PAIRS = (
    ("a2c", "cartpole", (20, 400)),
    ("rl2-ppo", "point-goal", (5, 40)),
)
"""Algorithm, suite, and iterations of a short and a long training."""
HOW = ("processes", "one program")


def train(job: dict[str, Any]) -> None:
    """All trials, in one of the two ways."""
    from adaptax.experiment.build import make_algorithm, make_suite
    from adaptax.experiment.group import Group
    from adaptax.experiment.job import job_of
    from adaptax.experiment.jobs import Processes
    from adaptax.experiment.process import set_up_process
    from adaptax.experiment.trainer_config import TrainerConfig

    keep_compiled_programs()
    suite, seeds = make_suite(job["suite"]), list(range(job["seeds"]))
    agents = [
        make_algorithm(job["algorithm"], suite.spec, lr=float(lr))
        for lr in np.geomspace(1e-4, 1e-2, job["trials"])
    ]
    configs = [
        TrainerConfig(f"{job['run_dir']}/{i}", quiet=True, num_iterations=job["iterations"])
        for i in range(len(agents))
    ]
    if job["how"] == "processes":
        with Processes() as places:
            waiting = list(enumerate(zip(agents, configs, strict=True)))
            while waiting or places.running:
                while waiting and len(places.running) < places.size:
                    i, (agent, config) = waiting.pop(0)
                    own = job_of(agent, suite, config, seeds=tuple(seeds))
                    places.start(str(i), own.program)
                time.sleep(0.05)
                assert all(ended.problem is None for ended in places.ended())
        return
    set_up_process(None)
    each = [agent for agent in agents for _ in seeds]
    group = Group(configs[0], range(len(each)), each, suite)
    assert group.in_one_program
    group.run()
    group.close()


def measured(job: dict[str, Any]) -> dict[str, float]:
    """Seconds that all trials take."""
    with tempfile.TemporaryDirectory() as run_dir:
        job = {**job, "run_dir": run_dir}
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run([sys.executable, __file__, "--job", json.dumps(job)], check=True)
        seconds, used = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return {"processor_seconds": round(spent, 1), "wall_seconds": round(seconds, 1)}


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    if options.job is not None:
        train(json.loads(options.job))
        return
    found = {"trials": options.trials, "seeds": options.seeds, "pairs": []}
    for algorithm, suite, lengths in PAIRS:
        job = {"algorithm": algorithm, "suite": suite}
        job |= {"trials": options.trials, "seeds": options.seeds}
        for how in HOW:
            measured({**job, "how": how, "iterations": 2})  # compiles
        for iterations in lengths:
            row = {"algorithm": algorithm, "suite": suite, "iterations": iterations}
            row |= {how: measured({**job, "how": how, "iterations": iterations}) for how in HOW}
            found["pairs"].append(row)
            print(json.dumps(row), flush=True)
            write_report(options.out, found)


if __name__ == "__main__":
    main()
