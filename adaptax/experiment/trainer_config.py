"""The trainer's settings."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from adaptax.core.config import check_numbers, check_positive, check_types, from_dict
from adaptax.core.errors import check
from adaptax.experiment.evaluator import EvaluatorConfig
from adaptax.experiment.pretrained import check_writable

TrackerName = Literal["tensorboard", "wandb", "mlflow", "trackio"]

DEFAULT_ITERATIONS = 100
"""Iterations of a run that has no limit."""
A_DAY = 24 * 3600
MOST_STEPS_A_SECOND = 10**6
"""Environment steps a second that only the fastest environments reach."""


@dataclass(frozen=True)
class TrainerConfig:
    """How long to train, and what to leave behind."""

    run_dir: str
    """Directory of the run; it must be new or empty."""
    seed: int = 0
    """Seed of every random draw of the run."""
    init_from: str | None = None
    """Directory of a run whose networks to begin with, instead of fresh ones; they must fit."""
    recipe: str | None = None
    """Where settings that are not given come from: a recipe of `adaptax list --recipes`, a file, or
    none, which are the defaults; by default the recipe for this algorithm on this suite. Read by
    `adaptax train`, `adaptax.train` and sweeps; a `Trainer` made by hand only records it."""
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
    """The protocol of evaluations, by settings of its own."""
    patience: int | None = None
    """Evaluations in a row that are no better than the best after which to stop; None: go on."""
    callbacks: tuple[str, ...] = ()
    """Callbacks of installed packages, by name."""
    trackers: tuple[TrackerName, ...] = ()
    """Whom else to tell of the run: any of tensorboard, wandb, mlflow and trackio."""
    quiet: bool = False
    """No progress on the console."""
    num_cores: int | None = None
    """Cores to bind the process to, none of which another run has taken likewise; None: all, shared
    with all others. For the command line, which binds the process before JAX starts; training from
    Python only records it."""
    overwrite: bool = False
    """Replace the run that the directory holds, once this one has done its first iteration."""
    on_nan: Literal["stop", "skip"] = "stop"
    """What a NaN or an infinity does, in an observation, a reward, a loss or a parameter: end the
    run, or undo the iteration and go on with new episodes."""

    def __post_init__(self) -> None:
        for name in ("run_dir", "init_from", "recipe"):
            if isinstance(path := getattr(self, name), os.PathLike):
                object.__setattr__(self, name, os.fspath(path))
        check_types(self, "trainer")
        check(self.run_dir != "", "run_dir is empty: name a directory")
        check_writable(self.run_dir)
        check_positive(self, "num_iterations", "num_steps", "max_seconds", "evaluation_interval")
        check_positive(self, "snapshot_interval", "keep_snapshots", "num_cores", "patience")
        evaluated = self.patience is None or self.evaluation_interval is not None
        check(evaluated, "patience counts evaluations: it needs an evaluation_interval")
        check_numbers(self, "trainer", of_any_size=("num_iterations", "num_steps"))
        check(0 <= self.seed < 2**63, f"seed must lie in [0, 2^63), not {self.seed}")

    def limits(self) -> dict[str, float]:
        """The limits that are set, by the name of what they limit."""
        limits = {
            "iteration": self.num_iterations,
            "num_steps": self.num_steps,
            "seconds": self.max_seconds,
        }
        set_ones = {name: limit for name, limit in limits.items() if limit is not None}
        return set_ones or {"iteration": DEFAULT_ITERATIONS}


def trainer_config(settings: Mapping[str, Any]) -> TrainerConfig:
    """Settings of a run in no folder yet; a ConfigError where they are wrong."""
    return from_dict(TrainerConfig, {"run_dir": ".", **settings}, where="trainer")


def warn_of_cut_episodes(config: Any, horizon: int) -> None:
    """Warn where iterations, each on tasks of its own, end before an episode may have ended."""
    num_steps = getattr(config, "iteration_steps", None)
    num_lanes = getattr(config, "num_lanes", None)
    if num_steps is None or num_lanes is None or num_steps >= num_lanes * horizon:
        return
    own = "--algorithm.particle" if hasattr(config, "particle") else "--algorithm"
    longer = f"{own}.num-cycles" if hasattr(config, "num_cycles") else f"{own}.num-steps"
    warnings.warn(
        f"every iteration begins episodes on new tasks, and of these, {horizon} steps at most, it "
        f"sees the first {num_steps // num_lanes}: {longer} or fewer {own}.num-lanes have it "
        "see all",
        stacklevel=3,
    )


def warn_of_days(config: TrainerConfig) -> None:
    """Warn where so many environment steps are asked for that they take days in any case."""
    limits = config.limits()
    days = limits.get("num_steps", 0) / (A_DAY * MOST_STEPS_A_SECOND)
    if days > 1 and len(limits) == 1:
        warnings.warn(
            f"training may take {days:,.0f} days or more: it is of {config.num_steps:,} "
            f"environment steps, at {MOST_STEPS_A_SECOND:,} a second; --num-steps for fewer, or "
            "--max-seconds",
            stacklevel=3,
        )
