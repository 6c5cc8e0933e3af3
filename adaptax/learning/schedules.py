"""How step sizes fall over the passes of a run, and how long a run is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import jax
import jax.numpy as jnp
import optax

from adaptax.core.errors import ConfigError

Schedule = Literal["constant", "linear", "cosine", "exponential"]
"""How a value falls; from Python also a function, as optax has them, of the number of passes so far
[], which gives the share of the value that is left []."""
if TYPE_CHECKING:  # the command line knows names only
    Schedule = Schedule | Callable[[jax.Array], Any]  # type: ignore[misc]


class LearningSchedule(Protocol):
    """Settings of how step sizes fall from pass to pass."""

    @property
    def lr_schedule(self) -> Schedule:
        """How they fall."""

    @property
    def lr_schedule_steps(self) -> int | None:
        """Passes until a schedule has ended; None: the whole run."""

    @property
    def passes_per_iteration(self) -> int:
        """Passes of an iteration."""


class Scheduled(LearningSchedule, Protocol):
    """Settings of an optimizer whose step size may fall from pass to pass."""

    @property
    def lr(self) -> float:
        """Step size at the start."""

    @property
    def max_grad_norm(self) -> float | None:
        """Bound on the norm of all gradients together."""


def falling(
    lr: Any, config: LearningSchedule, updates_per_pass: int = 1, passes_per_update: int = 1
) -> Any:
    """A step size as a function of the number of updates, or as it is where it is constant."""

    def rate(num_updates: jax.Array) -> jax.Array:
        num_passes = num_updates * passes_per_update // updates_per_pass
        return lr * share_left(config.lr_schedule, num_passes, config.lr_schedule_steps)

    return lr if config.lr_schedule == "constant" else rate


def share_left(schedule: Schedule, num_passes: jax.Array, length: int | None) -> Any:
    """What is left of a value after k passes of a schedule of K: with x = k / K, in [0, 1].

    1 if it is constant, max(1 - x, 0) if `linear`, (1 + cos(pi min(x, 1))) / 2 if `cosine`
    (Loshchilov and Hutter 2017, equation 5, without restarts), 0.1^x if `exponential`; what a
    function gives for k.
    """
    if callable(schedule):
        return schedule(num_passes)
    if schedule == "constant":
        return jnp.ones(jnp.shape(num_passes))
    if length is None:
        raise ConfigError("a schedule over the run needs a Trainer, or lr_schedule_steps")
    progress = num_passes / length
    if schedule == "linear":
        return jnp.maximum(1.0 - progress, 0.0)
    if schedule == "cosine":
        return (1.0 + jnp.cos(jnp.pi * jnp.minimum(progress, 1.0))) / 2.0
    return 0.1**progress


def iterations_within(
    config: Any, num_iterations: float | None, num_steps: float | None
) -> int | None:
    """Iterations of a run with these limits, or None where that is not known beforehand."""
    lengths = [] if num_iterations is None else [num_iterations]
    each = getattr(config, "iteration_steps", None)
    if num_steps is not None and each is not None:
        lengths.append(-(-num_steps // each))
    return int(min(lengths)) if lengths else None


def over_the_run(config: Any, num_iterations: int | None) -> Any:
    """A config, and configs within it, whose schedules without a length are as long as the run.

    Raises a ConfigError where that is not known beforehand.
    """
    parts = {name: x for name, x in vars(config).items() if is_dataclass(x)}
    changes = {name: over_the_run(x, num_iterations) for name, x in parts.items()}
    changes = {name: x for name, x in changes.items() if x is not parts[name]}
    if getattr(config, "lr_schedule_steps", 0) is None and _falls(config):
        if num_iterations is None:
            raise ConfigError(
                "a schedule over the run needs num_iterations, or num_steps where an iteration has "
                "a fixed number of them; or give its length in lr_schedule_steps"
            )
        changes["lr_schedule_steps"] = num_iterations * config.passes_per_iteration
    return replace(config, **changes) if changes else config


def at_zero_after(config: Any) -> int | None:
    """Iterations after which a schedule of a config, or of one within it, has a step size of 0.

    About, where not all iterations learn; None where there is none that comes to 0.
    """
    ends = [at_zero_after(part) for part in vars(config).values() if is_dataclass(part)]
    length = getattr(config, "lr_schedule_steps", None)
    if length is not None and config.lr_schedule in ("linear", "cosine"):
        ends.append(-(-length // config.passes_per_iteration))
    return min((end for end in ends if end is not None), default=None)


def _falls(config: Any) -> bool:
    """Whether anything of it falls with the passes in a way that has a name."""
    schedules = (config.lr_schedule, getattr(config, "entropy_schedule", "constant"))
    return any(not callable(schedule) and schedule != "constant" for schedule in schedules)


def is_schedule(x: Any) -> bool:
    """Whether a part of an optimizer's state is where a schedule stands."""
    return isinstance(x, optax.ScaleByScheduleState)
