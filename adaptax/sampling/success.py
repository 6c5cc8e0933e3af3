"""How often training episodes succeed, by class of task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from adaptax.core.batch import Rollout
from adaptax.envs.task import Task


class SuccessCount:
    """Episodes that ended since the last `take`, and those of them with success at any step."""

    def __init__(self) -> None:
        self._ended: Counter[str | None] = Counter()
        self._solved: Counter[str | None] = Counter()

    def add(self, rollout: Rollout, tasks: Sequence[Task], before: np.ndarray) -> np.ndarray:
        """Count a rollout of M tasks in N lanes.

        `before` [M, N] bool says which lanes had success earlier in the episode they are in; the
        same is returned for after the rollout.
        """
        valid = np.asarray(rollout.valid)
        ends = np.asarray(rollout.terminated | rollout.truncated) & valid
        seen = np.cumsum(np.asarray(rollout.extras["success"]) & valid, axis=-1)
        seen += before[..., None]
        # Successes are only ever more, so that the most at any end so far is that at the last one.
        at_ends = np.maximum.accumulate(np.where(ends, seen, 0), axis=-1)
        at_last_end = np.concatenate([np.zeros_like(at_ends[..., :1]), at_ends[..., :-1]], axis=-1)
        solved = (ends & (seen > at_last_end)).sum((1, 2))
        for task, num_ended, num_solved in zip(tasks, ends.sum((1, 2)), solved, strict=True):
            for key in {None, task.class_name}:
                self._ended[key] += int(num_ended)
                self._solved[key] += int(num_solved)
        after: np.ndarray = seen[..., -1] > at_ends[..., -1]
        return after

    def take(self) -> dict[str, float]:
        """`success`, the share of all episodes, and `success/CLASS`; then count anew."""
        shares = {
            "success" if key is None else f"success/{key}": self._solved[key] / ended
            for key, ended in self._ended.items()
            if ended
        }
        self._ended.clear()
        self._solved.clear()
        return shares
