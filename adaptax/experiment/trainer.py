"""The trainer: iterate, log, evaluate, snapshot; and go on exactly where a snapshot stands."""

from __future__ import annotations

import json
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.core.batch import PyTree
from adaptax.core.config import check_positive, to_dict
from adaptax.core.errors import AdaptaxError, SnapshotError, check
from adaptax.core.rng import named_key
from adaptax.core.snapshot import Snapshots, flatten, unflatten
from adaptax.envs.task import Suite
from adaptax.experiment.evaluation import Evaluation
from adaptax.experiment.evaluator import Evaluator, EvaluatorConfig
from adaptax.experiment.logger import PROGRESS, Progress, RunLog, read_rows
from adaptax.experiment.provenance import provenance
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class TrainerConfig:
    """How long to train, and what to leave behind."""

    run_dir: str
    """Directory of the run; it must be new or empty."""
    seed: int = 0
    num_iterations: int | None = None
    """Iterations in all; 100 where no limit is given."""
    num_steps: int | None = None
    """Environment steps after which to stop, at the end of an iteration."""
    max_seconds: float | None = None
    """Wall-clock seconds of training after which to stop, at the end of an iteration."""
    evaluation_interval: int | None = 20
    """Iterations between evaluations, the untrained agent's first; None: no evaluation."""
    snapshot_interval: int = 10
    """Iterations between snapshots."""
    keep_snapshots: int = 3
    """How many of the last snapshots to keep, beside the best."""
    evaluation: EvaluatorConfig = field(default_factory=EvaluatorConfig)
    tensorboard: bool = False
    """Write TensorBoard event files too."""
    quiet: bool = False
    """No progress on the console."""
    overwrite: bool = False
    """Delete what the run directory holds."""

    def __post_init__(self) -> None:
        check_positive(self, "num_iterations", "num_steps", "max_seconds", "evaluation_interval")
        check_positive(self, "snapshot_interval", "keep_snapshots")
        check(0 <= self.seed < 2**63, f"seed must lie in [0, 2^63), not {self.seed}")

    def limits(self) -> dict[str, float]:
        """The limits that are set, by the name of what they limit."""
        limits = {
            "iteration": self.num_iterations,
            "num_steps": self.num_steps,
            "seconds": self.max_seconds,
        }
        set_ones = {name: limit for name, limit in limits.items() if limit is not None}
        return set_ones or {"iteration": 100}


class Trainer:
    """Trains one algorithm on one suite; all of it lives in `config.run_dir`."""

    def __init__(self, config: TrainerConfig, algorithm: Algorithm, suite: Suite) -> None:
        self.config, self.algorithm, self.suite = config, algorithm, suite
        self.run_dir = Path(config.run_dir)
        self.iteration = 0
        """Iterations done."""
        self.state: PyTree = None
        self._sampler = Sampler(suite, suite.train, config.seed, "train")
        self._evaluator = Evaluator(config.evaluation, suite, config.seed)
        self._snapshots = Snapshots(self.run_dir / "snapshots", config.keep_snapshots)
        self._seconds = 0.0
        self._last: Metrics = {}
        self._interrupted = False

    def run(self) -> Metrics:
        """Train from the start; the last row of `progress.jsonl`."""
        prepare_run_dir(self.run_dir, overwrite=self.config.overwrite)
        self.state = self.algorithm.init(named_key(self.config.seed, "init"))
        self._write_config(self.description())
        return self._train()

    def resume(self) -> Metrics:
        """Go on from the newest snapshot that can be read; the last row of `progress.jsonl`."""
        self.load()
        self._snapshots.discard_after(self.iteration)
        recorded = json.loads((self.run_dir / "config.json").read_text())
        self._write_config({**recorded, "trainer": to_dict(self.config)})
        return self._train()

    def load(self) -> None:
        """Take state, counters and unfinished episodes from the newest readable snapshot."""
        for iteration, tree in self._snapshots.newest():
            template = self.algorithm.init(named_key(self.config.seed, "init"))
            self.state = unflatten(template, tree.get("state", {}))
            self._sampler.restore(tree["sampler"])
            self.iteration, self._seconds = iteration, float(tree["seconds"])
            return
        raise SnapshotError(
            f"{self.run_dir} has no snapshot that can be read; train it again with --overwrite"
        )

    def evaluate(self) -> Evaluation:
        """Evaluate the present state on held-out tasks."""
        return self._evaluator.evaluate(self.algorithm, self.state)

    def evaluate_untrained(self) -> Evaluation:
        """Evaluate the state before training on the same tasks."""
        state = self.algorithm.init(named_key(self.config.seed, "init"))
        return self._evaluator.evaluate(self.algorithm, state)

    def close(self) -> None:
        """Free all environments."""
        self._sampler.close()
        self._evaluator.close()

    def description(self) -> dict[str, Any]:
        """What `config.json` holds: every setting, versions, and the hash of the task set."""
        suite = to_dict(self.suite.config) if self.suite.config is not None else {}
        return {
            "algorithm": {"name": self.algorithm.name, **to_dict(self.algorithm.config)},
            "suite": {"name": self.suite.name, **suite},
            "trainer": to_dict(self.config),
            "seed": self.config.seed,
            **provenance(self.suite),
        }

    def _write_config(self, description: dict[str, Any]) -> None:
        unfinished = self.run_dir / "config.json.tmp"
        unfinished.write_text(json.dumps(description, indent=2) + "\n")
        unfinished.replace(self.run_dir / "config.json")

    def _train(self) -> Metrics:
        config, self._interrupted = self.config, False
        limits = config.limits()
        log = RunLog(self.run_dir, tensorboard=config.tensorboard)
        # Evaluations to come again: the one before training, and the one at the end of a run
        # that had ended, which an uninterrupted run would not have.
        again = self.iteration == 0 or not self._evaluation_due()
        log.truncate(self.iteration, self.iteration - again)
        if self.iteration > 0:
            self._last = read_rows(self.run_dir / PROGRESS)[-1]
        progress = Progress(limits, quiet=config.quiet)
        with log, progress, self._finish_iteration_on_signal():
            if self.iteration == 0 and config.evaluation_interval is not None:
                self._log_evaluation(log)
            while not self._interrupted and not self._done(limits):
                row = self._one_iteration()
                log.log(row)
                progress.update(row)
                if self._evaluation_due():
                    self._log_evaluation(log)
                if self.iteration % config.snapshot_interval == 0:
                    self._save_snapshot(self._sampler.save())
            self._finish(log)
        return self._last

    def _one_iteration(self) -> Metrics:
        before, started = self._sampler.save(), time.perf_counter()
        try:
            self.state, metrics = self.algorithm.iteration(self.state, self._sampler)
        except Exception:
            self._save_snapshot(before)  # what broke must not cost what was learned
            raise
        metrics = {**metrics, **self._sampler.success.take()}
        metrics = {f"train/{name}": _number(value) for name, value in metrics.items()}
        self.iteration += 1
        self._seconds += time.perf_counter() - started
        self._last = {
            "iteration": self.iteration,
            "num_steps": self._sampler.num_steps,
            "num_episodes": self._sampler.num_episodes,
            "seconds": round(self._seconds, 3),
            **metrics,
        }
        return self._last

    def _finish(self, log: RunLog) -> None:
        if self.iteration % self.config.snapshot_interval != 0 or self.iteration == 0:
            self._save_snapshot(self._sampler.save())
        if self._interrupted:
            print(
                f"stopped after iteration {self.iteration}; go on with: "
                f"adaptax resume {self.run_dir}",
                file=sys.stderr,
            )
        elif self.config.evaluation_interval is not None and not self._evaluation_due():
            self._log_evaluation(log)

    def _evaluation_due(self) -> bool:
        interval = self.config.evaluation_interval
        return interval is not None and self.iteration % interval == 0

    def _log_evaluation(self, log: RunLog) -> None:
        row = {"iteration": self.iteration, "num_steps": self._sampler.num_steps}
        log.log_evaluation({**row, **self.evaluate().row()})

    def _save_snapshot(self, sampler: PyTree) -> None:
        tree = {"state": flatten(self.state), "sampler": sampler, "seconds": self._seconds}
        self._snapshots.save(self.iteration, tree, self._last.get("train/return"))

    def _done(self, limits: dict[str, float]) -> bool:
        reached = {
            "iteration": self.iteration,
            "num_steps": self._sampler.num_steps,
            "seconds": self._seconds,
        }
        return any(reached[name] >= limit for name, limit in limits.items())

    @contextmanager
    def _finish_iteration_on_signal(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM ends the run after this iteration, the next one at once."""

        def handle(number: int, frame: object) -> None:
            if self._interrupted:
                raise KeyboardInterrupt
            self._interrupted = True
            print("finishing the iteration; once more to stop at once", file=sys.stderr)

        try:
            old = {n: signal.signal(n, handle) for n in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not the main thread: signals are the caller's business
            yield
            return
        try:
            yield
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)


def prepare_run_dir(run_dir: Path, *, overwrite: bool) -> None:
    """Make an empty run directory; one that holds something is refused unless `overwrite`."""
    if run_dir.exists() and not run_dir.is_dir():
        raise AdaptaxError(f"{run_dir} is a file, not a run directory")
    if run_dir.is_dir() and any(run_dir.iterdir()):
        if not (run_dir / "config.json").exists():
            raise AdaptaxError(
                f"{run_dir} is not empty and holds no run; choose another --run-dir "
                "(--overwrite deletes runs only)"
            )
        if not overwrite:
            raise AdaptaxError(
                f"{run_dir} holds a run already; choose another --run-dir, go on with "
                f"`adaptax resume {run_dir}`, or replace it with --overwrite"
            )
        shutil.rmtree(run_dir)
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AdaptaxError(f"cannot make {run_dir}: {error.strerror}") from None


def _number(value: Any) -> Any:
    return value if value is None or isinstance(value, int) else float(value)
