from dataclasses import fields, replace

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
    polluted,
    random_episodes,
    rollout_of,
)

from adaptax.core.errors import ConfigError
from adaptax.core.experience import Rollout
from adaptax.learning.baselines import linear_features
from adaptax.learning.credited import credited
from adaptax.learning.processors import ProcessorConfig, process_dice_samples, process_samples


def golden(end: str) -> Rollout:
    """One episode of rewards 1, 2, 3 whose last step is `terminated`, `truncated` or neither."""
    last = np.array([[[False, False, True]]])
    obs, no = np.zeros((1, 1, 3, 1), np.float32), np.zeros((1, 1, 3), bool)
    reward = np.array([[[1, 2, 3]]], np.float32)
    ends = {"terminated": no, "truncated": no} | ({end: last} if end else {})
    return Rollout(obs=obs, action=obs, reward=reward, next_obs=obs, valid=~no, **ends)


GOLDEN_WEIGHTS = np.array([[10.0, 0.0, 0.0, 0.5]])
"""V = 0.5 + 0.1 t, of features of t / 100: 0.5, 0.6, 0.7, and 0.8 after the last step."""


def fields_by_episode(result, rollout: Rollout) -> dict[str, list[np.ndarray]]:
    names = [f.name for f in fields(result) if f.name != "weights"]
    return {name: by_episode(getattr(result, name), rollout) for name in names}


def test_returns_are_discounted_sums():
    samples = process_samples(golden("terminated"), ProcessorConfig(discount=0.9))
    np.testing.assert_allclose(samples.returns[0, 0], [5.23, 4.7, 3.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("end", "bootstrap", "advantage"),
    [
        ("terminated", True, [3.69392, 3.686, 2.3]),
        ("truncated", True, [4.067168, 4.2044, 3.02]),
        ("", True, [4.067168, 4.2044, 3.02]),
        ("truncated", False, [3.69392, 3.686, 2.3]),
        ("", False, [3.69392, 3.686, 2.3]),
    ],
)
def test_golden_advantages_at_every_kind_of_end(end, bootstrap, advantage):
    config = ProcessorConfig(
        0.9, 0.8, baseline="linear_time", baseline_fit="previous", bootstrap_truncated=bootstrap
    )
    samples = process_samples(golden(end), config, GOLDEN_WEIGHTS)
    np.testing.assert_allclose(samples.value[0, 0], [0.5, 0.6, 0.7], rtol=1e-6)
    np.testing.assert_allclose(samples.advantage[0, 0], advantage, rtol=1e-6)


@pytest.mark.parametrize(
    ("positive", "advantage"),
    [(False, [0.713142, 0.701055, -1.414196]), (True, [2.127338, 2.115251, 1e-8])],
)
def test_golden_standardised_and_shifted_advantages(positive, advantage):
    config = ProcessorConfig(
        0.9,
        0.8,
        normalize_advantage=True,
        positive_advantage=positive,
        baseline="linear_time",
        baseline_fit="previous",
    )
    samples = process_samples(golden("terminated"), config, GOLDEN_WEIGHTS)
    np.testing.assert_allclose(samples.advantage[0, 0], advantage, rtol=1e-5, atol=1e-9)


def test_zero_baseline_with_lambda_one_gives_returns():
    samples = process_samples(LONG_LANES, ProcessorConfig(baseline="zero"))
    np.testing.assert_allclose(samples.advantage, samples.returns, rtol=1e-6, atol=1e-6)
    assert np.abs(samples.returns).max() > 1


@pytest.mark.parametrize("lane", [SHORT_LANES, LONG_LANES], ids=["one", "two"])
def test_perfect_baseline_leaves_no_advantage(lane):
    # With discount 1 and rewards of 1, the return is what is left of the episode, an observation.
    left = [np.arange(length, 0, -1.0) for length in LENGTHS]
    obs = np.zeros_like(lane.obs)
    obs[..., 0][lane.valid] = np.concatenate(left * MEMBERS)
    known = replace(lane, reward=np.ones_like(lane.reward), obs=obs, next_obs=obs - 1)
    samples = process_samples(known, ProcessorConfig(discount=1.0))
    assert np.abs(samples.advantage).max() < 1e-3


def test_advantages_of_a_task_are_standardised_alone():
    samples = process_samples(LONG_LANES, ProcessorConfig(normalize_advantage=True))
    for advantage, valid in zip(np.asarray(samples.advantage), LONG_LANES.valid, strict=True):
        assert advantage[valid].mean() == pytest.approx(0, abs=1e-6)
        assert advantage[valid].std() == pytest.approx(1, abs=1e-5)


def test_positive_advantages_start_at_1e_8_in_every_task():
    samples = process_samples(LONG_LANES, ProcessorConfig(positive_advantage=True))
    lowest = [a[v].min() for a, v in zip(samples.advantage, LONG_LANES.valid, strict=True)]
    np.testing.assert_allclose(lowest, [1e-8] * MEMBERS, rtol=1e-5)


def test_each_task_keeps_a_baseline_of_its_own():
    together = process_samples(LONG_LANES, ProcessorConfig())
    for m in range(MEMBERS):
        own = jax.tree.map(lambda x, m=m: x[m : m + 1], LONG_LANES)
        alone = process_samples(own, ProcessorConfig())
        np.testing.assert_allclose(together.weights[m], alone.weights[0], rtol=1e-6, atol=1e-9)
        np.testing.assert_allclose(together.advantage[m], alone.advantage[0], rtol=1e-5, atol=1e-6)
    assert np.abs(together.weights[0] - together.weights[1]).max() > 0.1


def test_a_previous_fit_does_not_depend_on_what_it_predicts():
    config = ProcessorConfig(baseline_fit="previous")
    first = process_samples(LONG_LANES, config)
    assert np.abs(first.value).max() == 0.0
    other = rollout_of(random_episodes(seed=1), per_lane=2, pad=12)
    second = process_samples(other, config, weights=first.weights)
    current = process_samples(other, ProcessorConfig())
    np.testing.assert_array_equal(second.weights, current.weights)
    features = np.asarray(linear_features(other.obs[1], times(other)[1], other.valid[1]))
    expected = features @ np.asarray(first.weights[1])
    np.testing.assert_allclose(second.value[1], expected, rtol=1e-9)


@pytest.mark.parametrize("dice", [False, True])
def test_credit_is_by_the_baseline_of_the_rollout_before(dice):
    config = ProcessorConfig(0.9, 0.8, baseline_fit="previous")
    long_lanes = (rollout_of(random_episodes(seed), per_lane=2, pad=12) for seed in range(3))
    history = [replace(rollout, extras={"log_prob": rollout.reward}) for rollout in long_lanes]

    def processed(rollout, weights=None):
        if dice:
            samples = process_dice_samples(rollout, config, 6, weights)
            return samples.adjusted_reward, samples.weights
        samples = process_samples(rollout, config, weights)
        return samples.advantage, samples.weights

    expected, _ = processed(history[2], processed(history[1])[1])
    found = credited(config, 6, history, dice=dice).credit
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def times(rollout: Rollout) -> np.ndarray:
    out = np.zeros(rollout.valid.shape, int)
    out[rollout.valid] = np.concatenate([np.arange(length) for length in LENGTHS] * MEMBERS)
    return out


@pytest.mark.parametrize("fit", ["current", "previous"])
def test_the_same_episodes_in_another_layout_give_the_same_samples(fit):
    config = ProcessorConfig(
        0.9, 0.8, normalize_advantage=True, positive_advantage=True, baseline_fit=fit
    )
    weights = np.random.default_rng(2).normal(size=(MEMBERS, 2 * SIZE + 4))
    long, short = (process_samples(r, config, weights=weights) for r in (LONG_LANES, SHORT_LANES))
    np.testing.assert_allclose(long.weights, short.weights, rtol=1e-6, atol=1e-6)
    long, short = fields_by_episode(long, LONG_LANES), fields_by_episode(short, SHORT_LANES)
    for name in long:
        for one, other in zip(long[name], short[name], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-6, err_msg=name)


def test_padding_changes_no_sample():
    config = ProcessorConfig(0.9, 0.8, normalize_advantage=True, positive_advantage=True)
    clean, dirty = (process_samples(r, config) for r in (LONG_LANES, polluted(LONG_LANES)))
    for one, other in zip(jax.tree.leaves(clean), jax.tree.leaves(dirty), strict=True):
        np.testing.assert_array_equal(one, other)
    padding = [x for x in jax.tree.leaves(clean) if x.shape == LONG_LANES.valid.shape]
    assert len(padding) == 4
    assert max(np.abs(np.asarray(x)[~LONG_LANES.valid]).max() for x in padding) == 0.0


def test_adj_avg_rewards_are_standardised_over_the_meta_batch():
    samples = process_samples(LONG_LANES, ProcessorConfig())
    rewards = np.asarray(samples.adj_avg_rewards)
    assert rewards[LONG_LANES.valid].mean() == pytest.approx(0, abs=1e-6)
    assert rewards[LONG_LANES.valid].std() == pytest.approx(1, abs=1e-5)
    means = [rewards[m][LONG_LANES.valid[m]].mean() for m in range(MEMBERS)]
    assert means[0] < -0.2 and means[1] > 0.2


@pytest.mark.parametrize("dice", [False, True])
def test_under_vmap_every_run_has_the_credit_that_it_has_alone(dice):
    one = replace(LONG_LANES, extras={"log_prob": LONG_LANES.reward})
    runs = [one, replace(one, reward=2 * one.reward - 1)]

    def credit(rollout):
        return credited(ProcessorConfig(), 6, [rollout], dice=dice).credit

    together = jax.jit(jax.vmap(credit))(jax.tree.map(lambda *xs: np.stack(xs), *runs))
    assert together.dtype == np.float32
    np.testing.assert_allclose(together, [credit(run) for run in runs], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["discount", "gae_lambda"])
@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_a_discount_or_lambda_outside_0_and_1_is_refused(name, value):
    with pytest.raises(ConfigError, match=rf"{name} must lie in \[0, 1\]"):
        ProcessorConfig(**{name: value})
