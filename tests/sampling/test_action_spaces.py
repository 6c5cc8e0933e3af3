"""Actions of several choices at once, from the policy to the environment and back."""

from __future__ import annotations

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from adaptax.core.spec import MultiDiscrete
from adaptax.envs.suites.gym import gym_suite
from adaptax.experiment.build import make_algorithm
from adaptax.functional.distributions import MultiCategorical
from adaptax.networks.heads import MLPPolicy
from adaptax.sampling.actors import PolicyActor, UniformActor, encode_action
from adaptax.sampling.sampler import Sampler

SPACE = MultiDiscrete((2, 3))


class Locks(gymnasium.Env):
    """Two locks; the reward is how many are set right, the observation how they were set last."""

    observation_space = spaces.MultiDiscrete(SPACE.sizes)
    action_space = spaces.MultiDiscrete(SPACE.sizes)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.int64), {}

    def step(self, action):
        return action, float((action == [1, 2]).sum()), False, False, {}


def test_actions_are_encoded_one_hot_part_by_part():
    encoded = encode_action(SPACE, jnp.array([[1, 0], [0, 2]]))
    np.testing.assert_array_equal(encoded, [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]])


def test_uniform_actions_cover_every_choice_of_every_part_alike():
    action, _, _ = UniformActor(SPACE).act({}, jnp.zeros((3, 2000, 1)), jax.random.key(0))
    assert action.shape == (3, 2000, 2)
    for part, size in enumerate(SPACE.sizes):
        shares = np.bincount(np.asarray(action)[..., part].ravel(), minlength=size) / 6000
        np.testing.assert_allclose(shares, 1 / size, atol=0.02)


def test_a_policy_gives_a_distribution_over_all_parts():
    policy = MLPPolicy((8,), SPACE)
    params = policy.init(jax.random.key(0), jnp.zeros((1, 5)))
    distribution = policy.apply(params, jnp.ones((4, 5)))
    assert isinstance(distribution, MultiCategorical)
    assert distribution.logits.shape == (4, 5)
    assert float(distribution.entropy()[0]) == pytest.approx(np.log(6), abs=1e-3)


def test_recorded_log_probs_are_those_of_the_actions():
    suite = gym_suite("locks", Locks, horizon=4)
    policy = MLPPolicy((8,), suite.spec.action)
    params = policy.init(jax.random.key(0), jnp.zeros((1, 5)))
    sampler = Sampler(suite, suite.train, 0, "train")
    rollout = sampler.episodes(PolicyActor(params, policy), suite.train.tasks, 3, 2)
    assert (rollout.action.shape, rollout.action.dtype) == ((1, 3, 8, 2), np.int32)
    expected = policy.apply(params, rollout.obs).log_prob(rollout.action)
    np.testing.assert_allclose(rollout.extras["log_prob"], expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reinforce", "ppo", "rl2-ppo"])
def test_algorithms_learn_from_several_choices(name):
    small = {
        "reinforce": {"num_lanes": 8, "lr": 0.05, "hidden_sizes": (8,)},
        "ppo": {"num_lanes": 16, "num_steps": 80, "num_minibatches": 2, "lr": 0.01},
        "rl2-ppo": {
            "meta_batch_size": 8,
            "num_minibatches": 1,
            "memory": {"kind": "gru", "size": 8},
            "lr": 0.02,
        },
    }[name]
    suite = gym_suite("locks", Locks, horizon=5)
    algorithm = make_algorithm(name, suite.spec, **small)
    sampler = Sampler(suite, suite.train, 0, "train")
    state = algorithm.init(jax.random.key(0))
    returns = []
    for _ in range(25):
        state, _ = algorithm.iteration(state, sampler)
        returns.append(sampler.statistics.take()["return"])
    assert np.mean(returns[:3]) < 5.5  # by chance 5 (1/2 + 1/3) = 4.17
    assert np.mean(returns[-3:]) > 7.0
