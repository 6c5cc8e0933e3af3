"""Cores of their own for runs side by side."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

import pytest

from adaptax.core.cores import usable_cores
from adaptax.core.errors import AdaptaxError, ConfigError
from adaptax.experiment import cores

PROGRAM = """
import os, sys
from adaptax.experiment.cores import take_cores
try:
    print(take_cores(int(sys.argv[1])), sorted(os.sched_getaffinity(0)), flush=True)
except Exception as error:
    print(type(error).__name__, error, flush=True)
sys.stdin.read()
"""
THREADS = """
import contextlib, os, sys
from adaptax.experiment.cores import take_cores
take_cores(1)
import jax, jax.numpy as jnp
import adaptax.algorithms.on_policy.ppo
from adaptax.experiment.build import make_suite
x = jnp.ones((600, 600)); (x @ x).block_until_ready()
pool = make_suite("half-cheetah-vel").make_pool(8)
widest = 0
for thread in os.listdir("/proc/self/task"):
    with contextlib.suppress(ProcessLookupError):  # it may have ended
        widest = max(widest, len(os.sched_getaffinity(int(thread))))
print(pool.num_threads, widest)
"""


@pytest.fixture
def own_locks(tmp_path):
    """Locks apart from those of runs on this machine."""
    return {**os.environ, "TMPDIR": str(tmp_path)}


def start(num_cores: int, environment) -> subprocess.Popen:
    program = [sys.executable, "-c", PROGRAM, str(num_cores)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen(program, text=True, env=environment, **pipes)


def test_processes_take_cores_of_their_own_until_there_are_none(own_locks):
    num = len(os.sched_getaffinity(0))
    running = [start(1, own_locks) for _ in range(num)]
    told = [process.stdout.readline() for process in running]
    assert len(set(told)) == num
    for line in told:
        taken, bound_to = line.split()
        assert taken == bound_to
    late = start(1, own_locks)
    message = f"AdaptaxError num_cores 1: other runs have taken all but 0 of the {num} cores"
    assert late.stdout.readline().startswith(message)
    running[0].kill()
    running[0].wait()
    again = start(1, own_locks)
    assert again.stdout.readline() == told[0]
    for process in (*running, late, again):
        process.communicate()


def test_a_folder_of_locks_that_leads_elsewhere_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "else").mkdir()
    (tmp_path / f"adaptax-cores-{os.getuid()}").symlink_to(tmp_path / "else")
    with pytest.raises(AdaptaxError, match="is somebody else's or a link: remove it"):
        cores.take_cores(1)
    assert not any((tmp_path / "else").iterdir())


def test_more_cores_than_there_are_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    num = len(os.sched_getaffinity(0))
    with pytest.raises(ConfigError, match=f"num_cores {num + 1} is more than the {num} that there"):
        cores.take_cores(num + 1)


def test_every_thread_of_a_run_with_one_core_is_on_it(own_locks):
    done = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, env=own_locks
    )
    assert done.stdout.split() == ["1", "1"], done.stderr


def test_cores_are_those_that_this_process_may_run_on():
    assert usable_cores() == sorted(os.sched_getaffinity(0))


def test_where_the_system_does_not_say_all_cores_are_ours(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cores() == list(range(os.cpu_count() or 1))
