"""A group: training from several seeds, each an ordinary run in the group's folder.

Where the environment compiles, an iteration is one program for all of them, compiled once. On a
CPU the cores share the seeds out: measured, products of several seeds at once take as long there
as one after another. On an accelerator the seeds are one more axis of its arrays.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import itertools
import json
import os
import reprlib
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import jax

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.program import IterationProgram, iteration_program, stacked, unstacked
from adaptax.core.config import as_integer
from adaptax.core.cores import usable_cores
from adaptax.core.errors import (
    AdaptaxError,
    ConfigError,
    EnvironmentFault,
    NotFinite,
    check,
    check_kind,
    one_line,
)
from adaptax.core.experience import PyTree
from adaptax.core.files import is_same_file, parse_json, read_plain
from adaptax.core.rng import named_key
from adaptax.core.snapshot import LOCK, is_held
from adaptax.envs.suite import Suite
from adaptax.experiment.callbacks import Callback, as_callbacks
from adaptax.experiment.console import say, shell_command
from adaptax.experiment.learner import Learner
from adaptax.experiment.own_parts import going_on
from adaptax.experiment.pretrained import run_path
from adaptax.experiment.progress import Progress
from adaptax.experiment.run_dir import (
    CONFIG,
    GROUP,
    NEXT_GROUP,
    PICTURES,
    REPLACE,
    clear_run,
    exists,
    locked,
    make_run_dir,
    member_dir,
    names_in,
    recorded_config,
    refuse_link,
    write_whole,
    writing,
)
from adaptax.experiment.stop_signals import end_if_told, finish_iteration_on_signal, forget_end
from adaptax.experiment.trainer import ELSEWHERE, Trainer, Training, whats_next
from adaptax.experiment.trainer_config import TrainerConfig
from adaptax.sampling.draws import Counted

MOST_SEEDS = 1000
Made = tuple[PyTree, list[Metrics], list[Counted]]
"""The state after iterations, and of each its figures and what was counted."""
ANEW = "Group(config, seeds, algorithm, suite).resume()"
"""How a program goes on with a group that it does not have any more."""


class Group:
    """Several seeds of one training, in `config.run_dir`/seed-S; `config.seed` does not count."""

    def __init__(
        self,
        config: TrainerConfig,
        seeds: Sequence[int],
        algorithm: Algorithm[Any, Any] | Sequence[Algorithm[Any, Any]],
        suite: Suite,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """One algorithm for all seeds, or one for each; each seed has copies of the callbacks.

        Algorithms that differ only in numbers of their configs are one program all the same.
        """
        check_kind(config, TrainerConfig, "Group(config, seeds, algorithm, suite)")
        self.config, self.seeds, self.run_dir = config, checked_seeds(seeds), Path(config.run_dir)
        self._folder = self.run_dir.absolute()
        """The same wherever an environment may lead the process."""
        callbacks, num = as_callbacks(callbacks), len(self.seeds)
        algorithms = [algorithm] * num if isinstance(algorithm, Algorithm) else [*algorithm]
        check(len(algorithms) == num, f"{len(algorithms)} algorithms for {num} seeds: one for each")
        self.members = [
            Trainer(
                replace(config, run_dir=str(member_dir(self.run_dir, seed)), seed=seed, quiet=True),
                own,
                suite,
                _copies(callbacks),
            )
            for seed, own in zip(self.seeds, algorithms, strict=True)
        ]
        for member in self.members:
            member.alone = False
            member.sampler.programs = self.members[0].sampler.programs
        self._are_alike = len({jax.tree.structure(m.algorithm) for m in self.members}) == 1
        self._interrupted = False
        self._is_compiled = False
        self._replaces = False
        """Whether the folder held another group when this one began."""
        self._answers: dict[int, Any] = {}
        """What members that asked for something are given next."""
        self._newest: dict[int, Metrics] = {}
        """What each came to last, those at their end too."""
        self._threads: ThreadPoolExecutor | None = None
        self._at_work: list[Future[Any]] = []

    def __repr__(self) -> str:
        one = self.members[0]
        seeds = f"seeds {', '.join(map(str, self.seeds))}"
        return f"<Group of {one.algorithm.name} on {one.suite.name} in {self.run_dir}, {seeds}>"

    @property
    def in_one_program(self) -> bool:
        """Whether all seeds are one program; else they take turns."""
        algorithm = self.members[0].algorithm
        if not (algorithm.traceable and algorithm.collects_in_program):
            return False
        return self._program(jax.eval_shape(algorithm.init, named_key(0, "init"))) is not None

    def run(self) -> list[Metrics]:
        """Train all members from the start; the last row of each one's `progress.jsonl`.

        A member that fails leaves the others to come to their end; then an AdaptaxError names it.
        """
        with self.begun():
            return self._to_their_end([member.from_the_start() for member in self.members])

    @contextlib.contextmanager
    def begun(self) -> Iterator[None]:
        """Begin in the folder, and hold it; an AdaptaxError where the group cannot begin there."""
        self.check_start()
        with self.held():
            self.begin()
            yield

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder, which is made if need be; an AdaptaxError where another group does."""
        make_run_dir(self.run_dir)
        with locked(self.run_dir):
            yield

    @contextlib.contextmanager
    def found(self) -> Iterator[None]:
        """Hold the folder of this very group; an AdaptaxError where it holds another, or none."""
        self._check_found()  # before the folder is made
        with self.held():
            self._check_found()
            yield

    def _check_found(self) -> None:
        found = group_seeds(self.run_dir)
        if found is None:
            missing = self.run_dir / GROUP
            raise AdaptaxError(
                f"{self.run_dir} holds no group of runs: there is no {missing}; train it with run()"
            )
        if set(found) != set(self.seeds):
            raise AdaptaxError(
                f"{self.run_dir} holds the group of seeds {reprlib.repr([*found])}, not "
                f"{reprlib.repr([*self.seeds])}: go on with its own, or choose another run_dir"
            )

    def keep(self) -> None:
        """Make the record of the seeds anew where it was removed while members train."""
        record = self._folder / GROUP
        with contextlib.suppress(AdaptaxError):  # of which members tell; it is tried again
            if exists(record) or not has_members(self._folder, self.seeds):
                return
            write_group(self._folder, self.seeds)
            warnings.warn(f"{record} was removed or moved: made anew", stacklevel=2)

    def begin(self) -> None:
        """Have the folder, which is held, say what seeds there are.

        A group that it holds stays until one of this one's members has done an iteration.
        """
        self._check_folder()  # another group may have come between
        self._set_replaces(False)  # what waits there may be another process's
        replaces = has_begun(self.run_dir)
        if not replaces:
            write_group(self.run_dir, self.seeds)
        else:
            with _held(self.run_dir, group_seeds(self.run_dir) or ()):  # that nobody trains there
                write_group(self.run_dir, self.seeds, NEXT_GROUP)
        self._set_replaces(replaces)

    def check_start(self) -> None:
        """Raise an AdaptaxError where the runs cannot begin; nothing is written or said."""
        self._check_folder()
        if self.config.init_from is not None:
            other = run_path(self.config.init_from).resolve()
            apart = other.parent != self.run_dir.resolve()
            check(apart, f"{other} is to be replaced by the group itself: {ELSEWHERE}")
            # Every seed begins with the same, some of them hours after the first.
            check(
                not is_held(other / LOCK),
                f"{other} is being trained: let it come to its end, or begin with an export of it",
            )
        self.members[0].check_start()

    def resume(self) -> list[Metrics]:
        """Go on with every member from its own newest snapshot; one that has none begins anew."""
        self._set_replaces(False)
        with self.found():
            return self._to_their_end(
                [
                    member.from_snapshot()
                    if exists(member.run_dir / CONFIG)
                    else member.from_the_start()
                    for member in self.members
                ]
            )

    @property
    def interrupted(self) -> bool:
        """Whether it was asked to stop before a limit was reached."""
        return self._interrupted

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Free all environments."""
        if self.is_held:  # nothing of this one stays
            (self.run_dir / NEXT_GROUP).unlink(missing_ok=True)
            for member in self.members:
                with contextlib.suppress(OSError):  # a member of the other is there, too
                    member.run_dir.rmdir()
        if self._threads is not None:
            self._threads.shutdown(wait=False)  # idle, or at what a second Ctrl-C breaks off
            self._threads = None
        for member in self.members:
            member.close()

    def _wait(self) -> None:
        """Until no thread is at a member's iterations."""
        wait(self._at_work)

    def _set_replaces(self, replaces: bool) -> None:
        self._replaces = replaces
        for member in self.members:
            # Wherever an environment leads the process meanwhile.
            own = partial(replace_group, self.run_dir.absolute(), self.seeds)
            member.store.replace_group = own if replaces else None

    def _check_folder(self) -> None:
        """Refuse a folder that holds something else, or a group that may not be overwritten."""
        run_dir, overwrite = self.run_dir, self.config.overwrite
        if names_in(run_dir) <= {LOCK, f"{GROUP}.tmp"}:
            return
        for member in self.members:
            refuse_link(member.run_dir)
        if not exists(run_dir / GROUP):
            single = "; --overwrite replaces a run by a run only"
            only = single if overwrite and exists(run_dir / CONFIG) else ""
            raise AdaptaxError(
                f"{run_dir} is not empty and holds no group of runs; choose another --run-dir{only}"
            )
        if has_begun(run_dir) and not overwrite:
            config = recorded_config(begun_member(run_dir, group_seeds(run_dir) or ()))
            raise AdaptaxError(
                f"{run_dir} holds a group of runs already; choose another --run-dir, go on with "
                f"`{going_on(run_dir, config, group=True)}`, or replace it with {REPLACE}"
            )

    def _to_their_end(self, trainings: list[Training]) -> list[Metrics]:
        """All members side by side; each stops by its own limits, so that some may go on alone."""
        self._wait()  # for what a second Ctrl-C broke off
        limits = self.config.limits()
        progress = Progress(limits, quiet=self.config.quiet)
        note = self.members[0].suite.note
        if note is not None and not self.config.quiet:
            say(note, sys.stdout)
        for member in self.members:
            member.tell = partial(self._tell, progress, member.config.seed)
        ended, failed = dict[int, Metrics](), dict[int, Exception]()
        asked, self._interrupted = dict(enumerate(trainings)), False
        self._answers = dict.fromkeys(asked)
        self._newest = {}
        with progress, finish_iteration_on_signal(self._break_off, self.parting):
            try:
                while asked:
                    self._pass_on_to(asked, ended, failed, progress)
                    self.keep()
                    if self._interrupted:  # perhaps before some of them had begun
                        for i in asked:
                            self.members[i].break_off()
                    if asked:
                        self._go_on(list(asked), limits, progress)
            except BaseException as error:
                self._leave(asked, error)
                raise
        if failed:
            why = {f"seed {self.seeds[i]}": _why(error) for i, error in failed.items()}
            raise self.failure(why) from next(iter(failed.values()))
        if self._interrupted:
            say(f"stopped; {self.how_to_go_on('group.resume()')}", sys.stderr)
            end_if_told()
        elif not self.config.quiet:
            each = "" if self.members[0].has_commands else "evaluate() of each of group.members"
            say(whats_next(self.run_dir, each), sys.stdout)
        return [ended[i] for i in range(len(trainings))]

    def _pass_on_to(
        self,
        asked: dict[int, Training],
        ended: dict[int, Metrics],
        failed: dict[int, Exception],
        progress: Progress,
    ) -> None:
        """Give all members that asked what they asked for; those that end or fail ask no more."""
        for i, training in list(asked.items()):
            try:
                _pass_on(self._answers.pop(i), training)
            except StopIteration as end:
                ended[i] = end.value
                del asked[i]
            except Exception as error:
                failed[i] = error
                del asked[i]
                self._tell_failure(progress, self.seeds[i], error)

    def _tell_failure(self, progress: Progress, seed: int, error: Exception) -> None:
        """Say at once why a member fails, and where, if that is no fault of its user."""
        self._tell(progress, seed, f"failed: {_why(error)}")
        if not isinstance(error, AdaptaxError):
            traceback.print_exception(error)

    def _go_on(self, places: list[int], limits: dict[str, float], progress: Progress) -> None:
        """Have the next rows of these members, and show how far they are."""
        first = min(self.members[i].iteration for i in places) + 1
        progress.begin(f"iteration {first}")
        self._answer(places, limits)
        self._newest |= {
            self.seeds[i]: rows[-1]
            for i, rows in self._answers.items()
            if not isinstance(rows, Exception)
        }
        if self._newest:
            progress.update_group(self._newest)

    def _leave(self, asked: dict[int, Training], error: BaseException) -> None:
        """Have members write what they have made; the others end by the error."""
        for i, training in asked.items():
            self.members[i].break_off()
            with contextlib.suppress(Exception, KeyboardInterrupt):
                # One that has not begun ends by it, too.
                _pass_on(self._answers.get(i) or error, training)

    def _answer(self, places: list[int], limits: dict[str, float]) -> None:
        """Have the next rows of these members, or the error of one that fails."""
        members = [self.members[i] for i in places]
        program = self._program(members[0].state)
        if len(self.members) > 1 and program is not None:
            before = [member.sampler.save() for member in members]
            num = min(member.learner.num_at_once(limits, program) for member in members)
            try:
                found = self._together(program, [member.learner for member in members], num)
            except Exception:
                for member, saved in zip(members, before, strict=True):
                    member.rescue(saved)
                raise
            for i, saved, rows in zip(places, before, found, strict=True):
                if rows is None:
                    self.members[i].sampler.restore(saved)
                    continue
                if isinstance(rows, EnvironmentFault):
                    self.members[i].rescue(saved)
                self._answers[i] = rows
        # Alone it turns out whose fault it is, and how far the member comes.
        for i in [i for i in places if i not in self._answers]:
            try:
                self._answers[i] = self.members[i].some_iterations(limits)
            except Exception as error:
                self._answers[i] = error

    def _program(self, state: PyTree) -> IterationProgram | None:
        """Iterations of all members as one program, if they can be."""
        first = self.members[0]
        if not self._are_alike:
            return None
        return iteration_program(first.algorithm, state, first.sampler, beside_others=True)

    def _made(
        self, program: IterationProgram, learners: list[Learner], num: int
    ) -> Sequence[Made | EnvironmentFault | None]:
        """What so many iterations of all members come to; None where an environment had a fault.

        The fault itself where it has cost a replay, so that the member cannot do it again alone.
        """

        def one(learner: Learner) -> Made | EnvironmentFault | None:
            try:
                return program.run(
                    learner.algorithm, learner.state, learner.sampler, num, learner.keep
                )
            except EnvironmentFault as fault:
                return fault if learner.has_lost_replay else None

        if jax.default_backend() == "cpu":
            # The first goes ahead, or each would compile the program.
            ahead = [] if self._is_compiled else [one(learners[0])]
            self._is_compiled = True
            if self._threads is None:
                self._threads = ThreadPoolExecutor(len(usable_cores()), "adaptax-seeds")
            self._at_work = [self._threads.submit(one, own) for own in learners[len(ahead) :]]
            self._wait()  # for all, or one would go on counting beside what comes after a fault
            return [*ahead, *(made.result() for made in self._at_work)]

        def keep(states: PyTree) -> None:
            for learner, state in zip(learners, unstacked(states, len(learners)), strict=True):
                learner.keep(state)

        algorithms, states = stacked([(learner.algorithm, learner.state) for learner in learners])
        samplers = [learner.sampler for learner in learners]
        try:
            states, figures = program.run_together(algorithms, states, samplers, num, keep)
        except EnvironmentFault:
            return [None] * len(learners)
        each = zip(unstacked(states, len(learners)), figures, strict=True)
        return [(state, *own) for state, own in each]

    def _together(
        self, program: IterationProgram, learners: list[Learner], num: int
    ) -> list[list[Metrics] | EnvironmentFault | None]:
        """The rows of so many iterations of each member; None where something went wrong in them.

        The others keep theirs: what a replay has overwritten could not be made again.
        """
        started = time.perf_counter()
        made = self._made(program, learners, num)
        seconds = time.perf_counter() - started

        def taken(
            learner: Learner, own: Made | EnvironmentFault | None
        ) -> list[Metrics] | EnvironmentFault | None:
            if own is None or isinstance(own, EnvironmentFault):
                return own
            state, metrics, counted = own
            try:
                learner.check(state, metrics)
            except NotFinite:
                return None
            return learner.take(state, metrics, counted, seconds)

        return [taken(*each) for each in zip(learners, made, strict=True)]

    def failure(self, failed: Mapping[str, str]) -> AdaptaxError:
        """What says which members failed, and why, once the others are at their end."""
        forget_end()
        if self.is_held:
            say(self.how_to_go_on(), sys.stdout)
        elif not self.config.quiet:
            say(f"go on with all: {self._way_on(ANEW)}", sys.stdout)
        return failure_of(failed)

    @staticmethod
    def _tell(progress: Progress, seed: int, line: str) -> None:
        progress.tell(f"seed {seed}: {line}")

    def _break_off(self) -> None:
        self._interrupted = True
        for member in self.members:
            member.break_off()

    @property
    def is_held(self) -> bool:
        """Whether the folder still holds the group that this one is to replace."""
        return self._replaces and (self.run_dir / NEXT_GROUP).exists()

    def how_to_go_on(self, from_python: str = ANEW) -> str:
        """How to go on after an early end, in words; `from_python` where no command can."""
        if self.is_held:
            return f"{self.run_dir} holds the group that it held before"
        return f"go on with: {self._way_on(from_python)}"

    def parting(self) -> str:
        """What an end at once says."""
        if self.is_held:
            return f"interrupted; {self.how_to_go_on()}"
        return f"interrupted; `{self._way_on(ANEW)}` goes on from the last snapshots"

    def _way_on(self, from_python: str) -> str:
        has_commands = self.members[0].has_commands
        return shell_command("resume", self.run_dir) if has_commands else from_python


def _copies(callbacks: Sequence[Callback]) -> list[Callback]:
    """Callbacks of a seed's own; a ConfigError where one cannot be copied."""
    copies, shared = list[Callback](), dict[int, Any]()  # what they share stays shared
    for callback in callbacks:
        try:
            copies.append(copy.deepcopy(callback, shared))
        except Exception as error:
            raise ConfigError(
                f"each seed of a group has a copy of the callback {type(callback).__name__}, which "
                f"cannot be copied: {one_line(error)}"
            ) from error
    return copies


def _pass_on(answer: Any, training: Training) -> None:
    """Have a training go on with its rows, or end by the error that came in their place."""
    if isinstance(answer, BaseException):
        training.throw(answer)
    else:
        training.send(answer)


def _why(error: Exception) -> str:
    """Why a member failed, in one line."""
    return str(error) if isinstance(error, AdaptaxError) else one_line(error)


def failure_of(failed: Mapping[str, str]) -> AdaptaxError:
    """What says which members failed, and why; those that failed alike in one breath."""
    by_reason: dict[str, list[str]] = {}
    for name, why in failed.items():
        by_reason.setdefault(why, []).append(name)
    return AdaptaxError("; ".join(f"{', '.join(names)}: {why}" for why, names in by_reason.items()))


def begun_member(run_dir: Path, seeds: Sequence[int]) -> Path:
    """The folder of the first member that has begun; an AdaptaxError where none has."""
    for seed in seeds:
        if exists(member_dir(run_dir, seed) / CONFIG):
            return member_dir(run_dir, seed)
    raise AdaptaxError(f"{run_dir} is a group of which no seed had begun: train it again")


def has_begun(run_dir: Path) -> bool:
    """Whether a folder holds a group of which a member has begun."""
    return has_members(run_dir, group_seeds(run_dir) or ())


def has_members(run_dir: Path, seeds: Sequence[int]) -> bool:
    """Whether a folder holds the run of one of these seeds."""
    return any(exists(member_dir(run_dir, seed) / CONFIG) for seed in seeds)


def replace_group(run_dir: Path, seeds: Sequence[int]) -> None:
    """Have the group of these seeds, which waits for it, take a folder; the one that holds it goes.

    All of its members call it, perhaps at once from several processes: the first does it, and the
    others wait until it is done. No member of either group is left but as its own, or not at all.
    Raises an AdaptaxError where yet another group has come between.
    """
    waiting = run_dir / NEXT_GROUP
    try:
        file = os.open(waiting, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        _check_is_of(run_dir, seeds, GROUP)
        return
    try:
        with contextlib.suppress(OSError):  # where files cannot be locked
            fcntl.flock(file, fcntl.LOCK_EX)
        if not is_same_file(file, waiting):
            _check_is_of(run_dir, seeds, GROUP)
            return
        _check_is_of(run_dir, seeds, NEXT_GROUP)
        old, new = group_seeds(run_dir) or (), group_seeds(run_dir, NEXT_GROUP) or ()
        gone = [seed for seed in old if seed not in new]
        with _held(run_dir, gone):
            for seed in dict.fromkeys([*old, *new]):
                clear_run(member_dir(run_dir, seed))
            with writing(run_dir / GROUP):
                for name in PICTURES:
                    (run_dir / name).unlink(missing_ok=True)
                os.replace(waiting, run_dir / GROUP)
    finally:
        os.close(file)
    for seed in gone:
        with contextlib.suppress(OSError):  # it holds more than the run, or there is none
            member_dir(run_dir, seed).rmdir()


def _check_is_of(run_dir: Path, seeds: Sequence[int], name: str) -> None:
    """Raise an AdaptaxError unless a folder holds, or is to hold, the group of these seeds."""
    if group_seeds(run_dir, name) != tuple(seeds):
        raise AdaptaxError(
            f"{run_dir} is another group's now: this one stops and writes nothing there"
        )


@contextlib.contextmanager
def _held(run_dir: Path, seeds: Sequence[int]) -> Iterator[None]:
    """Hold the directories of members; an AdaptaxError where somebody trains one."""
    with contextlib.ExitStack() as stack:
        for seed in seeds:
            if member_dir(run_dir, seed).is_dir():
                stack.enter_context(locked(member_dir(run_dir, seed)))
        yield


def checked_seeds(seeds: Sequence[int]) -> tuple[int, ...]:
    """The seeds; a ConfigError where there are none, or one comes twice."""
    several = isinstance(seeds, Iterable)
    check(several, f"seeds must be several, such as [0, 3] or range(5), not {seeds!r}")
    given = list(itertools.islice(seeds, MOST_SEEDS + 1))  # a range may be longer than memory
    number = "more" if len(given) > MOST_SEEDS else len(given)
    check(0 < len(given) <= MOST_SEEDS, f"a group has 1 to {MOST_SEEDS} seeds, not {number}")
    said = "seeds must be integers in [0, 2^63)"
    checked = tuple(as_integer(seed, said, range(2**63)) for seed in given)
    check(len(set(checked)) == len(checked), f"a seed comes twice among {given}")
    return checked


def parse_seeds(text: str) -> tuple[int, ...]:
    """Seeds from `0:8`, which is 0 to 7, or `0,3,5`."""
    is_range = ":" in text
    try:
        numbers = [int(part) for part in text.split(":" if is_range else ",")]
        seeds = range(*numbers) if is_range and len(numbers) == 2 else numbers
    except ValueError:
        numbers = []
    if not numbers or (is_range and len(numbers) != 2):
        raise ConfigError(f"--seeds takes 0:8, which is 0 to 7, or 0,3,5, not {text!r}")
    return checked_seeds(seeds)


def write_group(run_dir: Path, seeds: Sequence[int], name: str = GROUP) -> None:
    """Write which seeds a group has."""
    write_whole(run_dir / name, (json.dumps({"seeds": list(seeds)}) + "\n").encode(), ".tmp")


def group_seeds(run_dir: Path, name: str = GROUP) -> tuple[int, ...] | None:
    """The seeds of the group that a folder holds; None where it holds none."""
    try:
        recorded = parse_json(read_plain(run_dir / name))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise AdaptaxError(f"cannot read {run_dir / name}: {error}") from None
    seeds = recorded.get("seeds") if isinstance(recorded, dict) else None
    if not isinstance(seeds, list):
        raise AdaptaxError(f"{run_dir / name} does not say which seeds the group has")
    for seed in (checked := checked_seeds(seeds)):
        refuse_link(member_dir(run_dir, seed))
    return checked


def with_members(run_dirs: Sequence[Path]) -> list[Path]:
    """The same directories, and for each folder of a group those of its members."""
    found = list[Path]()
    for run_dir in run_dirs:
        seeds = group_seeds(run_dir)
        found += [run_dir] if seeds is None else [member_dir(run_dir, seed) for seed in seeds]
    return found
