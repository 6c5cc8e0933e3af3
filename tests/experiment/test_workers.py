"""Whole runs with their environments in worker processes, through the command line."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from os_processes import command, gone
from toys import fingerprint, flags, small_agent

from adaptax.algorithms.registry import ALGORITHMS
from adaptax.core.snapshot import Snapshots
from adaptax.experiment import cli
from adaptax.experiment.build import load_run, make_suite
from adaptax.experiment.evaluator import EvaluatorConfig
from adaptax.experiment.logger import read_rows
from adaptax.experiment.trainer import TrainerConfig

SUITE = "gym:Pendulum-v1"
NUM_ITERATIONS = 4


def train(run_dir, num_workers: int, num_iterations: int = NUM_ITERATIONS) -> None:
    config = TrainerConfig(
        str(run_dir),
        num_iterations=num_iterations,
        evaluation_interval=2,
        evaluation=EvaluatorConfig(num_tasks=1),
        quiet=True,
    )
    algorithm = small_agent(ALGORITHMS["a2c"], make_suite(SUITE))
    settings = [*flags(config, "trainer"), *flags(algorithm.config, "algorithm")]
    workers = ["--suite.num-workers", str(num_workers)]
    cli.main(["train", "a2c", SUITE, *settings, *workers])


def left_behind(run_dir):
    """The last snapshot, and all rows but for the time they took."""
    tree = Snapshots(run_dir / "snapshots").load(NUM_ITERATIONS)
    rows = [{**row, "seconds": None} for row in read_rows(run_dir / "progress.jsonl")]
    state = fingerprint((tree["state"], tree["sampler"]))
    return state, rows, read_rows(run_dir / "evaluations.jsonl")


@pytest.fixture(scope="module")
def in_process(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "in-process"
    train(run_dir, num_workers=0)
    return left_behind(run_dir)


@pytest.mark.slow  # the next one has it too
def test_two_workers_train_the_same_agent(in_process, tmp_path):
    train(tmp_path / "run", num_workers=2)
    assert left_behind(tmp_path / "run") == in_process
    assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_a_run_with_two_workers_resumes_in_mid_episode_bit_for_bit(in_process, tmp_path):
    run_dir = tmp_path / "run"
    train(run_dir, num_workers=2, num_iterations=2)
    pool = Snapshots(run_dir / "snapshots").load(2)["sampler"]["pool"]
    assert pool["running"].all()
    assert pool["num_steps"].min() > 0
    cli.main(["resume", str(run_dir), "--num-iterations", str(NUM_ITERATIONS)])
    assert left_behind(run_dir) == in_process


@pytest.mark.slow
def test_resume_takes_another_number_of_workers(in_process, tmp_path):
    run_dir = tmp_path / "run"
    train(run_dir, num_workers=2, num_iterations=2)
    num = ["--num-iterations", str(NUM_ITERATIONS)]
    cli.main(["resume", str(run_dir), *num, "--suite.num-workers", "0"])
    assert left_behind(run_dir) == in_process


@pytest.mark.parametrize("num_workers", [0, 2])
def test_workers_asked_for_take_the_place_of_rays_actors(num_workers, tmp_path):
    run_dir = tmp_path / "run"
    train(run_dir, num_workers=0, num_iterations=1)
    config = json.loads((run_dir / "config.json").read_text())
    config["suite"]["num_ray_actors"] = 3
    (run_dir / "config.json").write_text(json.dumps(config))
    trainer = load_run(run_dir, num_workers=num_workers)
    trainer.close()
    assert trainer.suite.config.num_workers == num_workers
    assert trainer.suite.config.num_ray_actors == 0


@pytest.mark.slow
def test_ctrl_c_ends_the_run_after_its_iteration_and_leaves_no_process(tmp_path):
    run_dir = tmp_path / "run"
    args = ["train", "nop", SUITE, "--run-dir", str(run_dir), "--evaluation-interval", "None"]
    program = [sys.executable, "-m", "adaptax.experiment.cli", *args, "--suite.num-workers", "2"]
    with subprocess.Popen(
        [*program, "--num-iterations", "1000000"],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        rows = run_dir / "progress.jsonl"
        deadline = time.monotonic() + 300
        while not (rows.exists() and rows.read_text()):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        family = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert f"adaptax resume {run_dir}" in err
    assert len(Snapshots(run_dir / "snapshots").iterations()) > 0
    assert len(family) > 2  # two workers, and what multiprocessing itself starts
    assert gone([p.pid for p in family])


@pytest.mark.slow
def test_a_worker_killed_in_mid_run_is_one_line_and_a_snapshot_and_nothing_else(tmp_path):
    run_dir = tmp_path / "run"
    args = ["train", "nop", SUITE, "--run-dir", str(run_dir), "--evaluation-interval", "None"]
    program = [sys.executable, "-m", "adaptax.experiment.cli", *args, "--suite.num-workers", "2"]
    with subprocess.Popen(
        [*program, "--num-iterations", "1000000", "--quiet"], stderr=subprocess.PIPE, text=True
    ) as process:
        rows = run_dir / "progress.jsonl"
        deadline = time.monotonic() + 300
        while not (rows.exists() and rows.read_text()):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        family = psutil.Process(process.pid).children(recursive=True)
        workers = [p for p in family if "spawn_main" in command(p)]
        workers[0].send_signal(signal.SIGKILL)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 2, err
    assert err.startswith("adaptax: worker ")
    assert "the process was killed by SIGKILL" in err
    assert err.count("\n") == 1
    assert Snapshots(run_dir / "snapshots").iterations() != []
    assert gone([p.pid for p in family])


@pytest.mark.parametrize("flag", ["num-workers", "num-ray-actors"])
def test_a_wrong_number_of_workers_is_one_clear_line(flag, capsys, tmp_path):
    with pytest.raises(SystemExit) as stop:
        args = ["train", "nop", SUITE, f"--suite.{flag}", "-1", "--run-dir", str(tmp_path / "run")]
        cli.main(args)
    assert stop.value.code == 2
    name = flag.replace("-", "_")
    assert capsys.readouterr().err == f"adaptax: {name} must not be negative, but is -1\n"
