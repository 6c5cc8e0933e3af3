from __future__ import annotations

import gymnasium
import mujoco
import numpy as np
import pytest
from families import family, gymnasium_model, mujoco_step, put, random_actions, started, states

from adaptax.envs.task import Task
from adaptax.experiment.build import make_suite

TASKS = {
    "ant-vel": Task("t", 0, {"target": 1.4}),
    "ant-dir": Task("t", 0, {"direction": -1.0}),
    "ant-dir-2d": Task("t", 0, {"angle": 2.0}),
    "ant-goal": Task("t", 0, {"goal": np.array([1.0, -2.5])}),
}


def expected_reward(name: str, before: np.ndarray, after: np.ndarray, action: np.ndarray) -> float:
    """The originals' formulas, one lane; positions are (x, y)."""
    velocity, squares = (after - before) / 0.05, float(np.sum(action.astype(np.float64) ** 2))
    if name == "ant-vel":
        return -abs(velocity[0] - 1.4) + 1.0 - 0.5e-2 * squares + 0.05
    if name == "ant-dir":
        return -velocity[0] - 0.5 * squares + 1.0
    if name == "ant-dir-2d":
        return np.dot(velocity, (np.cos(2.0), np.sin(2.0))) - 0.5 * squares + 1.0
    return -abs(after[0] - 1.0) - abs(after[1] + 2.5) - 0.1 * squares


@pytest.mark.parametrize("name", TASKS)
def test_reward_and_observation_equal_a_hand_computation(name):
    pool = started(family(name), 1, tasks=[TASKS[name]])
    model = gymnasium_model("Ant-v5")
    first = 0 if name == "ant-goal" else 2
    for action in random_actions(8, 20, 1):
        before = states(pool)[0]
        result = pool.step(np.arange(1), action)
        data = mujoco_step(model, before, action[0], 5)
        expected = expected_reward(name, before[1:3], data.qpos[:2], action[0])
        assert result.reward[0] == pytest.approx(expected, abs=1e-5)
        obs = np.concatenate([data.qpos[first:], data.qvel]).astype(np.float32)
        np.testing.assert_array_equal(result.next_obs[0], obs)


def test_direction_rewards_parts_are_ant_v5s_without_contacts():
    """Ant-v5 reads the torso off the last Runge-Kutta stage: measured, up to 0.06 m/s beside."""
    env = gymnasium.make("Ant-v5", contact_cost_weight=0.0).unwrapped
    env.reset(seed=0)
    pool = started(family("ant-dir"), 1, tasks=[Task("forwards", 0, {"direction": 1.0})])
    for action in random_actions(8, 25, 1):
        start = states(pool)[0]
        result = pool.step(np.arange(1), action)
        env.set_state(start[1:16], start[16:])
        _, _, terminated, _, info = env.step(action[0])
        velocity = result.info["velocity"][0]
        rest = info["reward_ctrl"] + info["reward_survive"]
        assert result.reward[0] - velocity == pytest.approx(rest, abs=1e-5)
        assert velocity == pytest.approx(info["reward_forward"], abs=0.1)
        assert result.terminated[0] == terminated


@pytest.mark.parametrize("height", [0.0, 1.6])
@pytest.mark.parametrize("name", TASKS)
def test_an_unhealthy_height_terminates_all_but_the_goal_family(name, height):
    pool = started(family(name), 1)
    state = states(pool)[0]
    state[3] += height
    put(pool, state, TASKS[name])
    result = pool.step(np.arange(1), np.zeros((1, 8)))
    assert result.terminated[0] == (height > 1.0 and name != "ant-goal")
    assert not result.truncated[0]


def test_contact_forces_are_plain_mujocos_and_cost_reward():
    """Each part's normal forces at the last forward pass, summed by hand from the contacts."""
    name = "ant-dir"
    pool = started(make_suite(name, contact_forces=True, num_threads=1), 1, tasks=[TASKS[name]])
    plain = started(family(name), 1, tasks=[TASKS[name]])
    model, touched = gymnasium_model("Ant-v5"), 0
    for action in random_actions(8, 25, 1):
        before = states(pool)[0]
        result = pool.step(np.arange(1), action)
        put(plain, before, TASKS[name])
        without = plain.step(np.arange(1), action)
        forces = np.zeros(14)
        data = mujoco_step(model, before, action[0], 4)
        for i, contact in enumerate(data.contact):
            wrench = np.zeros(6)
            mujoco.mj_contactForce(model, data, i, wrench)
            forces[model.geom_bodyid[contact.geom]] += wrench[0]
        expected = np.minimum(forces[1:], 1.0)
        touched += int((expected > 0).sum())
        np.testing.assert_allclose(result.next_obs[0, 27:], expected, atol=1e-5)
        cost = 5e-4 * np.sum(expected**2)
        assert without.reward[0] - result.reward[0] == pytest.approx(cost, abs=1e-5)
    assert touched > 5


def test_goals_are_uniform_on_the_disc():
    suite = make_suite("ant-goal", radius=2.0, num_test_tasks=2000)
    goals = np.array([task.params["goal"] for task in suite.test.tasks])
    distance = np.linalg.norm(goals, axis=1)
    assert distance.max() <= 2.0
    assert np.mean(distance < 1.0) == pytest.approx(0.25, abs=0.03)
    assert np.abs(goals.mean(axis=0)).max() < 0.1


def test_angles_are_uniform_on_the_circle():
    suite = make_suite("ant-dir-2d", num_test_tasks=2000)
    angles = np.array([task.params["angle"] for task in suite.test.tasks])
    assert 0.0 <= angles.min() < 0.02 and 6.26 < angles.max() <= 2 * np.pi


@pytest.mark.parametrize("name", TASKS)
def test_protocol_is_pearls(name):
    assert (family(name).spec.horizon, family(name).spec.trial_episodes) == (200, 3)
