from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from said import warnings_within
from toys import cliff_suite

from adaptax.algorithms.base import Algorithm
from adaptax.algorithms.search.nop import NOP, NOPConfig
from adaptax.core.errors import ConfigError
from adaptax.envs.task import Task, TaskList, TaskRange
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.experiment.evaluation import Episodes, Evaluation, evaluation_in_words
from adaptax.experiment.evaluator import Evaluator, EvaluatorConfig
from adaptax.experiment.statistics import bootstrap_interval
from adaptax.sampling.actors import Memoryless
from adaptax.sampling.sampler import Sampler

NUM_TASKS, NUM_LANES, NUM_EPISODES = 4, 3, 3
CONFIG = EvaluatorConfig(num_tasks=NUM_TASKS, num_lanes=NUM_LANES, num_episodes=NUM_EPISODES)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Heading(Memoryless):
    """Goes one way, [M, A], for each task."""

    way: jax.Array

    def act(self, carry, obs, key):
        return jnp.broadcast_to(self.way[:, None], obs.shape), carry, {}


class Seeker(Algorithm):
    """Stays at first and heads for the goal once it may adapt; keeps what it was given then."""

    name = "seeker"

    def __init__(self, spec, goals) -> None:
        super().__init__(None, spec)
        self.goals, self.given = goals, []

    def init(self, key):
        return {}

    def collect(self, state, sampler):
        raise NotImplementedError

    def update(self, state, data):
        raise NotImplementedError

    def actor(self, state, *, deterministic=False):
        return Heading(jnp.zeros((NUM_TASKS, 2)))

    def adapt(self, state, actor, history, *, deterministic=False):
        self.given.append((list(history), deterministic))
        return Heading(jnp.asarray(self.goals))


@pytest.fixture
def collected(monkeypatch):
    """Every rollout that any sampler collects."""
    rollouts, episodes = [], Sampler.episodes

    def record(self, *args):
        rollouts.append(episodes(self, *args))
        return rollouts[-1]

    monkeypatch.setattr(Sampler, "episodes", record)
    return rollouts


def seeker(suite):
    return Seeker(suite.spec, np.stack([t.params["goal"] for t in suite.test.tasks[:NUM_TASKS]]))


def nop(suite):
    return NOP(NOPConfig(), suite.spec)


def test_every_lane_runs_the_same_number_of_episodes_however_early_they_end(collected):
    suite = cliff_suite()
    Evaluator(CONFIG, suite, 0).evaluate(nop(suite), {})
    assert len(collected) == NUM_EPISODES
    for rollout in collected:
        ends = np.asarray(rollout.terminated | rollout.truncated)
        assert ends.shape == (NUM_TASKS, NUM_LANES, suite.spec.horizon)
        np.testing.assert_array_equal(ends.sum(-1), 1)
    lengths = np.concatenate([np.asarray(r.valid).sum(-1).ravel() for r in collected])
    assert lengths.min() < lengths.max()
    assert np.any([np.any(r.terminated) for r in collected])
    assert np.any([np.any(r.truncated) for r in collected])


def test_returns_are_by_task_and_episode_and_averaged_over_lanes(collected):
    suite = cliff_suite()
    evaluation = Evaluator(CONFIG, suite, 0).evaluate(nop(suite), {})
    assert evaluation.returns.shape == (NUM_TASKS, NUM_EPISODES)
    for k, rollout in enumerate(collected):
        reward, valid = np.asarray(rollout.reward), np.asarray(rollout.valid)
        for m in range(NUM_TASKS):
            sums = [reward[m, n][valid[m, n]].sum() for n in range(NUM_LANES)]
            assert evaluation.returns[m, k] == pytest.approx(np.mean(sums), abs=1e-5)


def test_success_is_the_share_of_lanes_that_had_it_at_any_step(collected):
    suite = cliff_suite()
    evaluation = Evaluator(CONFIG, suite, 0).evaluate(seeker(suite), {})
    for k, rollout in enumerate(collected):
        share = np.asarray(rollout.extras["success"]).any(-1).mean(-1)
        np.testing.assert_allclose(evaluation.success[:, k], share, atol=1e-12)
    assert 0 < evaluation.success.mean() < 1


def test_the_tasks_are_the_first_of_the_held_out_ones():
    suite = cliff_suite(6)
    evaluation = Evaluator(CONFIG, suite, 0).evaluate(nop(suite), {})
    assert [t.name for t in evaluation.tasks] == [f"cliff-test-{i}" for i in range(NUM_TASKS)]
    names = [task["name"] for task in evaluation.row()["tasks"]]
    assert names == [f"cliff-test-{i}" for i in range(NUM_TASKS)]


def test_without_a_state_there_is_nothing_to_evaluate():
    suite = cliff_suite()
    with pytest.raises(ConfigError, match=r"no state to evaluate yet: .* Trainer\.run, \.resume"):
        Evaluator(CONFIG, suite, 0).evaluate(nop(suite), None)


def test_the_same_state_gets_the_same_result_again():
    suite = cliff_suite()
    evaluator = Evaluator(CONFIG, suite, 0)
    first, again = (evaluator.evaluate(nop(suite), {}).row() for _ in range(2))
    fresh = Evaluator(CONFIG, cliff_suite(), 0).evaluate(nop(suite), {}).row()
    assert first == again == fresh


def test_another_seed_gets_another_result():
    suite = cliff_suite()
    rows = [Evaluator(CONFIG, suite, seed).evaluate(nop(suite), {}).row() for seed in (0, 1)]
    assert rows[0] != rows[1]


def test_adapt_gets_all_episodes_so_far_and_the_protocols_determinism():
    suite = cliff_suite()
    algorithm = seeker(suite)
    Evaluator(replace(CONFIG, deterministic=True), suite, 0).evaluate(algorithm, {})
    assert [len(history) for history, _ in algorithm.given] == [1, 2]
    assert all(deterministic for _, deterministic in algorithm.given)
    one, two = (history for history, _ in algorithm.given)
    assert one[0] is two[0]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_episodes_of_exploration_pass_before_the_first_adaptation(number):
    """Then it adapts after each, from all before; test episodes are after the last one."""
    suite = cliff_suite()
    algorithm = seeker(suite)
    algorithm.infers_from_history = True
    config = replace(CONFIG, num_exploration_episodes=number, num_test_episodes=1)
    Evaluator(config, suite, 0).evaluate(algorithm, {})
    given = [len(history) for history, _ in algorithm.given]
    assert given == [*range(number, NUM_EPISODES), NUM_EPISODES]


def test_exploration_that_leaves_nothing_or_that_an_algorithm_has_no_use_for_is_refused():
    suite = cliff_suite()
    nothing, no_use = (
        Evaluator(replace(CONFIG, num_exploration_episodes=number), suite, 0) for number in (3, 2)
    )
    for evaluator, why in (
        (nothing, "3 leaves no episode of the 3 on a task"),
        (no_use, "nop does not infer its task from all episodes"),
    ):
        with pytest.raises(ConfigError, match=why):
            evaluator.check_size(nop(suite))
        with pytest.raises(ConfigError, match=why):
            evaluator.evaluate(nop(suite), {})


def test_adaptation_shows_in_the_returns_by_episode():
    suite = cliff_suite(fall=0.0)
    row = Evaluator(CONFIG, suite, 0).evaluate(seeker(suite), {}).row()
    first, second, third = (episode["return_mean"] for episode in row["episodes"])
    assert second > first + 5
    assert row["gain"]["mean"] == pytest.approx(third - first)
    assert row["gain"]["ci"][0] > 1


def evaluation_of(returns, success=None):
    tasks = tuple(Task(f"t-{i}", i, {"x": float(i)}) for i in range(len(returns)))
    return Evaluation(tasks, Episodes(np.array(returns), success))


def test_the_gain_is_paired_by_task():
    # Tasks differ by hundreds, every task gains 1 to 2: unpaired, nothing could be said.
    row = evaluation_of([[100.0, 101.0], [300.0, 302.0], [-500.0, -498.5]]).row()
    assert row["gain"]["mean"] == pytest.approx(1.5)
    low, high = row["gain"]["ci"]
    assert 1.0 <= low <= 1.5 <= high <= 2.0
    assert row["episodes"][0]["return_ci"][0] < -400


def test_a_row_has_every_task_and_episode():
    success = np.array([[0.0, 1.0], [0.5, 1.0]])
    row = evaluation_of([[1.0, 2.0], [3.0, 5.0]], success).row()
    assert row["num_tasks"] == 2
    assert [(e["index"], e["return_mean"], e["success_mean"]) for e in row["episodes"]] == [
        (1, 2.0, 0.25),
        (2, 3.5, 1.0),
    ]
    assert row["tasks"][1] == {
        "name": "t-1",
        "params": {"x": 1.0},
        "returns": [3.0, 5.0],
        "success": [0.5, 1.0],
        "final_success": None,
    }


def test_intervals_contain_the_mean():
    rng = np.random.default_rng(0)
    row = evaluation_of(rng.standard_normal((20, 3)), rng.random((20, 3))).row()
    for episode in row["episodes"]:
        for name in ("return", "success"):
            low, high = episode[f"{name}_ci"]
            assert low < episode[f"{name}_mean"] < high


def test_without_success_there_are_no_figures_of_it():
    row = evaluation_of([[1.0], [2.0]]).row()
    assert row["episodes"][0]["success_mean"] is None
    assert row["tasks"][0]["success"] is None


@pytest.mark.parametrize(("num_tasks", "num_lanes"), [(1, 1), (1, 20), (5, 1)])
def test_intervals_are_over_tasks_or_the_episodes_of_one_and_never_of_width_zero(
    num_tasks, num_lanes
):
    suite = cliff_suite(5)
    config = EvaluatorConfig(num_tasks=num_tasks, num_lanes=num_lanes, num_test_episodes=2)
    evaluation = Evaluator(config, suite, 0).evaluate(nop(suite), {})
    row = evaluation.row()
    for figures in (*row["episodes"], row["test"]):
        mean, interval = figures["return_mean"], figures["return_ci"]
        if num_tasks == num_lanes == 1:
            assert interval is None
        else:
            assert interval[0] < mean < interval[1]
    assert (row["gain"]["ci"] is None) == (num_tasks == num_lanes == 1)
    assert row["interval_over"] == ("tasks" if num_tasks > 1 else "episodes")


def test_the_interval_of_one_task_is_that_of_its_lanes():
    returns = np.random.default_rng(0).standard_normal((1, 2, 20))
    episodes = Episodes(returns.mean(-1), lane_returns=returns)
    row = Evaluation((Task("t", 0, {}),), episodes).row()
    for k in (0, 1):
        expected = [float(x) for x in bootstrap_interval(returns[0, k])]
        assert row["episodes"][k]["return_ci"] == pytest.approx(expected)
    expected = [float(x) for x in bootstrap_interval(returns[0, 1] - returns[0, 0])]
    assert row["gain"]["ci"] == pytest.approx(expected)


@pytest.mark.parametrize("held_out", [True, False])
def test_repeats_are_independent_runs_of_the_same_tasks(held_out):
    """Each with an adaptation of its own; figures of a task are means over them."""
    suite, num_repeats = cliff_suite(NUM_TASKS), 3
    suite = suite if held_out else replace(suite, train=suite.test)
    config = replace(CONFIG, num_repeats=num_repeats, num_test_episodes=1)
    evaluation = Evaluator(config, suite, 0).evaluate(nop(suite), {})
    assert evaluation.tasks == suite.test.tasks
    for episodes, number in ((evaluation.episodes, NUM_EPISODES), (evaluation.test, 1)):
        lanes = episodes.lane_returns
        assert lanes.shape == (NUM_TASKS, number, num_repeats * NUM_LANES)
        assert len(np.unique(lanes)) == lanes.size
        assert np.array_equal(episodes.returns, lanes.mean(-1))
        assert np.array_equal(episodes.success, episodes.lane_success.mean(-1))
    row = evaluation.row()
    assert row["interval_over"] == ("tasks" if held_out else "repeats")
    assert row["num_tasks"] == len(row["tasks"]) == NUM_TASKS
    assert row["num_repeats"] == num_repeats
    line = evaluation_in_words({"iteration": 5, **row}, 1.0)
    words = "held-out tasks" if held_out else "tasks (as in training)"
    assert line.startswith(f"evaluation at iteration 5, {NUM_TASKS} {words}, 3 times each: return ")


def test_the_interval_over_repeats_draws_them_within_each_task():
    """Two tasks far apart: how far says nothing of how well their mean is known."""
    apart = np.array([0.0, 1000.0])[:, None, None]
    returns = apart + np.random.default_rng(0).standard_normal((2, 2, 40))
    tasks = (Task("t-0", 0, {}), Task("t-1", 1, {}))
    episodes = Episodes(returns.mean(-1), lane_returns=returns)
    of = {"num_available": 2, "held_out": False, "num_repeats": 20}
    row = Evaluation(tasks, episodes, **of).row()
    each = returns.reshape(2, 2, 20, 2).mean(-1)  # [tasks, episodes, repeats]
    for values, figures in (
        (each[:, 0], row["episodes"][0]["return_ci"]),
        (each[:, 1] - each[:, 0], row["gain"]["ci"]),
    ):
        half = 1.96 * np.sqrt((values.var(-1) / 20).sum()) / 2
        centre = values.mean()
        assert figures == pytest.approx([centre - half, centre + half], abs=0.2 * half)


def test_pooled_repeats_are_lanes_of_their_own_task():
    rng = np.random.default_rng(0)
    lanes = rng.standard_normal((6, 2, 3))  # two tasks, three times over
    steps = rng.integers(9, size=(6, 2))
    solved = lanes > 0
    first = solved[..., 0], steps
    means = (lanes.mean(-1), solved.mean(-1), solved.mean(-1))
    pooled = Episodes(*means, *first, lanes, solved, solved).pooled(3)
    for task in (0, 1):
        own = [lanes[task + 2 * repeat] for repeat in range(3)]
        assert np.array_equal(pooled.lane_returns[task], np.concatenate(own, axis=-1))
        assert pooled.returns[task] == pytest.approx(np.mean(own, axis=(0, 2)))
    assert np.array_equal(pooled.first_lane_steps, steps[:2])
    assert np.array_equal(pooled.first_lane_success, solved[:2, :, 0])


@pytest.mark.parametrize(
    ("suite", "lanes", "asked", "used"),
    [
        ("half-cheetah-dir", 1, {}, 10),
        ("half-cheetah-dir", 1, {"num_lanes": 3}, 1),
        ("half-cheetah-dir", 1, {"num_lanes": 3, "num_repeats": 4}, 4),
        ("half-cheetah-dir", 7, {}, 10),
        ("half-cheetah-dir", 7, {"num_lanes": 3}, 10),
        ("point-corners", 1, {}, 5),
        ("cartpole", 1, {}, 1),
        ("cartpole", 7, {}, 20),
        ("point-goal", 7, {}, 1),
        ("point-goal", 7, {"num_repeats": 2}, 2),
    ],
)
def test_the_only_few_tasks_are_run_20_times_in_all(suite, lanes, asked, used):
    """Lanes asked for are such runs, but where several share an adaptation.

    A single task has 20 lanes; held-out tasks are draws, of which there are others.
    """
    made = make_suite(suite)
    algorithm = nop(made)
    algorithm.lanes_per_task = lanes
    evaluator = Evaluator(EvaluatorConfig(**asked), made, 0)
    assert evaluator.protocol(algorithm).get("num_repeats", 1) == used


@pytest.mark.parametrize(
    ("name", "settings", "held_out"),
    [
        ("point-goal", {}, True),
        ("bandit", {}, True),
        ("half-cheetah-vel", {}, True),
        ("half-cheetah-dir", {}, False),
        ("point-corners", {}, False),
        ("cartpole", {}, False),
        ("gym:CartPole-v1", {}, False),
    ],
)
def test_tasks_that_were_trained_on_are_not_held_out(name, settings, held_out):
    suite = make_suite(name, **settings)
    assert suite.held_out is held_out


def test_tasks_are_compared_by_their_parameters():
    def suite(test):
        train = TaskList("train", [{"goal": np.array([0.0, 1.0])}, {"goal": np.array([1.0, 0.0])}])
        return replace(cliff_suite(), train=train, test=TaskList("test", test))

    assert not suite([{"goal": [1.0, 0.0]}]).held_out
    assert suite([{"goal": [1.0, 0.5]}]).held_out


@pytest.mark.parametrize(("num_tasks", "lanes", "used"), [(1, 1, 20), (1, 7, 7), (2, 1, 1)])
def test_a_suite_of_a_single_task_is_evaluated_in_20_episodes(num_tasks, lanes, used):
    suite = cliff_suite(num_tasks)
    algorithm = nop(suite)
    algorithm.lanes_per_task = lanes
    evaluator = Evaluator(EvaluatorConfig(), suite, 0)
    assert evaluator.protocol(algorithm)["num_lanes"] == used
    lanes = evaluator.evaluate(algorithm, {}).episodes.lane_returns
    assert lanes.shape == (num_tasks, 3, used)


def test_more_tasks_than_are_held_out_are_refused():
    with pytest.raises(ConfigError, match="num_tasks 7 is more than the 6 held-out tasks of cliff"):
        Evaluator(EvaluatorConfig(num_tasks=7), cliff_suite(6), 0)


@pytest.mark.parametrize(("held_out", "used"), [(6, 6), (20, 20), (30, 20)])
def test_by_default_there_are_20_tasks_or_all_of_fewer(held_out, used):
    assert Evaluator(EvaluatorConfig(), cliff_suite(held_out), 0).num_tasks == used


@pytest.mark.parametrize(
    ("trained", "asked", "used"), [(None, None, 3), (2, None, 2), (5, None, 3), (2, 4, 4)]
)
def test_by_default_there_are_as_many_episodes_as_the_suites_protocol_says_or_fewer_if_trained_so(
    trained, asked, used
):
    suite = make_suite("point-goal")
    assert suite.spec.trial_episodes == 3
    algorithm = nop(suite)
    algorithm.trained_episodes = trained
    evaluator = Evaluator(EvaluatorConfig(num_tasks=1, num_episodes=asked), suite, 0)
    assert evaluator.protocol(algorithm)["num_episodes"] == used
    with warnings_within() as warned:
        assert evaluator.evaluate(algorithm, {}).returns.shape == (1, used)
    assert len(warned) == (asked is not None)


def test_that_episodes_are_more_than_trained_for_is_told_once_of_several_evaluations():
    """As Python shows warnings: one text from one place once."""
    suite = make_suite("point-goal")
    algorithm = nop(suite)
    algorithm.trained_episodes = 2
    evaluator = Evaluator(EvaluatorConfig(num_tasks=1, num_episodes=5), suite, 0)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        evaluator.evaluate(algorithm, {})
        evaluator.evaluate(algorithm, {})
    assert [str(x.message)[:26] for x in shown] == ["5 episodes on a task are m"]


@pytest.mark.parametrize(
    ("trained", "asked", "used", "warns"),
    [
        (None, None, 3, False),
        (2, None, 1, False),
        (9, None, 3, False),
        (1, None, 1, True),
        (3, 2, 2, False),
        (3, 3, 3, True),
    ],
)
def test_a_test_is_one_of_the_episodes_that_an_algorithm_is_trained_on(trained, asked, used, warns):
    """Or the MAML family would be tested after a gradient step that it is not trained for."""
    suite = make_suite("point-goal")
    algorithm = nop(suite)
    algorithm.trained_episodes = trained
    config = EvaluatorConfig(num_tasks=1, num_episodes=asked, num_test_episodes=2)
    evaluator = Evaluator(config, suite, 0)
    assert evaluator.protocol(algorithm)["num_episodes"] == used
    with warnings_within() as warned:
        evaluator.evaluate(algorithm, {})
    assert [message.startswith(f"{used + 1} episodes") for message in warned] == [True] * warns


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda: EvaluatorConfig(num_tasks=1.0), "num_tasks: expected int, not 1.0"),
        (lambda: EvaluatorConfig(num_lanes=2.5), "num_lanes: expected int, not 2.5"),
        (lambda: EvaluatorConfig(deterministic="no"), "deterministic: expected bool, not 'no'"),
        (lambda: Evaluator(None, cliff_suite(), 0), "takes an EvaluatorConfig, not None"),
        (lambda: Evaluator(CONFIG, "cartpole", 0), "takes a Suite, not 'cartpole'"),
        (lambda: Evaluator(CONFIG, cliff_suite(), 1.5), "a seed must be a whole number, not 1.5"),
    ],
)
def test_what_cannot_be_evaluated_by_is_one_clear_line(change, problem):
    with pytest.raises(ConfigError, match=problem):
        change()


def test_an_algorithm_for_other_environments_is_not_evaluated():
    with pytest.raises(ConfigError, match="made for other environments than"):
        Evaluator(CONFIG, cliff_suite(), 0).evaluate(nop(make_suite("cartpole")), {})


def test_tasks_that_do_not_fit_side_by_side_are_run_in_turn_and_told_of_where_they_cannot():
    suite, algorithm = replace(cliff_suite(), max_slots=4), nop(cliff_suite())
    for num_lanes, warned in ((2, 0), (4, 0), (5, 1)):
        evaluator = Evaluator(replace(CONFIG, num_lanes=num_lanes), suite, 0)
        with warnings_within() as told:
            evaluator.check_size(algorithm)
        assert len(told) == warned


@pytest.mark.parametrize("name", ["promp", "trpo-maml", "vpg-maml", "dice-maml"])
@pytest.mark.parametrize("num_inner_steps", [1, 2, 3])
def test_the_maml_family_is_judged_after_as_many_steps_as_it_trains_for(name, num_inner_steps):
    suite = make_suite("point-goal")
    settings = {"num_inner_steps": num_inner_steps, "num_episodes": 2}
    algorithm = make_algorithm(name, suite.spec, **settings)
    used = Evaluator(EvaluatorConfig(), suite, 0).protocol(algorithm)["num_episodes"]
    assert used == min(num_inner_steps + 1, suite.spec.trial_episodes)


def test_tasks_that_cannot_be_listed_are_drawn_the_same_every_time():
    suite = cliff_suite()

    def draw(rng):
        return {"goal": rng.standard_normal(2).astype(np.float32)}

    suite = replace(suite, test=TaskRange("endless", draw))
    evaluator = Evaluator(CONFIG, suite, 0)
    goals = [
        [task.params["goal"].tolist() for task in evaluator.evaluate(nop(suite), {}).tasks]
        for _ in range(2)
    ]
    assert goals[0] == goals[1]
    assert len({tuple(goal) for goal in goals[0]}) == NUM_TASKS


def test_lanes_are_those_that_the_algorithm_adapts_with_unless_told(collected):
    suite = cliff_suite()
    algorithm = nop(suite)
    for num_lanes, expected in ((None, 5), (2, 2)):
        algorithm.lanes_per_task = 5
        config = EvaluatorConfig(num_tasks=NUM_TASKS, num_lanes=num_lanes, num_episodes=1)
        Evaluator(config, suite, 0).evaluate(algorithm, {})
        assert collected[-1].valid.shape[:2] == (NUM_TASKS, expected)


@pytest.mark.parametrize(
    ("test", "words"),
    [(0, r"in episode 3 \(first -[\d.]+\)"), (2, r"in the test episodes \(first -[\d.]+\)")],
)
def test_the_line_about_an_evaluation_tells_what_counts(test, words):
    suite = cliff_suite()
    evaluator = Evaluator(replace(CONFIG, num_test_episodes=test), suite, 0)
    row = {"iteration": 7, **evaluator.evaluate(nop(suite), {}).row()}
    line = evaluation_in_words(row, 1.0)
    assert re.search(words, line)
    last = row["test"] if test else row["episodes"][-1]
    assert f": return {last['return_mean']:.4g} [" in line
