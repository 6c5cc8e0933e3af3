"""A run or a group as a program of its own, for `adaptax.experiment.jobs`."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from adaptax.algorithms.base import Algorithm
from adaptax.core.compilation import keep_compiled_programs
from adaptax.core.config import from_dict, to_dict
from adaptax.core.errors import AdaptaxError
from adaptax.envs.suite import Suite
from adaptax.experiment.build import recorded_algorithm, recorded_suite
from adaptax.experiment.group import Group, replace_group
from adaptax.experiment.jobs import end_with_parent
from adaptax.experiment.process import in_one_line, set_up_process
from adaptax.experiment.run_dir import locked, member_dir
from adaptax.experiment.stop_signals import INTERRUPTED, own_process
from adaptax.experiment.trainer import Trainer
from adaptax.experiment.trainer_config import TrainerConfig

MOST_SECONDS_TO_DIE = 10.0


@dataclass(frozen=True)
class Job:
    """What is to be trained, in plain values as JSON knows them."""

    algorithm: dict[str, Any]
    """Its `name` and settings."""
    suite: dict[str, Any]
    """The same."""
    trainer: dict[str, Any]
    seeds: tuple[int, ...] | None = None
    """Those of a group; None for a run."""
    go_on: bool = False
    """Whether from what there is."""
    replaces: tuple[int, ...] | None = None
    """The seeds of the group that the run is a member of, where that replaces another."""

    @property
    def folders(self) -> list[Path]:
        """The directories of its runs."""
        run_dir, seeds = Path(self.trainer["run_dir"]), self.seeds
        return [run_dir] if seeds is None else [member_dir(run_dir, seed) for seed in seeds]

    @property
    def program(self) -> list[str]:
        """The words after `python` that train it."""
        # Until there is something to lose, a request to stop ends it: a KeyboardInterrupt that
        # meets a library while it is imported would be another error, or none.
        default = "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL)"
        code = f"{default}; from {__name__} import main; main()"
        return ["-c", code, json.dumps(asdict(self))]


def job_of(
    algorithm: Algorithm[Any, Any], suite: Suite, config: TrainerConfig, **others: Any
) -> Job:
    """The training of a registered algorithm on a registered suite."""
    return Job(
        {"name": algorithm.name, **to_dict(algorithm.config)},
        {"name": suite.name, **to_dict(suite.config)},
        to_dict(config),
        **others,
    )


def train(job: Job) -> bool:
    """Train to the end; whether it came there."""
    suite = recorded_suite(**job.suite)
    agent = recorded_algorithm(job.algorithm, suite.spec, None)
    config = from_dict(TrainerConfig, job.trainer, where="trainer")
    runs: Trainer | Group
    if job.seeds is None:
        runs = Trainer(config, agent, suite)
        if job.replaces:
            runs.store.replace_group = partial(replace_group, runs.run_dir.parent, job.replaces)
    else:
        runs = Group(config, job.seeds, agent, suite)
    try:
        if not job.go_on:
            runs.run()
        else:
            for run_dir in dict.fromkeys([runs.run_dir, *job.folders]):
                _wait_until_free(run_dir)
            runs.resume()
    finally:
        runs.close()
    return not runs.interrupted


def _wait_until_free(run_dir: Path) -> None:
    """Give a process that is being killed the time to let go of a directory."""
    deadline = time.monotonic() + MOST_SECONDS_TO_DIE
    while run_dir.is_dir() and time.monotonic() < deadline:
        with contextlib.suppress(AdaptaxError), locked(run_dir):
            return
        time.sleep(0.1)


def main() -> None:
    """The program."""
    end_with_parent()
    own_process()
    with in_one_line(trains=True):
        keep_compiled_programs()
        set_up_process(None)
        if not train(from_dict(Job, json.loads(sys.argv[1]), where="job")):
            sys.exit(INTERRUPTED)
