"""Memory of ML45's simulators: every process of a run that steps two lanes of each of 45 classes.

Proportional set size of this process and its workers once an episode has been sampled, a page that
several share counted once. Nothing is learned.

    python benchmarks/metaworld_memory.py [--lanes 2] [--out results/metaworld-memory.json]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import psutil
from turns import write_report

from adaptax.experiment.build import make_suite
from adaptax.sampling.actors import UniformActor
from adaptax.sampling.sampler import Sampler


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", default="ml45")
    parser.add_argument("--lanes", type=int, default=2, help="of each class")
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    suite = make_suite(options.suite, horizon=100)  # how long an episode is changes no simulator
    collector = Sampler(suite, suite.train, 0, "benchmark")
    classes = {task.class_name for task in suite.train.tasks or ()}
    tasks = collector.sample_tasks(len(classes))
    collector.episodes(UniformActor(suite.spec.action), tasks, options.lanes, 1)
    process = psutil.Process()
    workers = process.children(recursive=True)
    own, *others = (p.memory_full_info().pss / 2**30 for p in (process, *workers))
    collector.close()
    num_lanes = options.lanes * len(classes)
    print(f"{options.suite}, {num_lanes} lanes: {own:.2f} GiB and in workers {sum(others):.2f} GiB")
    if options.out:
        report = {
            "suite": options.suite,
            "lanes": num_lanes,
            "gib": round(own + sum(others), 2),
            "gib_of_workers": [round(x, 2) for x in others],
        }
        write_report(options.out, report, suite)


if __name__ == "__main__":
    main()
