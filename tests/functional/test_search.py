import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.functional.search import num_elites, ranking, refit, search_std

CANDIDATES = jnp.array([[0.0, 0.0], [1.0, 2.0], [3.0, 1.0], [2.0, 2.0], [-1.0, 4.0]])
RETURNS = jnp.array([1.0, 5.0, 3.0, 5.0, 2.0])


def test_refit_of_the_golden_table():
    mean, std = refit(CANDIDATES[ranking(RETURNS)[:2]])
    np.testing.assert_allclose(mean, [1.5, 2.0], rtol=1e-6)
    np.testing.assert_allclose(std, [0.5, 0.0], atol=1e-6)


def test_refit_does_not_depend_on_the_order_of_candidates():
    order = np.random.default_rng(0).permutation(5)
    mean, std = refit(CANDIDATES[order][ranking(RETURNS[order])[:2]])
    np.testing.assert_allclose(mean, [1.5, 2.0], rtol=1e-6)
    np.testing.assert_allclose(std, [0.5, 0.0], atol=1e-6)


def test_ranking_keeps_the_order_of_ties():
    scores = jnp.zeros(1000).at[::2].set(1.0)
    expected = np.concatenate([np.arange(0, 1000, 2), np.arange(1, 1000, 2)])
    np.testing.assert_array_equal(ranking(scores), expected)


def test_ranking_puts_nan_with_minus_infinity():
    scores = jnp.array([jnp.nan, 1.0, -jnp.inf, 2.0, jnp.nan])
    np.testing.assert_array_equal(ranking(scores), [3, 1, 0, 2, 4])


@pytest.mark.parametrize(
    ("generation", "expected"), [(0, 1.118034), (1, 1.113553), (50, 0.866025), (100, 0.5)]
)
def test_search_std_of_the_golden_schedule(generation, expected):
    std = search_std(jnp.array([0.5]), jnp.array(generation), 1.0, 100)
    np.testing.assert_allclose(std, expected, atol=1e-6)


def test_search_std_stays_after_the_decay():
    std = search_std(jnp.array([0.5]), jnp.array(250), 1.0, 100)
    np.testing.assert_allclose(std, 0.5, atol=1e-6)


@pytest.mark.parametrize(
    ("num", "share", "expected"), [(100, 0.29, 29), (20, 0.05, 1), (19, 0.05, 0)]
)
def test_num_elites_is_rounded_down_but_for_float_noise(num, share, expected):
    assert num_elites(num, share) == expected


@functools.cache
def cross_entropy(score):
    """100 means and deviations of CEM from 3 in ten dimensions, of 50 candidates the 10 best."""

    def generation(search, g):
        mean, std = search
        noise = jax.random.normal(jax.random.fold_in(jax.random.key(0), g), (50, 10))
        candidates = mean + search_std(std, g, 1.0, 20) * noise
        search = refit(candidates[ranking(score(candidates))[:10]])
        return search, search

    start = (jnp.full(10, 3.0), jnp.ones(10))
    return jax.lax.scan(generation, start, jnp.arange(100))[1]


def minus_sphere(x):
    return -jnp.sum(jnp.square(x), axis=-1)


def test_decay_by_generation_finds_the_spheres_minimum():
    mean = cross_entropy(minus_sphere)[0][-1]
    assert -minus_sphere(mean) < 0.05  # with the sample counter as argument 4.6 to 8.5


def test_a_rank_preserving_change_of_returns_changes_nothing():
    bent = cross_entropy(lambda x: jnp.exp(minus_sphere(x) / 100))
    # Later returns differ by less than float32 can tell from 1.
    for one, other in zip(cross_entropy(minus_sphere), bent, strict=True):
        np.testing.assert_array_equal(one[:20], other[:20])
