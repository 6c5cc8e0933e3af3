from __future__ import annotations

import gymnasium
import mujoco
import numpy as np
import pytest
from families import (
    family,
    gymnasium_model,
    mujoco_step,
    put,
    random_actions,
    seeds_from,
    some_tasks,
    started,
    states,
)

from adaptax.envs.task import Task
from adaptax.experiment.build import make_suite

ANGLE = 0.7
TASK = Task("t", 0, {"angle": ANGLE})
NAME = "humanoid-dir"


def test_reward_equals_a_hand_computation():
    """The centre of mass at the end: its place one substep before, moved on at its velocity."""
    pool = started(family(NAME), 1, tasks=[TASK])
    model = gymnasium_model("Humanoid-v5")
    for action in random_actions(17, 15, 1):
        before = states(pool)[0]
        result = pool.step(np.arange(1), action)
        control = 0.4 * action[0].astype(np.float64)
        start = mujoco_step(model, before, control, 0).subtree_com[1]
        last = mujoco_step(model, before, control, 4)
        mujoco.mj_subtreeVel(model, last)
        end = last.subtree_com[1] + 0.003 * last.subtree_linvel[1]
        velocity = np.dot((end - start)[:2] / 0.015, (np.cos(ANGLE), np.sin(ANGLE)))
        expected = 1.25 * velocity - 0.1 * np.sum(control**2) + 5.0
        assert result.reward[0] == pytest.approx(expected, abs=1e-5)


def test_reward_is_that_of_the_exact_centre_of_mass_but_for_a_hundredth():
    """Measured over 4,000 steps: 0.01 at most, where a foot lands; rewards are about 5."""
    pool = started(family(NAME), 1, tasks=[TASK])
    model = gymnasium_model("Humanoid-v5")
    for action in random_actions(17, 15, 1):
        before = states(pool)[0]
        result = pool.step(np.arange(1), action)
        control = 0.4 * action[0].astype(np.float64)
        start, end = (mujoco_step(model, before, control, n).subtree_com[1] for n in (0, 5))
        velocity = np.dot((end - start)[:2] / 0.015, (np.cos(ANGLE), np.sin(ANGLE)))
        expected = 1.25 * velocity - 0.1 * np.sum(control**2) + 5.0
        assert result.reward[0] == pytest.approx(expected, abs=0.01)


def test_the_first_observation_is_humanoid_v5s_without_contact_forces():
    env = gymnasium.make("Humanoid-v5", include_cfrc_ext_in_observation=False).unwrapped
    env.reset(seed=0)
    pool = family(NAME).make_pool(1)
    obs = pool.reset(np.arange(1), seeds_from(3, 1), [TASK])[0]
    state = states(pool)[0]
    env.set_state(state[1:25], state[25:])
    np.testing.assert_allclose(obs, env.unwrapped._get_obs(), rtol=1e-6, atol=1e-6)


def test_observations_after_a_step_are_plain_mujocos():
    """qpos and qvel of the step's end; the parts' features and torques of one substep before."""
    pool = started(family(NAME), 1, tasks=[TASK])
    model = gymnasium_model("Humanoid-v5")
    for action in random_actions(17, 10, 1):
        before = states(pool)[0]
        obs = pool.step(np.arange(1), action).next_obs[0]
        control = 0.4 * action[0].astype(np.float64)
        data, last = (mujoco_step(model, before, control, n) for n in (5, 4))
        expected = [data.qpos[2:], data.qvel, last.cinert[1:], last.cvel[1:]]
        expected += [last.qfrc_actuator[6:]]
        expected = np.concatenate([x.ravel() for x in expected])
        np.testing.assert_allclose(obs, expected, rtol=1e-5, atol=1e-5)


def test_observations_can_leave_out_the_parts():
    suite = make_suite(NAME, part_features=False, num_threads=1)
    assert (suite.spec.observation_size, family(NAME).spec.observation_size) == (45, 270)
    one, other = started(suite, 2), started(family(NAME), 2)
    for action in random_actions(17, 5, 2):
        short, full = one.step(np.arange(2), action), other.step(np.arange(2), action)
        np.testing.assert_array_equal(short.next_obs, full.next_obs[:, :45])
        np.testing.assert_array_equal(short.reward, full.reward)


@pytest.mark.parametrize(("lift", "terminated"), [(0.0, False), (-0.45, True), (0.7, True)])
def test_an_unhealthy_height_terminates(lift, terminated):
    pool = started(family(NAME), 1)
    state = states(pool)[0]
    state[3] += lift
    put(pool, state, TASK)
    result = pool.step(np.arange(1), np.zeros((1, 17)))
    assert (result.terminated[0], result.truncated[0]) == (terminated, False)


def test_angles_are_uniform_on_the_circle():
    angles = [task.params["angle"] for task in make_suite(NAME, num_test_tasks=2000).test.tasks]
    assert 0.0 <= min(angles) < 0.02 and 6.26 < max(angles) <= 2 * np.pi


def test_protocol_is_pearls():
    assert (family(NAME).spec.horizon, family(NAME).spec.trial_episodes) == (200, 3)
    assert len(some_tasks(family(NAME), 50)) == 50
