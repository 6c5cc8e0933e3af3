"""A run that is killed and resumed ends as if nothing had happened, bit for bit."""

from __future__ import annotations

import signal
import subprocess
import sys

from entries import quick_for
from toys import EVALUATION, fingerprint, flags, point_suite, small_agent, suite_flags

from adaptax.core.snapshot import Snapshots
from adaptax.experiment import cli
from adaptax.experiment.logger import read_rows
from adaptax.experiment.trainer import Trainer, TrainerConfig

STALL_IN_ITERATION_5 = """
import sys, time
from adaptax.experiment import cli, trainer
from adaptax.sampling.sampler import Sampler

done = 0
some_iterations = trainer.Trainer.some_iterations

def note(self, limits):
    global done
    done = self.iteration
    return some_iterations(self, limits)

def stall(method):
    def call(self, *args):
        result = method(self, *args)
        if done == 4:
            print("in iteration 5", flush=True)
            time.sleep(600)
        return result
    return call

trainer.Trainer.some_iterations = note
Sampler.episodes, Sampler.steps = stall(Sampler.episodes), stall(Sampler.steps)
Sampler.draw = stall(Sampler.draw)
cli.main(sys.argv[1:])
"""


def train_args(entry, run_dir) -> list[str]:
    config = TrainerConfig(
        str(run_dir),
        num_iterations=6,
        snapshot_interval=3,
        evaluation_interval=2,
        evaluation=EVALUATION,
        quiet=True,
    )
    algorithm = small_agent(entry, point_suite(entry))
    names = ["train", entry.name, "point-goal"]
    settings = [*flags(config, "trainer"), *flags(algorithm.config, "algorithm")]
    return [*names, *settings, *suite_flags(entry)]


def left_behind(run_dir):
    """The last snapshot and all rows, but for the time they took."""
    tree = Snapshots(run_dir / "snapshots").load(6)
    rows = [{**row, "seconds": None} for row in read_rows(run_dir / "progress.jsonl")]
    evaluations = read_rows(run_dir / "evaluations.jsonl")
    return fingerprint((tree.get("state", {}), tree["sampler"])), rows, evaluations


@quick_for("ppo")
def test_6_iterations_equal_3_then_kill_9_then_3_in_a_fresh_interpreter(entry, tmp_path):
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    program = [sys.executable, "-c", STALL_IN_ITERATION_5, *train_args(entry, killed)]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "in iteration 5\n"
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert len(read_rows(killed / "progress.jsonl")) == 4
    assert Snapshots(killed / "snapshots").iterations() == [3]

    program = [sys.executable, "-m", "adaptax.experiment.cli", "resume", str(killed)]
    subprocess.run(program, check=True)
    cli.main(train_args(entry, whole))

    state, rows, evaluations = left_behind(killed)
    whole_state, whole_rows, whole_evaluations = left_behind(whole)
    assert [row["iteration"] for row in whole_rows] == [1, 2, 3, 4, 5, 6]
    assert rows == whole_rows
    assert [row["iteration"] for row in whole_evaluations] == [0, 2, 4, 6]
    assert evaluations == whole_evaluations
    assert state == whole_state


def first_update(entry, run_dir, seed: int):
    """The state after one iteration, and its row."""
    suite = point_suite(entry)
    config = TrainerConfig(
        str(run_dir), seed=seed, num_iterations=1, evaluation_interval=None, quiet=True
    )
    trainer = Trainer(config, small_agent(entry, suite), suite)
    row = trainer.run()
    return fingerprint(trainer.state), {**row, "seconds": None}


def test_one_seed_gives_one_run_and_another_seed_another(entry, tmp_path):
    first, again, other = (
        first_update(entry, tmp_path / str(i), seed) for i, seed in enumerate((0, 0, 1))
    )
    assert first == again
    assert first[1] != other[1]
    assert first[0] != other[0] or not first[0]
