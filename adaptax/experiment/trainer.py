"""The trainer: iterate, log, evaluate, snapshot; and go on exactly where a snapshot stands."""

from __future__ import annotations

import secrets
import sys
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.program import Whole, whole_of
from adaptax.algorithms.registry import ALGORITHMS, find_algorithm
from adaptax.core.config import flat, to_dict
from adaptax.core.errors import (
    AdaptaxError,
    ConfigError,
    DiskError,
    EnvironmentFault,
    NotFinite,
    check,
    check_kind,
)
from adaptax.core.experience import PyTree
from adaptax.core.finite import not_finite
from adaptax.core.rng import named_key
from adaptax.core.snapshot import Snapshots, flatten
from adaptax.core.spec import spec_to_dict
from adaptax.envs.placement import CHANGE_NOTHING
from adaptax.envs.suite import Suite
from adaptax.experiment.callbacks import (
    Callback,
    Callbacks,
    EarlyStopping,
    installed_callbacks,
)
from adaptax.experiment.console import say, shell_command
from adaptax.experiment.evaluation import Evaluation, evaluation_in_words
from adaptax.experiment.evaluator import Evaluator
from adaptax.experiment.logger import RunLog, read_rows, row_of
from adaptax.experiment.pretrained import run_path
from adaptax.experiment.progress import Progress
from adaptax.experiment.provenance import check_networks, own_networks, provenance
from adaptax.experiment.recipe import LIMITS
from adaptax.experiment.run_dir import (
    CONFIG,
    EVALUATIONS,
    PROGRESS,
    Hold,
    begin_run,
    check_run_dir,
    locked,
    make_run_dir,
    recorded_config,
    refuse_links,
    write_config,
)
from adaptax.experiment.stop_signals import end_if_told, finish_iteration_on_signal
from adaptax.experiment.trainer_config import TrainerConfig, warn_of_cut_episodes, warn_of_days
from adaptax.experiment.transfer import learned_elsewhere
from adaptax.experiment.weights import check_resumable, saved_state
from adaptax.learning.minibatches import at_zero_after, iterations_within, over_the_run
from adaptax.sampling.draws import Counted
from adaptax.sampling.sampler import Sampler

__all__ = ["Trainer", "TrainerConfig"]

Training = Generator[dict[str, float], list[Metrics], Metrics]
"""Training but for its iterations: yields the limits, takes the rows of one or more, and gives the
last row in the end."""
MOST_SECONDS = 0.5
"""Of one call of several iterations, after which signals and limits are looked at."""
MOST_SKIPPED = 10
"""Iterations in a row that may be skipped before it counts as a fault that does not go away."""
ELSEWHERE = "choose another --run-dir to begin with what it has learned"


def _check_named(algorithm: Algorithm[Any, Any]) -> None:
    """Raise a ConfigError where one of somebody's own goes by the name of one of adaptax's.

    What is recorded is the name, by which commands would run the other one.
    """
    entry, kind = ALGORITHMS.get(algorithm.name), type(algorithm)
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
        self._folder = self.run_dir.absolute()
        """The same wherever an environment may lead the process."""
        self.iteration = 0
        """Iterations done."""
        self.state: PyTree = None
        self._transferred: PyTree = None
        """The state to begin with, where it was looked at beforehand."""
        self.sampler = Sampler(suite, suite.train, config.seed, "train")
        self._evaluator = Evaluator(config.evaluation, suite, config.seed)
        if config.evaluation_interval is not None:
            self._evaluator.check_size(self.algorithm)
        self._snapshots = Snapshots(self._folder / "snapshots", config.keep_snapshots)
        self.alone = True
        """Whether it listens to Ctrl-C and says where it stopped, as a group does for all."""
        self.replace_group: Callable[[], None] | None = None
        """Has the group that it is of take the place of the one that the folder holds; called once
        an iteration is done, and nothing is written before."""
        self.tell: Callable[[str], None] | None = None
        """Shows a line; None: the run's own console does."""
        self._given = self.callbacks = Callbacks(callbacks)
        self._hold: Hold | None = None
        self.recorded: dict[str, Any] = {}
        """What `config.json` of the run holds."""
        self._last: Metrics = {}
        self.seconds_each = 0.0
        """What the last iteration took."""
        self._one_by_one = 0
        """Iterations to come that must not be part of a call of several."""
        self._unsaved: DiskError | None = None
        """Why the last snapshot could not be written."""
        self._forget()

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

    def from_the_start(self) -> Training:
        """A run, but for its iterations: it asks for some, and takes their rows."""
        overwrite, self._log = self.config.overwrite, self._new_log()
        self._renew_callbacks()
        self._check_apart()
        check_run_dir(self.run_dir, overwrite=overwrite)
        state = self._first_state()  # before anything is written: it may be refused
        make_run_dir(self.run_dir)
        with self._held():
            # Another may have had it meanwhile.
            holds_a_run = check_run_dir(self.run_dir, overwrite=overwrite)
            self._log.held = holds_a_run or self.replace_group is not None
            self._tell_of_the_suite()
            self._forget()
            self.state = state
            self._take_description({**self.description(), "run": secrets.token_hex(8)})
            if not self._log.held:
                begin_run(self._folder, self.recorded)
            return (yield from self._train())

    def from_snapshot(self) -> Training:
        """A run that goes on from its newest snapshot, but for its iterations."""
        if not self.run_dir.is_dir():
            raise AdaptaxError(f"{self.run_dir} holds no run")
        self._log = self._new_log()
        self._renew_callbacks()
        with self._held():
            self._check_alike()
            early = self.ended_early()
            if early:
                warnings.warn(f"{self.run_dir} has no snapshot yet: from the start", stacklevel=2)
                self._check_networks()
                self._forget()
                self.state = self._first_state()
            else:
                self.load(episodes=True)
            if self._nothing_to_do():
                say(
                    f"{self.run_dir} has done all of its {self.iteration} iterations: nothing to "
                    "do; more with --num-iterations",
                    sys.stdout,
                )
                return row_of(self.run_dir / PROGRESS, self.iteration) or {}
            self._tell_of_the_suite()
            recorded = recorded_config(self.run_dir)
            self._warn_of_the_schedule(recorded)
            self._take_description({**recorded, **self._to_come(recorded)})
            self._snapshots.discard_after(self.iteration)
            # Evaluations to come again: that at the end of a run that had ended, which an
            # uninterrupted run would not have; the first, which the callbacks know nothing of.
            evaluated = -1 if early else self.iteration - (not self._evaluation_due())
            self._log.truncate(self.iteration, evaluated)
            if self.iteration > 0:
                self._last = row_of(self.run_dir / PROGRESS, self.iteration) or {}
                if not self._last:
                    warnings.warn(f"{self.run_dir / PROGRESS} lacks rows before here", stacklevel=2)
            write_config(self._folder, self.recorded)
            return (yield from self._train())

    def _to_come(self, recorded: dict[str, Any]) -> dict[str, Any]:
        """What a run that goes on has its own of in `config.json`: settings, and its protocol.

        A warning where evaluations on record are by another protocol than those to come.
        """
        own = {"trainer": to_dict(self.config)}
        if self.config.evaluation_interval is None:
            return own
        protocol = self.protocol()
        before = recorded.get("protocol", protocol)
        if before != protocol and read_rows(self.run_dir / EVALUATIONS):
            names = sorted(n for n in {*before, *protocol} if before.get(n) != protocol.get(n))
            changes = ", ".join(f"{n} {before.get(n)} to {protocol.get(n)}" for n in names)
            warnings.warn(
                f"evaluations of {self.run_dir} up to here are by another protocol than those to "
                f"come, from {changes}: they do not compare",
                stacklevel=2,
            )
        return {**own, "protocol": protocol}

    def _warn_of_the_schedule(self, recorded: dict[str, Any]) -> None:
        """Warn where a run is prolonged beyond the end of its step size."""
        settings, own = self.algorithm.config, to_dict(self.config)
        before = recorded.get("trainer", own)
        if not is_dataclass(settings) or all(before.get(name) == own[name] for name in LIMITS):
            return
        limits, end = self.config.limits(), at_zero_after(settings)
        last = iterations_within(settings, limits.get("iteration"), limits.get("num_steps"))
        if end is not None and max(last or 0, self.iteration + 1) > end:
            warnings.warn(
                f"the step size falls to 0 by about iteration {end}, after which nothing is "
                "learned; a new run with --init-from begins with what this one has learned and has "
                "a schedule of its own",
                stacklevel=2,
            )

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

        A warning where it will take days for certain, or where no lane gets to an episode's end.
        """
        installed_callbacks(self.config.callbacks)
        self._check_apart()
        check_run_dir(self.run_dir, overwrite=self.config.overwrite)
        self.algorithm.check_size()
        warn_of_days(self.config)
        if self.sampler.num_listed != 1:
            warn_of_cut_episodes(self.algorithm.config, self.suite.spec.horizon)
        if self.config.init_from is not None:
            self._transferred = self._first_state()

    def _renew_callbacks(self) -> None:
        """Have all callbacks as before any run."""
        self._given.restart()
        self.callbacks = self._given.with_shipped(self.config)

    def _tell_of_the_suite(self) -> None:
        if self.suite.note is not None and not self.config.quiet:
            say(self.suite.note, sys.stdout)

    def load(self, *, episodes: bool = False, best: bool = False) -> None:
        """Take state and counters from the newest readable snapshot, to evaluate or to act.

        With `best` from the one with the highest return in training. `episodes`: with those of
        training that are under way, which only training goes on with, and which not every
        environment can take up again.
        """
        refuse_links(self.run_dir)
        self._take_description(recorded_config(self.run_dir))
        self._check_networks()
        self.take_up(*self._snapshots.read(best=best), episodes=episodes)

    def take_up(self, iteration: int, tree: PyTree, *, episodes: bool = False) -> None:
        """Take state and counters from the tree of a snapshot of this run, as `load` does."""
        with self._snapshots.reading(iteration):
            if episodes:
                check_resumable(tree, self.run_dir)
            _check_counters(iteration, tree)
            key = named_key(self.config.seed, "init")
            self.state = saved_state(self.algorithm, tree, key)
            self.sampler.restore(tree["sampler"], episodes=episodes)
            self.iteration, self._seconds = iteration, float(tree["seconds"])
        self._num_skipped = self._one_by_one = 0
        self.sampler.statistics.take()  # of an iteration that was broken off
        if episodes:
            saved = dict(tree.get("callbacks", {}))
            patience = self.recorded.get("trainer", {}).get("patience")
            if patience is not None and self.config.patience is None:
                saved.pop(EarlyStopping.__name__, None)  # it is asked to go on past its end
            self.callbacks.restore(saved, self.run_dir)

    def evaluate(self) -> Evaluation:
        """Evaluate the present state on held-out tasks."""
        return self._evaluator.evaluate(self.algorithm, self.state)

    def protocol(self) -> dict[str, Any]:
        """What decides whether two evaluations can be compared."""
        return self._evaluator.protocol(self.algorithm)

    def evaluate_untrained(self) -> Evaluation:
        """Evaluate the state before training on the same tasks."""
        state = self.algorithm.initial_state(named_key(self.config.seed, "init"))
        return self._evaluator.evaluate(self.algorithm, state)

    @property
    def interrupted(self) -> bool:
        """Whether it was asked to end before its end."""
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
        suite = to_dict(self.suite.config) if self.suite.config is not None else {}
        return {
            "algorithm": {
                "name": self.algorithm.name,
                "networks": own_networks(self.algorithm),
                **to_dict(self.algorithm.config),
            },
            "suite": {"name": self.suite.name, **suite},
        }

    def _forget(self) -> None:
        """Forget what was trained before."""
        self.iteration, self._seconds, self._num_skipped = 0, 0.0, 0
        self._last, self._unsaved, self._interrupted, self._stopped = {}, None, False, ""
        self._one_by_one, self.seconds_each = 0, 0.0
        self.sampler.restart()
        self.sampler.statistics.take()

    def _take_description(self, description: dict[str, Any]) -> None:
        """Take what `config.json` is to hold, which tells whose snapshots are this run's."""
        self.recorded = description
        self._snapshots.owner = self._owner(description)

    def _owner(self, description: dict[str, Any]) -> dict[str, Any]:
        return {"run": description.get("run"), "seed": self.config.seed}

    def _check_alike(self) -> None:
        """Raise a ConfigError where a run that goes on began otherwise, or had other settings."""
        recorded, own = recorded_config(self.run_dir), to_dict(self.config)
        before = recorded.get("trainer", {})
        for name in ("seed", "init_from"):
            was = before.get(name, own[name])
            check(
                was == own[name],
                f"{self.run_dir} began with {name} {was}, and goes on with it, not {own[name]}: "
                "train another run for that",
            )
        tasks = self.suite.task_set_hash()
        check(
            recorded.get("task_set", tasks) == tasks,
            f"{self.run_dir} was trained or is tested on other tasks than this {self.suite.name} "
            "has: train another run for these",
        )
        looked_at_elsewhere = (*CHANGE_NOTHING, "networks")
        for part, settings in self._settings().items():
            had, has = flat(recorded.get(part, {})), flat(settings)
            for name in [n for n in has if n in had and n not in looked_at_elsewhere]:
                check(
                    had[name] == has[name],
                    f"{self.run_dir} was trained with {part}.{name} {had[name]}, and goes on with "
                    f"it, not {has[name]}: train another run for that",
                )

    def _check_networks(self) -> None:
        check_networks(self.run_dir, recorded_config(self.run_dir), self.algorithm)

    def ended_early(self) -> bool:
        """Whether the run ended before it had a first snapshot, perhaps while it was written."""
        if self._snapshots.iterations() or not (self.run_dir / CONFIG).exists():
            return False
        rows = read_rows(self.run_dir / PROGRESS)
        return not rows or rows[-1]["iteration"] <= self.config.snapshot_interval

    def _nothing_to_do(self) -> bool:
        """Whether a run that is resumed has reached its limits, its last evaluation included."""
        limits = self.config.limits()
        beyond = self.iteration > limits.get("iteration", self.iteration)
        evaluated = self.config.evaluation_interval is None or self._is_evaluated()
        return self._done(limits) and (beyond or evaluated)

    def _is_evaluated(self) -> bool:
        """Whether there is an evaluation of this iteration."""
        log = self._folder / EVALUATIONS
        return not self._log.held and row_of(log, self.iteration) is not None

    def _new_log(self) -> RunLog:
        return RunLog(self._folder, check=self._check_hold)

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the directory, as long as the run is under way."""
        with locked(self._folder) as self._hold:
            try:
                yield
            finally:
                self._hold = None

    def _check_hold(self) -> None:
        """Stop where another run has the directory."""
        if self._hold is not None:
            self._hold.keep(self.recorded)

    def _train(self) -> Training:
        config, log = self.config, self._log
        self._interrupted, self._stopped = False, ""
        limits = config.limits()
        self._progress = progress = Progress(limits, quiet=config.quiet, warns=self.alone)
        with log, progress, self._signals(), self.callbacks.running(self):
            if self._evaluation_due() and not self._is_evaluated():
                self._log_evaluation()
            while not self._interrupted and not self._done(limits):
                progress.begin(f"iteration {self.iteration + 1}")
                rows = yield limits
                self._replace_old_run()
                for row in rows:
                    self.callbacks.on_row(self, row, log.log)
                    progress.update(row)
                if self._evaluation_due():
                    self._log_evaluation()
                if self.iteration % config.snapshot_interval == 0:
                    self.save_snapshot(self.sampler.save())
            self._finish()
        if not self._interrupted and not config.quiet:
            from_python = "" if self.has_commands else "trainer.evaluate()"
            say(whats_next(self.run_dir, from_python), sys.stdout)
        return self._last

    def _signals(self) -> AbstractContextManager[None]:
        if not self.alone:
            return nullcontext()
        return finish_iteration_on_signal(self._interrupt, self._parting)

    def _replace_old_run(self) -> None:
        """Delete the run that the directory held, now that this one has shown that it can go."""
        if self._log.held:
            self._check_hold()
            if self.replace_group is not None:
                self.replace_group()
            begin_run(self._folder, self.recorded)
            self._log.held = False

    def some_iterations(self, limits: dict[str, float]) -> list[Metrics]:
        """The rows of one iteration, or of several that one program makes."""
        whole = whole_of(self.algorithm, self.state, self.sampler)
        before, num = self.sampler.save(), self.num_at_once(limits, whole)
        if whole is not None and num > 1:
            try:
                return self._many_iterations(whole, num)
            except (NotFinite, EnvironmentFault):
                self.sampler.restore(before)
                self._one_by_one = num  # one of these goes wrong
            except Exception:
                self.save_snapshot(before)
                raise
        self._one_by_one = max(self._one_by_one - 1, 0)
        return [self._one_iteration(before)]

    def num_at_once(self, limits: dict[str, float], whole: Whole | None) -> int:
        """Iterations to make in one call: none that must not be, and no more than half a second."""
        if whole is None or whole.most == 1 or self._one_by_one or self.iteration == 0:
            return 1
        if self.callbacks.one_by_one:
            return 1
        config = self.config
        intervals = [i for i in (config.snapshot_interval, config.evaluation_interval) if i]
        room = [whole.most, *(i - self.iteration % i for i in intervals)]
        seconds = min(MOST_SECONDS, limits.get("seconds", np.inf) - self._seconds)
        room.append(int(seconds / max(self.seconds_each, 1e-6)))
        if "iteration" in limits:
            room.append(int(limits["iteration"]) - self.iteration)
        if "num_steps" in limits:
            room.append(int(limits["num_steps"] - self.sampler.num_steps) // whole.most_steps)
        return max(min(room), 1)

    def _many_iterations(self, whole: Whole, num: int) -> list[Metrics]:
        started = time.perf_counter()
        state, metrics, counted = whole.run(self.algorithm, self.state, self.sampler, num)
        self.check(state, metrics)
        return self.take(state, metrics, counted, time.perf_counter() - started)

    def take(
        self, state: PyTree, metrics: list[Metrics], counted: list[Counted], seconds: float
    ) -> list[Metrics]:
        """The rows of iterations that led to a state."""
        self.state = state
        self.seconds_each, self._num_skipped = seconds / len(metrics), 0
        steps = self.sampler.num_steps - sum(did.num_steps for did in counted)
        episodes = self.sampler.num_episodes - sum(did.num_episodes for did in counted)
        rows = []
        for each, did in zip(metrics, counted, strict=True):
            steps, episodes = steps + did.num_steps, episodes + did.num_episodes
            self.sampler.statistics.count(*did.ended)
            self._seconds += self.seconds_each
            rows.append(self._row(steps, episodes, self._figures(each)))
        return rows

    def _one_iteration(self, before: PyTree) -> Metrics:
        started = time.perf_counter()
        try:
            self.state, metrics = self._iterated()
            self._num_skipped = 0
        except NotFinite as error:
            if self.config.on_nan == "stop" or self._num_skipped == MOST_SKIPPED:
                self.save_snapshot(before)  # what broke must not cost what was learned
                raise
            metrics = self._skip(error)
        except Exception:
            self.save_snapshot(before)
            raise
        self.seconds_each = time.perf_counter() - started
        self._seconds += self.seconds_each
        return self._row(self.sampler.num_steps, self.sampler.num_episodes, metrics)

    def _row(self, num_steps: int, num_episodes: int, metrics: Metrics) -> Metrics:
        """What the log gets of an iteration that is done."""
        self.iteration += 1
        self._last = {
            "iteration": self.iteration,
            "num_steps": num_steps,
            "num_episodes": num_episodes,
            "seconds": round(self._seconds, 3),
            **metrics,
        }
        return self._last

    def _iterated(self) -> tuple[PyTree, Metrics]:
        """The state after an iteration, all of it finite, and the figures of the row."""
        state, metrics = self.algorithm.iteration(self.state, self.sampler, self.keep)
        self.check(state, [metrics])
        return state, self._figures(metrics)

    def check(self, state: PyTree, metrics: list[Metrics]) -> None:
        """Raise NotFinite where figures of iterations, or the state after them, are not finite."""
        for each in metrics:
            self.algorithm.check_metrics(each)
        allowed = self.algorithm.may_be_infinite
        if wrong := [name for name in not_finite(state) if not name.endswith(allowed)]:
            raise NotFinite(
                f"the update left NaN or infinity in {wrong[0]}"
                + (f" and {len(wrong) - 1} more leaves of the state" if wrong[1:] else "")
            )

    def _figures(self, metrics: Metrics) -> Metrics:
        """Those of a row: of the episodes that ended, and of the update."""
        metrics = {**self.sampler.statistics.take(), **metrics}
        return {f"train/{name}": _number(value) for name, value in metrics.items()}

    def keep(self, state: PyTree) -> None:
        """Have what is left of the state before the iteration, to go on from should it fail."""
        self.state = state

    def _skip(self, error: NotFinite) -> Metrics:
        """Go on from the state before the iteration, with episodes of their own."""
        self._num_skipped += 1
        warnings.warn(f"iteration {self.iteration + 1} is skipped: {error}", stacklevel=4)
        self.sampler.abandon()
        return {"skipped": str(error)}

    def _finish(self) -> None:
        if self.iteration % self.config.snapshot_interval != 0 or self.iteration == 0:
            self.save_snapshot(self.sampler.save())
        evaluated = self.config.evaluation_interval is None or self._evaluation_due()
        if not self._interrupted and not evaluated:
            self._log_evaluation()
        self._log.flush()
        if self._stopped:
            self._say(f"ended after iteration {self.iteration}: {self._stopped}")
        if self._unsaved is not None:
            raise self._unsaved
        if not self._interrupted or not self.alone:
            return
        if self._log.held:
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
        self.callbacks.on_evaluation(self, row, self._log.log_evaluation)
        self._say(evaluation_in_words(row, seconds))

    def _say(self, line: str) -> None:
        (self.tell or self._progress.tell)(line)

    def save_snapshot(self, sampler: PyTree) -> None:
        """Write a snapshot, or warn that it could not be; it never is ahead of the log.

        One that there is of this iteration stays: it knows all that this one would, and a replay
        that an iteration has since begun to overwrite, and is at no moment away.
        """
        check(self._hold is not None, "no run is under way that a snapshot could be of")
        if self._log.held:  # what it would replace is of another run
            return
        try:
            self._log.flush()
            if not self._snapshots.holds(self.iteration):
                tree = {
                    "state": flatten(self.state),
                    "sampler": sampler,
                    "seconds": self._seconds,
                    "callbacks": self.callbacks.save(),
                }
                self._snapshots.save(self.iteration, tree, self._last.get("train/return"))
            self._unsaved = None
        except DiskError as error:
            self._unsaved = error
            kept = self._snapshots.iterations()
            newest = f"the newest is of iteration {kept[-1]}" if kept else "there is none yet"
            warnings.warn(f"{error}; {newest}; the run goes on", stacklevel=3)

    def _done(self, limits: dict[str, float]) -> bool:
        reached = {
            "iteration": self.iteration,
            "num_steps": self.sampler.num_steps,
            "seconds": self._seconds,
        }
        return bool(self._stopped) or any(reached[n] >= limit for n, limit in limits.items())

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

    def _interrupt(self) -> None:
        if self._interrupted:
            raise KeyboardInterrupt(self._parting())
        self.break_off()

    def _parting(self) -> str:
        """What an end at once says."""
        return f"interrupted; {self._parting_state()}"

    def _parting_state(self) -> str:
        """What there is to go on from."""
        if self._log.held:
            return f"{self.run_dir} holds the run that it held before"
        kept = self._snapshots.iterations()
        where = f"iteration {kept[-1]}" if kept else "the start: there is no snapshot yet"
        anew = "Trainer(config, algorithm, suite).resume()"
        way_on = shell_command("resume", self.run_dir) if self.has_commands else anew
        return f"`{way_on}` goes on from {where}"


def _as_long_as_the_run(algorithm: Algorithm[Any, Any], config: TrainerConfig) -> Any:
    """The algorithm with its schedules over the run, where they have no length of their own."""
    if not is_dataclass(algorithm.config):
        return algorithm
    limits = config.limits()
    length = iterations_within(algorithm.config, limits.get("iteration"), limits.get("num_steps"))
    settings = over_the_run(algorithm.config, length)
    if settings is algorithm.config:
        return algorithm
    return algorithm.with_config(settings)


def whats_next(run_dir: Path, from_python: str = "") -> str:
    """What there is to do with what a run or a group has left; evaluation `from_python` only."""
    plot = shell_command("plot", run_dir)
    if from_python:
        return f"{run_dir} is done; next: {plot}; from Python {from_python}"
    return f"{run_dir} is done; next: {shell_command('evaluate', run_dir)}, {plot}"


def _check_counters(iteration: int, tree: PyTree) -> None:
    """Raise a ValueError where what was counted cannot have been."""
    counted = [iteration, tree["seconds"], *np.ravel(tree["sampler"]["counters"]).tolist()]
    if not all(0 <= number <= 2**53 for number in counted):  # a NaN is not either
        raise ValueError(f"its counters {counted} are not all from 0 to 2^53")


def _number(value: Any) -> Any:
    """A figure as the log keeps it: None where there is none."""
    if value is None or isinstance(value, int):
        return value
    if jnp.issubdtype(jnp.result_type(value), jnp.integer):
        return int(value)
    return None if np.isnan(value) else float(value)
