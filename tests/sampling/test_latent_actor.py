import functools
from dataclasses import replace
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import cliff_suite, train_sampler

from adaptax.core.experience import Rollout, Step
from adaptax.functional.belief import Belief, prior
from adaptax.learning.context import context_tokens, in_a_row, joined
from adaptax.networks.encoders import LatentPolicy
from adaptax.sampling.latent import LatentActor

KEY = jax.random.key(0)
POLICY = LatentPolicy((8,), 2)
PARAMS = POLICY.init(KEY, jnp.zeros(2), jnp.zeros(3))
both_loops = pytest.mark.parametrize("stepped", [False, True], ids=["compiled", "host"])


def actor(belief=None, deterministic=False):
    return LatentActor(PARAMS, POLICY, prior(3) if belief is None else belief, deterministic)


@functools.cache
def episodes(deterministic: bool = False, stepped: bool = False) -> Rollout:
    """Four episodes in a row, cut by falls and by the horizon, on two tasks in three lanes."""
    suite = replace(cliff_suite(), engine="host" if stepped else "compiled")
    sampler = train_sampler(suite)
    return sampler.episodes(actor(None, deterministic), sampler.sample_tasks(2), 3, 4)


def z_by_episode(rollout):
    """For every lane the z of each episode's steps, [steps, L] each."""
    ends = np.asarray(rollout.terminated | rollout.truncated)
    for lane in np.ndindex(rollout.valid.shape[:2]):
        starts = np.concatenate([[0], np.flatnonzero(ends[lane]) + 1])
        z = np.asarray(rollout.extras["z"][lane])
        yield [z[a:b] for a, b in pairwise(starts)]


@both_loops
def test_z_is_one_within_an_episode_and_another_in_the_next(stepped):
    rollout = episodes(stepped=stepped)
    assert bool(np.any(rollout.terminated) and np.any(rollout.truncated))
    drawn = []
    for lane in z_by_episode(rollout):
        assert len(lane) == 4
        for z in lane:
            np.testing.assert_array_equal(z, np.broadcast_to(z[0], z.shape))
        drawn += [z[0] for z in lane]
    assert len(np.unique(drawn, axis=0)) == 2 * 3 * 4


def test_a_deterministic_actor_acts_by_the_mean_for_its_z():
    """The z of an episode, and nothing else of chance."""
    rollout = episodes(deterministic=True)
    distribution = POLICY.apply(PARAMS, rollout.obs, rollout.extras["z"])
    valid = np.asarray(rollout.valid)
    expected = np.tanh(np.asarray(distribution.mean))
    np.testing.assert_allclose(np.asarray(rollout.action)[valid], expected[valid], atol=1e-5)


def test_a_deterministic_actor_repeats_itself_given_z():
    acting = actor(deterministic=True)
    carry = {"z": jnp.full((2, 3, 3), 0.5), "started": jnp.ones((2, 3), bool)}
    obs = jax.random.normal(KEY, (2, 3, 2))
    one, other = (acting.act(carry, obs, jax.random.key(i))[0] for i in range(2))
    np.testing.assert_array_equal(one, other)


def test_actions_are_drawn_from_the_policy_told_its_z():
    """As many below its median and within a deviation as a Gaussian has."""
    obs = jnp.zeros((200, 100, 2))
    action, carry, _ = actor().act(actor().begin(200, 100, KEY), obs, KEY)
    u = POLICY.apply(PARAMS, obs, carry["z"]).unbounded
    std = jnp.exp(u.log_std)
    within = (action > jnp.tanh(u.mean - std)) & (action < jnp.tanh(u.mean + std))
    np.testing.assert_allclose((action < jnp.tanh(u.mean)).mean((0, 1)), 0.5, atol=0.02)
    np.testing.assert_allclose(within.mean((0, 1)), 0.6827, atol=0.02)


@pytest.mark.parametrize("lanes", [(), (4, 1), (4, 5)], ids=["all", "task", "lane"])
def test_z_is_drawn_from_the_belief_of_all_of_a_task_or_of_a_lane(lanes):
    mean = jnp.arange(np.prod(lanes, dtype=int) * 3, dtype=jnp.float32).reshape(*lanes, 3)
    acting = actor(Belief(mean, jnp.full_like(mean, 1e-12)))
    carry = acting.begin(4, 5, KEY)
    _, carry, _ = acting.act(carry, jnp.zeros((4, 5, 2)), KEY)
    np.testing.assert_allclose(carry["z"], jnp.broadcast_to(mean, (4, 5, 3)), atol=1e-4)


def test_an_episodes_end_forgets_z_in_its_lane_only():
    acting = actor()
    start, obs = acting.begin(1, 2, KEY), jnp.zeros((1, 2, 2))
    action, carry, _ = acting.act(start, obs, KEY)
    no, ended = jnp.zeros((1, 2), bool), jnp.array([[True, False]])
    for terminated, truncated in ((ended, no), (no, ended)):
        step = Step(obs, action, jnp.zeros((1, 2)), obs, terminated, truncated)
        after = acting.observe(carry, step, KEY)
        np.testing.assert_array_equal(after["z"][0, 0], start["z"][0, 0])
        np.testing.assert_array_equal(after["z"][0, 1], carry["z"][0, 1])
        np.testing.assert_array_equal(after["started"], [[False, True]])


@pytest.mark.parametrize(("next_obs", "size"), [(False, 5), (True, 7)])
def test_tokens_are_observation_action_reward_and_what_followed(next_obs, size):
    rollout = episodes()
    tokens = np.asarray(context_tokens(rollout, next_obs=next_obs))
    assert tokens.shape == (*rollout.valid.shape, size)
    np.testing.assert_array_equal(tokens[..., :2], rollout.obs)
    np.testing.assert_array_equal(tokens[..., 2:4], rollout.action)
    np.testing.assert_array_equal(tokens[..., 4], rollout.reward)
    np.testing.assert_array_equal(tokens[..., 5:], rollout.next_obs[..., : size - 5])


def test_in_a_row_keeps_every_step_of_every_task_in_order():
    rollout = episodes()
    row = in_a_row(rollout)
    assert row.valid.shape == (2, 1, 3 * rollout.valid.shape[-1])
    for name in ("obs", "action", "reward", "next_obs", "terminated", "truncated", "valid"):
        whole, rows = np.asarray(getattr(rollout, name)), getattr(row, name)
        for i in range(2):
            np.testing.assert_array_equal(rows[i, 0], np.concatenate(whole[i]))


def test_rollouts_are_joined_in_order_and_padded_to_few_lengths():
    rollout = episodes()
    length = rollout.valid.shape[-1]
    steps = joined([rollout] * 3, length)
    assert steps.valid.shape == (2, 1, 16 * length)  # of 9 in all
    row = in_a_row(rollout)
    for i in range(3):
        part = slice(3 * length * i, 3 * length * (i + 1))
        np.testing.assert_array_equal(steps.obs[:, :, part], row.obs)
        np.testing.assert_array_equal(steps.valid[:, :, part], row.valid)
    assert not steps.valid[:, :, 9 * length :].any()
