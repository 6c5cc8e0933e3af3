"""Members of a group that cannot be one program: each in a process of its own, one a core."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from adaptax.core.cores import bind, usable_cores
from adaptax.core.errors import AdaptaxError
from adaptax.experiment.console import say
from adaptax.experiment.group import Group, member_dir

OWN = tuple(
    flag
    for name in ("seeds", "run-dir", "seed", "num-cores")
    for flag in (f"--{name}", f"--trainer.{name}")
)
"""Flags of a group, with a value each, that a member has otherwise."""


def member_commands(group: Group, args: Sequence[str]) -> dict[int, list[str]]:
    """The command of every seed, from that of the group."""
    program = [sys.executable, "-m", "adaptax.experiment.cli", args[0]]
    rest = [arg for arg in _without_own(args[1:]) if arg not in (str(group.run_dir), "--quiet")]
    if args[0] == "resume":
        rest = [arg for arg in rest if arg.rstrip("/") != str(group.run_dir)]
    commands = {}
    for seed in group.seeds:
        place = str(member_dir(group.run_dir, seed))
        if args[0] == "train":
            mine = [*rest, "--seed", str(seed), "--run-dir", place, "--quiet"]
        else:
            mine = [place, *rest, "--quiet"]
        commands[seed] = [*program, *mine]
    return commands


def _without_own(args: Sequence[str]) -> Iterator[str]:
    words = iter(args)
    for word in words:
        name, given, _ = word.replace("_", "-").partition("=")
        if name not in OWN:
            yield word
        elif not given:
            next(words, None)


def run_processes(commands: Mapping[int, list[str]], num_at_once: int) -> None:
    """Run all commands, so many at a time, each on one core as long as there is one for each.

    An AdaptaxError says which seeds came to no end.
    """
    waiting, running, failed = dict(commands), dict[int, Any](), dict[int, str]()
    cores = dict[int, int]()
    try:
        while waiting or running:
            while waiting and len(running) < num_at_once:
                seed = next(iter(waiting))
                running[seed] = subprocess.Popen(
                    waiting.pop(seed), stderr=subprocess.PIPE, text=True
                )
                _bind(running[seed].pid, seed, cores)
                say(f"seed {seed} begins", sys.stdout)
            for seed, process in list(running.items()):
                if process.poll() is None:
                    continue
                cores.pop(seed, None)
                lines = running.pop(seed).stderr.read().splitlines()
                if process.returncode:
                    failed[seed] = lines[-1] if lines else f"exit code {process.returncode}"
                say(f"seed {seed} {'failed' if seed in failed else 'is done'}", sys.stdout)
            time.sleep(0.1)
    except KeyboardInterrupt:
        for process in running.values():  # which the terminal may have told already
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
        for process in running.values():
            process.communicate()
        raise
    if failed:
        raise AdaptaxError("; ".join(f"seed {seed}: {why}" for seed, why in failed.items()))


def _bind(pid: int, seed: int, cores: dict[int, int]) -> None:
    """Bind a process that has just begun to a core of ours that no other member is on, if any is.

    Runs of others may be on it as well: they slow each other down, and none is refused.
    """
    free = [core for core in usable_cores() if core not in cores.values()]
    if free:
        cores[seed] = free[0]
        with contextlib.suppress(ProcessLookupError):
            bind(pid, {cores[seed]})
