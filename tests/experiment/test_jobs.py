from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from os_processes import gone

from adaptax.experiment.jobs import Ended, Processes
from adaptax.experiment.logger import read_rows


def all_ended(places, seconds: float = 30.0) -> dict[str, Ended]:
    """How the programs end that are running."""
    ended, deadline = {}, time.monotonic() + seconds
    while places.running:
        assert time.monotonic() < deadline
        ended |= {found.name: found for found in places.ended()}
        time.sleep(0.02)
    return ended


def when_there(path: Path, seconds: float = 300.0) -> str:
    """What a file holds, once it does."""
    deadline = time.monotonic() + seconds
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return path.read_text()


def test_processes_each_have_a_core_even_beside_other_runs(tmp_path):
    tell = "import os, sys, time; time.sleep(0.5); open(sys.argv[1], 'w').write(str(os.{}))"
    allowed = os.sched_getaffinity(0)
    places = [tmp_path / str(i) for i in range(2 * len(allowed))]
    with Processes() as processes:
        assert processes.size == len(allowed)
        for place in places:
            words = ["-c", tell.format("sched_getaffinity(0)"), str(place)]
            processes.start(place.name, words)
        assert all(found.problem is None for found in all_ended(processes).values())
    told = [place.read_text() for place in places]
    assert sorted(told[: len(allowed)]) == sorted(str({core}) for core in allowed)
    assert told[len(allowed)] == str(allowed)  # no core is left for these


def test_one_that_fails_is_named_with_its_last_line_however_much_it_says():
    noisy = "import sys; sys.stderr.write('x' * 200_000 + '\\nadaptax: no such thing\\n'); exit(2)"
    with Processes(2) as processes:
        processes.start("noisy", ["-c", noisy])
        processes.start("fine", ["-c", ""])
        ended = all_ended(processes)
    assert ended["noisy"].problem == "no such thing" and not ended["noisy"].was_cut_off
    assert ended["fine"].problem is None


def test_what_libraries_say_at_their_end_is_not_why_it_failed():
    said = ["warning: slow", "warning: full", "warning: slow", "it broke"]
    lines = "".join(f"adaptax: {line}\n" for line in said) + "Exception ignored in: <viewer>\n"
    with Processes(1) as processes:
        processes.start("broken", ["-c", f"import sys; sys.stderr.write({lines!r}); exit(2)"])
        (found,) = all_ended(processes).values()
    assert (found.problem, found.warned) == ("it broke", ["slow", "full"])


def test_one_that_is_killed_was_cut_off():
    with Processes(1) as processes:
        processes.start("lost", ["-c", "import os; os.kill(os.getpid(), 9)"])
        (found,) = all_ended(processes).values()
    assert found.was_cut_off and found.problem == "killed by SIGKILL"


WAITING = """
import signal, sys, time
asked = []
signal.signal(signal.SIGINT, lambda *_: asked.append(1))
open(sys.argv[1], "w").write("ready")
while not asked: time.sleep(0.02)
time.sleep(0.5)
sys.exit(130 if asked == [1] else 1)
"""


def test_leaving_asks_once_and_waits(tmp_path):
    place = tmp_path / "ready"
    with Processes(1) as processes:
        processes.start("one", ["-c", WAITING, str(place)])
        when_there(place)
        processes.stop("one")
        processes.stop_all()  # the second SIGINT would end it in the midst of an iteration
        (found,) = all_ended(processes).values()
        assert found.was_cut_off and found.code == 130
        processes.start("two", ["-c", WAITING, str(tmp_path / "again")])
        when_there(tmp_path / "again")
    assert processes.running == []


PARENT = """
import sys, time
from adaptax.experiment.jobs import Processes
processes = Processes(1)
processes.start("child", ["-c", sys.argv[1], sys.argv[2]])
time.sleep(600)
"""
CHILD = """
import os, sys, time
from adaptax.experiment.jobs import end_with_parent
end_with_parent()
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(600)
"""


def test_a_program_ends_with_a_parent_that_is_killed(tmp_path):
    place = tmp_path / "pid"
    program = [sys.executable, "-c", PARENT, CHILD, str(place)]
    with subprocess.Popen(program) as parent:
        child = int(when_there(place))
        assert not gone([child], 0)
        parent.send_signal(signal.SIGKILL)
    assert gone([child], 120)


ON_TWO_NODES = """
import os, sys, time
from pathlib import Path
import ray
from ray.cluster_utils import Cluster
from adaptax.experiment import cli
from adaptax.experiment.jobs import RayTasks
from adaptax.experiment.run_dir import make_run_dir

place = Path(sys.argv[1])
nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
nodes.add_node(num_cpus=1)
ray.init(address=nodes.address)
nodes.wait_for_nodes()
print("nodes:", len(ray.nodes()))

def command(*words):
    try:
        cli.main(list(words))
    except SystemExit as stop:
        print("exit:", stop.code)

run_dir = place / "group"
make_run_dir(run_dir)
(run_dir / "group.json").write_text('{"seeds": [0]}')
(run_dir / "seed-1").write_text("in the way")
train = ["--seeds", "0:3", "--num-iterations", "3", "--evaluation-interval", "None", "--overwrite"]
command("train", "nop", "point-goal", "--run-dir", str(run_dir), "--on", "ray", *train)
(run_dir / "seed-1").unlink()
command("resume", str(run_dir), "--on", "ray", "--num-iterations", "4")

with RayTasks() as tasks:
    print("size:", tasks.size)
    ready = place / "ready"
    tasks.start("waiting", ["-c", sys.argv[2], str(ready)])
    while not ready.exists():
        time.sleep(0.05)
    tasks.stop("waiting")
    while tasks.running:
        time.sleep(0.05)
        for ended in tasks.ended():
            print("cut off:", ended.was_cut_off, ended.code)
ray.shutdown()
nodes.shutdown()
"""


@pytest.mark.slow
def test_members_are_tasks_of_a_cluster_of_two_nodes(tmp_path):
    """One that fails leaves the others and is named, going on is with all; and one is stopped."""
    pytest.importorskip("ray")
    program = [sys.executable, "-c", ON_TWO_NODES, str(tmp_path), WAITING]
    env = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    done = subprocess.run(program, capture_output=True, text=True, timeout=1800, env=env)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert [line for line in said if line.startswith(("nodes", "exit", "size", "cut"))] == [
        *("nodes: 2", "exit: 2", "size: 2", "cut off: True 130"),
    ]
    assert "adaptax: seed 1: " in done.stderr and "is a file, not a directory" in done.stderr
    for seed in range(3):
        rows = read_rows(tmp_path / "group" / f"seed-{seed}" / "progress.jsonl")
        assert [row["iteration"] for row in rows] == [1, 2, 3, 4]
