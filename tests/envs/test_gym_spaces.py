from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from adaptax.core.errors import ConfigError
from adaptax.core.spec import Continuous, MultiDiscrete
from adaptax.envs.pools.gym import GymPool
from adaptax.envs.pools.gym_spaces import action_decoder, observation_encoder
from adaptax.envs.suites.gym import gym_spec
from adaptax.envs.task import Task

BOX = spaces.Box(-1.0, 1.0, (2, 2), np.float32)
OBSERVATIONS = {
    "box": BOX,
    "integers": spaces.Box(0, 9, (3,), np.int64),
    "table of bytes": spaces.Box(0, 9, (8, 8), np.uint8),
    "discrete": spaces.Discrete(4, start=3),
    "multi-binary": spaces.MultiBinary((2, 3)),
    "multi-discrete": spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [2, -1]]),
    "dict": spaces.Dict({"z": BOX, "a": spaces.Discrete(3), "m": spaces.MultiBinary(2)}),
    "tuple": spaces.Tuple([spaces.MultiDiscrete([3, 2]), spaces.Dict({"in": BOX})]),
}


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_observations_are_made_flat_as_gymnasium_does(name):
    space = OBSERVATIONS[name]
    space.seed(0)
    size, encode = observation_encoder(space)
    assert size == spaces.flatdim(space)
    for _ in range(5):
        obs = space.sample()
        assert encode(obs).dtype == np.float32
        np.testing.assert_array_equal(encode(obs), spaces.flatten(space, obs).astype(np.float32))


@pytest.mark.parametrize(
    ("name", "obs", "error"),
    [
        ("discrete", 2, "observation -1 is outside 0..3"),
        ("multi-discrete", [[0, 1], [6, -1]], "observation 4 is outside 0..3"),
        ("multi-discrete", [0, 1, 2], r"shape \(3,\); its space has \(2, 2\)"),
        ("tuple", ([0, 0],), "shorter"),
        ("dict", {"a": 0, "z": np.zeros((2, 2))}, "m"),
    ],
)
def test_an_observation_outside_its_space_is_refused(name, obs, error):
    with pytest.raises((ValueError, KeyError), match=error):
        observation_encoder(OBSERVATIONS[name])[1](obs)


def test_a_multi_discrete_action_is_shifted_and_shaped():
    space = spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[0, 1], [2, -1]])
    ours, decode = action_decoder(space)
    assert ours == MultiDiscrete((2, 3, 4, 5))
    assert (ours.size, ours.shape) == (14, (4,))
    native = decode(np.array([1, 2, 3, 4], np.int32))
    assert space.contains(native)
    np.testing.assert_array_equal(native, [[1, 3], [5, 3]])


def test_a_multi_discrete_action_outside_its_space_is_refused():
    decode = action_decoder(spaces.MultiDiscrete([2, 3]))[1]
    with pytest.raises(ValueError, match=r"action \[1, 3\] is outside 0..\[1, 2\]"):
        decode(np.array([1, 3]))


class Switches(gymnasium.Env):
    """Shows the setting of its switches, and when it was made: a Dict and MultiDiscrete actions."""

    observation_space = spaces.Dict(
        {"switches": spaces.MultiDiscrete([2, 3]), "time": spaces.Box(0, 9, ())}
    )
    action_space = spaces.MultiDiscrete([2, 3])

    def reset(self, *, seed=None, options=None):
        self.time = 0
        return {"switches": np.zeros(2, np.int64), "time": np.float32(0)}, {}

    def step(self, action):
        self.time += 1
        obs = {"switches": action, "time": np.float32(self.time)}
        return obs, float(action.sum()), False, False, {}


def test_a_pool_takes_multi_discrete_actions_and_shows_dicts():
    pool = GymPool(Switches, gym_spec(Switches, 5), 2)
    assert pool.spec.observation_size == 6
    pool.reset(np.arange(2), np.zeros(2, np.uint32), [Task("t", 0, {})] * 2)
    result = pool.step(np.arange(2), np.array([[1, 2], [0, 1]], np.int32))
    np.testing.assert_array_equal(result.next_obs, [[0, 1, 0, 0, 1, 1], [1, 0, 0, 1, 0, 1]])
    np.testing.assert_array_equal(result.reward, [3.0, 1.0])


def test_scalar_boxes_are_single_numbers():
    assert observation_encoder(spaces.Box(0, 1, ()))[0] == 1
    action, decode = action_decoder(spaces.Box(-2.0, 2.0, (), np.float32))
    assert action == Continuous(1)
    assert decode(np.array([0.5], np.float32)) == np.float32(1.0)
    np.testing.assert_array_equal(decode(np.array([[0.5], [-1.0]], np.float32)), [1.0, -2.0])


def test_actions_of_no_numbers_are_refused():
    with pytest.raises(ConfigError, match="there is nothing to choose"):
        action_decoder(spaces.Box(-1.0, 1.0, (0,), np.float32))


@pytest.mark.parametrize("bound", [np.inf, 1e308, 3e38])
def test_bounds_of_actions_beyond_all_numbers_are_none(bound):
    with pytest.raises(ConfigError, match="are unbounded"):
        action_decoder(spaces.Box(-bound, bound, (2,), np.float64))
