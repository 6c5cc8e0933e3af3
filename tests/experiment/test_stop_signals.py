"""Ctrl-C while the main thread computes within one call that does not come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from os_processes import gone
from test_trainer import left_behind, snapshots, trainer

SCRIPT = """
import multiprocessing, sys, time
sys.path[:0] = {paths!r}
from test_trainer import trainer
from adaptax.experiment.stop_signals import own_process
import jax

def call_back():
    wait = lambda x: time.sleep(600) or x
    jax.block_until_ready(jax.jit(lambda x: jax.pure_callback(wait, x, x))(jax.numpy.ones(3)))

def compute():
    loop = lambda x: jax.lax.while_loop(lambda x: x > 0.5, lambda x: jax.numpy.cos(x * 0), x)
    jax.jit(loop)(1.0).block_until_ready()

def block():
    print("busy", worker.pid, flush=True)
    {how}()

if __name__ == "__main__":
    own_process()  # as a command's
    spawn = multiprocessing.get_context("spawn")
    worker = spawn.Process(target=time.sleep, args=(600,), daemon=True)
    worker.start()
    settings = dict(num_iterations=5, snapshot_interval=1)
    try:
        trainer({run_dir!r}, {{{at}: block}}, **settings, **{more!r}).run()
    except KeyboardInterrupt as stop:
        print("adaptax:", stop, file=sys.stderr)
        sys.exit(130)
"""


class Busy:
    """A run in another process that is at an iteration which never ends."""

    def __init__(self, place: Path, how: str, at: int, **more: object) -> None:
        here = Path(__file__).parent
        paths = [str(here), str(here.parent)]
        script, run_dir = place / "program.py", place / "run"
        text = SCRIPT.format(paths=paths, how=how, at=at, run_dir=str(run_dir), more=more)
        script.write_text(text)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.process = subprocess.Popen([sys.executable, str(script)], env=os.environ, **pipes)
        line = self.process.stdout.readline()
        assert line.startswith("busy "), self.process.stderr.read()
        self.worker = int(line.split()[1])
        time.sleep(0.5)  # until it is within the call

    def interrupt(self) -> str:
        """Ctrl-C twice; what is said after the first, and then at the end."""
        self.process.send_signal(signal.SIGINT)
        first = self.process.stderr.readline()
        assert first == "finishing the iteration; once more to stop at once\n"
        start = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        _, err = self.process.communicate(timeout=120)
        assert time.monotonic() - start < 60
        assert self.process.returncode == 130
        assert gone([self.worker])
        return err


@pytest.mark.parametrize("how", ["call_back", pytest.param("compute", marks=pytest.mark.slow)])
def test_a_second_ctrl_c_ends_a_run_that_is_busy_and_leaves_the_last_snapshot(tmp_path, how):
    err = Busy(tmp_path, how, at=3).interrupt()
    again = "`Trainer(config, algorithm, suite).resume()` goes on from iteration 2"
    assert err.splitlines()[-1] == f"adaptax: interrupted; {again}"  # JAX tells of call-backs
    run, whole = (trainer(tmp_path / name, num_iterations=4) for name in ("run", "whole"))
    assert snapshots(run) == [1, 2]
    run.resume()
    whole.run()
    assert left_behind(run) == left_behind(whole)


@pytest.mark.slow
def test_without_a_snapshot_the_message_says_that_resume_begins_anew(tmp_path):
    err = Busy(tmp_path, "compute", at=1).interrupt()
    assert err.endswith("resume()` goes on from the start: there is no snapshot yet\n")
    run = trainer(tmp_path / "run", num_iterations=2)
    with pytest.warns(UserWarning, match="no snapshot yet: from the start"):
        assert run.resume()["iteration"] == 2


@pytest.mark.slow
def test_before_the_first_iteration_the_old_run_is_what_there_is(tmp_path):
    old = trainer(tmp_path / "run", num_iterations=2)
    old.run()
    err = Busy(tmp_path, "compute", at=1, overwrite=True).interrupt()
    assert err.endswith("run holds the run that it held before\n")
    again = trainer(tmp_path / "run", num_iterations=2)
    assert again.resume()["iteration"] == 2


NOTEBOOK = """
import hashlib, os, signal, sys, threading, time
sys.path[:0] = {paths!r}
from test_trainer import trainer

def twice():
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)

def block():
    threading.Thread(target=twice).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**7)  # one call, of seconds

try:
    trainer({run_dir!r}, {{3: block}}, num_iterations=5, snapshot_interval=1).run()
except KeyboardInterrupt as stop:
    print("caught:", stop)
print("lives on", flush=True)
"""


@pytest.mark.slow
def test_from_python_a_second_ctrl_c_is_a_keyboard_interrupt_and_the_process_lives_on(tmp_path):
    here = Path(__file__).parent
    paths, run_dir = [str(here), str(here.parent)], str(tmp_path / "run")
    text = NOTEBOOK.format(paths=paths, run_dir=run_dir)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    again = "`Trainer(config, algorithm, suite).resume()` goes on from iteration 2"
    assert done.stdout.splitlines() == [f"caught: interrupted; {again}", "lives on"]
    assert done.stderr == "finishing the iteration; once more to stop at once\n"


BUSY_THREAD = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from adaptax.experiment import cli

def train(args):
    ThreadPoolExecutor(1).submit(time.sleep, 600)
    raise KeyboardInterrupt("interrupted; bye")

cli.COMMANDS["train"] = train
sys.argv = ["adaptax", "train", "ppo", "cartpole"]
cli.main()
"""


def test_a_program_that_is_interrupted_waits_for_no_thread():
    """Of a group, say, in which a seed computes; Python itself would wait for it."""
    done = subprocess.run(
        [sys.executable, "-c", BUSY_THREAD], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (130, "adaptax: interrupted; bye\n")


def test_signals_are_python_s_again_after_a_run(tmp_path):
    before = signal.getsignal(signal.SIGINT), signal.set_wakeup_fd(-1)
    trainer(tmp_path / "run", num_iterations=1).run()
    assert (signal.getsignal(signal.SIGINT), signal.set_wakeup_fd(-1)) == before
