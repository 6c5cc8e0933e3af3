"""`half-cheetah` against Gymnasium's HalfCheetah-v5, step by step from the recorded state."""

import gymnasium
import numpy as np
import pytest
from families import states

from adaptax.experiment.build import make_suite

SEED = 3


def actions(num_steps: int, size: float = 1.0) -> np.ndarray:
    rng = np.random.default_rng(0)
    return rng.uniform(-size, size, (num_steps, 1, 6)).astype(np.float32)


def started(**settings):
    suite = make_suite("half-cheetah", num_threads=1, **settings)
    pool = suite.make_pool(1)
    obs = pool.reset(np.arange(1), np.array([SEED], np.uint32), suite.train.tasks)
    return suite, pool, obs


def test_it_is_one_task_of_1000_steps():
    suite, pool, obs = started()
    assert suite.spec.horizon == 1000 and suite.spec.trial_episodes == 1
    assert obs.shape == (1, 17) and suite.spec.action.size == 6
    assert [dict(task.params) for task in suite.train.tasks] == [{}]
    pool.close()


def test_an_episode_starts_where_gymnasiums_does_but_for_the_noise():
    _, pool, obs = started()
    env = gymnasium.make("HalfCheetah-v5").unwrapped
    start = states(pool)[0]
    env.set_state(start[1:10], start[10:])
    np.testing.assert_allclose(obs[0], env._get_obs(), rtol=1e-6)
    noise = np.concatenate([start[1:10] - env.init_qpos, start[10:]])
    assert 0 < np.abs(noise).max() < 0.5


@pytest.mark.parametrize("size", [1.0, 1.5], ids=["inside", "beyond the bounds"])
def test_single_steps_equal_gymnasiums(size):
    """From our recorded state, with Gymnasium's solver started cold as ours is."""
    env = gymnasium.make("HalfCheetah-v5").unwrapped
    env.reset(seed=0)
    _, pool, _ = started()
    for action in actions(40, size):
        start = states(pool)[0]
        result = pool.step(np.arange(1), action)
        env.set_state(start[1:10], start[10:])
        env.data.qacc_warmstart[:] = 0.0
        clipped = np.clip(action[0], -1.0, 1.0)
        obs, reward, terminated, truncated, info = env.step(clipped)
        np.testing.assert_allclose(result.next_obs[0], obs, rtol=1e-5, atol=1e-6)
        assert result.reward[0] == pytest.approx(reward, abs=1e-5)
        assert result.info["velocity"][0] == pytest.approx(info["x_velocity"], abs=1e-5)
        assert result.info["control_cost"][0] == pytest.approx(-info["reward_ctrl"], abs=1e-6)
        assert not (terminated or truncated or result.terminated[0] or result.truncated[0])


def test_an_episode_is_cut_at_its_horizon():
    _, pool, _ = started(horizon=3)
    flags = [pool.step(np.arange(1), a).truncated[0] for a in actions(3)]
    assert flags == [False, False, True]
