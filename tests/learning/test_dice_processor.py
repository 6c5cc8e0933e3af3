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
    for m, mask in enumerate(samples.paths.valid):
        tau = np.broadcast_to(np.arange(6) / 100, mask.shape)[mask]
        phi = np.stack([tau, tau**2, tau**3, np.ones_like(tau)], axis=1)
        rows = np.concatenate([phi, np.sqrt(1e-5) * np.eye(4)])
        target = np.concatenate([plain[m][mask], np.zeros(4)])
        baseline = phi @ np.linalg.lstsq(rows, target)[0]
        expected = plain[m][mask] - baseline
        np.testing.assert_allclose(samples.adjusted_reward[m][mask], expected, atol=1e-5)


def test_dice_statistics_are_those_of_unpadded_rewards():
    samples, raw = dice(LONG_LANES), dice(LONG_LANES, normalize_advantage=False)
    for own, plain, mask in zip(
        samples.adjusted_reward, raw.adjusted_reward, raw.paths.valid, strict=True
    ):
        unpadded = np.asarray(plain)[mask]
        expected = (unpadded - unpadded.mean()) / (unpadded.std() + 1e-8)
        np.testing.assert_allclose(np.asarray(own)[mask], expected, rtol=1e-4, atol=1e-6)
    rewards = LONG_LANES.reward[LONG_LANES.valid]
    expected = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
    got = np.asarray(samples.adj_avg_rewards)[samples.paths.valid]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("positive", [False, True])
def test_dice_padding_is_zero_after_normalisation(positive):
    samples = dice(LONG_LANES, positive_advantage=positive)
    mask = samples.paths.valid
    for x in (samples.adjusted_reward, samples.adj_avg_rewards):
        assert np.abs(np.asarray(x)[~mask]).max() == 0.0
        assert np.abs(np.asarray(x)[mask]).min() > 0.0


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
    ragged = rollout_of([own[:3] for own in random_episodes()], per_lane=2, pad=12)
    paths = one_episode_a_lane(ragged, 6)
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
