"""`half-cheetah`, `hopper`, `walker` against Gymnasium's, step by step from the recorded state."""

import gymnasium
import numpy as np
import pytest
from families import states

from adaptax.experiment.build import make_suite

SEED = 3
IDS = {"half-cheetah": "HalfCheetah-v5", "hopper": "Hopper-v5", "walker": "Walker2d-v5"}
SIZES = {"half-cheetah": (17, 6), "hopper": (11, 3), "walker": (17, 6)}
"""Of observations and actions."""


def actions(name: str, num_steps: int, size: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.uniform(-size, size, (num_steps, 1, SIZES[name][1])).astype(np.float32)


def started(name, **settings):
    suite = make_suite(name, num_threads=1, **settings)
    pool = suite.make_pool(1)
    obs = pool.reset(np.arange(1), np.array([SEED], np.uint32), suite.train.tasks)
    return suite, pool, obs


def gymnasiums(name):
    env = gymnasium.make(IDS[name]).unwrapped
    env.reset(seed=0)
    return env


def put(env, start):
    """Begin where our lane stands, the solver cold as ours is."""
    num_positions = env.model.nq
    env.set_state(start[1 : 1 + num_positions], start[1 + num_positions :])
    env.data.qacc_warmstart[:] = 0.0


@pytest.mark.parametrize("name", IDS)
def test_it_is_one_task_of_1000_steps(name):
    suite, pool, obs = started(name)
    assert suite.spec.horizon == 1000 and suite.spec.trial_episodes == 1
    assert (obs.shape[1], suite.spec.action.size) == SIZES[name]
    assert [dict(task.params) for task in suite.train.tasks] == [{}]
    pool.close()


@pytest.mark.parametrize("name", IDS)
def test_an_episode_starts_where_gymnasiums_does_but_for_the_noise(name):
    _, pool, obs = started(name)
    env = gymnasiums(name)
    start = states(pool)[0]
    put(env, start)
    np.testing.assert_allclose(obs[0], env._get_obs(), rtol=1e-6)
    noise = np.abs(start[1:] - np.concatenate([env.init_qpos, env.init_qvel]))
    assert 0 < noise.max() < 0.5
    if name != "half-cheetah":  # whose velocities have no bound
        assert 0.8 * env._reset_noise_scale < noise.max() <= env._reset_noise_scale


@pytest.mark.parametrize("size", [1.0, 1.5], ids=["inside", "beyond the bounds"])
@pytest.mark.parametrize("name", IDS)
def test_single_steps_equal_gymnasiums(name, size):
    """From our recorded state; the hopper and the walker fall more than once meanwhile."""
    env = gymnasiums(name)
    suite, pool, _ = started(name)
    falls = 0
    for i, action in enumerate(actions(name, 120, size)):
        put(env, states(pool)[0])
        result = pool.step(np.arange(1), action)
        clipped = np.clip(action[0], -1.0, 1.0)
        obs, reward, terminated, truncated, info = env.step(clipped)
        np.testing.assert_allclose(result.next_obs[0], obs, rtol=1e-5, atol=1e-6)
        assert result.reward[0] == pytest.approx(reward, abs=1e-5)
        assert result.info["velocity"][0] == pytest.approx(info["x_velocity"], abs=1e-5)
        assert result.info["control_cost"][0] == pytest.approx(-info["reward_ctrl"], abs=1e-6)
        assert result.terminated[0] == terminated
        assert not (truncated or result.truncated[0])
        if terminated:
            falls += 1
            pool.reset(np.arange(1), np.array([SEED + i], np.uint32), suite.train.tasks)
    assert (falls > 1) == (name != "half-cheetah")


def test_an_episode_is_cut_at_its_horizon():
    _, pool, _ = started("half-cheetah", horizon=3)
    flags = [pool.step(np.arange(1), a).truncated[0] for a in actions("half-cheetah", 3)]
    assert flags == [False, False, True]
