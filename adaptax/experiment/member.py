"""A run or a group as a program of its own, for `adaptax.experiment.jobs`."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from adaptax.algorithms.base import Algorithm
from adaptax.core.config import from_dict, to_dict
from adaptax.core.errors import AdaptaxError
from adaptax.envs.suite import Suite
from adaptax.experiment.build import recorded_algorithm, recorded_suite
from adaptax.experiment.group import Group, member_dir, replace_group
from adaptax.experiment.run_dir import CONFIG, locked
from adaptax.experiment.trainer import Trainer
from adaptax.experiment.trainer_config import TrainerConfig

Spec = dict[str, Any]
"""What is to be trained: `algorithm` and `suite` with their names, `trainer`, `seeds` of a group or
None for a run, whether to `go_on` from what there is, and the seeds of the group that the run is a
member of where that `replaces` another. Plain values, as JSON knows them."""
MOST_SECONDS_TO_DIE = 10.0


def spec_of(algorithm: Algorithm[Any, Any], suite: Suite, config: TrainerConfig) -> Spec:
    """The training of a registered algorithm on a registered suite, from the start."""
    return {
        "algorithm": {"name": algorithm.name, **to_dict(algorithm.config)},
        "suite": {"name": suite.name, **to_dict(suite.config)},
        "trainer": to_dict(config),
        "seeds": None,
        "go_on": False,
        "replaces": None,
    }


def words_of(spec: Spec) -> list[str]:
    """The program of a training."""
    return ["-m", __name__, json.dumps(spec)]


def train(spec: Spec) -> bool:
    """Train to the end; whether it came there."""
    suite = recorded_suite(**spec["suite"])
    agent = recorded_algorithm(spec, suite.spec, None)
    config = from_dict(TrainerConfig, spec["trainer"], where="trainer")
    seeds = spec["seeds"]
    runs: Trainer | Group
    if seeds is None:
        runs = Trainer(config, agent, suite)
        if spec["replaces"]:
            runs.replace_group = partial(replace_group, runs.run_dir.parent, spec["replaces"])
    else:
        runs = Group(config, seeds, agent, suite)
    try:
        if not spec["go_on"]:
            runs.run()
        else:
            for run_dir in folders_of(spec):
                _wait_until_free(run_dir)
            runs.resume()
    finally:
        runs.close()
    return not runs.interrupted


def folders_of(spec: Spec) -> list[Path]:
    """The directories of the runs of a training."""
    run_dir, seeds = Path(spec["trainer"]["run_dir"]), spec["seeds"]
    return [run_dir] if seeds is None else [member_dir(run_dir, seed) for seed in seeds]


def begun(spec: Spec) -> list[bool]:
    """Whether each of the runs of a training has something to go on from."""
    return [(run_dir / CONFIG).exists() for run_dir in folders_of(spec)]


def _wait_until_free(run_dir: Path) -> None:
    """Give a process that is being killed the time to let go of a directory."""
    deadline = time.monotonic() + MOST_SECONDS_TO_DIE
    while time.monotonic() < deadline:
        with contextlib.suppress(AdaptaxError), locked(run_dir):
            return
        time.sleep(0.1)


def main() -> None:
    """The program."""
    from adaptax.core.compilation import keep_compiled_programs
    from adaptax.experiment.cli import in_one_line, set_up_process
    from adaptax.experiment.jobs import end_with_parent
    from adaptax.experiment.stop_signals import INTERRUPTED, own_process

    end_with_parent()
    own_process()
    with in_one_line(trains=True):
        keep_compiled_programs()
        set_up_process(None)
        if not train(json.loads(sys.argv[1])):
            sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
