"""Families whose tasks change the dynamics: every lane of a pool has its task's model."""

from __future__ import annotations

import gc
import weakref

import jax
import numpy as np
import pytest
from families import DYNAMICS, family, models, random_actions, seeds_from, some_tasks, started
from small import SMALL

from adaptax.algorithms.program import iteration_program, stacked
from adaptax.core.errors import ConfigError
from adaptax.envs.task import Task
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.sampling.actors import UniformActor
from adaptax.sampling.sampler import Sampler

every_dynamics_family = pytest.mark.parametrize("name", DYNAMICS)


@every_dynamics_family
def test_a_neighbours_dynamics_change_nothing(name):
    suite = family(name)
    mine, other = some_tasks(suite, 2)
    actions = random_actions(suite.spec.action.size, 20, 1).repeat(2, axis=1)
    same, seeds = np.arange(2), np.full(2, 5, np.uint32)
    alone, beside = suite.make_pool(2), suite.make_pool(2)
    alone.reset(same, seeds, [mine, mine])
    beside.reset(same, seeds, [mine, other])
    differed = False
    for action in actions:
        one, two = alone.step(same, action), beside.step(same, action)
        np.testing.assert_array_equal(one.next_obs[0], two.next_obs[0])
        assert one.reward[0] == one.reward[1] == two.reward[0]
        differed = differed or not np.array_equal(two.next_obs[0], two.next_obs[1])
        if one.terminated[0] or two.terminated[1]:
            break
    assert differed


@every_dynamics_family
def test_a_reset_lane_takes_its_new_tasks_dynamics(name):
    suite = family(name)
    first, second = some_tasks(suite, 2)
    pool, slot = started(suite, 2, tasks=[first, first]), np.array([1])
    pool.reset(slot, seeds_from(7, 1), [second])
    fresh = started(suite, 1, seed=7, tasks=[second])
    for action in random_actions(suite.spec.action.size, 3, 1):
        one, two = pool.step(slot, action), fresh.step(np.arange(1), action)
        np.testing.assert_array_equal(one.next_obs, two.next_obs)


@every_dynamics_family
def test_lanes_of_one_task_share_a_model_that_ends_with_them(name):
    suite = family(name)
    first, second, third = some_tasks(suite, 3)
    twin = Task("twin", 9, {key: value.copy() for key, value in first.params.items()})
    pool = started(suite, 3, tasks=[first, twin, second])
    kept = [weakref.ref(model) for model in models(pool)]
    assert kept[0]() is kept[1]() is not kept[2]()
    pool.reset(np.arange(3), seeds_from(0, 3), [third] * 3)
    gc.collect()  # pools of other tests
    assert [model() for model in kept] == [None] * 3


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside others"])
def test_where_iterations_stand_are_models_that_are_alive(beside):
    """What a program took is let go of after it; the next goes on with the same addresses."""
    suite = make_suite("hopper-params", num_train_tasks=1, num_test_tasks=1)
    algorithm = make_algorithm("sac", suite.spec, **SMALL["sac"])
    state = algorithm.init(jax.random.key(0))
    sampler = Sampler(suite, suite.train, 0, "train")
    program = iteration_program(algorithm, state, sampler, beside_others=True)
    if program is None:
        pytest.skip("without a compiler no iteration is one program")
    if beside:
        algorithms, states = stacked([algorithm] * 2), stacked([state] * 2)
        other = Sampler(suite, suite.train, 1, "train")
        program.run_together(algorithms, states, [sampler, other], 1)
    else:
        program.run(algorithm, state, sampler, 1)
    standing = np.asarray(sampler._standing.tasks["model"]).view(np.uint64).ravel().tolist()
    pools = sampler._pools.values()
    held = {model._address for pool in pools for model in models(pool) if model is not None}
    assert set(standing) <= held


@every_dynamics_family
def test_parameters_of_a_wrong_shape_are_refused(name):
    suite = family(name)
    params = {**some_tasks(suite, 1)[0].params, "body_mass": np.ones(3)}
    with pytest.raises(ConfigError, match=r"'body_mass' of task 'odd' .* \(3,\)"):
        started(suite, 1, tasks=[Task("odd", 0, params)])


@every_dynamics_family
def test_a_refused_task_leaves_nothing_behind(name):
    suite = family(name)
    mine, other = some_tasks(suite, 2)
    pool, fresh, slot = (
        started(suite, 1, tasks=[mine]),
        started(suite, 1, tasks=[mine]),
        np.arange(1),
    )
    half_right = {**other.params, "geom_friction": np.ones(3)}
    with pytest.raises(ConfigError, match="geom_friction"):
        pool.reset(slot, seeds_from(0, 1), [Task("odd", 0, half_right)])
    pool.reset(slot, seeds_from(0, 1), [mine])
    np.testing.assert_array_equal(models(pool)[0].body_mass, models(fresh)[0].body_mass)
    action = random_actions(suite.spec.action.size, 1, 1)[0]
    one, two = pool.step(slot, action), fresh.step(slot, action)
    np.testing.assert_array_equal(one.next_obs, two.next_obs)


@every_dynamics_family
def test_a_restored_sampler_goes_on_exactly_in_mid_episode(name):
    """Tasks come back as other objects with equal parameters, and so must their models."""
    suite = family(name)
    actor = UniformActor(suite.spec.action)
    one, other = (Sampler(suite, suite.train, 0, "train") for _ in range(2))
    tasks = one.sample_tasks(3)
    one.steps(actor, tasks, 2, 15)
    other.restore(one.save())
    copies = tuple(Task(task.name, task.index, dict(task.params)) for task in tasks)
    ahead, again = one.steps(actor, tasks, 2, 15), other.steps(actor, copies, 2, 15)
    assert ahead.terminated.any()
    for field in ("obs", "action", "reward", "next_obs", "terminated", "truncated"):
        np.testing.assert_array_equal(getattr(ahead, field), getattr(again, field))
