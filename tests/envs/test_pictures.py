"""Pictures: Gymnasium's, in any of their forms, and the suite `catch`."""

from __future__ import annotations

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

from adaptax.core.errors import ConfigError
from adaptax.core.spec import Discrete, EnvSpec, spec_from_dict, spec_to_dict
from adaptax.envs.pools.gym_spaces import observation_encoder, picture_in
from adaptax.envs.suites.catch import CatchConfig, CatchEnv, catch
from adaptax.envs.suites.gym import gym_suite
from adaptax.experiment.build import make_algorithm
from adaptax.sampling.sampler import Sampler


def bytes_of(*shape: int, high: int = 255) -> spaces.Box:
    return spaces.Box(0, high, shape, np.uint8)


@pytest.mark.parametrize(
    ("space", "picture"),
    [
        (bytes_of(10, 12, 3), (10, 12, 3)),
        (bytes_of(4, 10, 12), (10, 12, 4)),
        (bytes_of(9, 8), (9, 8, 1)),
        (bytes_of(8, 8, 3), (8, 8, 3)),
        (bytes_of(7, 7, 3), None),
        (bytes_of(9, 8, high=3), None),
        (bytes_of(2, 8), None),
        (bytes_of(128), None),
        (spaces.Box(0, 1, (8, 8, 3), np.float32), None),
        (spaces.Discrete(3), None),
    ],
)
def test_what_is_a_picture(space, picture):
    assert picture_in(space) == picture


@pytest.mark.parametrize("space", [bytes_of(10, 12, 3), bytes_of(4, 10, 12), bytes_of(9, 8)])
def test_a_picture_is_between_0_and_1_with_its_channels_innermost(space):
    space.seed(0)
    obs = space.sample()
    height, width, channels = picture_in(space)
    size, encode = observation_encoder(space)
    seen = encode(obs)
    assert (seen.shape, seen.dtype) == ((size,), np.float32)
    for row, column, channel in ((0, 0, 0), (height - 1, 2, channels - 1), (3, width - 1, 0)):
        place = (channel, row, column) if space.shape[0] == 4 else (row, column, channel)
        expected = obs[place[: obs.ndim]] / 255
        assert seen.reshape(height, width, channels)[row, column, channel] == np.float32(expected)


def test_a_picture_of_planes_is_divided_by_its_highest_value():
    _, encode = observation_encoder(bytes_of(8, 8, 2, high=3))
    assert set(encode(np.full((8, 8, 2), 3, np.uint8))) == {1.0}


def test_a_spec_with_a_picture_goes_to_json_and_back():
    spec = EnvSpec(24, Discrete(2), 5, picture=(2, 4, 3))
    assert spec_from_dict(spec_to_dict(spec)) == spec
    with pytest.raises(ConfigError, match="have not 25 numbers"):
        EnvSpec(25, Discrete(2), 5, picture=(2, 4, 3))


class Camera(gymnasium.Env):
    observation_space, action_space = bytes_of(8, 8, 3), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.full((8, 8, 3), 255, np.uint8), {}

    def step(self, action):
        return np.full((8, 8, 3), 51, np.uint8), 1.0, False, False, {}


def test_an_environment_of_bytes_is_a_suite_of_pictures():
    suite = gym_suite("camera", Camera, horizon=3)
    assert suite.spec.picture == (8, 8, 3)
    algorithm = make_algorithm("nop", suite.spec)
    actor = algorithm.actor(algorithm.init(jax.random.key(0)))
    sampler = Sampler(suite, suite.train, 0, "train")
    rollout = sampler.episodes(actor, suite.train.tasks, 1, 1)
    sampler.close()
    assert np.all(rollout.obs[0, 0, 0] == 1.0) and np.all(rollout.obs[0, 0, 1] == np.float32(0.2))


def test_catch_shows_ball_and_paddle_and_pays_at_the_end():
    env = CatchEnv(5)
    state, obs = env.reset(jax.random.key(1), {})
    column, paddle = int(state[1]), 2
    for row in range(1, 5):
        expected = np.zeros((5, 5))
        expected[row - 1, column] = expected[4, paddle] = 1
        np.testing.assert_array_equal(obs.reshape(5, 5), expected)
        move = int(np.sign(column - paddle))
        paddle += move
        state, step = env.step(jax.random.key(0), state, move + 1, {})
        obs = step.next_obs
        assert float(step.reward) == (row == 4)
    assert bool(step.info["success"]) and catch(CatchConfig(5)).spec.horizon == 4


def test_a_paddle_that_stays_at_the_edge_misses_most_balls():
    env, rewards = CatchEnv(5), []
    for seed in range(20):
        state, _ = env.reset(jax.random.key(seed), {})
        for _ in range(4):
            state, step = env.step(jax.random.key(0), state, 0, {})
        assert int(state[2]) == 0
        rewards.append((float(step.reward), int(state[1]) == 0))
    assert {reward for reward, _ in rewards} == {-1.0, 1.0}
    assert all((reward > 0) == caught for reward, caught in rewards)
