"""Returns, lengths and success of training episodes, counted wherever they begin and end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from adaptax.core.experience import Rollout
from adaptax.envs.task import Task


@dataclass(frozen=True)
class Unfinished:
    """What the episode under way in each lane has come to, arrays [M, N]."""

    reward_sum: np.ndarray
    """Undiscounted, float32."""
    length: np.ndarray
    """Steps."""
    success: np.ndarray
    """Whether it had success at any step."""

    @classmethod
    def fresh(cls, shape: tuple[int, int]) -> Unfinished:
        """At the start of an episode in every lane."""
        return cls(np.zeros(shape, np.float32), np.zeros(shape, np.int64), np.zeros(shape, bool))


class EpisodeStatistics:
    """Figures of the episodes that ended since the last `take`."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._returns: list[np.ndarray] = []
        self._lengths: list[np.ndarray] = []
        self._ended: Counter[str | None] = Counter()
        self._solved: Counter[str | None] = Counter()

    def add(self, rollout: Rollout, tasks: Sequence[Task], before: Unfinished) -> Unfinished:
        """Count a rollout of M tasks in N lanes, whose episodes may have begun `before` it."""
        valid = np.asarray(rollout.valid)
        ends = np.asarray(rollout.terminated | rollout.truncated) & valid
        reward = np.where(valid, np.asarray(rollout.reward), 0)
        sums, reward_sum = _since_start(reward, ends, before.reward_sum)
        lengths, length = _since_start(valid.astype(np.int64), ends, before.length)
        if ends.any():
            self._returns.append(sums[ends])
            self._lengths.append(lengths[ends])
        if "success" not in rollout.extras:
            return Unfinished(reward_sum, length, before.success)
        success = (np.asarray(rollout.extras["success"]) & valid).astype(np.int64)
        counts, left = _since_start(success, ends, before.success.astype(np.int64))
        solved = (ends & (counts > 0)).sum((1, 2))
        for task, num_ended, num_solved in zip(tasks, ends.sum((1, 2)), solved, strict=True):
            for key in {None, task.class_name}:
                self._ended[key] += int(num_ended)
                self._solved[key] += int(num_solved)
        return Unfinished(reward_sum, length, left > 0)

    def take(self) -> dict[str, float | None]:
        """The figures by name; then count anew.

        `return` (mean, undiscounted), `return_median`, `_min`, `_max`, `_std`, `episode_length` in
        steps, each None if no episode ended; where the suite knows success, `success`, the share of
        episodes with success at any step, and `success/CLASS`.
        """
        figures: dict[str, float | None] = dict.fromkeys([*_FIGURES, "episode_length"])
        if self._returns:
            returns = np.concatenate(self._returns).astype(np.float64)
            figures = {name: float(figure(returns)) for name, figure in _FIGURES.items()}
            figures["episode_length"] = float(np.concatenate(self._lengths).mean())
        for key, ended in self._ended.items():
            if ended:
                name = "success" if key is None else f"success/{key}"
                figures[name] = self._solved[key] / ended
        self._clear()
        return figures


_FIGURES: dict[str, Any] = {
    "return": np.mean,
    "return_median": np.median,
    "return_min": np.min,
    "return_max": np.max,
    "return_std": np.std,
}


def _since_start(
    x: np.ndarray, ends: np.ndarray, before: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Sums of x [M, N, T] since each step's episode began, and what the unfinished ones hold.

    `before` [M, N] is what the first episode of each lane brings with it.
    """
    total = np.cumsum(x, axis=-1, dtype=np.float64 if x.dtype.kind == "f" else x.dtype)
    total += before[..., None]
    # The total at the last end before each step, which is not monotonous where x is negative.
    last_end = np.maximum.accumulate(np.where(ends, np.arange(ends.shape[-1]), -1), axis=-1)
    earlier = np.concatenate([np.full_like(last_end[..., :1], -1), last_end], axis=-1)
    padded = np.concatenate([np.zeros_like(total[..., :1]), total], axis=-1)
    offset = np.take_along_axis(padded, earlier + 1, axis=-1)
    sums = total - offset[..., :-1]
    left: np.ndarray = total[..., -1] - offset[..., -1]
    return sums, left.astype(before.dtype)
