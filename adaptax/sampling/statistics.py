"""Returns, lengths and success of training episodes, counted wherever they begin and end."""

from __future__ import annotations

import math
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

    `steps` are arrays [M, N, T]: `reward`, `ended`, `valid`, and `success` or None; `returns`, too,
    where `episode_returns` has told them already.
    """
    valid = np.asarray(steps["valid"])
    ends = np.asarray(steps["ended"]) & valid
    episodes = _Episodes(ends)
    returns = steps.get("returns")
    if returns is None:
        returns = episodes.sums(_counted_rewards(steps), before.reward_sum)
    lengths = episodes.sums(valid, before.length).astype(np.int64)

    def left(sums: np.ndarray) -> np.ndarray:
        return np.where(ends[..., -1], 0, sums[..., -1])

    solved, success = None, before.success
    if steps["success"] is not None:
        hits = episodes.sums(np.asarray(steps["success"]) & valid, before.success)
        solved, success = hits[ends] > 0, left(hits) > 0
    member, _, time = np.nonzero(ends)
    ended = Ended(tasks, member, time, returns[ends], lengths[ends], solved)
    reward_sum = left(returns).astype(before.reward_sum.dtype)
    return ended, Unfinished(reward_sum, left(lengths), success)


def episode_returns(steps: dict[str, np.ndarray | None], before: np.ndarray) -> np.ndarray:
    """The return [..., T] of each step's episode, as far as `steps` go.

    `before` [...] is what the first episode of each lane brings with it.
    """
    ends = np.asarray(steps["ended"]) & np.asarray(steps["valid"])
    return _Episodes(ends).sums(_counted_rewards(steps), before)


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


def _counted_rewards(steps: dict[str, np.ndarray | None]) -> np.ndarray:
    """The rewards, 0 where a step is not valid."""
    return np.where(np.asarray(steps["valid"]), np.asarray(steps["reward"]), 0)


class _Episodes:
    """Which episode of its lane each step is of, where some steps [..., T] end one."""

    def __init__(self, ends: np.ndarray) -> None:
        self._number = np.cumsum(ends, axis=-1) - ends
        self._shape = (*ends.shape[:-1], int(self._number.max(initial=0)) + 1)
        lane = np.arange(math.prod(ends.shape[:-1])).reshape(*ends.shape[:-1], 1)
        self._place = (lane * self._shape[-1] + self._number).ravel()

    def sums(self, x: np.ndarray, before: np.ndarray) -> np.ndarray:
        """Of each step's episode the sum of x [..., T], float64: to its end, or to the last step.

        `before` [...] is what the first episode of each lane brings with it. Episodes are summed
        apart: as differences of one running sum, those after a huge one would be lost in its
        rounding.
        """
        sums = np.bincount(self._place, x.ravel(), math.prod(self._shape)).reshape(self._shape)
        sums[..., 0] += before
        return np.take_along_axis(sums, self._number, axis=-1)
