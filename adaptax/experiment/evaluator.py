"""The evaluator: how well an agent does on tasks it has not seen, episode by episode.

Rounds of one episode in every lane, with `adapt` after each, and then test episodes of what that
has led to; every lane runs the same number, so that early finishers count no more than others.
An evaluation is a function of (algorithm, state, suite, seed): it has its own random streams and
leaves training as it was.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from adaptax.algorithms.base import Algorithm
from adaptax.core.config import as_integer, check_not_negative, check_positive, check_types
from adaptax.core.errors import check, check_kind
from adaptax.core.experience import PyTree, Rollout
from adaptax.core.rng import named_generator
from adaptax.core.spec import check_task_count
from adaptax.envs.suite import Suite
from adaptax.envs.task import Task
from adaptax.experiment.evaluation import Episodes, Evaluation
from adaptax.sampling.sampler import Sampler
from adaptax.sampling.size import check_rollout_fits

DEFAULT_NUM_TASKS = 20
DEFAULT_NUM_LANES = 20
"""Where a suite has a single task: what an interval is over then."""
LEFT_OUT_OF_PROTOCOLS = {"num_repeats": 1, "num_exploration_episodes": 1}
"""What a protocol says nothing of where it changes nothing: runs of before these came have none."""
STEPS_AN_HOUR = 3600 * 10**6
"""At a million a second, which only the fastest environments take."""


@dataclass(frozen=True)
class EvaluatorConfig:
    """The protocol of an evaluation."""

    num_tasks: int | None = None
    """Test tasks, the first of the suite's. Default: 20, rounded up to equally many of each class;
    all where there are fewer."""
    num_lanes: int | None = None
    """Lanes on each task, averaged: independent runs or, for an algorithm of the MAML family, the
    episodes of one gradient step. By default what the algorithm adapts with, 1 for most, and 20
    where the suite has a single task."""
    num_repeats: int | None = None
    """How often each task is run from the start, averaged: adaptations that know nothing of each
    other. By default once; where a suite is tested on fewer than 20 tasks, which it also trains on,
    as often as makes 20, unless `num_lanes` says how many independent runs there are."""
    num_episodes: int | None = None
    """Episodes in a row on each task. Default: the suite's protocol, but no more than the algorithm
    trains on (one less where test episodes follow)."""
    num_exploration_episodes: int = 1
    """Episodes before the agent first adapts; from then on it adapts after each. More than 1 is for
    algorithms that infer their task from all episodes so far, such as pearl."""
    num_test_episodes: int | None = None
    """Test episodes after those in a row, each by the agent as it adapted to these. Default: the
    suite's protocol, which is none except for Meta-World."""
    deterministic: bool = False
    """Whether to act by the mode of the policy rather than draw from it."""

    def __post_init__(self) -> None:
        check_types(self, "evaluation")
        positive = ("num_tasks", "num_lanes", "num_repeats", "num_episodes")
        check_positive(self, *positive, "num_exploration_episodes")
        check_not_negative(self, "num_test_episodes")


class Evaluator:
    """Evaluates states on a suite's held-out tasks."""

    def __init__(self, config: EvaluatorConfig, suite: Suite, seed: int) -> None:
        for given, kind in ((config, EvaluatorConfig), (suite, Suite)):
            check_kind(given, kind, "Evaluator(config, suite, seed)")
        seed = as_integer(seed, "a seed must be a whole number")
        self.config, self.suite = config, suite
        self._num_exploration = config.num_exploration_episodes
        asked = config.num_test_episodes
        self.num_test_episodes = suite.spec.test_episodes if asked is None else asked
        listed = suite.test.tasks
        self._num_classes = 1 if listed is None else len({task.class_name for task in listed})
        usual = -(-DEFAULT_NUM_TASKS // self._num_classes) * self._num_classes  # as many of each
        available = usual if listed is None else len(listed)
        self.num_tasks = config.num_tasks or min(usual, available)
        check(
            listed is None or self.num_tasks <= available,
            f"num_tasks {self.num_tasks} is more than the {available} "
            f"{'held-out ' if suite.held_out else ''}tasks of {suite.name}",
        )
        self._is_single = listed is not None and len(listed) == 1
        check_task_count(self.num_tasks, self._num_classes, "evaluation.num_tasks")
        if listed is not None:
            counted = Counter(task.class_name for task in listed[: self.num_tasks])
            check(
                len({*counted.values()}) == 1 and len(counted) == self._num_classes,
                f"of the first {self.num_tasks} test tasks of {suite.name} there are "
                f"{', '.join(f'{n} of the class {name}' for name, n in counted.items())}: list as "
                "many of each class, in turn",
            )
        self._sampler = Sampler(suite, suite.test, seed, "evaluation")

    def protocol(self, algorithm: Algorithm[Any, Any]) -> dict[str, Any]:
        """What decides whether two evaluations can be compared, defaults filled in."""
        whole = {
            "num_tasks": self.num_tasks,
            "num_lanes": self._num_lanes(algorithm),
            "num_episodes": self._num_episodes(algorithm),
            "num_test_episodes": self.num_test_episodes,
            "deterministic": self.config.deterministic,
            "num_repeats": self._num_repeats(algorithm),
            "num_exploration_episodes": self._num_exploration,
        }
        return {k: x for k, x in whole.items() if x != LEFT_OUT_OF_PROTOCOLS.get(k)}

    def check_size(self, algorithm: Algorithm[Any, Any]) -> None:
        """Raise a ConfigError where an evaluation cannot be made; warn of a long one.

        It can never fit into memory, or the algorithm does not adapt as it asks.
        """
        self._check_exploration(algorithm)
        num_lanes, num_episodes = self._num_lanes(algorithm), self._num_episodes(algorithm)
        horizon = self.suite.spec.horizon
        # Adaptation looks at all episodes before it, of the tasks that are run together.
        together = self._num_together(algorithm)
        check_rollout_fits(self.suite.spec, together, num_lanes, num_episodes * horizon)
        limit, num_slots = self.suite.max_slots, together * num_lanes
        if limit is not None and num_slots > limit:
            warnings.warn(
                f"an evaluation runs {num_slots} environments of {self.suite.name} side by side, "
                f"{num_lanes} lanes on one task of each class, where more than {limit} may take "
                "too much memory: fewer lanes need less",
                stacklevel=3,
            )
        each = num_episodes + self.num_test_episodes
        num_trials = self.num_tasks * self._num_repeats(algorithm)
        num_steps = num_trials * num_lanes * each * horizon
        if (hours := num_steps / STEPS_AN_HOUR) > 1:
            warnings.warn(
                f"an evaluation may take {hours:,.0f} hours at a million steps a second: up to "
                f"{num_steps:,} steps, of {num_trials} tasks x {num_lanes:,} lanes x {each:,} "
                f"episodes x {horizon:,} steps; fewer of them, or --evaluation-interval None",
                stacklevel=3,
            )

    def evaluate(self, algorithm: Algorithm[Any, Any], state: PyTree) -> Evaluation:
        """The same tasks and seeds at every call, so that two states can be compared."""
        check(
            state is not None,
            "there is no state to evaluate yet: train or load one first, with Trainer.run, .resume "
            "or .load, or take algorithm.init(key)",
        )
        self.suite.check_made_for(algorithm.spec)
        self._check_exploration(algorithm)
        sampler = self._sampler
        _warn_beyond_training(algorithm, self._num_episodes(algorithm) + self._tests)
        sampler.restart()
        tasks, listed = self.tasks(), self.suite.test.tasks
        size, num_repeats = self._num_together(algorithm), self._num_repeats(algorithm)
        trials = tasks * num_repeats
        groups = [trials[i : i + size] for i in range(0, len(trials), size)]
        in_a_row, test = zip(*(self._run(algorithm, state, g) for g in groups), strict=True)
        every = _episodes_of(in_a_row, num_repeats)
        tested = _episodes_of(test, num_repeats) if test[0] else None
        available = None if listed is None else len(listed)
        return Evaluation(tasks, every, tested, available, self.suite.held_out, num_repeats)

    def tasks(self) -> tuple[Task, ...]:
        """The test tasks, in order; drawn ones are the same for all seeds, which so compare."""
        listed = self.suite.test.tasks
        if listed is not None:
            return listed[: self.num_tasks]
        return self.suite.test.sample(named_generator(0, "evaluation", "tasks"), self.num_tasks)

    def _num_together(self, algorithm: Algorithm[Any, Any]) -> int:
        """Tasks that are run side by side: as many of each class as fit, one at least."""
        limit, most = self.suite.max_slots, self.num_tasks * self._num_repeats(algorithm)
        most = most if limit is None else min(limit // self._num_lanes(algorithm), most)
        return max(most - most % self._num_classes, self._num_classes)

    def _num_episodes(self, algorithm: Algorithm[Any, Any]) -> int:
        """Episodes in a row on each task; by default, with a test's, no more than trained on."""
        protocol, trained = self.suite.spec.trial_episodes, algorithm.trained_episodes
        most = protocol if trained is None else max(trained - self._tests, 1)
        return self.config.num_episodes or min(protocol, most)

    @property
    def _tests(self) -> int:
        """Episodes of a task that a test adds to those in a row: each starts where they end."""
        return min(self.num_test_episodes, 1)

    def _num_lanes(self, algorithm: Algorithm[Any, Any]) -> int:
        """Lanes on each task."""
        if self.config.num_lanes is not None:
            return self.config.num_lanes
        alone = self._is_single and algorithm.lanes_per_task == 1
        return DEFAULT_NUM_LANES if alone else algorithm.lanes_per_task

    def _num_repeats(self, algorithm: Algorithm[Any, Any]) -> int:
        """How often each task is run from the start."""
        listed = self.suite.test.tasks
        if self.config.num_repeats is not None:
            return self.config.num_repeats
        if listed is None or self.suite.held_out:
            return 1
        several_lanes = self.config.num_lanes is not None or self._is_single
        if several_lanes and algorithm.lanes_per_task == 1:  # each is a repeat
            return 1
        return max(DEFAULT_NUM_TASKS // len(listed), 1)

    def _run(
        self, algorithm: Algorithm[Any, Any], state: PyTree, tasks: tuple[Task, ...]
    ) -> tuple[list[Rollout], list[Rollout]]:
        """The episodes in a row, and those of the test."""
        config, sampler = self.config, self._sampler
        num_lanes = self._num_lanes(algorithm)
        actor = algorithm.actor(state, deterministic=config.deterministic)
        history: list[Rollout] = []
        for episode in range(self._num_episodes(algorithm)):
            if episode >= self._num_exploration:
                actor = algorithm.adapt(state, actor, history, deterministic=config.deterministic)
            history.append(sampler.episodes(actor, tasks, num_lanes, 1))
        if self.num_test_episodes == 0:
            return history, []
        actor = algorithm.adapt(state, actor, history, deterministic=config.deterministic)
        test = [sampler.episodes(actor, tasks, num_lanes, 1) for _ in range(self.num_test_episodes)]
        return history, test

    def _check_exploration(self, algorithm: Algorithm[Any, Any]) -> None:
        exploration = self._num_exploration
        if exploration == 1:
            return
        in_all = self._num_episodes(algorithm) + self.num_test_episodes
        check(
            exploration < in_all,
            f"num_exploration_episodes {exploration} leaves no episode of the {in_all} on a task "
            "to act on what was seen: it must be less",
        )
        check(
            algorithm.infers_from_history,
            f"num_exploration_episodes {exploration}: {algorithm.name} does not infer its task "
            "from all episodes so far and has to adapt after each: it must be 1",
        )

    def abandon(self) -> None:
        """Give up an evaluation that a fault has ended."""
        self._sampler.abandon()

    def close(self) -> None:
        """Free the pools."""
        self._sampler.close()


def _episodes_of(groups: Sequence[list[Rollout]], num_repeats: int) -> Episodes:
    """What all groups of tasks did, repeats of a task as lanes of it."""
    return Episodes.joined([Episodes.of(rollouts) for rollouts in groups]).pooled(num_repeats)


def _warn_beyond_training(algorithm: Algorithm[Any, Any], num_episodes: int) -> None:
    trained = algorithm.trained_episodes
    if trained is not None and num_episodes > trained:
        warnings.warn(
            f"{num_episodes} episodes on a task are more than the {trained} that "
            f"{algorithm.name} is trained on: how it does in the later ones is not what it learned",
            stacklevel=2,  # one place for all evaluations: told once, not again of the untrained
        )
