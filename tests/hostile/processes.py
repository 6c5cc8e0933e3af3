"""Attacks on real processes: kills among eight seeds, signals, native physics, workers."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from kills import ENDLESS, PHASES, left_behind, words
from os_processes import command, gone
from victim import Outcome, environment, judged

from adaptax.experiment.logger import read_rows

TESTS = Path(__file__).parents[1]
LIMIT = 1800.0
"""Wall-clock seconds for a command; the machine may be busy with others."""
SEEDS = 8
ADAPTAX = [sys.executable, "-m", "adaptax.experiment.cli"]
SHORT = ["--num-iterations", "2", "--evaluation.num-tasks", "1", "--evaluation.num-lanes", "1"]


@contextlib.contextmanager
def started(
    program: list[str], place: Path, work: Path, **more: str
) -> Iterator[subprocess.Popen[str]]:
    """A process, which is gone at the end."""
    env = {**environment(place), **more}
    with subprocess.Popen(
        program, cwd=work, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[str], limit: float = LIMIT) -> Outcome:
    """What becomes of it, and whether it leaves processes behind."""
    began = time.monotonic()
    children = [p.pid for p in _children(process.pid)]
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        return Outcome("hang", f"after {limit:g} s", limit)
    outcome = judged(process.returncode, out, err, None)
    if process.returncode < 0:
        outcome = Outcome("crash", f"signal {-process.returncode}: {err[-2000:]}")
    if not gone(children) and not outcome.is_bad:
        outcome = Outcome("hang", "processes are left behind")
    outcome.seconds = time.monotonic() - began
    return outcome


def run(arguments: list[str], place: Path, work: Path, **more: str) -> Outcome:
    """What becomes of `adaptax ARGUMENTS`."""
    with started([*ADAPTAX, *arguments], place, work, **more) as process:
        return ended(process)


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def killed_run(
    name: str, num_kills: int, rng: random.Random, place: Path, seeds: int = 0
) -> dict[str, Any]:
    """A run, or a group, killed so many times beside one that was not: the bits that differ."""
    work = place / "work"
    more = ["--seeds", f"0:{seeds}"] if seeds else []
    first, again = [*words(name, work / "killed", ENDLESS), *more], ["resume", str(work / "killed")]
    outcomes, phases = [], []
    for number in range(num_kills):
        phase = rng.choice(list(PHASES))
        nth = rng.randint(1, max(1, seeds)) if phase in ("anywhere", "evaluation") else None
        nth = nth or rng.randint(1, 3 * max(1, seeds))
        phases.append(phase)
        program = [str(TESTS / "kills.py"), "--child", phase, str(nth)]
        program += [str(rng.uniform(0.0, PHASES[phase])), *(again if number else first)]
        with started([sys.executable, *program], place, work) as process:
            outcome = ended(process)
        is_killed = process.returncode == -signal.SIGKILL
        outcomes.append(Outcome("fine", phase, outcome.seconds) if is_killed else outcome)
        if not is_killed:
            break
    folders = [f"seed-{i}" for i in range(seeds)] if seeds else ["."]
    logs = [work / "killed" / folder / "progress.jsonl" for folder in folders]
    num = max(len(read_rows(log)) for log in logs) + 2
    outcomes.append(run([*again, "--num-iterations", str(num)], place, work))
    outcomes.append(run([*words(name, work / "whole", num), *more], place, work))
    lost = 0
    if not any(outcome.is_bad for outcome in outcomes):
        for folder in folders:
            one, other = (left_behind(work / which / folder) for which in ("killed", "whole"))
            lost += different_bits(one, other)
    return {"outcomes": outcomes, "phases": phases, "iterations": num, "bits_lost": lost}


def different_bits(one: Any, other: Any) -> int:
    """Bits of state, rows and evaluations that differ; a row that differs counts as one."""
    (state, rows, evaluations), (state_2, rows_2, evaluations_2) = one, other
    lost = 0
    for name in state.keys() | state_2.keys():
        a, b = (s.get(name, ("", (), b""))[2] for s in (state, state_2))
        if len(a) != len(b):
            lost += 8 * abs(len(a) - len(b))
        else:
            x = np.frombuffer(a, np.uint8) ^ np.frombuffer(b, np.uint8)
            lost += int(np.unpackbits(x).sum())
    for these, those in ((rows, rows_2), (evaluations, evaluations_2)):
        lost += abs(len(these) - len(those))
        lost += sum(x != y for x, y in zip(these, those, strict=False))
    return lost


def interrupted(rng: random.Random, place: Path, times: int) -> Outcome:
    """Ctrl-C, once or twice, at any time of a run whose physics is native; then it goes on."""
    work = place / "work"
    lanes, steps = rng.choice([(8, 2000), (64, 8000), (256, 20_000)])
    settings = ["--algorithm.num-lanes", str(lanes), "--algorithm.num-steps", str(steps)]
    settings += ["--num-iterations", "1000000", "--snapshot-interval", "1", "--recipe", "none"]
    settings += ["--evaluation-interval", "None", "--run-dir", "run"]
    settings += rng.choice([[], ["--seeds", "0:3"]])
    with started([*ADAPTAX, "train", "ppo", "half-cheetah", *settings], place, work) as process:
        deadline = time.monotonic() + LIMIT
        while not any(work.glob("run/**/config.json")) and time.monotonic() < deadline:
            if process.poll() is not None:
                return ended(process)
            time.sleep(0.1)
        time.sleep(rng.uniform(0.0, 8.0))
        for _ in range(times):
            process.send_signal(signal.SIGINT)
            time.sleep(rng.uniform(0.05, 0.5))
        outcome = ended(process)
    if outcome.is_bad or (times == 1 and outcome.verdict != "fine"):
        return outcome if outcome.is_bad else Outcome("traceback", f"one Ctrl-C: {outcome}")
    goes_on = run(["resume", "run", "--num-iterations", "1"], place, work)
    return outcome if goes_on.verdict == "fine" else Outcome("traceback", f"resume: {goes_on}")


def damaged_library(rng: random.Random, place: Path, sound: Path) -> Outcome:
    """A run whose cache has another library, or none, in the place of MuJoCo's step."""
    cache = place / "tmp" / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    shutil.copytree(sound, cache)
    (library,) = (cache / "adaptax").glob("*.so")
    content = library.read_bytes()
    kinds = {
        "cut": lambda: library.write_bytes(content[: rng.randrange(len(content))]),
        "zeros": lambda: library.write_bytes(bytes(len(content))),
        "flipped": lambda: library.write_bytes(_flipped(rng, content)),
        "foreign": lambda: shutil.copy(np.random.mtrand.__file__, library),
        "text": lambda: library.write_text("hello"),
        "link": lambda: (library.unlink(), library.symlink_to(np.random.mtrand.__file__)),
        "folder": lambda: (library.unlink(), library.mkdir()),
        "pipe": lambda: (library.unlink(), os.mkfifo(library)),
        "digest": lambda: library.with_suffix(".sha256").write_text("x" * rng.randrange(99)),
        "no digest": lambda: library.with_suffix(".sha256").unlink(missing_ok=True),
    }
    kind = rng.choice(list(kinds))
    kinds[kind]()
    arguments = ["train", "nop", "half-cheetah", *SHORT, "--suite.horizon", "5", "--run-dir", "run"]
    outcome = run(arguments, place, place / "work", XDG_CACHE_HOME=str(cache))
    shutil.rmtree(cache)
    outcome.detail = f"{kind}: {outcome.detail}"
    if outcome.verdict != "fine" and not outcome.is_bad:
        outcome.verdict = "traceback"  # a run that had to go on
    return outcome


def _flipped(rng: random.Random, content: bytes) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.randint(1, 200)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


DIVERGES = """
import sys
import adaptax, jax.numpy as jnp
from adaptax.experiment.process import in_one_line
from adaptax.envs.physics import body
suite = adaptax.make_suite({suite!r}, horizon=50)
env = suite.make_pool(1).env
env.body.model.opt.timestep = {timestep}
env.body.model.opt.gravity[2] = {gravity}
with in_one_line(trains=True):
    adaptax.train(
        {algorithm!r}, suite, run_dir="run", num_iterations=3, evaluation_interval={every}
    )
"""


def diverging(rng: random.Random, place: Path) -> Outcome:
    """A model whose steps are far too long, or which falls up: one line or a run."""
    text = DIVERGES.format(
        suite=rng.choice(["half-cheetah", "half-cheetah-vel", "swimmer-vel", "hopper-params"]),
        algorithm=rng.choice(["reinforce", "a2c", "cem"]),
        timestep=rng.choice([0.5, 10.0, 1e6, 1e-12]),
        gravity=rng.choice([-9.81, 1e9, -1e300]),
        every=rng.choice([1, None]),
    )
    with started([sys.executable, "-c", text], place, place / "work") as process:
        outcome = ended(process)
    outcome.detail = f"{text[-160:]!r} {outcome.detail}"
    return outcome


TOLD = {
    "raise_at": "motor on fire",
    "exit_at": "ended with code 3",
    "kill_at": "killed by SIGKILL",
    "hang_at": "has not taken a step within 10 s",
    "nan_at": "not finite",
    "huge_at": "not finite",
}
"""What a fault of `Counting` has to be told by."""
WORKER = """
import sys
import adaptax
from adaptax.envs.pools import process_crew
from adaptax.envs.suites.gym import gym_suite
from adaptax.experiment.process import in_one_line
from counting import Counting

if __name__ == "__main__":
    process_crew.ProcessCrew.__init__.__defaults__ = (10.0,)
    with in_one_line(trains=True):
        tasks = [{{"ends_at": 20, "sleep": 0.002}}, {params}]
        suite = gym_suite("counting", Counting, train=tasks, horizon=30, num_workers=2)
        algorithm = {{"num_lanes": 4, "num_tasks": 2, "num_steps": 160, "num_minibatches": 2}}
        settings = {{"run_dir": "run", "num_iterations": 100, "evaluation_interval": None}}
        adaptax.train("ppo", suite, algorithm=algorithm, **settings)
"""


def worker_fault(rng: random.Random, place: Path) -> Outcome:
    """An environment in a worker that raises, exits, kills its process, hangs or gives a NaN."""
    fault = rng.choice(list(TOLD))
    script = place / "work" / "program.py"
    script.write_text(WORKER.format(params={fault: rng.randint(1, 20)}))
    with started([sys.executable, str(script)], place, place / "work") as process:
        outcome = ended(process)
    told = outcome.verdict == "refused" and TOLD[fault] in outcome.detail
    outcome.detail = f"{fault}: {outcome.detail}"
    if not told and not outcome.is_bad:
        outcome.verdict = "traceback"  # it had to be told
    return outcome


def worker_killed(rng: random.Random, place: Path) -> Outcome:
    """A worker of a run is killed or stopped from outside; the run says so and can go on."""
    work = place / "work"
    arguments = ["train", "ppo", "gym:Pendulum-v1", "--recipe", "none", "--run-dir", "run"]
    arguments += ["--suite.num-workers", "2", "--suite.horizon", "20", "--snapshot-interval", "1"]
    arguments += ["--algorithm.num-lanes", "4", "--algorithm.num-steps", "320"]
    endless = ["--num-iterations", "1000000", "--evaluation-interval", "None"]
    with started([*ADAPTAX, *arguments, *endless], place, work) as process:
        deadline = time.monotonic() + LIMIT
        while not (work / "run" / "progress.jsonl").exists() and time.monotonic() < deadline:
            if process.poll() is not None:
                return ended(process)
            time.sleep(0.1)
        time.sleep(rng.uniform(0.0, 3.0))
        of_parent = rng.random() < 0.3
        victims = [p for p in _children(process.pid) if "spawn_main" in command(p)]
        if of_parent:
            process.kill()
            process.communicate()
            left = not gone([p.pid for p in victims])
            outcome = Outcome("hang", "workers outlive their parent") if left else Outcome("fine")
        else:
            rng.choice(victims).kill()
            outcome = ended(process)
            told = outcome.verdict == "refused" and "SIGKILL" in outcome.detail
            if not told and not outcome.is_bad:
                outcome = Outcome("traceback", f"a killed worker: {outcome}")
    if outcome.is_bad:
        return outcome
    done = len(read_rows(work / "run" / "progress.jsonl"))
    goes_on = run(["resume", "run", "--num-iterations", str(done + 1)], place, work)
    return outcome if goes_on.verdict == "fine" else Outcome("traceback", f"resume: {goes_on}")
