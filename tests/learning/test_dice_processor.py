import jax
import numpy as np
import pytest
from laid_out import (
    LENGTHS,
    LONG_LANES,
    MEMBERS,
    SHORT_LANES,
    SIZE,
    by_episode,
    padded,
    polluted,
    random_episodes,
    rollout_of,
)

from adaptax.core.errors import ConfigError
from adaptax.core.experience import Rollout
from adaptax.learning.processors import (
    ProcessorConfig,
    check_room,
    one_episode_a_lane,
    process_dice_samples,
)

FEWER = rollout_of([own[:3] for own in random_episodes()], per_lane=2, pad=12)
"""Three episodes in two lanes."""


def dice(rollout: Rollout, **settings):
    config = ProcessorConfig(**{"normalize_advantage": True, **settings})
    return process_dice_samples(rollout, config, 6)


def discounted_rewards(rollout: Rollout, discount: float):
    """Without a baseline, which is what one that was never fitted comes to."""
    settings = {"normalize_advantage": False, "baseline_fit": "previous"}
    return np.asarray(dice(rollout, discount=discount, **settings).adjusted_reward)


def test_dice_masks_each_episode_in_a_lane_of_its_own():
    paths = dice(LONG_LANES).paths
    lengths = np.broadcast_to(LENGTHS, (MEMBERS, 4))
    np.testing.assert_array_equal(paths.valid.sum(-1), lengths)
    np.testing.assert_array_equal(paths.valid, np.arange(6) < lengths[..., None])
    assert (paths.obs.shape, paths.action.shape) == ((2, 4, 6, SIZE), (2, 4, 6, 1))


def test_dice_keeps_any_trailing_shape():
    paths = dice(LONG_LANES).paths
    assert paths.extras["info/table"].shape == (MEMBERS, 4, 6, SIZE, 3)
    np.testing.assert_array_equal(paths.extras["info/table"], paths.obs[..., None] * np.ones(3))


def test_dice_rewards_are_discounted_from_each_episodes_start():
    rewards = discounted_rewards(LONG_LANES, 0.9)
    episodes = by_episode(LONG_LANES.reward, LONG_LANES)
    for own, episode in zip(rewards.reshape(-1, 6), episodes, strict=True):
        expected = padded(episode * 0.9 ** np.arange(len(episode)), 6)
        np.testing.assert_allclose(own, expected, rtol=1e-6)


def test_dice_baseline_is_fitted_to_discounted_rewards():
    samples = dice(LONG_LANES, normalize_advantage=False, discount=0.9)
    plain = discounted_rewards(LONG_LANES, 0.9)
    for own, rewards in zip(samples.adjusted_reward, plain, strict=True):
        tau = np.broadcast_to(np.arange(6) / 100, rewards.shape).ravel()
        phi = np.stack([tau, tau**2, tau**3, np.ones_like(tau)], axis=1)
        rows = np.concatenate([phi, np.sqrt(1e-5) * np.eye(4)])
        target = np.concatenate([rewards.ravel(), np.zeros(4)])
        baseline = phi @ np.linalg.lstsq(rows, target)[0]
        np.testing.assert_allclose(own.ravel(), rewards.ravel() - baseline, atol=1e-5)


def test_without_a_baseline_dice_takes_the_discounted_rewards():
    zero = dice(LONG_LANES, normalize_advantage=False, discount=0.9, baseline="zero")
    np.testing.assert_array_equal(zero.adjusted_reward, discounted_rewards(LONG_LANES, 0.9))


def test_dice_statistics_are_those_of_episodes_at_full_length():
    samples, raw = dice(FEWER), dice(FEWER, normalize_advantage=False)
    for own, plain in zip(samples.adjusted_reward, raw.adjusted_reward, strict=True):
        there = np.asarray(plain)[:3]
        expected = (there - there.mean()) / (there.std() + 1e-8)
        np.testing.assert_allclose(np.asarray(own)[:3], expected, rtol=1e-4, atol=1e-6)


def test_rewards_for_e_maml_are_standardised_over_steps():
    samples = dice(LONG_LANES)
    rewards = LONG_LANES.reward[LONG_LANES.valid]
    expected = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
    got = np.asarray(samples.adj_avg_rewards)[samples.paths.valid]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("positive", [False, True])
def test_lanes_without_an_episode_are_zero_after_normalisation(positive):
    samples = dice(FEWER, positive_advantage=positive)
    assert np.abs(np.asarray(samples.adjusted_reward)[:, 3]).max() == 0.0
    assert np.abs(np.asarray(samples.adjusted_reward)[:, :3]).min() > 0.0
    mask = samples.paths.valid
    assert np.abs(np.asarray(samples.adj_avg_rewards)[~mask]).max() == 0.0
    assert np.abs(np.asarray(samples.adj_avg_rewards)[mask]).min() > 0.0


@pytest.mark.parametrize("other", [SHORT_LANES, polluted(LONG_LANES)], ids=["layout", "padding"])
def test_dice_depends_on_episodes_alone(other):
    one, two = (dice(r) for r in (LONG_LANES, other))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_lanes_without_room_for_their_episodes_are_refused():
    check_room(LONG_LANES, 6)
    with pytest.raises(ConfigError, match="a path of 5 steps is over 4"):
        check_room(LONG_LANES, 4)
    with pytest.raises(ConfigError, match=r"2 episodes in a lane of 12 steps; 12 .* room for 1"):
        check_room(LONG_LANES, 12)
    with pytest.raises(ConfigError, match="lanes of 12 steps are not made for episodes of 5"):
        process_dice_samples(LONG_LANES, ProcessorConfig(), 5)


def test_lanes_with_fewer_episodes_are_filled_with_empty_ones():
    paths = one_episode_a_lane(FEWER, 6)
    np.testing.assert_array_equal(paths.valid.sum(-1), [[3, 5, 4, 0]] * MEMBERS)


def test_a_dice_baseline_changes_no_expected_gradient():
    num_batches, num_paths, length, mean = 1500, 6, 4, 0.3
    rng = np.random.default_rng(0)
    action = rng.normal(mean, 1.0, (num_batches, num_paths, length, 1)).astype(np.float32)
    last = np.broadcast_to(np.arange(length) == length - 1, action.shape[:3])
    obs = np.zeros_like(action)
    batches = Rollout(
        obs=obs,
        action=action,
        reward=5 + action[..., 0],
        next_obs=obs,
        terminated=last,
        truncated=np.zeros_like(last),
        valid=np.ones_like(last),
    )
    score = np.cumsum(action[..., 0] - mean, axis=-1)

    def gradients(weights):
        config = ProcessorConfig(0.9, baseline_fit="previous")
        samples = process_dice_samples(batches, config, length, weights)
        return (score * np.asarray(samples.adjusted_reward)).sum(-1).mean(-1)

    first = jax.tree.map(lambda x: x[:1], batches)
    weights = process_dice_samples(first, ProcessorConfig(0.9), length).weights
    plain, with_baseline = gradients(None), gradients(np.repeat(weights, num_batches, axis=0))
    expected = (0.9 ** np.arange(length)).sum()
    for gradient in (plain, with_baseline):
        error = gradient.std() / np.sqrt(num_batches)
        assert abs(gradient.mean() - expected) < 3 * error
    assert with_baseline.std() < 0.3 * plain.std()


@pytest.mark.parametrize("normalize", [False, True])
def test_a_dice_baseline_sees_that_an_action_ends_the_episode(normalize):
    """Every step pays 1 and each action lets the episode go on with chance p."""
    num_batches, num_paths, length, p = 1000, 40, 4, 0.6
    rng = np.random.default_rng(1)
    on = rng.random((num_batches, num_paths, length)) < p
    valid = np.concatenate([np.ones_like(on[..., :1]), on.cumprod(-1)[..., :-1] > 0], axis=-1)
    last = np.broadcast_to(np.arange(length) == length - 1, on.shape)
    zeros = np.zeros((*on.shape, 1), np.float32)
    batches = Rollout(
        obs=zeros,
        action=on[..., None].astype(np.float32),
        reward=valid.astype(np.float32),
        next_obs=zeros,
        terminated=valid & (~on | last),
        truncated=np.zeros_like(last),
        valid=valid,
    )
    score = np.cumsum(np.where(valid, on - p, 0.0), axis=-1)  # by the logit of p
    true = p * (1 - p) * (1 + 2 * p + 3 * p**2)  # of 1 + p + p^2 + p^3

    def gradients(weights, **settings):
        config = ProcessorConfig(1.0, baseline_fit="previous", **settings)
        credit = np.asarray(process_dice_samples(batches, config, length, weights).adjusted_reward)
        return (score * credit).sum(-1).mean(-1)

    first = jax.tree.map(lambda x: x[:1], batches)
    weights = process_dice_samples(first, ProcessorConfig(1.0), length).weights
    weights = np.repeat(weights, num_batches, axis=0)
    plain, adjusted = gradients(None), gradients(weights)
    for gradient in (plain, adjusted):
        error = gradient.std() / np.sqrt(num_batches)
        assert abs(gradient.mean() - true) < 3 * error
    if normalize:
        assert (gradients(weights, normalize_advantage=True) > 0).mean() > 0.95
    else:
        assert adjusted.std() < 0.8 * plain.std()
