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


@dataclass(frozen=True)
class Ended:
    """E episodes that ended, arrays [E]."""

    tasks: Sequence[Task]
    member: np.ndarray
    """Place of the task among `tasks`."""
    time: np.ndarray
    """The step, of those counted together, at which it ended."""
    returns: np.ndarray
    """Undiscounted."""
    lengths: np.ndarray
    """Steps."""
    solved: np.ndarray | None
    """Whether it had success at any step; None where the suite knows none."""

    def between(self, first: int, stop: int) -> Ended:
        """Those that ended at the steps from `first` to before `stop`."""
        rows = (self.time >= first) & (self.time < stop)
        solved = None if self.solved is None else self.solved[rows]
        return Ended(
            tasks=self.tasks,
            member=self.member[rows],
            time=self.time[rows],
            returns=self.returns[rows],
            lengths=self.lengths[rows],
            solved=solved,
        )


def ended_episodes(
    tasks: Sequence[Task],
    steps: dict[str, np.ndarray | None],
    before: Unfinished,
) -> tuple[Ended, Unfinished]:
    """The episodes that ended in M tasks' N lanes, begun `before`, and what is left unfinished.

    `steps` are arrays [M, N, T]: `reward`, `ended`, `valid`, and `success` or None.
    """
    valid = np.asarray(steps["valid"])
    ends = np.asarray(steps["ended"]) & valid
    reward = np.where(valid, np.asarray(steps["reward"]), 0)
    sums, reward_sum = _since_start(reward, ends, before.reward_sum)
    lengths, length = _since_start(valid.astype(np.int64), ends, before.length)
    solved, success = None, before.success
    if steps["success"] is not None:
        hits = (np.asarray(steps["success"]) & valid).astype(np.int64)
        counts, left = _since_start(hits, ends, before.success.astype(np.int64))
        solved, success = counts[ends] > 0, left > 0
    member, _, time = np.nonzero(ends)
    ended = Ended(tasks, member, time, sums[ends], lengths[ends], solved)
    return ended, Unfinished(reward_sum, length, success)


class EpisodeStatistics:
    """Figures of the episodes that ended since the last `take`."""

    def __init__(self) -> None:
        self._ended: list[Ended] = []

    def add(self, rollout: Rollout, tasks: Sequence[Task], before: Unfinished) -> Unfinished:
        """Count a rollout of M tasks in N lanes, whose episodes may have begun `before` it."""
        steps = {
            "reward": rollout.reward,
            "ended": rollout.terminated | rollout.truncated,
            "valid": rollout.valid,
            "success": rollout.extras.get("success"),
        }
        ended, unfinished = ended_episodes(tasks, steps, before)
        self.count(ended)
        return unfinished

    def count(self, *ended: Ended) -> None:
        """Count these episodes."""
        self._ended += [some for some in ended if len(some.returns)]

    def take(self) -> dict[str, float | None]:
        """The figures by name; then count anew.

        `return` (mean, undiscounted), `return_median`, `_min`, `_max`, `_std`, `episode_length` in
        steps, each None if no episode ended; where the suite knows success, `success`, the share of
        episodes with success at any step, and `success/CLASS`.
        """
        ended, self._ended = self._ended, []
        figures: dict[str, float | None] = dict.fromkeys([*_FIGURES, "episode_length"])
        if not ended:
            return figures
        returns = np.concatenate([some.returns for some in ended]).astype(np.float64)
        figures = {name: float(figure(returns)) for name, figure in _FIGURES.items()}
        figures["episode_length"] = float(np.concatenate([x.lengths for x in ended]).mean())
        num_ended, num_solved = Counter[str | None](), Counter[str | None]()
        for some in ended:
            if some.solved is None:
                continue
            counts = np.bincount(some.member, minlength=len(some.tasks))
            solved = np.bincount(some.member, some.solved, minlength=len(some.tasks))
            for task, count, num in zip(some.tasks, counts, solved, strict=True):
                for key in {None, task.class_name}:
                    num_ended[key] += int(count)
                    num_solved[key] += int(num)
        for key, count in num_ended.items():
            if count:
                name = "success" if key is None else f"success/{key}"
                figures[name] = num_solved[key] / count
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
