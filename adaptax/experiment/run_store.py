"""What a run under way has on disk: its description, its logs and its snapshots, under a lock."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from adaptax.algorithms.base import Metrics
from adaptax.core.errors import DiskError, check
from adaptax.core.experience import PyTree
from adaptax.core.snapshot import Snapshots
from adaptax.experiment.logger import RunLog, read_rows, row_of
from adaptax.experiment.run_dir import (
    CONFIG,
    EVALUATIONS,
    PROGRESS,
    Hold,
    begin_run,
    exists,
    locked,
    write_config,
)


class RunStore:
    """A run's directory, written by this run alone while it is `held`."""

    def __init__(self, run_dir: Path, seed: int, keep_snapshots: int) -> None:
        self.run_dir, self._seed = run_dir, seed
        self._folder = run_dir.absolute()
        """The same wherever an environment may lead the process."""
        self.snapshots = Snapshots(self._folder / "snapshots", keep_snapshots)
        self.log = RunLog(self._folder, check=self._check_hold)
        self.recorded: dict[str, Any] = {}
        """What `config.json` of the run holds."""
        self.replace_group: Callable[[], None] | None = None
        """Has the group that it is of take the place of the one that the folder holds; called once
        an iteration is done, and nothing is written before."""
        self.unsaved: DiskError | None = None
        """Why the last snapshot could not be written."""
        self._hold: Hold | None = None

    def renew(self) -> None:
        """Start fresh logs and forget the last failed snapshot, before a run with this object."""
        self.log = RunLog(self._folder, check=self._check_hold)
        self.unsaved = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the directory, as long as the run is under way."""
        with locked(self._folder) as self._hold:
            try:
                yield
            finally:
                self._hold = None

    def _check_hold(self) -> None:
        """Stop where another run has the directory."""
        if self._hold is not None:
            self._hold.keep(self.recorded, begun=not self.log.held)

    def describe(self, description: dict[str, Any]) -> None:
        """Take what `config.json` is to hold, which tells whose snapshots are this run's."""
        self.recorded = description
        self.snapshots.owner = {"run": description.get("run"), "seed": self._seed}

    def begin(self, description: dict[str, Any], *, replaces: bool) -> None:
        """Begin a run; one that the directory holds, and that it `replaces`, stays for now."""
        self.log.held = replaces or self.replace_group is not None
        self.describe({**description, "run": secrets.token_hex(8)})
        if not self.log.held:
            begin_run(self._folder, self.recorded)

    def go_on(self, description: dict[str, Any], iteration: int, evaluated: int) -> None:
        """Continue after `iteration`, with `description` as the new `config.json`.

        Deletes snapshots and rows after it, and evaluations after `evaluated`.
        """
        self.describe(description)
        self.snapshots.discard_after(iteration)
        self.log.truncate(iteration, evaluated)
        write_config(self._folder, self.recorded)

    def replace_old_run(self) -> None:
        """Delete the run that the directory held, now that this one has shown that it can go."""
        if self.log.held:
            self._check_hold()
            if self.replace_group is not None:
                self.replace_group()
            begin_run(self._folder, self.recorded)
            self.log.held = False

    def save(self, iteration: int, tree: Callable[[], PyTree], score: float | None) -> None:
        """Write a snapshot, or warn that it could not be; it never is ahead of the log.

        An existing snapshot of this iteration is kept: it holds the same state, with replay rows
        that the next iteration may have begun to overwrite, and replacing it would leave a moment
        without any.
        """
        check(self._hold is not None, "no run is under way that a snapshot could be of")
        if self.log.held:  # what it would replace is of another run
            return
        try:
            self.log.flush()
            if not self.snapshots.holds(iteration):
                self.snapshots.save(iteration, tree(), score)
            self.unsaved = None
        except DiskError as error:
            self.unsaved = error
            kept = self.snapshots.iterations()
            newest = f"the newest is of iteration {kept[-1]}" if kept else "there is none yet"
            warnings.warn(f"{error}; {newest}; the run goes on", stacklevel=4)

    def row(self, iteration: int) -> Metrics:
        """The row of the newest iteration, if it is this one; empty else."""
        return row_of(self._folder / PROGRESS, iteration) or {}

    def is_evaluated(self, iteration: int) -> bool:
        """Whether the newest evaluation is of this iteration."""
        return not self.log.held and row_of(self._folder / EVALUATIONS, iteration) is not None

    def ended_early(self, snapshot_interval: int) -> bool:
        """Whether the run ended before it had a first snapshot, perhaps while it was written."""
        if self.snapshots.iterations() or not exists(self._folder / CONFIG):
            return False
        rows = read_rows(self._folder / PROGRESS)
        return not rows or rows[-1]["iteration"] <= snapshot_interval
