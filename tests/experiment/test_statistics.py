"""Oracles: scipy.stats, and coverage on samples whose mean is known."""

import numpy as np
import pytest
import scipy.stats

from adaptax.core.errors import ConfigError
from adaptax.experiment.statistics import (
    bootstrap_interval,
    interquartile_mean,
    stratified_bootstrap_interval,
    student_interval,
)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("n", [1, 3, 4, 7, 8, 10, 101])
def test_interquartile_mean_is_scipys_trimmed_mean(n):
    x = normal(n, 3)
    np.testing.assert_allclose(interquartile_mean(x, 0), scipy.stats.trim_mean(x, 0.25, 0), 1e-12)
    np.testing.assert_allclose(interquartile_mean(x), scipy.stats.trim_mean(x, 0.25, None), 1e-12)


def test_interquartile_mean_ignores_the_outer_quarters():
    assert interquartile_mean(np.array([-1e9, 1.0, 2.0, 1e9])) == 1.5


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("mean", np.mean),
        ("median", np.median),
        ("interquartile_mean", lambda x, axis: scipy.stats.trim_mean(x, 0.25, axis)),
    ],
)
def test_bootstrap_interval_agrees_with_scipy(name, function):
    x = np.exp(normal(60))
    low, high = bootstrap_interval(x, name, 0.9, num_resamples=10_000)
    reference = scipy.stats.bootstrap(
        (x,), function, confidence_level=0.9, n_resamples=10_000, method="percentile", rng=1
    ).confidence_interval
    tolerance = 0.05 * (reference.high - reference.low)  # Monte-Carlo error of 10,000 resamples
    np.testing.assert_allclose([low, high], [reference.low, reference.high], atol=tolerance)


def test_bootstrap_interval_of_a_column_is_that_of_the_column_alone():
    x = normal(20, 3)
    low, high = bootstrap_interval(x)
    for column in range(3):
        alone = bootstrap_interval(x[:, column])
        assert (low[column], high[column]) == (alone[0], alone[1])


def test_bootstrap_interval_covers_the_mean_of_a_normal_sample():
    low, high = bootstrap_interval(normal(40, 400), num_resamples=500)
    coverage = np.mean((low < 0.0) & (high > 0.0))
    assert 0.90 < coverage < 0.97


def test_bootstrap_interval_depends_on_its_seed_alone():
    x = normal(15)
    assert bootstrap_interval(x, seed=3) == bootstrap_interval(x, seed=3)
    assert bootstrap_interval(x, seed=3) != bootstrap_interval(x, seed=4)


def test_bootstrap_interval_of_one_task_has_width_zero():
    assert bootstrap_interval(np.array([2.5])) == (2.5, 2.5)


def test_stratified_bootstrap_agrees_with_a_loop():
    scores = normal(6, 4) + 3.0 * np.arange(4)
    low, high = stratified_bootstrap_interval(scores, num_resamples=10_000)
    rng = np.random.default_rng(1)
    draws = [
        scipy.stats.trim_mean([rng.choice(task, 6) for task in scores.T], 0.25, axis=None)
        for _ in range(2_000)
    ]
    reference = np.quantile(draws, [0.025, 0.975])
    np.testing.assert_allclose([low, high], reference, atol=0.08 * np.ptp(reference))


def test_stratified_bootstrap_keeps_every_task():
    scores = np.broadcast_to([0.0, 10.0, 50.0], (5, 3))  # all spread is between tasks
    assert stratified_bootstrap_interval(scores, "mean") == (20.0, 20.0)


@pytest.mark.parametrize("confidence", [0.5, 0.95, 0.99])
@pytest.mark.parametrize("n", [2, 3, 5, 30])
def test_student_interval_is_scipys(n, confidence):
    x = normal(n, 2)
    low, high = student_interval(x, confidence)
    reference = scipy.stats.t.interval(confidence, n - 1, x.mean(0), scipy.stats.sem(x))
    np.testing.assert_allclose([low, high], reference, rtol=1e-6, atol=1e-7)


def test_student_interval_covers_the_mean_of_five_seeds_where_the_bootstrap_does_not():
    x = normal(5, 2_000)
    coverage = [
        np.mean((low < 0.0) & (high > 0.0))
        for low, high in (student_interval(x), bootstrap_interval(x, num_resamples=200))
    ]
    assert abs(coverage[0] - 0.95) < 0.015
    assert coverage[1] < 0.87


def test_wrong_input_names_what_was_wrong():
    with pytest.raises(ConfigError, match="did you mean 'median'"):
        bootstrap_interval(np.ones(3), "medain")
    with pytest.raises(ConfigError, match=r"not \[0\]"):
        bootstrap_interval(np.ones(0))
    with pytest.raises(ConfigError, match=r"not \[1\]"):
        student_interval(np.ones(1))
    with pytest.raises(ConfigError, match="not 95"):
        student_interval(np.ones(3), 95)
