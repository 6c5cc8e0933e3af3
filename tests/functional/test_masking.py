import jax
import numpy as np
import pytest

from adaptax.functional.masking import (
    masked_mean,
    masked_shift_positive,
    masked_standardize,
    usable_std,
)

X = np.array([[1.0, 2.0, 7.0], [5.0, 9.0, 9.0]], np.float32)
MASK = np.array([[True, True, False], [True, False, False]])


def test_mean_counts_only_what_the_mask_keeps():
    assert float(masked_mean(X, MASK)) == pytest.approx(8.0 / 3.0, rel=1e-6)


def test_mean_of_nothing_is_zero():
    assert float(masked_mean(X, np.zeros_like(MASK))) == 0.0


def test_standardised_entries_have_mean_zero_and_population_std_one():
    kept = np.asarray(masked_standardize(X, MASK))[MASK]
    np.testing.assert_allclose([kept.mean(), kept.std()], [0.0, 1.0], atol=1e-6)


def test_standardised_padding_is_zero():
    padded = np.asarray(masked_standardize(X, MASK))[~MASK]
    assert np.abs(padded).max() == 0.0


def test_standardising_a_single_entry_gives_zero():
    one = np.zeros_like(MASK)
    one[0, 2] = True
    assert float(np.abs(masked_standardize(X, one)).max()) == 0.0


@pytest.mark.parametrize("garbage", [1e30, np.inf, np.nan])
def test_padding_changes_neither_mean_nor_standardised_values(garbage):
    noisy = np.where(MASK, X, garbage).astype(np.float32)
    assert float(masked_mean(noisy, MASK)) == float(masked_mean(X, MASK))
    np.testing.assert_array_equal(masked_standardize(noisy, MASK), masked_standardize(X, MASK))


def test_gradient_of_the_mean_is_zero_on_padding():
    gradient = jax.grad(masked_mean)(X, MASK)
    np.testing.assert_allclose(gradient, MASK / 3.0, rtol=1e-6)


def test_positive_shift_golden():
    shifted = masked_shift_positive(X - 4, MASK)
    np.testing.assert_allclose(shifted, [[1e-8, 1.0, 0.0], [4.0, 0.0, 0.0]], rtol=1e-6)


def test_positive_shift_does_not_see_padding():
    noisy = np.where(MASK, X, -1e30).astype(np.float32)
    np.testing.assert_array_equal(
        masked_shift_positive(noisy, MASK), masked_shift_positive(X, MASK)
    )


@pytest.mark.parametrize("num", [48, 2048, 5000])
@pytest.mark.parametrize("constant", [0.1, -0.3, 37.7, 1234.567, 1.0])
def test_equal_numbers_stay_0_however_their_mean_is_rounded(num, constant):
    x = jax.numpy.full(num, constant)
    np.testing.assert_array_equal(masked_standardize(x, x > -jax.numpy.inf), 0.0)


def test_what_varies_little_is_standardized_all_the_same():
    x = 1000.0 + np.array([-0.01, 0.01], np.float32)
    exact = (x - x.mean(dtype=np.float64)) / x.std(dtype=np.float64)
    np.testing.assert_allclose(masked_standardize(x, np.full(2, True)), exact, atol=1e-3)


@pytest.mark.parametrize(
    ("mean", "variance", "std"),
    [(0.0, 4.0, 2.0), (0.1, 1e-16, 1.0), (1000.0, 1e-6, 1.0), (1e-9, 1e-9, 1.0), (0.0, 0.0, 1.0)],
)
def test_what_hardly_varies_is_divided_by_1(mean, variance, std):
    assert usable_std(jax.numpy.float32(mean), jax.numpy.float32(variance)) == std
