"""Task sampling, for every distribution of listed tasks."""

from __future__ import annotations

import pickle
from functools import partial

import gymnasium
import numpy as np
import pytest

from adaptax.core.errors import ConfigError
from adaptax.core.rng import named_generator
from adaptax.envs.pools.gym_spaces import reset_options
from adaptax.envs.suites.compiled import compiled_suite
from adaptax.envs.suites.gym import gym_suite, vector_suite
from adaptax.envs.task import ClassTasks, TaskList, TaskRange
from adaptax.experiment.build import make_suite
from adaptax.sampling.actors import UniformActor
from adaptax.sampling.sampler import Sampler


def listed(num: int) -> TaskList:
    return TaskList("t", [{"target": float(i), "goal": np.array([i, 1.0])} for i in range(num)])


@pytest.mark.parametrize("n", [5, 12, 15])
def test_every_task_comes_once_before_any_repeats(n):
    drawn = [task.index for task in listed(5).sample(np.random.default_rng(0), n)]
    assert len(drawn) == n
    for start in range(0, n, 5):
        cycle = drawn[start : start + 5]
        assert len(set(cycle)) == len(cycle)


def test_cycles_come_in_different_orders():
    drawn = [task.index for task in listed(20).sample(np.random.default_rng(0), 40)]
    assert drawn[:20] != drawn[20:]


def test_the_same_generator_draws_the_same_tasks():
    one, other = (listed(9).sample(np.random.default_rng(3), 7) for _ in range(2))
    assert [task.index for task in one] == [task.index for task in other]


def test_tasks_can_be_pickled():
    task = listed(3).tasks[2]
    assert pickle.loads(pickle.dumps(task)).plain() == task.plain() == ["t-2", 2, task.plain()[2]]


def test_a_range_draws_fresh_tasks_from_the_generator_only():
    tasks = TaskRange("r", lambda rng: {"target": float(rng.uniform())})
    one, other = (tasks.sample(np.random.default_rng(1), 50) for _ in range(2))
    assert [t.params for t in one] == [t.params for t in other]
    assert len({t.params["target"] for t in one}) == 50
    assert {t.index for t in one} == {-1}


def test_an_empty_list_is_refused():
    with pytest.raises(ConfigError, match="'none' is empty"):
        TaskList("none", [])


@pytest.mark.parametrize("tasks", [{"goal": 1.0}, "abc", 5, np.array(3.0)])
def test_a_task_in_the_place_of_a_list_of_them_is_refused(tasks):
    with pytest.raises(ConfigError, match=r"must be a list of them, \["):
        TaskList("t", tasks)


def test_tasks_may_come_one_by_one():
    assert TaskList("t", (i for i in range(3))).tasks == TaskList("t", range(3)).tasks


@pytest.mark.parametrize(
    "make", [lambda tasks: TaskList("t", tasks), lambda tasks: ClassTasks("t", {"a": tasks})]
)
def test_a_task_may_be_a_single_value(make):
    assert [task.params["value"] for task in make([7, 8]).tasks] == [7, 8]
    assert make([7, 8]).tasks == make([{"value": 7}, {"value": 8}]).tasks
    assert [task.params["value"] for task in make(["a", np.float32(0.5)]).tasks] == ["a", 0.5]
    with pytest.raises(ConfigError, match="its parameter 'value' is a NoneType"):
        make([None])


def classes_of(tasks):
    return [task.class_name for task in tasks]


CLASSES = ClassTasks("toy", {"b": [{"x": i} for i in range(3)], "a": [{"x": i} for i in range(3)]})


def test_a_list_of_classes_is_balanced_from_its_start():
    assert classes_of(CLASSES.tasks) == ["b", "a"] * 3
    assert [task.params["x"] for task in CLASSES.tasks] == [0, 0, 1, 1, 2, 2]
    assert [task.index for task in CLASSES.tasks] == list(range(6))
    assert [task.name for task in CLASSES.tasks[:2]] == ["toy-b-0", "toy-a-0"]


def test_classes_are_drawn_in_their_order_and_each_task_once_a_round():
    drawn = CLASSES.sample(np.random.default_rng(0), 12)
    assert classes_of(drawn) == ["b", "a"] * 6
    for half in (drawn[:6], drawn[6:]):
        assert {task.name for task in half} == {task.name for task in CLASSES.tasks}
    draws = [CLASSES.sample(np.random.default_rng(seed), 6) for seed in range(9)]
    orders = {tuple(task.index for task in draw) for draw in draws}
    assert len(orders) > 1


def test_a_number_that_leaves_a_class_out_is_refused():
    with pytest.raises(ValueError, match="a multiple of the suite's 2 classes of tasks, not 3"):
        CLASSES.sample(np.random.default_rng(0), 3)


def test_classes_must_have_as_many_tasks_each():
    with pytest.raises(ConfigError, match="must have as many tasks of each class"):
        ClassTasks("toy", {"a": [{}], "b": [{}, {}]})


def test_tasks_without_a_class_have_none():
    assert TaskList("toy", [{"x": 1}]).tasks[0].class_name is None


@pytest.mark.parametrize(
    ("suite", "setting"),
    [
        ("bandit", "num_test_tasks"),
        ("tabular-mdp", "num_test_tasks"),
        ("point-goal", "num_test_tasks"),
        ("walker-params", "num_test_tasks"),
        ("half-cheetah-vel", "num_train_tasks"),
        ("gridworld", "size"),
        ("recall", "num_cues"),
    ],
)
def test_more_tasks_than_can_be_listed_are_refused_at_once(suite, setting):
    with pytest.raises(ConfigError, match="too many to list; at most 1,000,000"):
        make_suite(suite, **{setting: 2_000_000_000})


def test_nobody_else_can_change_a_task():
    """Neither who made its array nor an environment that keeps what `reset` is given."""
    goal = np.zeros(2)
    tasks = TaskList("t", [{"goal": goal, "path": [1.0, 2.0]}])
    before = tasks.tasks[0].plain()
    goal += 1.0
    options = reset_options(tasks.tasks[0].params)
    options["goal"] += 1.0
    options["path"].append(3.0)
    assert tasks.tasks[0].plain() == before == ["t-0", 0, {"goal": [0.0, 0.0], "path": [1.0, 2.0]}]


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (3, "tasks of 't' are drawn by a function of a generator, not 3"),
        (
            lambda rng: {"goal": None},
            "task 't': its parameter 'goal' is a NoneType; param",
        ),
        (lambda rng: {"goal": {}}, "task 't': its parameter 'goal' is a dict; parameters are"),
    ],
)
def test_draws_that_are_no_tasks_are_refused(draw, message):
    with pytest.raises(ConfigError, match=message):
        TaskRange("t", draw).sample(np.random.default_rng(0), 1)


def test_a_number_that_is_drawn_is_a_task():
    (task,) = TaskRange("t", lambda rng: 0.5).sample(np.random.default_rng(0), 1)
    assert task.params == {"value": 0.5}


def test_no_tasks_can_be_drawn_of_a_list():
    assert TaskList("some", [1, 2]).sample(named_generator(0, "a"), 0) == ()


@pytest.mark.parametrize("make", [gym_suite, vector_suite])
def test_gymnasium_environments_take_tasks_that_are_drawn(make):
    def draw(rng):
        return {"low": -float(rng.uniform(0.01, 0.05)), "high": 0.05}

    make_one = partial(gymnasium.make if make is gym_suite else gymnasium.make_vec, "CartPole-v1")
    suite = make("poles", make_one, train=TaskRange("poles", draw), test=[{}])
    sampler = Sampler(suite, suite.train, 0, "train")
    tasks = sampler.sample_tasks(1)
    assert tasks[0].params["low"] != sampler.sample_tasks(1)[0].params["low"]
    rollout = sampler.episodes(UniformActor(suite.spec.action), tasks, 1, 1)
    sampler.close()
    assert np.asarray(rollout.valid).any(-1).all()
    assert suite.test.tasks is not None


@pytest.mark.parametrize("tasks", [None, 3, TaskList, {"goal": 1}])
def test_what_are_no_tasks_is_refused_by_every_kind_of_suite(tasks):
    env = make_suite("cartpole").make_pool(1).env
    with pytest.raises(ConfigError, match="must be a list of them"):
        compiled_suite("none", env, tasks, [{}])
    if tasks is not None:
        with pytest.raises(ConfigError, match="must be a list of them"):
            gym_suite("none", partial(gymnasium.make, "CartPole-v1"), train=tasks)


@pytest.mark.parametrize("name", [None, "", " ", 3])
def test_a_suite_without_a_name_is_refused_by_every_kind_of_suite(name):
    compiled_env = make_suite("cartpole").make_pool(1).env
    with pytest.raises(ConfigError, match=r"^a suite's name is a text"):
        compiled_suite(name, compiled_env, [{}], [{}])
    with pytest.raises(ConfigError, match=r"^a suite's name is a text"):
        gym_suite(name, partial(gymnasium.make, "CartPole-v1"))
    with pytest.raises(ConfigError, match=r"^a suite's name is a text"):
        vector_suite(name, partial(gymnasium.make_vec, "CartPole-v1"))


def test_a_compiled_suite_takes_no_class():
    env = type(make_suite("cartpole").make_pool(1).env)
    with pytest.raises(ConfigError, match="not the class"):
        compiled_suite("none", env, [{}], [{}])


@pytest.mark.parametrize("env", [None, gymnasium.make("CartPole-v1"), gymnasium.Env()])
def test_a_compiled_suite_sends_gymnasium_environments_to_theirs(env):
    with pytest.raises(ConfigError, match=r"^env must be .*gym_suite takes Gymnasium.s.*spec"):
        compiled_suite("none", env, [{}], [{}])
