from __future__ import annotations

import numpy as np
import pytest
from metaworld.env_dict import ALL_V3_ENVIRONMENTS, ML10_V3, ML25_V3, MT25_V3

from adaptax.core.errors import ConfigError, EnvironmentFault
from adaptax.envs.registry import find_suite
from adaptax.envs.suites.metaworld.env import MetaWorldEnv
from adaptax.envs.suites.metaworld.suite import _check_disjoint
from adaptax.experiment.build import make_suite
from adaptax.experiment.evaluator import Evaluator, EvaluatorConfig
from adaptax.sampling.actors import UniformActor
from adaptax.sampling.sampler import Sampler

HORIZON = 12


@pytest.fixture(scope="module")
def ml1():
    return make_suite("ml1-reach-v3", horizon=HORIZON, num_workers=0)


@pytest.fixture(scope="module")
def ml10():
    return make_suite("ml10", horizon=HORIZON, num_workers=0)


@pytest.fixture(scope="module", params=[None, 0], ids=["in the program", "in Python"])
def either(request):
    return make_suite("ml10", horizon=HORIZON, num_workers=request.param)


def goals(distribution):
    return {np.asarray(task.params["rand_vec"]).tobytes() for task in distribution.tasks}


def test_training_and_test_goals_are_apart(ml1):
    assert len(goals(ml1.train)) == len(goals(ml1.test)) == 50
    assert not goals(ml1.train) & goals(ml1.test)
    shared = {"reach-v3": np.arange(6.0).reshape(2, 3)}
    with pytest.raises(ConfigError, match="2 goals of reach-v3 are in training and in test"):
        _check_disjoint(shared, shared)


def test_episodes_longer_than_meta_worlds_are_refused():
    with pytest.raises(ConfigError, match="horizon 501 is over the 500 steps"):
        make_suite("ml1-reach-v3", horizon=501)


def test_ml10_has_10_classes_to_train_on_and_5_others(ml10):
    train = [task.class_name for task in ml10.train.tasks]
    test = [task.class_name for task in ml10.test.tasks]
    assert list(dict.fromkeys(train)) == list(ML10_V3["train"])
    assert list(dict.fromkeys(test)) == list(ML10_V3["test"])
    assert {train.count(name) for name in train} == {test.count(name) for name in test} == {50}
    assert (len(set(train)), len(set(test)), len(set(train) & set(test))) == (10, 5, 0)


def test_tasks_are_drawn_as_many_of_each_class_in_their_order(ml10):
    order = [task.class_name for task in ml10.train.tasks[:10]]
    sampler = Sampler(ml10, ml10.train, 0, "test")
    drawn = [task for _ in range(25) for task in sampler.sample_tasks(20)]
    assert [task.class_name for task in drawn] == order * 50
    assert len({task.name for task in drawn}) == 500
    for draw in (sampler.sample_tasks, lambda n: ml10.train.sample(np.random.default_rng(0), n)):
        with pytest.raises(ValueError, match="a multiple of the suite's 10 classes of tasks, not"):
            draw(15)


def test_goals_are_hidden(either):
    sampler = Sampler(either, either.train, 0, "test")
    rollout = sampler.episodes(UniformActor(either.spec.action), sampler.sample_tasks(10), 1, 1)
    assert rollout.obs.shape == (10, 1, HORIZON, 39)
    np.testing.assert_array_equal(rollout.obs[..., -3:], 0.0)
    np.testing.assert_array_equal(rollout.next_obs[..., -3:], 0.0)
    np.testing.assert_array_equal(rollout.obs[:, :, 1:, 18:36], rollout.obs[:, :, :-1, :18])
    assert not rollout.terminated.any()
    np.testing.assert_array_equal(rollout.truncated.sum(-1), 1)


def test_mt10_shows_the_goal_and_the_class():
    suite = make_suite("mt10", horizon=HORIZON, num_workers=0)
    sampler = Sampler(suite, suite.train, 0, "test")
    tasks = sampler.sample_tasks(10)
    rollout = sampler.episodes(UniformActor(suite.spec.action), tasks, 1, 1)
    assert suite.spec.observation_size == 49
    np.testing.assert_array_equal(rollout.obs[:, 0, 0, 39:], np.eye(10))
    assert tasks[0].class_name == "reach-v3"
    goal = np.asarray(tasks[0].params["rand_vec"][-3:], np.float32)
    np.testing.assert_array_equal(rollout.obs[0, 0, :, 36:39], np.tile(goal, (HORIZON, 1)))


def class_names(distribution):
    return list(dict.fromkeys(task.class_name for task in distribution.tasks))


def one_goal(names, seed):
    """In place of the goals: as many zeros as distinguish the classes and the seed."""
    return {name: np.full((1, 3), float(i + 100 * seed)) for i, name in enumerate(names)}


def test_the_other_benchmarks_have_metaworlds_classes(monkeypatch):
    monkeypatch.setattr("adaptax.envs.suites.metaworld.suite.benchmark_goals", one_goal)
    monkeypatch.setattr("adaptax.envs.suites.metaworld.suite._check_disjoint", lambda *_: None)
    ml25, mt25, mt50 = (make_suite(name, num_workers=0) for name in ("ml25", "mt25", "mt50"))
    assert class_names(ml25.train) == list(ML25_V3["train"])
    assert class_names(ml25.test) == list(ML25_V3["test"])
    assert class_names(mt25.train) == list(MT25_V3)
    assert class_names(mt50.train) == list(ALL_V3_ENVIRONMENTS)
    assert (mt25.spec.observation_size, mt50.spec.observation_size) == (39 + 25, 39 + 50)
    # Which all have to be in an evaluation, as often.
    numbers = [Evaluator(EvaluatorConfig(), suite, 0).num_tasks for suite in (ml25, mt25, mt50)]
    assert numbers == [5, 25, 50]


def test_some_classes_have_the_goals_that_they_have_among_all(ml10):
    some = make_suite(
        "ml10", classes=("push-v3", "reach-v3"), test_classes=("door-close-v3",), num_workers=0
    )
    assert class_names(some.train) == ["reach-v3", "push-v3"]  # in the benchmark's order
    assert class_names(some.test) == ["door-close-v3"]
    assert some.spec.num_classes == 2
    assert goals(some.train) < goals(ml10.train)
    assert goals(some.test) < goals(ml10.test)
    assert len(goals(some.train)) == 100


def test_classes_may_be_joined_by_commas(monkeypatch):
    monkeypatch.setattr("adaptax.envs.suites.metaworld.suite.benchmark_goals", one_goal)
    suite = make_suite("mt10", classes=("reach-v3,door-open-v3",), num_workers=0)
    assert class_names(suite.train) == ["reach-v3", "door-open-v3"]
    assert suite.spec.observation_size == 39 + 2


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("ml10", {"classes": ("reach",)}, "class among ml10's training classes 'reach'; did you"),
        ("ml10", {"classes": ("lever-pull-v3",)}, "training classes 'lever-pull-v3' "),
        ("ml10", {"test_classes": ("reach-v3",)}, "class among ml10's test classes 'reach-v3'"),
        ("mt10", {"classes": ("reach-v3", "reach-v3")}, "named twice: reach-v3, reach-v3"),
        ("mt10", {"test_classes": ("reach-v3",)}, "unknown setting 'suite.test_classes'"),
        ("ml1-reach-v3", {"classes": ("reach-v3",)}, "unknown setting 'suite.classes'"),
    ],
)
def test_a_wrong_choice_of_classes_is_one_line(name, settings, message):
    with pytest.raises(ConfigError, match=message) as error:
        make_suite(name, **settings)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_workers_change_nothing(ml10):
    remote = make_suite("ml10", horizon=HORIZON, num_workers=3)
    rollouts = []
    for suite in (ml10, remote):
        sampler = Sampler(suite, suite.train, 0, "test")
        actor = UniformActor(suite.spec.action)
        rollouts.append(sampler.episodes(actor, sampler.sample_tasks(10), 1, 2))
        sampler.close()
    for name in ("obs", "next_obs", "reward", "truncated"):
        np.testing.assert_array_equal(getattr(rollouts[0], name), getattr(rollouts[1], name))


def test_an_unfinished_episode_goes_on_after_a_restore(either):
    actor = UniformActor(either.spec.action)
    sampler = Sampler(either, either.train, 0, "test")
    tasks = sampler.sample_tasks(10)
    sampler.steps(actor, tasks, 1, HORIZON + 5)
    saved = sampler.save()
    expected = sampler.steps(actor, tasks, 1, 10)
    again = Sampler(either, either.train, 0, "test")
    again.restore(saved)
    result = again.steps(actor, tasks, 1, 10)
    for name in ("obs", "next_obs", "reward", "truncated"):
        np.testing.assert_array_equal(getattr(result, name), getattr(expected, name))
    assert expected.truncated.sum() == 10


def test_nothing_is_built_anew_when_only_the_goal_changes(ml10, monkeypatch):
    sampler = Sampler(ml10, ml10.train, 0, "test")
    actor = UniformActor(ml10.spec.action)
    sampler.episodes(actor, sampler.sample_tasks(10), 1, 1)
    monkeypatch.setattr("adaptax.envs.suites.metaworld.env.Simulator", None)
    rollout = sampler.episodes(actor, sampler.sample_tasks(10), 1, 1)
    assert rollout.valid.all()


def test_success_is_reported(ml1):
    env, task = MetaWorldEnv(), ml1.train.tasks[0]
    env.reset(options=dict(task.params))
    target = np.asarray(task.params["rand_vec"])[-3:]
    infos = []
    for _ in range(100):
        *_, info = env.step(np.append(10 * (target - env.data.body("hand").xpos), -1.0))
        infos.append(info["success"])
    assert (infos[0], infos[-1]) == (0.0, 1.0)


@pytest.mark.parametrize("name", ["ml1-reach", "ml1-"])
def test_an_unknown_task_is_named_with_the_nearest(name):
    with pytest.raises(ConfigError, match=r"unknown Meta-World task '.*' ?.*\(allowed: assembly"):
        make_suite(name)
    if name == "ml1-reach":
        with pytest.raises(ConfigError, match="did you mean 'reach-v3'"):
            make_suite(name)
    assert find_suite(name).name == name


def test_what_was_saved_inside_the_program_does_not_go_on_outside_nor_the_other_way_round():
    inside, outside = (
        make_suite("ml1-reach-v3", horizon=HORIZON, num_workers=n) for n in (None, 0)
    )
    for suite, other, told in (
        (inside, outside, "cannot go on outside one: .* and without --suite.num-workers"),
        (outside, inside, "cannot go on inside one: resume with --suite.num-workers 1"),
    ):
        sampler = Sampler(suite, suite.train, 0, "test")
        sampler.steps(UniformActor(suite.spec.action), sampler.sample_tasks(1), 1, 5)
        with pytest.raises(EnvironmentFault, match=told):
            Sampler(other, other.train, 0, "test").restore(sampler.save())


def test_threads_and_workers_are_not_given_both():
    with pytest.raises(ConfigError, match="num_threads is of the compiled program"):
        make_suite("ml1-reach-v3", num_threads=2, num_workers=1)
