"""The learner: an algorithm at work in memory, and how far it has come; it writes nothing."""

from __future__ import annotations

import time
import warnings
from typing import Any

import jax.numpy as jnp
import numpy as np

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.program import IterationProgram, iteration_program
from adaptax.core.errors import EnvironmentFault, NotFinite
from adaptax.core.experience import PyTree
from adaptax.core.finite import not_finite
from adaptax.core.rng import named_key
from adaptax.core.snapshot import flatten
from adaptax.experiment.trainer_config import TrainerConfig
from adaptax.experiment.weights import saved_state
from adaptax.sampling.draws import Counted
from adaptax.sampling.sampler import Sampler

MOST_SECONDS = 0.5
"""Most seconds of one call of several iterations; signals and limits are looked at after it."""
MOST_SKIPPED = 10
"""Iterations in a row that may be skipped before it counts as a fault that does not go away."""


class Learner:
    """The state that an algorithm has come to on what it samples, iteration by iteration."""

    def __init__(
        self, config: TrainerConfig, algorithm: Algorithm[Any, Any], sampler: Sampler
    ) -> None:
        self.config, self.algorithm, self.sampler = config, algorithm, sampler
        self.one_by_one = False
        """Whether something acts on each row before the next iteration begins."""
        self.begin(None)

    def begin(self, state: PyTree) -> None:
        """Reset to before the first iteration, starting from `state`."""
        self.state = state
        self.iteration, self.seconds = 0, 0.0
        """Iterations done, and what they took."""
        self.last: Metrics = {}
        """The newest row."""
        self._seconds_each = 0.0
        """What the last iteration took."""
        self._num_skipped = 0
        self._num_alone = 0
        """Iterations to come that must not be part of a call of several."""
        self.sampler.restart()
        self.sampler.statistics.take()

    def saved(self, sampler: PyTree) -> dict[str, Any]:
        """What a snapshot keeps, with what the sampler had saved."""
        if self.has_lost_replay:
            warnings.warn(
                f"iteration {self.iteration} is saved with an empty replay: what it held is gone "
                "with the program that failed; `resume` fills it anew",
                stacklevel=2,
            )
        return {"state": flatten(self.state), "sampler": sampler, "seconds": self.seconds}

    @property
    def has_lost_replay(self) -> bool:
        """Whether a program that failed has taken a replay of the state with it."""
        return any(getattr(self.state, name).is_lost for name in self.algorithm.in_place)

    def take_up(self, iteration: int, tree: PyTree, *, episodes: bool) -> None:
        """Take what `saved` gave, with `episodes` under way or without.

        Raises what a tree of another shape, or counters that cannot be, lead to.
        """
        _check_counters(iteration, tree)
        key = named_key(self.config.seed, "init")
        self.state = saved_state(self.algorithm, tree, key)
        self.sampler.restore(tree["sampler"], episodes=episodes)
        self.iteration, self.seconds = iteration, float(tree["seconds"])
        self._num_skipped = self._num_alone = 0
        self.sampler.statistics.take()  # of an iteration that was broken off

    def has_reached(self, limits: dict[str, float]) -> bool:
        """Whether one of the limits is reached."""
        reached = {
            "iteration": self.iteration,
            "num_steps": self.sampler.num_steps,
            "seconds": self.seconds,
        }
        return any(reached[name] >= limit for name, limit in limits.items())

    def some_iterations(self, limits: dict[str, float], before: PyTree) -> list[Metrics]:
        """The rows of one iteration, or of several that one program makes.

        `before` is what the sampler has just saved.
        """
        program = iteration_program(self.algorithm, self.state, self.sampler)
        num = self.num_at_once(limits, program)
        if program is not None and num > 1:
            try:
                return self._many_iterations(program, num)
            except (NotFinite, EnvironmentFault):
                self.sampler.restore(before)
                self._num_alone = num  # one of these goes wrong
        self._num_alone = max(self._num_alone - 1, 0)
        return [self._one_iteration()]

    def num_at_once(self, limits: dict[str, float], program: IterationProgram | None) -> int:
        """Iterations to make in one call: none that must not be, and no more than half a second."""
        if (
            program is None
            or program.iterations_per_call == 1
            or self._num_alone
            or self.iteration == 0
        ):
            return 1
        if self.one_by_one:
            return 1
        config = self.config
        intervals = [i for i in (config.snapshot_interval, config.evaluation_interval) if i]
        room = [program.iterations_per_call, *(i - self.iteration % i for i in intervals)]
        seconds = min(MOST_SECONDS, limits.get("seconds", np.inf) - self.seconds)
        room.append(int(seconds / max(self._seconds_each, 1e-6)))
        if "iteration" in limits:
            room.append(int(limits["iteration"]) - self.iteration)
        if "num_steps" in limits:
            room.append(
                int(limits["num_steps"] - self.sampler.num_steps) // program.steps_per_iteration
            )
        return max(min(room), 1)

    def _many_iterations(self, program: IterationProgram, num: int) -> list[Metrics]:
        started = time.perf_counter()
        state, metrics, counted = program.run(self.algorithm, self.state, self.sampler, num)
        self.check(state, metrics)
        return self.take(state, metrics, counted, time.perf_counter() - started)

    def take(
        self, state: PyTree, metrics: list[Metrics], counted: list[Counted], seconds: float
    ) -> list[Metrics]:
        """The rows of iterations that led to a state."""
        self.state = state
        self._seconds_each, self._num_skipped = seconds / len(metrics), 0
        steps = self.sampler.num_steps - sum(did.num_steps for did in counted)
        episodes = self.sampler.num_episodes - sum(did.num_episodes for did in counted)
        rows = []
        for each, did in zip(metrics, counted, strict=True):
            steps, episodes = steps + did.num_steps, episodes + did.num_episodes
            self.sampler.statistics.count(*did.ended)
            self.seconds += self._seconds_each
            rows.append(self._row(steps, episodes, self._figures(each)))
        return rows

    def _one_iteration(self) -> Metrics:
        started = time.perf_counter()
        try:
            self.state, metrics = self._iterated()
            self._num_skipped = 0
        except NotFinite as error:
            if self.config.on_nan == "stop" or self._num_skipped == MOST_SKIPPED:
                raise
            metrics = self._skip(error)
        self._seconds_each = time.perf_counter() - started
        self.seconds += self._seconds_each
        return self._row(self.sampler.num_steps, self.sampler.num_episodes, metrics)

    def _row(self, num_steps: int, num_episodes: int, metrics: Metrics) -> Metrics:
        """What the log gets of an iteration that is done."""
        self.iteration += 1
        self.last = {
            "iteration": self.iteration,
            "num_steps": num_steps,
            "num_episodes": num_episodes,
            "seconds": round(self.seconds, 3),
            **metrics,
        }
        return self.last

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
        """Keep a state to go back to if the iteration fails.

        It is the one before the iteration, with what its replays still hold.
        """
        self.state = state

    def _skip(self, error: NotFinite) -> Metrics:
        """Go on from the state before the iteration, with episodes of their own."""
        self._num_skipped += 1
        warnings.warn(f"iteration {self.iteration + 1} is skipped: {error}", stacklevel=5)
        self.sampler.abandon()
        return {"skipped": str(error)}


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
