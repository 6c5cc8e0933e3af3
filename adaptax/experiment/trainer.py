"""The trainer: iterate, log, evaluate, snapshot; and go on exactly where a snapshot stands."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Self

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.registry import ALGORITHMS, find_algorithm
from adaptax.core.config import to_dict
from adaptax.core.errors import (
    AdaptaxError,
    ConfigError,
    NotFinite,
    check,
    check_kind,
    one_line,
)
from adaptax.core.experience import PyTree
from adaptax.core.rng import named_key
from adaptax.core.spec import spec_to_dict
from adaptax.envs.suite import Suite
from adaptax.envs.task import Task
from adaptax.experiment.callbacks import (
    Callback,
    Callbacks,
    EarlyStopping,
    installed_callbacks,
)
from adaptax.experiment.console import say, shell_command
from adaptax.experiment.evaluation import Evaluation, evaluation_in_words
from adaptax.experiment.evaluator import Evaluator
from adaptax.experiment.learner import Learner
from adaptax.experiment.pretrained import run_path
from adaptax.experiment.progress import Progress
from adaptax.experiment.provenance import (
    check_networks,
    check_settings_of_networks,
    own_networks,
    provenance,
    suite_settings,
)
from adaptax.experiment.resuming import (
    A_NEW_ONE,
    check_alike,
    last_iteration,
    nothing_learned_after,
    warn_of_the_protocol,
    warn_of_the_schedule,
)
from adaptax.experiment.run_dir import (
    PROGRESS,
    check_run_dir,
    make_run_dir,
    recorded_config,
    refuse_links,
)
from adaptax.experiment.run_store import RunStore
from adaptax.experiment.stop_signals import end_if_told, finish_iteration_on_signal
from adaptax.experiment.trainer_config import TrainerConfig, warn_of_cut_episodes, warn_of_days
from adaptax.experiment.transfer import learned_elsewhere
from adaptax.experiment.weights import check_resumable
from adaptax.learning.schedules import over_the_run
from adaptax.sampling.sampler import Sampler

__all__ = ["Trainer", "TrainerConfig"]

Training = Generator[dict[str, float], list[Metrics], Metrics]
"""A run as a generator: yields the limits, is sent the rows of iterations that the caller has made
within them (`some_iterations`), and returns the last row. `Trainer` drives one, `Group` one a
seed."""
ELSEWHERE = "choose another --run-dir to begin with what it has learned"


def _check_named(algorithm: Algorithm[Any, Any]) -> None:
    """Raise a ConfigError where one of somebody's own has no name, or that of one of adaptax's.

    What is recorded is the name, by which commands would run the other one.
    """
    kind, name = type(algorithm), getattr(algorithm, "name", None)
    check(isinstance(name, str), f'{kind.__name__} has no name: give the class one, name = "..."')
    entry = ALGORITHMS.get(algorithm.name)
    check(
        entry is None or kind is entry.load()[0],
        f"{kind.__name__} goes by the name {algorithm.name!r}, which is another algorithm's: "
        "give the class a `name` of its own",
    )


class Trainer:
    """Trains one algorithm on one suite; all of it lives in `config.run_dir`.

    It calls `callbacks`, and those that the config names after them.
    """

    def __init__(
        self,
        config: TrainerConfig,
        algorithm: Algorithm[Any, Any],
        suite: Suite,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        for given, kind in ((config, TrainerConfig), (algorithm, Algorithm), (suite, Suite)):
            check_kind(given, kind, "Trainer(config, algorithm, suite)")
        suite.check_made_for(algorithm.spec)
        _check_named(algorithm)
        self.config, self.suite = config, suite
        self.algorithm = _as_long_as_the_run(algorithm, config)
        self.run_dir = Path(config.run_dir)
        self.sampler = Sampler(suite, suite.train, config.seed, "train")
        self.learner = Learner(config, self.algorithm, self.sampler)
        self.store = RunStore(self.run_dir, config.seed, config.keep_snapshots)
        self._transferred: PyTree = None
        """The state to begin with, where it was looked at beforehand."""
        self._evaluator = Evaluator(config.evaluation, suite, config.seed)
        if config.evaluation_interval is not None:
            self._evaluator.check_size(self.algorithm)
        self.alone = True
        """Whether it listens to Ctrl-C and says where it stopped, as a group does for all."""
        self.tell: Callable[[str], None] | None = None
        """Shows a line; None: the run's own console does."""
        self._given = self.callbacks = Callbacks(callbacks)
        self._interrupted, self._stopped = False, ""

    def __repr__(self) -> str:
        what = f"{self.algorithm.name} on {self.suite.name}"
        return f"<Trainer of {what} in {self.run_dir}, iteration {self.iteration}>"

    @property
    def state(self) -> PyTree:
        """All that the algorithm has learned."""
        return self.learner.state

    @property
    def iteration(self) -> int:
        """Iterations done."""
        return self.learner.iteration

    @property
    def recorded(self) -> dict[str, Any]:
        """What `config.json` of the run holds."""
        return self.store.recorded

    def run(self) -> Metrics:
        """Train from the start; the last row of `progress.jsonl`.

        A run that the directory holds stays until the first iteration of this one is done.
        """
        return self._to_its_end(self.from_the_start())

    def resume(self) -> Metrics:
        """Go on from the newest snapshot that can be read; the last row of `progress.jsonl`."""
        return self._to_its_end(self.from_snapshot())

    def _to_its_end(self, training: Training) -> Metrics:
        try:
            limits = next(training)
            while True:
                try:
                    rows = self.some_iterations(limits)
                except BaseException as error:
                    training.throw(error)  # which leaves all that is open as it should
                    raise
                limits = training.send(rows)
        except StopIteration as end:
            last: Metrics = end.value
            end_if_told()
            return last

    def some_iterations(self, limits: dict[str, float]) -> list[Metrics]:
        """The rows of one iteration, or of several that one program makes."""
        before = self.sampler.save()
        try:
            return self.learner.some_iterations(limits, before)
        except Exception:
            self.rescue(before)
            raise

    def from_the_start(self) -> Training:
        """The run from its start, as a `Training`."""
        self._renew()
        self._check_new()
        state = self._first_state()  # before anything is written: it may be refused
        make_run_dir(self.run_dir)
        with self.store.held():
            # Another may have had it meanwhile.
            holds_a_run = self._check_folder()
            self._tell_of_the_suite()
            self.learner.begin(state)
            self.store.begin(self.description(), replaces=holds_a_run)
            return (yield from self._train())

    def from_snapshot(self) -> Training:
        """The run from its newest snapshot on, as a `Training`."""
        if not self.run_dir.is_dir():
            raise AdaptaxError(f"{self.run_dir} holds no run")
        self._renew()
        with self.store.held():
            check_alike(self.run_dir, self.config, self.suite, self._settings()["algorithm"])
            early = self.store.ended_early(self.config.snapshot_interval)
            if early:
                warnings.warn(f"{self.run_dir} has no snapshot yet: from the start", stacklevel=2)
                check_networks(self.run_dir, recorded_config(self.run_dir), self.algorithm)
                self.learner.begin(self._first_state())
            else:
                self.load(episodes=True)
            if self._nothing_to_do():
                more = "--num-iterations" if self.has_commands else "a larger num_iterations"
                say(
                    f"{self.run_dir} has done all of its {self.iteration} iterations: nothing to "
                    f"do; more with {more}",
                    sys.stdout,
                )
                return self.store.row(self.iteration)
            self._tell_of_the_suite()
            # Evaluations to come again: that at the end of a run that had ended, which an
            # uninterrupted run would not have; the first, which the callbacks know nothing of.
            evaluated = -1 if early else self.iteration - (not self._evaluation_due())
            self.store.go_on(self._description_from_here(), self.iteration, evaluated)
            self.learner.last = self.store.row(self.iteration)
            if self.iteration > 0 and not self.learner.last:
                warnings.warn(f"{self.run_dir / PROGRESS} lacks rows before here", stacklevel=2)
            return (yield from self._train())

    def _description_from_here(self) -> dict[str, Any]:
        """What `config.json` is to hold where the run goes on; a warning of what will differ."""
        recorded, settings = recorded_config(self.run_dir), self.algorithm.config
        warn_of_the_schedule(self.config, settings, self.iteration)
        own = {"trainer": to_dict(self.config)}
        if self.config.evaluation_interval is not None:
            own["protocol"] = self.protocol()
            warn_of_the_protocol(self.run_dir, recorded, own["protocol"])
        return {**recorded, **own}

    def _first_state(self) -> PyTree:
        """What training begins with: fresh, or what another run has learned."""
        if self._transferred is not None:
            state, self._transferred = self._transferred, None
            return state
        state = self.algorithm.initial_state(named_key(self.config.seed, "init"))
        if self.config.init_from is None:
            return state
        return learned_elsewhere(run_path(self.config.init_from), self.algorithm, state)

    def _check_apart(self) -> None:
        """Refuse to begin with what the run would replace."""
        if self.config.init_from is not None:
            other = run_path(self.config.init_from)
            apart = other.resolve() != self.run_dir.resolve()
            check(apart, f"{other} is to be replaced by the run itself: {ELSEWHERE}")

    def check_start(self) -> None:
        """Raise an AdaptaxError where a run cannot begin; nothing is written or said.

        A warning where it will take days for certain, where its step size is 0 before it ends, or
        where no lane gets to an episode's end.
        """
        installed_callbacks(self.config.callbacks)
        self._check_new()
        self.algorithm.check_size()
        warn_of_days(self.config)
        warn_of_the_schedule(self.config, self.algorithm.config)
        if self.sampler.num_listed != 1:
            warn_of_cut_episodes(self.algorithm.config, self.suite.spec.horizon)
        if self.config.init_from is not None:
            self._transferred = self._first_state()

    def _check_new(self) -> None:
        """Raise an AdaptaxError where no run of these settings can begin in the directory."""
        self._check_apart()
        check_settings_of_networks(self.algorithm)
        self._check_folder()

    def _check_folder(self) -> bool:
        """Refuse a directory with what this run may not replace; whether it has another to."""
        overwrite, seed = self.config.overwrite, self.config.seed
        return check_run_dir(self.run_dir, overwrite=overwrite, seed=seed)

    def _renew(self) -> None:
        """Have logs and callbacks as before any run."""
        self.store.renew()
        self._given.restart()
        self.callbacks = self._given.with_shipped(self.config)
        self.learner.config, self.learner.one_by_one = self.config, self.callbacks.one_by_one

    def _tell_of_the_suite(self) -> None:
        if self.suite.note is not None and not self.config.quiet:
            say(self.suite.note, sys.stdout)

    def load(self, *, episodes: bool = False, best: bool = False) -> None:
        """Take state and counters from the newest readable snapshot, to evaluate or to act.

        With `best` from the one with the highest return in training. `episodes`: also take up the
        episodes of training that were under way, which only further training needs and not every
        environment can restore.
        """
        refuse_links(self.run_dir)
        self.store.describe(recorded_config(self.run_dir))
        check_networks(self.run_dir, self.recorded, self.algorithm)
        self.take_up(*self.store.snapshots.read(best=best, own=episodes), episodes=episodes)

    def take_up(self, iteration: int, tree: PyTree, *, episodes: bool = False) -> None:
        """Take state and counters from the tree of a snapshot of this run, as `load` does."""
        with self.store.snapshots.reading(iteration):
            if episodes:
                check_resumable(tree, self.run_dir, has_commands=self.has_commands)
            self.learner.take_up(iteration, tree, episodes=episodes)
        if episodes:
            saved = dict(tree.get("callbacks", {}))
            patience = self.recorded.get("trainer", {}).get("patience")
            if patience is not None and self.config.patience is None:
                saved.pop(EarlyStopping.__name__, None)  # it is asked to go on past its end
            self.callbacks.restore(saved, self.run_dir)

    def evaluate(self) -> Evaluation:
        """Evaluate the present state on held-out tasks."""
        return self._evaluator.evaluate(self.algorithm, self.state)

    def evaluation_tasks(self) -> tuple[Task, ...]:
        """The tasks that every evaluation of the run is on, in order."""
        return self._evaluator.tasks()

    def protocol(self) -> dict[str, Any]:
        """What decides whether two evaluations can be compared."""
        return self._evaluator.protocol(self.algorithm)

    def evaluate_untrained(self) -> Evaluation:
        """Evaluate the state before training on the same tasks."""
        state = self.algorithm.initial_state(named_key(self.config.seed, "init"))
        return self._evaluator.evaluate(self.algorithm, state)

    @property
    def interrupted(self) -> bool:
        """Whether it was asked to stop before a limit was reached."""
        return self._interrupted

    @property
    def has_commands(self) -> bool:
        """Whether commands can make its suite, algorithm and networks again, from their names."""
        if self.suite.config is None or own_networks(self.algorithm) is not None:
            return False
        try:
            return type(self.algorithm) is find_algorithm(self.algorithm.name).load()[0]
        except ConfigError:
            return False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Free all environments."""
        self.sampler.close()
        self._evaluator.close()

    def description(self) -> dict[str, Any]:
        """What `config.json` holds: every setting, versions, and the hash of the task set."""
        return {
            **self._settings(),
            "trainer": to_dict(self.config),
            "spec": spec_to_dict(self.suite.spec),
            "seed": self.config.seed,
            "protocol": self.protocol(),
            **provenance(self.suite),
        }

    def _settings(self) -> dict[str, Any]:
        """Those of algorithm and suite."""
        return {
            "algorithm": {
                "name": self.algorithm.name,
                "networks": own_networks(self.algorithm),
                **to_dict(self.algorithm.config),
            },
            "suite": suite_settings(self.suite),
        }

    def _nothing_to_do(self) -> bool:
        """Whether a run that is resumed has reached its limits, its last evaluation included."""
        limits = self.config.limits()
        beyond = self.iteration > limits.get("iteration", self.iteration)
        evaluated = self.config.evaluation_interval is None
        evaluated = evaluated or self.store.is_evaluated(self.iteration)
        return self.learner.has_reached(limits) and (beyond or evaluated)

    def _train(self) -> Training:
        config, store = self.config, self.store
        self._interrupted, self._stopped = False, ""
        limits = config.limits()
        in_vain_after = nothing_learned_after(config, self.algorithm.config)
        self._progress = progress = Progress(limits, quiet=config.quiet, warns=self.alone)
        with store.log, progress, self._signals(), self.callbacks.running(self):
            if self._evaluation_due() and not store.is_evaluated(self.iteration):
                self._log_evaluation()
            while not self._ends_here(limits):
                progress.begin(f"iteration {self.iteration + 1}")
                rows = yield limits
                store.replace_old_run()
                self._log_rows(rows)
                if in_vain_after is not None and self.iteration > in_vain_after:
                    in_vain_after = None
                    warnings.warn(
                        f"the step size is 0 in iteration {self.iteration}, and nothing is learned "
                        f"any more; {A_NEW_ONE}",
                        stacklevel=2,
                    )
                if self._evaluation_due():
                    self._log_evaluation()
                if self.iteration % config.snapshot_interval == 0:
                    self.save_snapshot(self.sampler.save())
            self._finish()
        if not self._interrupted and not config.quiet:
            from_python = "" if self.has_commands else "trainer.evaluate()"
            say(whats_next(self.run_dir, from_python), sys.stdout)
        return self.learner.last

    def _log_rows(self, rows: list[Metrics]) -> None:
        failed = list[Exception]()
        for row in rows:
            try:
                self.callbacks.on_row(self, row, self.store.log.log)
            except Exception as error:  # a callback's, which must not cost what was learned
                failed.append(error)
            self._progress.update(row)
        if failed:
            self.save_snapshot(self.sampler.save())
            raise failed[0]

    def _ends_here(self, limits: dict[str, float]) -> bool:
        return self._interrupted or bool(self._stopped) or self.learner.has_reached(limits)

    def _signals(self) -> AbstractContextManager[None]:
        if not self.alone:
            return nullcontext()
        return finish_iteration_on_signal(self.break_off, self._parting)

    def _finish(self) -> None:
        if self.iteration % self.config.snapshot_interval != 0 or self.iteration == 0:
            self.save_snapshot(self.sampler.save())
        evaluated = self.config.evaluation_interval is None or self._evaluation_due()
        if not self._interrupted and not evaluated:
            self._log_evaluation()
        self.store.log.flush()
        if self._stopped:
            self._say(f"ended after iteration {self.iteration}: {self._stopped}")
        if self.store.unsaved is not None:
            raise self.store.unsaved
        if not self._interrupted or not self.alone:
            return
        if self.store.log.held:
            say(f"stopped; {self._parting_state()}", sys.stderr)
        else:
            resume = shell_command("resume", self.run_dir)
            way_on = resume if self.has_commands else "trainer.resume()"
            say(f"stopped after iteration {self.iteration}; go on with: {way_on}", sys.stderr)

    def _evaluation_due(self) -> bool:
        interval = self.config.evaluation_interval
        return interval is not None and self.iteration % interval == 0

    def _log_evaluation(self) -> None:
        row = {"iteration": self.iteration, "num_steps": self.sampler.num_steps}
        started = time.perf_counter()
        self._progress.begin(f"evaluation at iteration {self.iteration}")
        try:
            figures = self.evaluate().row()
        except Exception as error:
            self.save_snapshot(self.sampler.save())
            if self.config.on_nan == "stop" or not isinstance(error, NotFinite):
                raise
            warnings.warn(
                f"the evaluation after iteration {self.iteration} is skipped: {error}",
                stacklevel=3,
            )
            self._evaluator.abandon()
            return
        finally:
            self._progress.end()
        seconds, row = time.perf_counter() - started, {**row, **figures}
        try:
            self.callbacks.on_evaluation(self, row, self.store.log.log_evaluation)
        except Exception:
            self.save_snapshot(self.sampler.save())
            raise
        self._say(evaluation_in_words(row, seconds))

    def _say(self, line: str) -> None:
        (self.tell or self._progress.tell)(line)

    def save_snapshot(self, sampler: PyTree) -> None:
        """Write a snapshot with what the sampler had saved, or warn that it could not be."""

        def tree() -> dict[str, Any]:
            return {**self.learner.saved(sampler), "callbacks": self.callbacks.save()}

        self.store.save(self.iteration, tree, self.learner.last.get("train/return"))

    def rescue(self, sampler: PyTree) -> None:
        """Write a snapshot where something broke: that must not cost what was learned.

        Nor may what becomes of it hide what broke.
        """
        try:
            self.save_snapshot(sampler)
        except Exception as error:
            text = f"iteration {self.iteration} could not be saved: {one_line(error)}"
            warnings.warn(text, stacklevel=2)

    def stop(self, why: str) -> None:
        """Have the run end after this iteration, as if it had reached a limit; for callbacks."""
        self._stopped = why or "a callback says so"

    def break_off(self) -> None:
        """Have the run end after this iteration, to be resumed."""
        self._interrupted = True

    def tell_of_video(self, *paths: Path) -> None:
        """Tell the run's trackers of videos of it; the run is loaded."""
        from adaptax.experiment.trackers import trackers_of

        trackers = Callbacks(trackers_of(self.config))
        with trackers.running(self):
            for path in paths:
                trackers.on_video(self, path)

    def _parting(self) -> str:
        """What an end at once says."""
        return f"interrupted; {self._parting_state()}"

    def _parting_state(self) -> str:
        """What there is to go on from."""
        if self.store.log.held:
            return f"{self.run_dir} holds the run that it held before"
        kept = self.store.snapshots.iterations()
        where = f"iteration {kept[-1]}" if kept else "the start: there is no snapshot yet"
        anew = "Trainer(config, algorithm, suite).resume()"
        way_on = shell_command("resume", self.run_dir) if self.has_commands else anew
        return f"`{way_on}` goes on from {where}"


def _as_long_as_the_run(algorithm: Algorithm[Any, Any], config: TrainerConfig) -> Any:
    """The algorithm with its schedules over the run, where they have no length of their own."""
    if not is_dataclass(algorithm.config):
        return algorithm
    settings = over_the_run(algorithm.config, last_iteration(config, algorithm.config))
    if settings is algorithm.config:
        return algorithm
    return algorithm.with_config(settings)


def whats_next(run_dir: Path, from_python: str = "") -> str:
    """What to do next with a finished run or group; `from_python`, if any, replaces `evaluate`."""
    plot = shell_command("plot", run_dir)
    if from_python:
        return f"{run_dir} is done; next: {plot}; from Python {from_python}"
    return f"{run_dir} is done; next: {shell_command('evaluate', run_dir)}, {plot}"
