"""How all seeds of a group are trained: as one program, or as one each, here or on a cluster."""

from __future__ import annotations

import sys
import time
from dataclasses import replace

from adaptax.core.cores import usable_cores
from adaptax.experiment.choices import Where
from adaptax.experiment.console import say
from adaptax.experiment.group import Group
from adaptax.experiment.job import job_of
from adaptax.experiment.jobs import Jobs, jobs
from adaptax.experiment.logger import newest_row
from adaptax.experiment.progress import Progress
from adaptax.experiment.run_dir import CONFIG, PROGRESS, exists
from adaptax.experiment.stop_signals import end_if_told, finish_iteration_on_signal
from adaptax.experiment.trainer import whats_next

POLL = 0.1
"""Seconds from one look at the members to the next."""
SHOWN = 1.0
"""Seconds from one look at how far they are to the next."""


def train_group(group: Group, where: Where, *, go_on: bool = False) -> bool:
    """Train all seeds of a group of registered names; whether they came to their end.

    Here they are one program where the environment compiles, else a process each, one a core.
    """
    alone = len(group.seeds) == 1 or len(usable_cores()) == 1
    if where == "here" and (alone or group.in_one_program):
        (group.resume if go_on else group.run)()
        return not group.interrupted
    group.close()
    places = jobs(where)
    with group.found() if go_on else group.begun():
        return run_members(group, places, go_on=go_on)


def member_programs(group: Group, *, go_on: bool) -> dict[int, list[str]]:
    """The program of every seed; one that has nothing to go on from begins at the start."""
    programs = {}
    for member in group.members:
        config = replace(member.config, num_cores=None)
        own = job_of(
            member.algorithm,
            member.suite,
            config,
            go_on=go_on and exists(member.run_dir / CONFIG),
            replaces=None if member.store.replace_group is None else group.seeds,
        )
        programs[config.seed] = own.program
    return programs


def run_members(group: Group, places: Jobs, *, go_on: bool = False) -> bool:
    """Run all members beside each other; whether they came to their end.

    One that fails leaves the others running; then an AdaptaxError says which did, and why.
    """
    runs = MemberRuns(group, member_programs(group, go_on=go_on), places)
    quiet = group.config.quiet
    with finish_iteration_on_signal(runs.break_off, group.parting):
        failed = runs.to_their_end(Progress(group.config.limits(), quiet=quiet))
    if failed:
        raise group.failure(failed)
    if runs.interrupted:
        say(f"stopped; {group.how_to_go_on()}", sys.stderr)
        end_if_told()
    elif not quiet:
        say(whats_next(group.run_dir), sys.stdout)
    return not runs.interrupted


class MemberRuns:
    """The programs of a group's members while they run."""

    def __init__(self, group: Group, programs: dict[int, list[str]], jobs: Jobs) -> None:
        self.group, self.jobs, self.interrupted = group, jobs, False
        self._waiting = {f"seed {seed}": words for seed, words in programs.items()}

    def to_their_end(self, progress: Progress) -> dict[str, str]:
        """Run them all; why those that failed did, by seed."""
        failed, shown_at, warned = dict[str, str](), 0.0, set[str]()
        with self.jobs as jobs, progress:
            while jobs.running or (self._waiting and not self.interrupted):
                while self._waiting and not self.interrupted and len(jobs.running) < jobs.size:
                    name = next(iter(self._waiting))
                    jobs.start(name, self._waiting.pop(name))
                    progress.tell(f"{name} begins")
                if self.interrupted:
                    jobs.stop_all()
                for ended in jobs.ended():
                    problem = ended.problem
                    ended.pass_on_warnings(warned)
                    if problem is not None and not (self.interrupted and ended.was_cut_off):
                        failed[ended.name] = problem
                    progress.tell(f"{ended.name} {'ends' if problem is None else problem}")
                if time.monotonic() > shown_at + SHOWN or not jobs.running:
                    shown_at = time.monotonic()
                    self.group.keep()
                    self._show(progress)
                time.sleep(POLL)
        return failed

    def _show(self, progress: Progress) -> None:
        if self.group.is_held:  # what is logged there is the other's
            return
        logs = {m.config.seed: m.run_dir / PROGRESS for m in self.group.members}
        rows = {seed: newest_row(log) for seed, log in logs.items()}
        if known := {seed: row for seed, row in rows.items() if row is not None}:
            progress.update_group(known)

    def break_off(self) -> None:
        """Have all end after their iterations."""
        self.interrupted = True
