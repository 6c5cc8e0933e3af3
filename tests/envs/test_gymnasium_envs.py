from __future__ import annotations

import subprocess
import sys
from functools import partial

import gymnasium
import numpy as np
import pytest
from families import FAMILIES, family, random_actions, some_tasks
from gymnasium.utils.env_checker import check_env
from said import warnings_within

from adaptax.core.errors import ConfigError, EnvironmentFault
from adaptax.envs.gymnasium_envs import FAMILIES as REGISTERED
from adaptax.envs.pools.gym import GymPool
from adaptax.envs.pools.pool import SlotNotFinite
from adaptax.envs.registry import find_suite
from adaptax.envs.suites.gym import gym_spec


def env_id(name: str) -> str:
    """half-cheetah-vel -> adaptax/HalfCheetahVel-v1"""
    words = [word.capitalize() for word in name.split("-")]
    return f"adaptax/{''.join(words)}-v1".replace("2d", "2D")


def test_every_family_is_registered_with_its_suites_config_and_maker():
    assert sorted(f"adaptax/{name}-v1" for name in REGISTERED) == sorted(map(env_id, FAMILIES))
    for name in FAMILIES:
        pair = REGISTERED[env_id(name).removeprefix("adaptax/").removesuffix("-v1")]
        assert pair == find_suite(name).load()


@pytest.mark.parametrize("name", FAMILIES)
def test_gymnasiums_own_checker_passes(name):
    """Its only complaint, here as for Gymnasium's MuJoCo environments: observations unbounded."""
    with warnings_within() as told:
        check_env(gymnasium.make(env_id(name)).unwrapped)
    assert all("infinity" in message for message in told)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_environment_gives_the_pools_bits(name):
    suite = family(name, horizon=12)
    task = some_tasks(suite, 2)[1]
    env = gymnasium.make(env_id(name), max_episode_steps=12, **task.params)
    pool, slot = suite.make_pool(1), np.arange(1)
    actions = random_actions(suite.spec.action.size, 30, 1)
    for seed in (3, 2**32 - 1):
        obs, _ = env.reset(seed=seed)
        np.testing.assert_array_equal(obs, pool.reset(slot, np.array([seed], np.uint32), [task])[0])
        for action in actions:
            obs, reward, terminated, truncated, info = env.step(action[0])
            expected = pool.step(slot, action)
            np.testing.assert_array_equal(obs, expected.next_obs[0])
            assert obs.dtype == np.float32
            assert (reward, terminated) == (expected.reward[0], expected.terminated[0])
            assert info.keys() >= set(suite.spec.info_names)
            assert all(info[key] == expected.info[key][0] for key in suite.spec.info_names)
            assert terminated or truncated == expected.truncated[0]
            if terminated or truncated:
                break
        assert terminated or truncated


def test_options_of_reset_change_the_task_for_one_episode():
    env = gymnasium.make("adaptax/HalfCheetahVel-v1", target=1.2)
    rewards = []
    for options in (None, {"target": 9.2}, None):
        env.reset(seed=0, options=options)
        rewards.append(env.step(np.zeros(6, np.float32))[1])
    assert rewards[0] == rewards[2] == pytest.approx(rewards[1] + 8.0, abs=1e-5)


def test_a_gym_pool_takes_the_environments():
    """Tasks are options of reset, as GymPool gives them."""
    suite = family("ant-goal")
    tasks, seeds = some_tasks(suite, 2), np.arange(2, dtype=np.uint32)
    make_env = partial(gymnasium.make, "adaptax/AntGoal-v1")
    pools = GymPool(make_env, gym_spec(make_env), 2), suite.make_pool(2)
    assert pools[0].spec.horizon == suite.spec.horizon
    one, other = (pool.reset(np.arange(2), seeds, tasks) for pool in pools)
    np.testing.assert_array_equal(one, other)
    for action in random_actions(8, 5, 2):
        one, other = (pool.step(np.arange(2), action) for pool in pools)
        np.testing.assert_array_equal(one.next_obs, other.next_obs)
        np.testing.assert_array_equal(one.reward, other.reward)


def test_fields_of_the_config_are_settings():
    assert gymnasium.make("adaptax/HalfCheetahVel-v1").observation_space.shape == (20,)
    env = gymnasium.make("adaptax/HalfCheetahVel-v1", torso_position=False)
    assert env.observation_space.shape == (17,)


def test_without_a_seed_episodes_differ():
    env = gymnasium.make("adaptax/HopperParams-v1")
    env.reset(seed=5)
    one, other = env.reset()[0], env.reset()[0]
    assert np.abs(one - other).max() > 0
    env.reset(seed=5)
    np.testing.assert_array_equal(one, env.reset()[0])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"targets": 1.0}, "unknown setting 'targets'; did you mean 'target'"),
        ({"horizon": 7}, "max_episode_steps"),
        ({"low": "slow"}, "low: expected float"),
        ({"target": np.nan}, "its parameter 'target' is not finite"),
        ({"target": None}, "its parameter 'target' is a NoneType"),
    ],
)
def test_bad_settings_are_refused_by_name(settings, message):
    with pytest.raises(ConfigError, match=message):
        gymnasium.make("adaptax/HalfCheetahVel-v1", **settings)


def begun(name: str, **options):
    env = gymnasium.make(env_id(name)).unwrapped
    env.reset(seed=0, options=options)
    return env


def test_an_action_that_is_not_finite_is_refused():
    env, action = begun("half-cheetah-vel"), np.zeros(6, np.float32)
    action[2] = np.nan
    with pytest.raises(SlotNotFinite, match=r"slot 0, step 0, .*: the action is not finite"):
        env.step(action)
    env.step(np.full(6, np.inf, np.float32))  # clipped


@pytest.mark.parametrize(
    ("options", "message"),
    [({"target": np.nan}, "'target' is not finite"), ({"target": "x"}, "is 'x', not numbers")],
)
def test_options_that_are_no_tasks_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        begun("half-cheetah-vel", **options)


def test_an_episode_that_has_terminated_takes_no_step():
    env = begun("walker-vel")
    with pytest.raises(EnvironmentFault, match="no running episode: reset it first"):
        for _ in range(500):
            env.step(np.ones(6, np.float32))


def test_an_id_with_its_module_needs_no_import():
    program = """
import gymnasium
env = gymnasium.make("adaptax.envs.gymnasium_envs:adaptax/HalfCheetahVel-v1", target=1.2)
print(env.spec.max_episode_steps, env.reset(seed=0)[0].shape)
"""
    run = [sys.executable, "-W", "error", "-c", program]
    assert subprocess.run(run, capture_output=True, text=True).stdout == "100 (20,)\n"


def test_environments_made_alike_share_what_is_compiled():
    first, second = (gymnasium.make(env_id("half-cheetah-vel"), target=x) for x in (1.0, 2.0))
    assert first.unwrapped._pool.env is second.unwrapped._pool.env
    assert first.unwrapped._pool is not second.unwrapped._pool
