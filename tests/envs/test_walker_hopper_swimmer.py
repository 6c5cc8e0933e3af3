from __future__ import annotations

import copy

import mujoco
import numpy as np
import pytest
from families import (
    DYNAMICS,
    body,
    family,
    gymnasium_model,
    mujoco_step,
    random_actions,
    some_tasks,
    started,
    states,
)

from adaptax.envs.physics.body import Physics
from adaptax.envs.task import Task
from adaptax.experiment.build import make_suite

BODIES = {
    "walker-vel": ("Walker2d-v5", 8, 0.016),
    "walker-params": ("Walker2d-v5", 5, 0.01),
    "hopper-params": ("Hopper-v5", 4, 0.008),
    "swimmer-vel": ("Swimmer-v5", 4, 0.04),
}
"""Gymnasium's body, frame skip, and seconds of a step."""


def with_factors(model: mujoco.MjModel, params) -> mujoco.MjModel:
    """What the task is about, done by hand to Gymnasium's model."""
    model = copy.copy(model)
    for name in ("body_mass", "body_inertia", "dof_damping", "geom_friction"):
        if name in params:
            getattr(model, name)[:] = params[name] * getattr(model, name)
    mujoco.mj_setConst(model, mujoco.MjData(model))
    return model


def expected_reward(name: str, task: Task, velocity: float, action: np.ndarray) -> float:
    squares = float(np.sum(action.astype(np.float64) ** 2))
    if name == "walker-vel":
        return -abs(velocity - task.params["target"]) + 15.0 - 1e-3 * squares
    if name == "swimmer-vel":
        return -abs(velocity - task.params["target"]) - 1e-4 * squares
    return velocity + 1.0 - 1e-3 * squares


@pytest.mark.parametrize("name", BODIES)
def test_reward_and_observation_equal_a_hand_computation(name):
    task = some_tasks(family(name), 3)[2]
    pool = started(family(name), 1, tasks=[task])
    env_id, frame_skip, seconds = BODIES[name]
    model = with_factors(gymnasium_model(env_id), task.params)
    num_steps = 0
    for action in random_actions(pool.spec.action.size, 20, 1):
        before = states(pool)[0]
        result = pool.step(np.arange(1), action)
        data = mujoco_step(model, before, action[0], frame_skip)
        velocity = (data.qpos[0] - before[1]) / seconds
        expected = expected_reward(name, task, velocity, action[0])
        assert result.reward[0] == pytest.approx(expected, abs=1e-5)
        obs = [data.qpos[1:], np.clip(data.qvel, -10, 10)]
        if name == "swimmer-vel":
            obs = [data.qpos[2:], data.qvel]
        np.testing.assert_array_equal(result.next_obs[0], np.concatenate(obs).astype(np.float32))
        num_steps += 1
        if result.terminated[0]:
            break
    assert num_steps >= 5


@pytest.mark.parametrize(
    ("name", "changes", "terminated"),
    [
        ("walker-vel", {}, False),
        ("walker-vel", {"height": 0.79}, True),
        ("walker-vel", {"height": 2.01}, True),
        ("walker-vel", {"angle": 0.99}, False),
        ("walker-vel", {"angle": -1.01}, True),
        ("walker-vel", {"speed": 150.0}, False),
        ("walker-params", {"height": 0.79}, True),
        ("walker-params", {"angle": 1.01}, True),
        ("hopper-params", {}, False),
        ("hopper-params", {"height": 0.69}, True),
        ("hopper-params", {"height": 3.0}, False),
        ("hopper-params", {"angle": 0.19}, False),
        ("hopper-params", {"angle": -0.21}, True),
        ("hopper-params", {"speed": 99.0}, False),
        ("hopper-params", {"speed": -101.0}, True),
    ],
)
def test_termination_is_that_of_the_originals(name, changes, terminated):
    """The states are made up, as real ones do not stay as they are put."""
    walker = body(family(name).make_pool(1))
    qpos, qvel = walker.model.qpos0.copy(), np.zeros(walker.model.nv)
    qpos[1] = changes.get("height", 1.25)
    qpos[2] = changes.get("angle", 0.0)
    qvel[0] = changes.get("speed", 0.0)
    state, params = Physics(qpos, qvel, {}), {"target": np.zeros(())}
    outcome = walker.outcome(state, np.zeros(walker.model.nu), state, params)
    assert bool(outcome.terminated) == terminated


@pytest.mark.parametrize("name", DYNAMICS)
def test_factors_are_drawn_for_every_entry_within_the_originals_bounds(name):
    suite = make_suite(name, num_test_tasks=200)
    model = gymnasium_model(BODIES[name][0])
    for field, base in {
        "body_mass": 1.5,
        "body_inertia": 1.5,
        "dof_damping": 1.3,
        "geom_friction": 1.5,
    }.items():
        factors = np.array([task.params[field] for task in suite.test.tasks])
        assert factors.shape == (200, *getattr(model, field).shape)
        exponents = np.log(factors) / np.log(base)
        assert np.abs(exponents).max() <= 3.0
        assert exponents.std() == pytest.approx(3.0 / np.sqrt(3.0), rel=0.05)
        assert exponents.mean() == pytest.approx(0.0, abs=0.2)


@pytest.mark.parametrize("name", DYNAMICS)
def test_factors_of_one_leave_the_body_as_it_is(name):
    suite = family(name)
    ones = {key: np.ones_like(value) for key, value in some_tasks(suite, 1)[0].params.items()}
    pool = started(suite, 1, tasks=[Task("nominal", 0, ones)])
    env_id, frame_skip, _ = BODIES[name]
    for action in random_actions(pool.spec.action.size, 5, 1):
        before = states(pool)[0]
        pool.step(np.arange(1), action)
        data = mujoco_step(gymnasium_model(env_id), before, action[0], frame_skip)
        np.testing.assert_array_equal(states(pool)[0, 1:], [*data.qpos, *data.qvel])


@pytest.mark.parametrize("name", DYNAMICS)
def test_log_scale_bounds_the_factors(name):
    tasks = make_suite(name, log_scale=0.5).test.tasks
    masses = np.concatenate([task.params["body_mass"] for task in tasks])
    assert 1.5**-0.5 <= masses.min() < 1.0 < masses.max() <= 1.5**0.5


def test_the_walkers_frame_skip_sets_the_length_of_a_step():
    """VariBAD's 4 substeps: 0.008 s."""
    suite = make_suite("walker-params", frame_skip=4, num_threads=1)
    pool = started(suite, 1)
    before = states(pool)[0]
    result = pool.step(np.arange(1), np.zeros((1, 6)))
    after = states(pool)[0]
    assert after[0] == pytest.approx(0.008)
    assert result.info["velocity"][0] == pytest.approx((after[1] - before[1]) / 0.008, abs=1e-6)


def test_velocity_ranges_are_promps():
    walker = [task.params["target"] for task in family("walker-vel").test.tasks]
    swimmer = [task.params["target"] for task in family("swimmer-vel").test.tasks]
    assert 0.0 <= min(walker) < 1.0 and 9.0 < max(walker) <= 10.0
    assert 0.1 <= min(swimmer) < 0.11 and 0.19 < max(swimmer) <= 0.2


@pytest.mark.parametrize("name", BODIES)
def test_protocol_is_pearls(name):
    assert (family(name).spec.horizon, family(name).spec.trial_episodes) == (200, 3)
