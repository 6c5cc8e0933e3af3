"""Agents whose success the packaged evaluator misreports, judged by it and by ours."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from metaworld.env_dict import ALL_V3_ENVIRONMENTS, ML10_V3
from metaworld.evaluation import evaluation
from metaworld.wrappers import AutoTerminateOnSuccessWrapper

from adaptax.algorithms.search.nop import NOP, NOPConfig
from adaptax.core.spec import Continuous, EnvSpec
from adaptax.envs.pools.gym import GymPool
from adaptax.envs.suite import Suite
from adaptax.envs.task import ClassTasks
from adaptax.experiment.evaluator import Evaluator, EvaluatorConfig
from adaptax.experiment.packaged_protocol import SIDE_BY_SIDE, packaged_success

HORIZON, NEVER, TEST_EPISODES = 30, 0, 3


class Timed(gymnasium.Env):
    """A task whose episodes succeed at a given step, whatever the agent does, or never."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, class_name="reach-v3", steps=()):
        self.task_name = ALL_V3_ENVIRONMENTS[class_name].__name__
        self.steps, self.episode = steps, -1

    def reset(self, *, seed=None, options=None):
        self.t, self.episode = 0, self.episode + 1
        own = self.steps[self.episode % len(self.steps)] if self.steps else NEVER
        self.solved_at = own if options is None else options["solved_at"]
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(1, np.float32), 0.0, False, False, {"success": self.t == self.solved_at}


class Still:
    """An agent as metaworld.evaluation takes it."""

    def eval_action(self, observations):
        return np.zeros((len(observations), 1), np.float32)

    def reset(self, env_mask):
        pass


def make_theirs(class_name, steps):
    env = gymnasium.wrappers.TimeLimit(Timed(class_name, steps), HORIZON)
    env = AutoTerminateOnSuccessWrapper(env)
    return gymnasium.wrappers.RecordEpisodeStatistics(env)


def their_report(classes, solved_at):
    """What metaworld.evaluation itself says of lanes whose episodes succeed at those steps."""
    makers = [partial(make_theirs, *lane) for lane in zip(classes, solved_at, strict=True)]
    envs = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    mean, _, by_class, _ = evaluation(Still(), envs, TEST_EPISODES)
    return mean, by_class


def suite_of(classes, solved_at):
    """The same as a suite of ours, one goal for each lane."""
    params = {name: [] for name in classes}
    for name, at in zip(classes, solved_at, strict=True):
        params[name].append({"solved_at": at})
    spec = EnvSpec(1, Continuous(1), HORIZON, 2, TEST_EPISODES, has_success=True)
    tasks = ClassTasks("timed", params)
    return Suite("timed", spec, tasks, tasks, partial(GymPool, Timed, spec))


ML10_TEST = list(ML10_V3["test"])


@pytest.mark.parametrize(
    ("classes", "solved_at", "truth"),
    [
        ([c for c in ML10_TEST for _ in range(4)], [5, NEVER, NEVER, NEVER] * 5, 0.25),
        (["reach-v3"] * 10, [5] + 9 * [NEVER], 0.10),
    ],
    ids=["1 of 4 goals a class", "1 of 10 goals"],
)
def test_ours_tells_the_truth_where_the_packaged_evaluator_says_1(classes, solved_at, truth):
    suite = suite_of(classes, solved_at)
    config = EvaluatorConfig(num_tasks=len(classes))
    row = Evaluator(config, suite, 0).evaluate(NOP(NOPConfig(), suite.spec), {}).row()
    assert row["test"]["success_mean"] == truth
    assert row["test"]["final_success_mean"] == 0.0
    assert [figures["test"]["success_mean"] for figures in row["classes"].values()] == [
        truth for _ in dict.fromkeys(classes)
    ]
    mean, by_class = their_report(classes, [(at,) for at in solved_at])
    assert mean == row["packaged_protocol"]["success_mean"] == 1.0
    assert row["packaged_protocol"]["classes"] == by_class
    assert "biased" in row["packaged_protocol"]["about"]


@pytest.mark.parametrize("seed", range(12))
def test_the_packaged_figure_is_that_of_the_packaged_evaluator(seed):
    rng = np.random.default_rng(seed)
    names = ML10_TEST[: rng.integers(1, 6)]
    classes = [name for name in names for _ in range(SIDE_BY_SIDE // len(names))]
    shape = (len(classes), TEST_EPISODES)
    solved_at = np.where(rng.random(shape) < 0.4, rng.integers(1, HORIZON + 1, shape), NEVER)
    lengths = np.where(solved_at == NEVER, HORIZON, solved_at)
    ours = packaged_success(classes, solved_at != NEVER, lengths)
    mean, by_class = their_report(classes, solved_at.tolist())
    assert ours == pytest.approx(by_class)
    assert np.mean(list(ours.values())) == pytest.approx(mean)


def test_success_at_any_step_and_at_the_last_are_apart():
    suite = suite_of(["reach-v3"] * 4, [1, HORIZON, HORIZON, NEVER])
    config = EvaluatorConfig(num_tasks=4, num_test_episodes=1)
    evaluation_ = Evaluator(config, suite, 0).evaluate(NOP(NOPConfig(), suite.spec), {})
    for figures in (*evaluation_.row()["episodes"], evaluation_.row()["test"]):
        assert (figures["success_mean"], figures["final_success_mean"]) == (0.75, 0.5)
    np.testing.assert_array_equal(evaluation_.test.first_lane_steps[:, 0], [1, 30, 30, 30])


def test_intervals_are_over_goals_within_classes():
    classes = ["reach-v3"] * 6 + ["push-v3"] * 6
    certain = suite_of(classes, [5] * 6 + [NEVER] * 6)
    row = Evaluator(EvaluatorConfig(num_tasks=12), certain, 0).evaluate(nop(certain), {}).row()
    # Classes are fixed: that one always succeeds and the other never leaves no doubt of the mean.
    assert row["test"]["success_ci"] == [0.5, 0.5]
    mixed = suite_of(classes, [5, NEVER] * 6)
    row = Evaluator(EvaluatorConfig(num_tasks=12), mixed, 0).evaluate(nop(mixed), {}).row()
    low, high = row["test"]["success_ci"]
    assert low < 0.3 < 0.7 < high


def nop(suite):
    return NOP(NOPConfig(), suite.spec)


@dataclass
class Counting(NOP):
    """Counts how often it adapts."""

    calls: int = 0

    def __init__(self, spec):
        super().__init__(NOPConfig(), spec)
        self.lengths = []

    def adapt(self, state, actor, history, *, deterministic=False):
        self.lengths.append(len(history))
        return actor


def test_the_test_comes_after_the_last_adaptation_and_starts_each_time_from_there():
    suite = suite_of(["reach-v3"] * 2, [5, NEVER])
    algorithm = Counting(suite.spec)
    evaluation_ = Evaluator(EvaluatorConfig(num_tasks=2), suite, 0).evaluate(algorithm, {})
    assert algorithm.lengths == [1, 2]
    assert evaluation_.returns.shape == (2, 2)
    assert evaluation_.test.returns.shape == (2, TEST_EPISODES)


def test_many_tasks_are_evaluated_in_groups_that_a_pool_can_hold():
    suite = suite_of(["reach-v3", "push-v3"] * 5, [5, NEVER] * 5)
    sizes = []

    def make_pool(num_slots):
        sizes.append(num_slots)
        return suite.make_pool(num_slots)

    limited = Suite("timed", suite.spec, suite.train, suite.test, make_pool, max_slots=5)
    config = EvaluatorConfig(num_tasks=10, num_repeats=1)
    grouped = Evaluator(config, limited, 0).evaluate(nop(suite), {})
    assert sizes == [4, 2]
    whole = Evaluator(config, suite, 0).evaluate(nop(suite), {})
    np.testing.assert_array_equal(grouped.test.success, whole.test.success)
    assert [t.name for t in grouped.tasks] == [t.name for t in whole.tasks]
