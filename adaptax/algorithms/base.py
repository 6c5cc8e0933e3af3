"""What an algorithm is: pure state, one verb for the trainer and one more for the evaluator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, ClassVar

import jax
import numpy as np

from adaptax.core.batch import PyTree, Rollout
from adaptax.core.config import check_finite_numbers
from adaptax.core.errors import NotFinite
from adaptax.core.spec import EnvSpec, check_task_count
from adaptax.functional.returns import episode_index, episode_sums
from adaptax.sampling.actor import Actor
from adaptax.sampling.sampler import Sampler

Metrics = dict[str, Any]
"""Figures of one iteration by name, each a number."""


class Algorithm(ABC):
    """Everything learned is the state, one pytree; the object itself never changes."""

    name: ClassVar[str]
    """What the command line and run directories call it."""
    trained_episodes: int | None = None
    """Episodes in a row on one task that it is trained on; None where that is no matter."""
    lanes_per_task: int = 1
    """Lanes that an evaluation runs on each task by default: as many as one adaptation takes."""
    may_be_infinite: ClassVar[tuple[str, ...]] = ()
    """Leaves of the state that may hold infinity or NaN, by the end of their path; in all others
    the trainer takes them for a fault."""
    task_counts: ClassVar[tuple[str, ...]] = ("meta_batch_size", "num_tasks")
    """Settings, where it has them, that say how many tasks it asks the sampler for."""

    def __init__(self, config: Any, spec: EnvSpec) -> None:
        self.config, self.spec = config, spec
        if is_dataclass(config):
            check_finite_numbers(config, "algorithm")
        for name in self.task_counts:
            number = getattr(config, name, None)
            if number is not None:  # rather now than after the first evaluation
                check_task_count(number, spec.num_classes, name)

    @abstractmethod
    def init(self, key: jax.Array) -> PyTree:
        """The state before training."""

    @abstractmethod
    def iteration(self, state: PyTree, sampler: Sampler) -> tuple[PyTree, Metrics]:
        """Collect and update once."""

    @abstractmethod
    def actor(self, state: PyTree, *, deterministic: bool = False) -> Actor:
        """An actor that knows nothing of its task yet."""

    def adapt(
        self,
        state: PyTree,
        actor: Actor,
        history: Sequence[Rollout],
        *,
        deterministic: bool = False,
    ) -> Actor:
        """The actor after what it saw of its tasks in `history`, oldest first; it owns its state.

        Here, for algorithms that do not adapt: the same actor.
        """
        return actor


def return_metrics(rollout: Rollout, num_episodes: int) -> Metrics:
    """Mean undiscounted return of the first `num_episodes` episodes in a lane, and of each.

    `return` averages over episodes, `return/episode_K` over lanes, K = 1 the first in a lane;
    episodes cut by the rollout's end do not count.
    """
    ends = np.asarray(rollout.terminated | rollout.truncated)
    index = episode_index(np.asarray(rollout.terminated), np.asarray(rollout.truncated))
    sums = episode_sums(np.asarray(rollout.reward), index, np.asarray(rollout.valid), num_episodes)
    complete = ends.sum(-1)[..., None] > np.arange(num_episodes)
    counts = complete.sum((0, 1))
    totals = np.where(complete, sums, 0.0).sum((0, 1))
    metrics: Metrics = {"return": float(totals.sum() / counts.sum()) if counts.sum() else None}
    if num_episodes > 1:
        means = {k: t / c for k, (t, c) in enumerate(zip(totals, counts, strict=True), 1) if c}
        metrics |= {f"return/episode_{k}": float(mean) for k, mean in means.items()}
    return metrics


def check_finite(figures: Mapping[str, Any], *names: str) -> None:
    """Raise NotFinite where a named figure of an update, a term of its loss say, is not finite."""
    for name in names:
        if not np.isfinite(figures[name]):
            raise NotFinite(
                f"the update diverged: {name} is {float(figures[name])}; a smaller lr or "
                "max_grad_norm may help"
            )
