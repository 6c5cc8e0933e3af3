"""The evaluator: how well an agent does on tasks it has not seen, episode by episode.

Rounds of one episode in every lane, with `adapt` after each; every lane runs the same number of
episodes, so that early finishers count no more than others. An evaluation is a function of
(algorithm, state, suite, seed): it has its own random streams and leaves training as it was.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from adaptax.algorithms.base import Algorithm
from adaptax.core.batch import PyTree, Rollout
from adaptax.core.config import check_positive
from adaptax.core.errors import check
from adaptax.envs.task import Suite, Task
from adaptax.experiment.statistics import bootstrap_interval
from adaptax.sampling.sampler import Sampler

DEFAULT_NUM_TASKS = 20


@dataclass(frozen=True)
class EvaluatorConfig:
    """The protocol of an evaluation."""

    num_tasks: int | None = None
    """Held-out tasks, the first of the suite's test set; by default 20, or all of fewer."""
    num_lanes: int | None = None
    """Lanes on each task, averaged: independent runs or, for an algorithm of the MAML family, the
    episodes of one gradient step. By default what the algorithm adapts with, 1 for most."""
    num_episodes: int | None = None
    """Episodes in a row on each task; by default what the suite's protocol says."""
    deterministic: bool = False
    """Whether to act by the mode of the policy rather than draw from it."""

    def __post_init__(self) -> None:
        check_positive(self, "num_tasks", "num_lanes", "num_episodes")


@dataclass(frozen=True)
class Evaluation:
    """Returns and success of K episodes in a row on each of M held-out tasks, mean over lanes."""

    tasks: tuple[Task, ...]
    returns: np.ndarray
    """[M, K] undiscounted."""
    success: np.ndarray | None
    """[M, K] share of lanes with success at any step; None where the suite knows no success."""

    def row(self) -> dict[str, Any]:
        """What `evaluations.jsonl` and `evaluate --json` hold, 95 % intervals over tasks."""
        gain = self.returns[:, -1] - self.returns[:, 0]
        return {
            "num_tasks": len(self.tasks),
            "episodes": [
                {"index": k + 1, **_summary("return", self.returns[:, k]), **self._success(k)}
                for k in range(self.returns.shape[1])
            ],
            "gain": {"mean": float(gain.mean()), "ci": _interval(gain)},
            "tasks": [self._task(i) for i in range(len(self.tasks))],
        }

    def _success(self, k: int) -> dict[str, Any]:
        if self.success is None:
            return {"success_mean": None, "success_ci": None}
        return _summary("success", self.success[:, k])

    def _task(self, i: int) -> dict[str, Any]:
        name, _, params = self.tasks[i].plain()
        success = None if self.success is None else self.success[i].tolist()
        return {
            "name": name,
            "params": params,
            "returns": self.returns[i].tolist(),
            "success": success,
        }


class Evaluator:
    """Evaluates states on a suite's held-out tasks."""

    def __init__(self, config: EvaluatorConfig, suite: Suite, seed: int) -> None:
        self.config, self.suite = config, suite
        self.num_episodes = config.num_episodes or suite.spec.trial_episodes
        listed = suite.test.tasks
        available = DEFAULT_NUM_TASKS if listed is None else len(listed)
        self.num_tasks = config.num_tasks or min(DEFAULT_NUM_TASKS, available)
        check(
            listed is None or self.num_tasks <= available,
            f"num_tasks {self.num_tasks} is more than the {available} held-out tasks "
            f"of {suite.name}",
        )
        self._sampler = Sampler(suite, suite.test, seed, "evaluation")

    def evaluate(self, algorithm: Algorithm, state: PyTree) -> Evaluation:
        """The same tasks and seeds at every call, so that two states can be compared."""
        config, sampler = self.config, self._sampler
        _warn_beyond_training(algorithm, self.num_episodes)
        num_lanes = config.num_lanes or algorithm.lanes_per_task
        sampler.restart()
        listed = self.suite.test.tasks
        tasks = sampler.sample_tasks(self.num_tasks) if listed is None else listed
        tasks = tasks[: self.num_tasks]
        actor = algorithm.actor(state, deterministic=config.deterministic)
        history: list[Rollout] = []
        for _ in range(self.num_episodes):
            if history:
                actor = algorithm.adapt(state, actor, history, deterministic=config.deterministic)
            history.append(sampler.episodes(actor, tasks, num_lanes, 1))
        returns = [np.sum(np.asarray(r.reward, np.float64), axis=-1).mean(-1) for r in history]
        success = None
        if self.suite.spec.has_success:
            reached = [np.asarray(r.extras["success"]).any(-1).mean(-1) for r in history]
            success = np.stack(reached, axis=-1)
        return Evaluation(tasks, np.stack(returns, axis=-1), success)

    def close(self) -> None:
        """Free the pools."""
        self._sampler.close()


def _warn_beyond_training(algorithm: Algorithm, num_episodes: int) -> None:
    trained = algorithm.trained_episodes
    if trained is not None and num_episodes > trained:
        warnings.warn(
            f"{num_episodes} episodes on a task are more than the {trained} that "
            f"{algorithm.name} is trained on: how it does in the later ones is not what it learned",
            stacklevel=3,
        )


def _summary(name: str, values: np.ndarray) -> dict[str, Any]:
    return {f"{name}_mean": float(values.mean()), f"{name}_ci": _interval(values)}


def _interval(values: np.ndarray) -> list[float]:
    low, high = bootstrap_interval(values)
    return [float(low), float(high)]
