import jax
import numpy as np
import pytest
from scipy import special, stats

from adaptax.functional.distributions import Categorical, DiagonalGaussian

RNG = np.random.default_rng(0)
MEAN, OTHER_MEAN = RNG.normal(size=(2, 4, 3)).astype(np.float32)
STD, OTHER_STD = RNG.uniform(0.3, 2.0, size=(2, 4, 3)).astype(np.float32)
GAUSSIAN = DiagonalGaussian(MEAN, np.log(STD))
OTHER = DiagonalGaussian(OTHER_MEAN, np.log(OTHER_STD))
LOGITS, OTHER_LOGITS = RNG.normal(size=(2, 4, 5)).astype(np.float32)
CHOICE, OTHER_CHOICE = Categorical(LOGITS), Categorical(OTHER_LOGITS)
PROBABILITY = special.softmax(LOGITS.astype(float), axis=-1)
NUM_DRAWS = 20_000


def draws(distribution: DiagonalGaussian | Categorical) -> np.ndarray:
    """[NUM_DRAWS, 4, ...] independent samples."""
    keys = jax.random.split(jax.random.key(0), NUM_DRAWS)
    return np.asarray(jax.vmap(distribution.sample)(keys))


def test_gaussian_entropy_golden():
    log_std = np.log(np.array([0.5, 2.0, 1.5]))
    entropy = DiagonalGaussian(np.zeros(3), log_std).entropy()
    assert float(entropy) == pytest.approx(4.662281, abs=1e-6)


def test_gaussian_log_prob_is_joint_over_dimensions():
    action = RNG.normal(size=(4, 3))
    expected = stats.norm(MEAN, STD).logpdf(action).sum(-1)
    np.testing.assert_allclose(GAUSSIAN.log_prob(action), expected, rtol=1e-5)


def test_gaussian_with_one_std_for_all_equals_the_broadcast_one():
    one = DiagonalGaussian(MEAN, np.log(STD[0]))
    every = DiagonalGaussian(MEAN, np.broadcast_to(np.log(STD[0]), MEAN.shape))
    for a, b in ((one.entropy(), every.entropy()), (one.kl(OTHER), every.kl(OTHER))):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_gaussian_kl_equals_closed_form():
    ratio = (STD.astype(float) / OTHER_STD) ** 2
    shift = ((MEAN.astype(float) - OTHER_MEAN) / OTHER_STD) ** 2
    expected = 0.5 * (ratio + shift - 1 - np.log(ratio)).sum(-1)
    np.testing.assert_allclose(GAUSSIAN.kl(OTHER), expected, rtol=1e-5)


def test_gaussian_kl_equals_monte_carlo_mean_of_log_ratios():
    sampled = draws(GAUSSIAN)
    log_ratio = np.asarray(GAUSSIAN.log_prob(sampled) - OTHER.log_prob(sampled))
    error = log_ratio.std(0) / np.sqrt(NUM_DRAWS)
    z = (log_ratio.mean(0) - np.asarray(GAUSSIAN.kl(OTHER))) / error
    assert np.abs(z).max() < 4.0


def test_gaussian_draws_have_its_moments():
    sampled = draws(GAUSSIAN)
    z = (sampled.mean(0) - MEAN) / (STD / np.sqrt(NUM_DRAWS))
    assert np.abs(z).max() < 4.0
    np.testing.assert_allclose(sampled.std(0), STD, rtol=0.03)


def test_gaussian_mode_is_its_mean():
    np.testing.assert_array_equal(GAUSSIAN.mode(), MEAN)


def test_kl_from_itself_is_zero():
    both = np.stack([GAUSSIAN.kl(GAUSSIAN), CHOICE.kl(CHOICE)])
    np.testing.assert_allclose(both, np.zeros((2, 4)), atol=1e-6)


def test_categorical_log_prob_equals_scipy():
    action = np.array([0, 4, 2, 1])
    expected = stats.multinomial(1, PROBABILITY).logpmf(np.eye(5)[action])
    np.testing.assert_allclose(CHOICE.log_prob(action), expected, rtol=1e-5)


def test_categorical_entropy_equals_scipy():
    np.testing.assert_allclose(CHOICE.entropy(), stats.entropy(PROBABILITY, axis=-1), rtol=1e-5)


def test_categorical_kl_equals_scipy():
    other = special.softmax(OTHER_LOGITS, axis=-1)
    expected = stats.entropy(PROBABILITY, other, axis=-1)
    np.testing.assert_allclose(CHOICE.kl(OTHER_CHOICE), expected, rtol=1e-5)


def test_an_impossible_choice_adds_nothing_to_means():
    masked = Categorical(np.concatenate([LOGITS, np.full((4, 1), -np.inf)], axis=-1))
    other = Categorical(np.concatenate([OTHER_LOGITS, np.full((4, 1), -np.inf)], axis=-1))
    np.testing.assert_allclose(masked.entropy(), CHOICE.entropy(), rtol=1e-6)
    np.testing.assert_allclose(masked.kl(other), CHOICE.kl(OTHER_CHOICE), rtol=1e-5)
    for of_masked, of_choice in (
        (Categorical.entropy, Categorical.entropy),
        (lambda x: x.kl(other), lambda x: x.kl(OTHER_CHOICE)),
    ):
        whole = jax.grad(lambda x, mean=of_masked: mean(Categorical(x)).sum())(masked.logits)
        part = jax.grad(lambda x, mean=of_choice: mean(Categorical(x)).sum())(LOGITS)
        np.testing.assert_allclose(whole[:, :-1], part, atol=1e-6)
        np.testing.assert_array_equal(whole[:, -1], 0.0)


def test_categorical_ignores_a_shift_of_its_logits():
    shifted = Categorical(LOGITS + 50.0)
    np.testing.assert_allclose(shifted.entropy(), CHOICE.entropy(), rtol=1e-5)


def test_categorical_draws_have_its_frequencies():
    frequency = np.stack([(draws(CHOICE) == a).mean(0) for a in range(5)], axis=-1)
    error = np.sqrt(PROBABILITY * (1 - PROBABILITY) / NUM_DRAWS)
    assert np.abs((frequency - PROBABILITY) / error).max() < 4.0


def test_categorical_mode_is_the_likeliest_action():
    np.testing.assert_array_equal(CHOICE.mode(), LOGITS.argmax(-1))
