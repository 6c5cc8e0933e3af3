"""What an evaluation found: figures by task and episode, and the row that the log keeps of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from adaptax.core.experience import Rollout
from adaptax.envs.task import Task
from adaptax.experiment.logger import after_adaptation
from adaptax.experiment.packaged_protocol import packaged_success
from adaptax.experiment.statistics import bootstrap_interval, mean_score, scores_interval


@dataclass(frozen=True)
class Episodes:
    """K episodes on each of M tasks, mean over lanes."""

    returns: np.ndarray
    """[M, K] undiscounted."""
    success: np.ndarray | None = None
    """[M, K] share of lanes with success at any step; None where the suite knows no success."""
    final_success: np.ndarray | None = None
    """[M, K] share of lanes with success at the last step."""
    first_lane_success: np.ndarray | None = None
    """[M, K] whether the first lane had success at any step."""
    first_lane_steps: np.ndarray | None = None
    """[M, K] its steps up to the first success or, without, to the end."""

    lane_returns: np.ndarray | None = None
    """[M, K, N] of each lane, and so the two below."""
    lane_success: np.ndarray | None = None
    lane_final_success: np.ndarray | None = None

    @classmethod
    def of(cls, rollouts: Sequence[Rollout]) -> Episodes:
        """K rollouts of M tasks, an episode in each lane."""
        sums = [np.sum(np.asarray(r.reward, np.float64), axis=-1) for r in rollouts]
        returns = np.stack(sums, axis=1)
        if "success" not in rollouts[0].extras:
            return cls(returns.mean(-1), lane_returns=returns)
        found = [_success(np.asarray(r.extras["success"]), np.asarray(r.valid)) for r in rollouts]
        reached, last, steps = (np.stack(figures, axis=1) for figures in zip(*found, strict=True))
        means = (returns.mean(-1), reached.mean(-1), last.mean(-1))
        return cls(*means, reached[..., 0], steps[..., 0], returns, reached, last)

    @classmethod
    def joined(cls, parts: Sequence[Episodes]) -> Episodes:
        """The same episodes of several groups of tasks as of all of them."""

        def join(*arrays: np.ndarray | None) -> Any:
            known = [x for x in arrays if x is not None]
            return np.concatenate(known) if known else None

        return cls(*map(join, *(vars(part).values() for part in parts)))

    def pooled(self, num_repeats: int) -> Episodes:
        """What M tasks did one after another and then again so often, as more lanes of M tasks."""
        if num_repeats == 1:
            return self
        num_tasks = len(self.returns) // num_repeats
        lanes = [
            None if x is None else np.concatenate(np.split(x, num_repeats), axis=-1)
            for x in self.lane_columns().values()
        ]
        means = [None if x is None else x.mean(-1) for x in lanes]
        firsts = [
            None if x is None else x[:num_tasks]
            for x in (self.first_lane_success, self.first_lane_steps)
        ]
        columns: Any = (*means, *firsts, *lanes)
        return Episodes(*columns)

    def of_tasks(self, rows: list[int]) -> Episodes:
        """The episodes of some of the tasks."""
        chosen: Any = (None if x is None else x[rows] for x in vars(self).values())
        return Episodes(*chosen)

    def columns(self) -> dict[str, np.ndarray | None]:
        """What is reported, each [M, K], by name."""
        return {
            "return": self.returns,
            "success": self.success,
            "final_success": self.final_success,
        }

    def lane_columns(self) -> dict[str, np.ndarray | None]:
        """The same of each lane, [M, K, N]."""
        return {
            "return": self.lane_returns,
            "success": self.lane_success,
            "final_success": self.lane_final_success,
        }


@dataclass(frozen=True)
class Evaluation:
    """K episodes in a row on each of M test tasks, and what came after them."""

    tasks: tuple[Task, ...]
    episodes: Episodes
    test: Episodes | None = None
    """Episodes of the agent after those K, each from where they left it."""
    num_available: int | None = None
    """Test tasks that there are; None if they cannot be listed."""
    held_out: bool = True
    """Whether none of them was trained on."""
    num_repeats: int = 1
    """How often each task was run from the start; lanes of the same time are next to each other."""

    @property
    def returns(self) -> np.ndarray:
        """[M, K] of the episodes in a row."""
        return self.episodes.returns

    @property
    def success(self) -> np.ndarray | None:
        """[M, K] of the episodes in a row."""
        return self.episodes.success

    def row(self) -> dict[str, Any]:
        """What `evaluations.jsonl` and `evaluate --json` hold, with 95 % intervals."""
        row: dict[str, Any] = {
            "num_tasks": len(self.tasks),
            "num_available": self.num_available,
            "num_repeats": self.num_repeats,
            "held_out": self.held_out,
            "interval_over": self._interval_over,
            **self._figures(),
        }
        names = list(dict.fromkeys(self.classes))
        if names:
            row["classes"] = {name: self._of_class(name)._figures() for name in names}
        if names and self.test is not None and self.test.success is not None:
            row["packaged_protocol"] = self._packaged()
        return {**row, "tasks": [self._task(i) for i in range(len(self.tasks))]}

    @property
    def classes(self) -> list[str]:
        """The class of each task; empty where tasks have none."""
        names = [task.class_name for task in self.tasks]
        return [name for name in names if name is not None]

    def _figures(self) -> dict[str, Any]:
        """Figures of all tasks together: each episode in a row, the gain by them, and the test."""
        num_episodes = self.returns.shape[1]
        gain = self.returns[:, -1] - self.returns[:, 0]
        by_lane = self.episodes.lane_returns
        lane_gain = None if by_lane is None else by_lane[:, -1] - by_lane[:, 0]
        figures: dict[str, Any] = {
            "episodes": [
                {"index": k + 1, **self._means(self.episodes, slice(k, k + 1))}
                for k in range(num_episodes)
            ],
            "gain": {"mean": float(gain.mean()), "ci": self._interval(gain, lane_gain)},
        }
        if self.test is not None:
            number = self.test.returns.shape[1]
            figures["test"] = {"num_episodes": number, **self._means(self.test, slice(number))}
        return figures

    def _means(self, episodes: Episodes, which: slice) -> dict[str, Any]:
        """Means over some of the episodes and all tasks, with their intervals."""
        means: dict[str, Any] = {}
        lanes = episodes.lane_columns()
        for name, values in episodes.columns().items():
            known = None if values is None else values[:, which].mean(-1)
            by_lane = lanes[name]
            of_lanes = None if by_lane is None else by_lane[:, which].mean(1)
            means[f"{name}_mean"] = None if known is None else float(known.mean())
            means[f"{name}_ci"] = None if known is None else self._interval(known, of_lanes)
        return means

    @property
    def _interval_over(self) -> Literal["tasks", "episodes", "repeats"]:
        """Tasks; but repeats within tasks that are no draws of many, and lanes of a single task."""
        if self.num_repeats > 1 and not self.held_out and not self.classes:
            return "repeats"
        return "episodes" if len(self.tasks) == 1 and not self.classes else "tasks"

    def _interval(self, values: np.ndarray, by_lane: np.ndarray | None) -> list[float] | None:
        """The interval of the mean of values [M] over tasks; None where one value tells none.

        Where tasks have classes, over goals within each; of a single task over its lanes, of
        which `by_lane` [M, N] has the values; where the same few tasks are run again and again,
        over these repeats within each.
        """
        over = self._interval_over
        columns = [values]
        if over == "episodes" and by_lane is not None:
            columns = [by_lane[0]]
        elif over == "repeats" and by_lane is not None:
            columns = list(by_lane.reshape(len(values), self.num_repeats, -1).mean(-1))
        elif self.classes:
            classes = np.array(self.classes)
            columns = [values[classes == name] for name in dict.fromkeys(self.classes)]
        if len(columns[0]) == 1:
            return None
        if self.classes or over == "repeats":
            low, high = scores_interval(
                mean_score, np.stack(columns, axis=-1), drawn="runs within tasks"
            )
        else:
            low, high = bootstrap_interval(columns[0])
        return [float(low), float(high)]

    def _of_class(self, name: str) -> Evaluation:
        rows = [i for i, task in enumerate(self.tasks) if task.class_name == name]
        test = None if self.test is None else self.test.of_tasks(rows)
        return Evaluation(tuple(self.tasks[i] for i in rows), self.episodes.of_tasks(rows), test)

    def _packaged(self) -> dict[str, Any]:
        test = self.test
        assert test is not None
        solved, steps = test.first_lane_success, test.first_lane_steps
        assert solved is not None and steps is not None
        by_class = packaged_success(self.classes, solved, steps)
        return {
            "about": "as metaworld.evaluation counts; biased, for comparison only",
            "success_mean": float(np.mean(list(by_class.values()))),
            "classes": by_class,
        }

    def _task(self, i: int) -> dict[str, Any]:
        name, _, params = self.tasks[i].plain()
        about = {"name": name, "params": params, **_lists(self.episodes, i)}
        return about if self.test is None else {**about, "test": _lists(self.test, i)}


def _lists(episodes: Episodes, i: int) -> dict[str, Any]:
    """Task i's figures, each a list over episodes."""
    columns = {
        "returns": episodes.returns,
        "success": episodes.success,
        "final_success": episodes.final_success,
    }
    return {name: None if x is None else x[i].tolist() for name, x in columns.items()}


def _success(success: np.ndarray, valid: np.ndarray) -> tuple[np.ndarray, ...]:
    """Success in each lane [M, N, T] at any step and at the last; the steps up to it.

    Each [M, N]; the steps are those to the first success or, without, to the end.
    """
    success, length = np.asarray(success & valid), valid.sum(-1)
    last = np.take_along_axis(success, length[..., None] - 1, axis=-1)[..., 0]
    reached = np.any(success, axis=-1)
    return reached, last, np.where(reached, success.argmax(-1) + 1, length)


def tasks_in_words(row: dict[str, Any]) -> str:
    """What the evaluation of a row was on."""
    single = row.get("num_tasks") == 1
    if row.get("held_out", True):
        return "held-out task" if single else "held-out tasks"
    return "task" if single else "tasks (as in training)"


def repeats_in_words(row: dict[str, Any]) -> str:
    """How often each of its tasks was run from the start, where that is more than once."""
    times = row.get("num_repeats", 1)
    return "" if times == 1 else f", {times} times{'' if row['num_tasks'] == 1 else ' each'}"


def evaluation_in_words(row: dict[str, Any], seconds: float) -> str:
    """A line about the row of an evaluation that took so long."""
    first, last = row["episodes"][0], after_adaptation(row)
    figure = f"return {_with_interval(last, 'return')}"
    if last is not first:
        which = "the test episodes" if "test" in row else f"episode {last['index']}"
        figure += f" in {which} (first {first['return_mean']:.4g})"
    parts = [figure, f"{seconds:.1f} s"]
    if last["success_mean"] is not None:
        parts.insert(1, f"success {_with_interval(last, 'success')}")
    on = f"{row['num_tasks']} {tasks_in_words(row)}{repeats_in_words(row)}"
    return f"evaluation at iteration {row['iteration']}, {on}: {' | '.join(parts)}"


def _with_interval(episode: dict[str, Any], name: str) -> str:
    interval = episode[f"{name}_ci"]
    text = f"{episode[f'{name}_mean']:.4g}"
    return text if interval is None else f"{text} [{interval[0]:.4g}, {interval[1]:.4g}]"
