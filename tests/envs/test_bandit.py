import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.core.errors import ConfigError
from adaptax.core.spec import Discrete
from adaptax.envs.suites.bandit import BanditConfig, BanditEnv, bandit
from adaptax.envs.task import Task

SUITE = bandit(BanditConfig(num_arms=3, num_pulls=4, num_test_tasks=200))
SLOTS = np.arange(6)


def pulled(means: list[float], arm: int, num: int, reward_std: float | None = None) -> np.ndarray:
    """Rewards [num] of one arm, each drawn with a key of its own."""
    env, params = BanditEnv(len(means), 4, reward_std), {"means": jnp.array(means)}
    keys = jax.random.split(jax.random.key(0), num)
    step = jax.vmap(lambda key: env.step(key, (), jnp.array(arm), params)[1].reward)
    return np.asarray(jax.jit(step)(keys))


def test_spec_has_one_choice_a_pull_and_one_episode_a_trial():
    spec = SUITE.spec
    assert (spec.action, spec.horizon, spec.trial_episodes) == (Discrete(3), 4, 1)
    assert spec.observation_size == 1


def test_reward_is_zero_or_one_with_the_mean_of_the_arm():
    rewards = pulled([0.2, 0.9], arm=0, num=10_000)
    assert set(rewards.tolist()) == {0.0, 1.0}
    assert rewards.mean() == pytest.approx(0.2, abs=4 * 0.004)


@pytest.mark.parametrize(("arm", "reward"), [(0, 0.0), (1, 1.0)])
def test_certain_arms_pay_never_or_always(arm, reward):
    assert set(pulled([0.0, 1.0], arm, num=1000).tolist()) == {reward}


def test_a_gaussian_arm_pays_around_its_mean():
    rewards = pulled([0.2, 0.9], arm=1, num=10_000, reward_std=0.5)
    assert rewards.mean() == pytest.approx(0.9, abs=4 * 0.005)
    assert rewards.std() == pytest.approx(0.5, abs=4 * 0.0035)


@pytest.mark.parametrize(("reward", "std"), [("bernoulli", None), ("gaussian", 2.0)])
def test_config_chooses_what_arms_pay(reward, std):
    suite = bandit(BanditConfig(reward=reward, reward_std=2.0))
    assert suite.make_pool(1).env.reward_std == std


def test_machines_are_the_same_whatever_arms_pay():
    gaussian = bandit(BanditConfig(num_arms=3, num_test_tasks=200, reward="gaussian"))
    assert gaussian.task_set_hash() == SUITE.task_set_hash()


def test_the_last_pull_ends_the_game_and_nothing_else_does():
    pool = SUITE.make_pool(6)
    obs = pool.reset(SLOTS, SLOTS.astype(np.uint32), SUITE.test.tasks[:6])
    results = [pool.step(SLOTS, np.zeros(6, np.int32)) for _ in range(4)]
    over = np.stack([r.terminated for r in results])
    np.testing.assert_array_equal(over, np.arange(4)[:, None] == np.full(6, 3))
    assert not any(r.truncated.any() for r in results)
    assert np.abs([obs, *(r.next_obs for r in results)]).max() == 0.0


def test_pulls_of_one_episode_have_keys_of_their_own():
    even = [Task("even", -1, {"means": np.full(3, 0.5, np.float32)})] * 6
    pool = SUITE.make_pool(6)
    pool.reset(SLOTS, SLOTS.astype(np.uint32), even)
    rewards = np.stack([pool.step(SLOTS, np.zeros(6, np.int32)).reward for _ in range(4)])
    assert len({tuple(r) for r in rewards}) == 4 and len({tuple(r) for r in rewards.T}) > 1


def test_means_are_uniform():
    rng = np.random.default_rng(0)
    means = np.stack([task.params["means"] for task in SUITE.train.sample(rng, 2000)])
    assert means.shape == (2000, 3) and means.dtype == np.float32
    deciles = np.bincount((means.ravel() * 10).astype(int), minlength=10)
    assert np.abs(deciles - 600).max() < 5 * np.sqrt(600 * 0.9)


def test_held_out_machines_are_fixed_by_the_task_seed():
    again = bandit(BanditConfig(num_arms=3, num_pulls=4, num_test_tasks=200))
    other = bandit(BanditConfig(num_arms=3, num_pulls=4, num_test_tasks=200, task_seed=1))
    assert SUITE.task_set_hash() == again.task_set_hash() != other.task_set_hash()
    assert len({tuple(t.params["means"]) for t in SUITE.test.tasks}) == 200


def test_a_machine_without_arms_is_refused():
    with pytest.raises(ConfigError, match="num_arms must be greater than 0, not 0"):
        BanditConfig(num_arms=0)
