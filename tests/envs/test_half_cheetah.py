from __future__ import annotations

from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import scipy.stats
from families import family, put, random_actions, seeds_from, started, states

from adaptax.envs.task import Task
from adaptax.experiment.build import make_suite

FAST = Task("fast", 0, {"target": 1.5})


@pytest.mark.parametrize(("torso_position", "size"), [(True, 20), (False, 17)])
def test_velocity_reward_and_observation_equal_a_hand_computation(torso_position, size):
    suite = family("half-cheetah-vel", torso_position=torso_position)
    pool = started(suite, 1, tasks=[FAST])
    assert pool.spec.observation_size == size
    for action in 1.5 * random_actions(6, 20, 1):
        before = states(pool)[0]
        result = pool.step(np.arange(1), action)
        after = states(pool)[0]
        velocity = (after[1] - before[1]) / 0.05
        cost = 0.05 * np.sum(np.clip(action[0], -1, 1).astype(np.float64) ** 2)
        assert result.reward[0] == pytest.approx(-abs(velocity - 1.5) - cost, abs=1e-6)
        assert result.info["velocity"][0] == pytest.approx(velocity, abs=1e-6)
        assert result.info["control_cost"][0] == pytest.approx(cost, abs=1e-6)
        assert result.next_obs.shape == (1, size)
        np.testing.assert_array_equal(result.next_obs[0, :17], after[2:].astype(np.float32))


@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_direction_reward_equals_a_hand_computation(direction):
    tasks = [Task("way", 0, {"direction": direction})]
    pool = started(family("half-cheetah-dir"), 1, tasks=tasks)
    for action in random_actions(6, 20, 1):
        before = states(pool)[0]
        result = pool.step(np.arange(1), action)
        velocity = (states(pool)[0, 1] - before[1]) / 0.05
        cost = 0.05 * np.sum(action.astype(np.float64) ** 2)
        assert result.reward[0] == pytest.approx(direction * velocity - cost, abs=1e-6)
        assert result.info["velocity"][0] == pytest.approx(velocity, abs=1e-6)


def test_a_step_equals_gymnasiums_from_the_same_state():
    """Gymnasium's own step from our recorded states; trajectories are chaotic, single steps not.

    With a cold solver Gymnasium's state is ours to the last bit; observations are float32, hence
    5e-7. Gymnasium as it is starts the solver from the last step's forces, which moves a step's
    result by up to 5e-13, hence 1e-9. The torso's position is stale in both.
    """
    env = gymnasium.make("HalfCheetah-v5").unwrapped
    pool = started(family("half-cheetah-vel"), 1)
    for action in random_actions(6, 50, 1):
        start = states(pool)[0]
        result = pool.step(np.arange(1), action)
        ours = states(pool)[0, 1:]
        env.set_state(start[1:10], start[10:])
        env.data.qacc_warmstart[:] = 0.0
        env.do_simulation(action[0], env.frame_skip)
        np.testing.assert_array_equal(ours, env.state_vector())
        torso = env.get_body_com("torso")
        np.testing.assert_allclose(result.next_obs[0, 17:], torso, rtol=0, atol=5e-7)
        env.set_state(start[1:10], start[10:])
        _, _, _, _, info = env.step(action[0])
        np.testing.assert_allclose(ours, env.state_vector(), rtol=0, atol=1e-9)
        assert result.info["velocity"][0] == pytest.approx(info["x_velocity"], abs=5e-7)


def test_reset_noise_is_gymnasiums_and_a_function_of_the_seed():
    """Its distributions: positions uniform within 0.1 and velocities normal, 0.1 wide."""
    seeds = started(family("half-cheetah-vel"), 400, seed=11)
    state, again = states(seeds), states(started(family("half-cheetah-vel"), 2, seed=12))
    np.testing.assert_array_equal(state[1:3], again)
    for noise, expected in (
        (state[:, 1:10], scipy.stats.uniform(-0.1, 0.2)),
        (state[:, 10:], scipy.stats.norm(0, 0.1)),
    ):
        assert scipy.stats.kstest(noise.ravel(), expected.cdf).pvalue > 0.001
        correlation = np.corrcoef(noise.T) - np.eye(9)
        assert np.abs(correlation).max() < 0.2
    assert np.abs(np.corrcoef(state[:, 1:10].T, state[:, 10:].T)[:9, 9:]).max() < 0.2


def test_velocity_tasks_are_drawn_from_the_range():
    suite = make_suite("half-cheetah-vel", low=1.0, high=3.0, num_train_tasks=40)
    targets = [t.params["target"] for t in (*suite.train.tasks, *suite.test.tasks)]
    assert len(targets) == 90
    assert 1.0 <= min(targets) < 1.2 and 2.8 < max(targets) <= 3.0


def test_pearls_variant_is_of_the_same_tasks_with_its_own_settings():
    pearl = family("half-cheetah-vel-pearl")
    same = family("half-cheetah-vel", high=3.0, horizon=200)
    assert pearl.spec == replace(same.spec, trial_episodes=3)
    assert pearl.make_pool(1).spec == pearl.spec
    targets, ours = ([t.params["target"] for t in s.test.tasks] for s in (pearl, same))
    assert targets == ours and max(targets) > 2.5
    assert pearl.name == "half-cheetah-vel-pearl" and pearl.task_set_hash() != same.task_set_hash()


def test_trial_lengths_follow_the_usual_protocol():
    assert family("half-cheetah-vel").spec.trial_episodes == 4
    assert family("half-cheetah-dir").spec.trial_episodes == 2


def test_horizons_are_those_of_garage():
    assert family("half-cheetah-vel").spec.horizon == family("half-cheetah-dir").spec.horizon == 100


def test_a_fallen_cheetah_goes_on():
    pool = started(family("half-cheetah-vel"), 1)
    upside_down = states(pool)[0]
    upside_down[3] = np.pi
    put(pool, upside_down, FAST)
    assert not pool.step(np.arange(1), np.zeros((1, 6))).terminated[0]


def test_seeds_reach_their_slots():
    pool = started(family("half-cheetah-dir"), 3, seed=4)
    again = started(family("half-cheetah-dir"), 3, seed=0)
    again.reset(np.array([2, 0]), seeds_from(4, 2), family("half-cheetah-dir").train.tasks)
    np.testing.assert_array_equal(states(again)[[2, 0]], states(pool)[:2])
