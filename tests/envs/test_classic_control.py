import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.core.errors import ConfigError
from adaptax.core.spec import Continuous, Discrete
from adaptax.envs.suites.classic_control import (
    CartPoleConfig,
    CartPoleEnv,
    PendulumConfig,
    PendulumEnv,
    cart_pole,
    pendulum,
)

NUM = 400
CART_POLE, PENDULUM = cart_pole(CartPoleConfig()), pendulum(PendulumConfig())


def stepped(env, state, action):
    """One step from each state [NUM, S] by each action."""
    key = jax.random.key(0)
    return jax.jit(jax.vmap(lambda s, a: env.step(key, s, a, {})[1]))(state, action)


def first_states(env):
    """First states [2000, S]."""
    keys = jax.random.split(jax.random.key(1), 2000)
    return np.asarray(jax.jit(jax.vmap(lambda key: env.reset(key, {})[0]))(keys))


@pytest.fixture(scope="module")
def cart_poles():
    """Ours and Gymnasium's (obs, reward, terminated) from the same states by the same actions."""
    rng = np.random.default_rng(0)
    state = rng.uniform(-1, 1, (NUM, 4)).astype(np.float32) * np.float32([3, 3, 0.3, 3])
    action = rng.integers(2, size=NUM)
    ours = stepped(CartPoleEnv(), state, action)
    env, theirs = gymnasium.make("CartPole-v1").unwrapped, []
    for s, a in zip(state, action, strict=True):
        env.state, env.steps_beyond_terminated = s.astype(np.float64), None
        theirs.append(env.step(a)[:3])
    return ours, [np.stack(x) for x in zip(*theirs, strict=True)]


@pytest.fixture(scope="module")
def pendulums():
    """Ours and Gymnasium's (obs, reward) from the same states by the same actions."""
    rng = np.random.default_rng(0)
    state = rng.uniform(-1, 1, (NUM, 2)).astype(np.float32) * np.float32([10, 8])
    torque = rng.uniform(-2, 2, (NUM, 1)).astype(np.float32)
    ours = stepped(PendulumEnv(), state, torque / 2)
    env, theirs = gymnasium.make("Pendulum-v1").unwrapped, []
    for s, u in zip(state, torque, strict=True):
        env.state = s.astype(np.float64)
        theirs.append(env.step(u.astype(np.float64))[:2])
    return ours, [np.stack(x) for x in zip(*theirs, strict=True)]


def test_cart_pole_steps_to_gymnasiums_observation(cart_poles):
    ours, (obs, _, _) = cart_poles
    np.testing.assert_allclose(ours.next_obs, obs, rtol=1e-6, atol=1e-6)


def test_cart_pole_terminates_where_gymnasiums_does(cart_poles):
    ours, (_, _, terminated) = cart_poles
    assert 0.2 < terminated.mean() < 0.8
    np.testing.assert_array_equal(ours.terminated, terminated)


def test_cart_pole_is_rewarded_as_gymnasiums_on_the_last_step_too(cart_poles):
    ours, (_, reward, _) = cart_poles
    np.testing.assert_array_equal(ours.reward, reward)
    assert float(ours.reward[ours.terminated].min()) == 1.0


@pytest.mark.parametrize(
    ("state", "fell"),
    [
        ([2.39, 0, 0, 0], False),
        ([2.41, 0, 0, 0], True),
        ([-2.41, 0, 0, 0], True),
        ([0, 0, 0.209, 0], False),
        ([0, 0, 0.21, 0], True),
        ([0, 0, -0.21, 0], True),
    ],
)
def test_cart_pole_ends_beyond_2_4_m_and_12_degrees(state, fell):
    _, step = CartPoleEnv().step(jax.random.key(0), jnp.float32(state), jnp.array(1), {})
    assert bool(step.terminated) == fell


def test_cart_pole_starts_uniformly_within_0_05():
    states = first_states(CartPoleEnv())
    assert 0.0499 < np.abs(states).max() <= 0.05
    np.testing.assert_allclose(states.mean(0), np.zeros(4), atol=0.003)
    np.testing.assert_allclose(states.std(0), np.full(4, 0.05 / np.sqrt(3)), rtol=0.05)


def test_pendulum_steps_to_gymnasiums_observation(pendulums):
    ours, (obs, _) = pendulums
    np.testing.assert_allclose(ours.next_obs, obs, rtol=1e-6, atol=2e-6)
    assert np.mean(np.abs(obs[:, 2]) == 8) > 0.02


def test_pendulum_is_rewarded_as_gymnasiums(pendulums):
    ours, (_, reward) = pendulums
    np.testing.assert_allclose(ours.reward, reward, rtol=1e-5, atol=1e-5)
    assert ours.terminated is None


def test_pendulum_starts_at_any_angle():
    states = first_states(PendulumEnv())
    bound = np.array([np.pi, 1.0])
    assert np.all(np.abs(states) <= bound + 1e-6) and np.all(np.abs(states).max(0) > 0.99 * bound)
    np.testing.assert_allclose(states.std(0), bound / np.sqrt(3), rtol=0.05)


def test_pendulum_observes_cosine_sine_and_rate_of_its_first_state():
    state, obs = PendulumEnv().reset(jax.random.key(0), {})
    np.testing.assert_allclose(obs, [np.cos(state[0]), np.sin(state[0]), state[1]], rtol=1e-6)


def test_pool_clips_a_torque_to_its_limit():
    pool, seeds = PENDULUM.make_pool(2), np.zeros(2, np.uint32)
    pool.reset(np.arange(2), seeds, PENDULUM.train.tasks * 2)
    result = pool.step(np.arange(2), np.array([[1.0], [5.0]], np.float32))
    np.testing.assert_array_equal(result.next_obs[0], result.next_obs[1])


@pytest.mark.parametrize(
    ("suite", "env_id", "size", "action"),
    [(CART_POLE, "CartPole-v1", 4, Discrete(2)), (PENDULUM, "Pendulum-v1", 3, Continuous(1))],
)
def test_spec_is_gymnasiums(suite, env_id, size, action):
    assert suite.spec.horizon == gymnasium.spec(env_id).max_episode_steps
    assert (suite.spec.observation_size, suite.spec.action) == (size, action)
    assert not suite.spec.has_success


def test_a_horizon_of_zero_is_refused():
    with pytest.raises(ConfigError, match="horizon must be greater than 0, not 0"):
        CartPoleConfig(horizon=0)
