"""Claims that hold for every locomotion family."""

from __future__ import annotations

import dataclasses
import pickle

import numpy as np
import pytest
from families import (
    FALLING,
    FAMILIES,
    NUM_RECORDS,
    UNENDING,
    assert_same,
    body,
    family,
    models,
    mujoco_step,
    play,
    put,
    random_actions,
    read_golden,
    seeds_from,
    some_tasks,
    started,
    states,
)

from adaptax.core.errors import ConfigError
from adaptax.envs.registry import find_suite
from adaptax.envs.task import Task
from adaptax.experiment.build import make_suite

every_family = pytest.mark.parametrize("name", FAMILIES)
DRAWN = [name for name in FAMILIES if not name.endswith("-dir") or name == "humanoid-dir"]


@every_family
def test_single_steps_equal_the_golden_record(name):
    """1e-5 leaves room for rounding on other processors, none for a wrong sensor or constant."""
    pool, records = family(name).make_pool(1), read_golden(name)
    assert len(records) == NUM_RECORDS
    for record in records:
        params = {key: np.array(value) for key, value in record["task"].items()}
        put(pool, record["state"], Task("golden", 0, params))
        result = pool.step(np.arange(1), np.array([record["action"]]))
        np.testing.assert_allclose(result.next_obs[0], record["obs"], rtol=1e-5, atol=1e-5)
        assert result.reward[0] == pytest.approx(record["reward"], abs=1e-5)
        assert result.terminated[0] == record["terminated"]


@every_family
def test_the_held_out_tasks_are_those_of_the_golden_record(name):
    """The sets are frozen: another one would be another benchmark."""
    _, second = some_tasks(family(name), 2)
    recorded = read_golden(name)[0]["task"]
    assert second.params.keys() == recorded.keys()
    for key, value in second.params.items():
        np.testing.assert_allclose(value, recorded[key], rtol=1e-12)


@every_family
def test_sizes_are_those_of_the_spec(name):
    suite = family(name)
    pool = suite.make_pool(3)
    obs = pool.reset(np.arange(3), seeds_from(0, 3), some_tasks(suite, 3))
    result = pool.step(np.arange(3), np.zeros((3, suite.spec.action.size)))
    assert obs.shape == result.next_obs.shape == (3, suite.spec.observation_size)
    assert set(result.info) == set(suite.spec.info_names)
    assert {x.shape for x in (result.reward, *result.info.values())} == {(3,)}


@every_family
def test_thread_counts_give_equal_bits(name):
    suite = family(name)
    tasks, actions = some_tasks(suite, 5), random_actions(suite.spec.action.size, 20, 5)
    one = play(started(suite, 5), tasks, actions)
    for num_threads in (2, 3):
        other = started(make_suite(name, num_threads=num_threads), 5)
        assert_same(one, play(other, tasks, actions))


@every_family
def test_stepping_some_slots_at_a_time_gives_the_bits_of_stepping_all(name):
    suite = family(name)
    tasks, actions = some_tasks(suite, 5), random_actions(suite.spec.action.size, 20, 5)
    order = np.random.default_rng(1).permuted(np.tile(np.arange(5), (20, 1)), axis=1)
    parts = started(make_suite(name, num_threads=2), 5)
    assert_same(play(started(suite, 5), tasks, actions), play(parts, tasks, actions, order))


@every_family
def test_an_episode_depends_only_on_task_seed_and_actions(name):
    suite = family(name)
    tasks, actions = some_tasks(suite, 4), random_actions(suite.spec.action.size, 20, 4)
    among = play(started(suite, 4), tasks, actions)
    pool = started(suite, 2, seed=90)
    play(pool, tasks[:2], random_actions(suite.spec.action.size, 7, 2, seed=3))
    slot = np.array([1])
    pool.reset(slot, seeds_from(3, 1), [tasks[3]])
    for t in range(20):
        result = pool.step(slot, actions[t, 3:])
        np.testing.assert_array_equal(result.next_obs[0], among["obs"][t, 3])
        assert result.reward[0] == among["reward"][t, 3]
        if result.terminated[0]:
            break
    assert t == 19 or name in FALLING
    assert not np.array_equal(among["obs"][0, 2], among["obs"][0, 3])


@every_family
def test_restore_in_mid_episode_goes_on_bit_for_bit(name):
    suite = family(name)
    tasks, actions = some_tasks(suite, 3), random_actions(suite.spec.action.size, 16, 3)
    pool = started(suite, 3)
    play(pool, tasks, actions[:4])
    saved = pool.save()
    ahead = play(pool, tasks, actions[4:])
    others = some_tasks(suite, 4)[1:]
    for other in (pool, started(make_suite(name, num_threads=2), 3, seed=50, tasks=others)):
        other.restore(saved, tasks)
        assert_same(ahead, play(other, tasks, actions[4:]))


@pytest.mark.parametrize("name", FALLING)
def test_a_fall_terminates_and_is_not_a_truncation(name):
    suite = family(name)
    tasks, actions = some_tasks(suite, 4), random_actions(suite.spec.action.size, 100, 4)
    seen = play(started(suite, 4), tasks, actions)
    assert seen["terminated"].any(axis=0).all()
    assert not seen["truncated"].any()


@pytest.mark.parametrize("name", UNENDING)
def test_episodes_are_cut_at_the_horizon_and_never_terminate(name):
    suite = make_suite(name, horizon=3, num_threads=1)
    tasks, actions = some_tasks(suite, 2), random_actions(suite.spec.action.size, 6, 2)
    seen = play(started(suite, 2), tasks, actions)
    assert seen["truncated"][:, 0].tolist() == [False, False, True] * 2
    assert not seen["terminated"].any()


@every_family
def test_restore_keeps_the_step_count(name):
    suite = make_suite(name, horizon=3, num_threads=1)
    tasks = some_tasks(suite, 1)
    pool, idle = started(suite, 1), np.zeros((1, suite.spec.action.size))
    pool.step(np.arange(1), idle)
    other = started(suite, 1, seed=8)
    other.restore(pool.save(), tasks)
    assert [other.step(np.arange(1), idle).truncated[0] for _ in range(2)] == [False, True]


@every_family
def test_the_state_after_a_step_is_plain_mujocos(name):
    """To the last bit, as both solvers start cold: only bookkeeping separates the two."""
    suite = family(name)
    pool = started(suite, 1)
    limit, model = body(pool).model.actuator_ctrlrange[:, 1], models(pool)[0]
    for action in random_actions(suite.spec.action.size, 5, 1):
        before = states(pool)[0]
        pool.step(np.arange(1), action)
        data = mujoco_step(model, before, limit * action[0], body(pool).frame_skip)
        expected = np.concatenate([[data.time], data.qpos, data.qvel])
        np.testing.assert_array_equal(states(pool)[0], expected)


@pytest.mark.parametrize("name", DRAWN)
def test_task_lists_depend_on_the_task_seed_only(name):
    first, again = make_suite(name, num_train_tasks=4), make_suite(name, num_train_tasks=4)
    other = make_suite(name, num_train_tasks=4, task_seed=1)
    assert first.task_set_hash() == again.task_set_hash() != other.task_set_hash()
    for one, two in zip(first.test.tasks, again.test.tasks, strict=True):
        assert one.plain() == two.plain()


@pytest.mark.parametrize("name", DRAWN)
def test_test_tasks_are_held_out_and_all_tasks_differ(name):
    suite = make_suite(name, num_train_tasks=20)
    plain = [repr(task.plain()[2]) for task in (*suite.train.tasks, *suite.test.tasks)]
    assert len(plain) == len(set(plain)) == 70


@pytest.mark.parametrize("name", DRAWN)
def test_fresh_training_tasks_never_repeat(name):
    suite = family(name)
    assert suite.train.tasks is None
    drawn = suite.train.sample(np.random.default_rng(0), 30)
    assert len({repr(task.plain()) for task in drawn}) == 30


@pytest.mark.parametrize("name", ["half-cheetah-dir", "ant-dir"])
def test_direction_tasks_are_forwards_and_backwards(name):
    suite = family(name)
    assert [task.params["direction"] for task in suite.train.tasks] == [1.0, -1.0]
    assert suite.test.tasks == suite.train.tasks


@every_family
def test_tasks_can_be_pickled(name):
    """A task sent to another process is the same task."""
    for task in some_tasks(family(name), 3):
        assert pickle.loads(pickle.dumps(task)).plain() == task.plain()


@every_family
def test_bad_settings_are_refused_by_name(name):
    config_class, _ = find_suite(name).load()
    bad = {"horizon": 0, "num_threads": -1, "num_train_tasks": 0, "task_seed": -1, "low": 99.0}
    bad |= {"radius": 0.0, "log_scale": 0.0, "frame_skip": 0}
    names = {field.name for field in dataclasses.fields(config_class)} & bad.keys()
    assert {"horizon", "num_threads"} <= names
    for setting in names:
        with pytest.raises(ConfigError, match=setting):
            config_class(**{setting: bad[setting]})
