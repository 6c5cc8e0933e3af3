"""A group: the same training from several seeds, each an ordinary run in the group's folder.

Where the environment compiles, all of them are one program, the seeds one more axis of its arrays.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.program import Whole, stacked, unstacked, whole_of
from adaptax.core.errors import AdaptaxError, ConfigError, EnvironmentFault, NotFinite, check
from adaptax.core.experience import PyTree
from adaptax.core.files import parse_json, read_plain, replacing
from adaptax.core.rng import named_key
from adaptax.envs.suite import Suite
from adaptax.experiment.console import say
from adaptax.experiment.progress import Progress
from adaptax.experiment.run_dir import make_run_dir, writing
from adaptax.experiment.stop_signals import finish_iteration_on_signal
from adaptax.experiment.trainer import Trainer, Training
from adaptax.experiment.trainer_config import TrainerConfig

GROUP = "group.json"
"""What a group's folder holds beside its members' folders: which seeds they are."""
MOST_SEEDS = 1000


class Group:
    """Several seeds of one training, in `config.run_dir`/seed-S; `config.seed` does not count."""

    def __init__(
        self,
        config: TrainerConfig,
        seeds: Sequence[int],
        algorithm: Algorithm[Any, Any],
        suite: Suite,
    ) -> None:
        self.config, self.seeds, self.run_dir = config, checked_seeds(seeds), Path(config.run_dir)
        self.members = [
            Trainer(
                replace(config, run_dir=str(member_dir(self.run_dir, seed)), seed=seed, quiet=True),
                algorithm,
                suite,
            )
            for seed in self.seeds
        ]
        for member in self.members:
            member.alone = False
        self.algorithm = algorithm
        self._interrupted = False
        self._states: tuple[list[PyTree], PyTree] = ([], None)
        """The members' states after the last call, and the same with leaves [S, ...]."""

    @property
    def in_one_program(self) -> bool:
        """Whether all seeds are one program; else they take turns."""
        first = self.members[0]
        state = jax.eval_shape(self.algorithm.init, named_key(self.seeds[0], "init"))
        return whole_of(self.algorithm, state, first.sampler) is not None

    def run(self) -> list[Metrics]:
        """Train all members from the start; the last row of each one's `progress.jsonl`."""
        self.begin()
        return self._to_their_end([member.from_the_start() for member in self.members])

    def begin(self) -> None:
        """Make the folder, which says what seeds there are."""
        self._check_folder()
        make_run_dir(self.run_dir)
        write_group(self.run_dir, self.seeds)

    def resume(self) -> list[Metrics]:
        """Go on from the newest iteration of which all members have a snapshot."""
        newest = self._newest_of_all()
        return self._to_their_end([member.from_snapshot(newest) for member in self.members])

    def _newest_of_all(self) -> int:
        """The newest iteration of which all members have a snapshot; 0 for the start."""
        if any(member.ended_early() for member in self.members):
            return 0
        newest: int | None = None
        while newest != 0:
            for member in self.members:
                member.load(newest)
            found = {member.iteration for member in self.members}
            if len(found) == 1:
                return min(found)
            newest = min(found)
        return 0

    def close(self) -> None:
        """Free all environments."""
        for member in self.members:
            member.close()

    def _check_folder(self) -> None:
        """Refuse a folder that holds something else, or a group that may not be overwritten."""
        run_dir, overwrite = self.run_dir, self.config.overwrite
        if run_dir.exists() and not run_dir.is_dir():
            raise AdaptaxError(f"{run_dir} is a file, not a folder for a group of runs")
        if not run_dir.is_dir() or not any(run_dir.iterdir()):
            return
        if not (run_dir / GROUP).exists():
            raise AdaptaxError(
                f"{run_dir} is not empty and holds no group of runs; choose another --run-dir"
            )
        if not overwrite:
            raise AdaptaxError(
                f"{run_dir} holds a group of runs already; choose another --run-dir, go on with "
                f"`adaptax resume {run_dir}`, or replace it with --overwrite"
            )

    def _to_their_end(self, trainings: list[Training]) -> list[Metrics]:
        """All members in step; each stops by its own limits, so that some may go on alone."""
        limits = self.config.limits()
        progress = Progress(limits, quiet=self.config.quiet)
        ended: dict[int, Metrics] = {}
        note = self.members[0].suite.note
        if note is not None and not self.config.quiet:
            say(note, sys.stdout)
        self._interrupted = False
        with progress, finish_iteration_on_signal(self._interrupt, self._parting):
            asked = dict(enumerate(trainings))
            answers: dict[int, list[Metrics] | None] = dict.fromkeys(asked)
            try:
                while asked:
                    for i, training in list(asked.items()):
                        try:
                            training.send(answers[i])  # type: ignore[arg-type]
                        except StopIteration as end:
                            ended[i] = end.value
                            del asked[i]
                    if asked:
                        progress.begin(min(self.members[i].iteration for i in asked) + 1)
                        answers = self._answers(list(asked), limits)
                        self._show(progress, [rows[-1] for rows in answers.values() if rows])
            except BaseException:
                self._stop_others(asked)
                raise
        if self._interrupted:
            say(f"stopped; go on with: adaptax resume {self.run_dir}", sys.stderr)
        return [ended[i] for i in range(len(trainings))]

    def _stop_others(self, asked: dict[int, Training]) -> None:
        """Let the members that nothing is wrong with write what they have."""
        for i, training in asked.items():
            self.members[i].stop()
            with contextlib.suppress(Exception):
                training.send([])
            training.close()

    def _answers(
        self, places: list[int], limits: dict[str, float]
    ) -> dict[int, list[Metrics] | None]:
        """The next rows of these members."""
        members = [self.members[i] for i in places]
        wholes = [whole_of(self.algorithm, member.state, member.sampler) for member in members]
        if len(members) == 1 or any(whole is None for whole in wholes):
            return {i: self.members[i].some_iterations(limits) for i in places}
        before = [member.sampler.save() for member in members]
        num = min(member.num_at_once(limits) for member in members)
        assert wholes[0] is not None
        try:
            rows = self._together(wholes[0], members, num)
        except (NotFinite, EnvironmentFault):
            for member, saved in zip(members, before, strict=True):
                member.sampler.restore(saved)
            # One by one it turns out whose fault it is.
            return {i: self._by_itself(self.members[i], limits) for i in places}
        return dict(zip(places, rows, strict=True))

    def _by_itself(self, member: Trainer, limits: dict[str, float]) -> list[Metrics]:
        try:
            return member.some_iterations(limits)
        except AdaptaxError as error:
            raise AdaptaxError(f"seed {member.config.seed}: {error}") from error

    def _together(self, whole: Whole, members: list[Trainer], num: int) -> list[list[Metrics]]:
        started = time.perf_counter()
        last, states = self._states
        own = [member.state for member in members]
        if len(own) != len(last) or any(a is not b for a, b in zip(own, last, strict=True)):
            states = stacked(own)

        def keep(states: PyTree) -> None:
            for member, state in zip(members, unstacked(states, len(members)), strict=True):
                member.state = state

        samplers = [member.sampler for member in members]
        states, figures = whole.run_together(states, samplers, num, keep)
        each = unstacked(states, len(members))
        seconds = time.perf_counter() - started
        rows = [
            member.take(state, *own, seconds)
            for member, state, own in zip(members, each, figures, strict=True)
        ]
        self._states = each, states
        return rows

    def _show(self, progress: Progress, rows: list[Metrics]) -> None:
        """The mean over the members that go on."""
        numbers = [{n for n, x in row.items() if isinstance(x, int | float)} for row in rows]
        names = set.intersection(*numbers)
        mean = {name: sum(row[name] for row in rows) / len(rows) for name in names}
        counts = ("iteration", "num_steps", "num_episodes")
        progress.update({**mean, **{n: round(mean[n]) for n in counts}})

    def _interrupt(self) -> None:
        if self._interrupted:
            raise KeyboardInterrupt(self._parting())
        self._interrupted = True
        for member in self.members:
            member.stop()

    def _parting(self) -> str:
        """What an end at once says."""
        return f"interrupted; `adaptax resume {self.run_dir}` goes on from the last snapshots"


def member_dir(run_dir: Path, seed: int) -> Path:
    """The folder of one seed's run."""
    return run_dir / f"seed-{seed}"


def checked_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    """The seeds; a ConfigError where there are none, or one comes twice."""
    seeds = tuple(seeds)
    check(0 < len(seeds) <= MOST_SEEDS, f"a group has 1 to {MOST_SEEDS} seeds, not {len(seeds)}")
    whole = all(isinstance(seed, int) and 0 <= seed < 2**63 for seed in seeds)
    check(whole, f"seeds must be integers in [0, 2^63), not {list(seeds)}")
    check(len(set(seeds)) == len(seeds), f"a seed comes twice among {list(seeds)}")
    return seeds


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds from `0:8`, which is 0 to 7, or `0,3,5`."""
    try:
        if ":" in text:
            first, stop = (int(part) for part in text.split(":"))
            check(
                0 < stop - first <= MOST_SEEDS, f"--seeds {text} are {max(stop - first, 0)} seeds"
            )
            return checked_seeds(range(first, stop))
        return checked_seeds([int(part) for part in text.split(",")])
    except ValueError:
        raise ConfigError(f"--seeds takes 0:8, which is 0 to 7, or 0,3,5, not {text!r}") from None


def write_group(run_dir: Path, seeds: Sequence[int]) -> None:
    """Write which seeds a group has."""
    with writing(run_dir / GROUP), replacing(run_dir / GROUP, ".tmp") as file:
        file.write((json.dumps({"seeds": list(seeds)}) + "\n").encode())


def group_seeds(run_dir: Path) -> tuple[int, ...] | None:
    """The seeds of the group that a folder holds; None where it holds none."""
    try:
        recorded = parse_json(read_plain(run_dir / GROUP))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise AdaptaxError(f"cannot read {run_dir / GROUP}: {error}") from None
    seeds = recorded.get("seeds") if isinstance(recorded, dict) else None
    if not isinstance(seeds, list):
        raise AdaptaxError(f"{run_dir / GROUP} does not say which seeds the group has")
    return checked_seeds(seeds)


def with_members(run_dirs: Sequence[Path]) -> list[Path]:
    """The same directories, and for each folder of a group those of its members."""
    found = list[Path]()
    for run_dir in run_dirs:
        seeds = group_seeds(run_dir)
        found += [run_dir] if seeds is None else [member_dir(run_dir, seed) for seed in seeds]
    return found
