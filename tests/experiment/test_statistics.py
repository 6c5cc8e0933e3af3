"""Oracles: scipy.stats, and coverage on samples whose mean is known."""

import numpy as np
import pytest
import scipy.stats

from adaptax.core.errors import ConfigError
from adaptax.experiment import statistics
from adaptax.experiment.statistics import (
    bootstrap_interval,
    interquartile_mean,
    interquartile_score,
    mean_score,
    median_score,
    performance_profile,
    probability_of_improvement,
    scores_interval,
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


@pytest.mark.parametrize("n", [1, 7, 50, 333])
def test_a_bootstrap_in_parts_is_the_same_as_in_one(n, monkeypatch):
    x = normal(n, 2)
    whole = bootstrap_interval(x, num_resamples=100)
    monkeypatch.setattr(statistics, "MOST_DRAWN", 101)
    np.testing.assert_array_equal(bootstrap_interval(x, num_resamples=100), whole)


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


def test_runs_drawn_within_tasks_agree_with_a_loop():
    scores = normal(6, 4) + 3.0 * np.arange(4)
    low, high = scores_interval(
        interquartile_score, scores, drawn="runs within tasks", num_resamples=10_000
    )
    rng = np.random.default_rng(1)
    draws = [
        scipy.stats.trim_mean([rng.choice(task, 6) for task in scores.T], 0.25, axis=None)
        for _ in range(2_000)
    ]
    reference = np.quantile(draws, [0.025, 0.975])
    np.testing.assert_allclose([low, high], reference, atol=0.08 * np.ptp(reference))


@pytest.mark.parametrize("drawn", ["runs", "runs within tasks"])
def test_a_bootstrap_over_runs_keeps_every_task(drawn):
    scores = np.broadcast_to([0.0, 10.0, 50.0], (5, 3))  # all spread is between tasks
    assert scores_interval(mean_score, scores, drawn=drawn) == (20.0, 20.0)
    low, high = scores_interval(mean_score, scores, drawn="runs and tasks")
    assert low < 10.0 < 40.0 < high


def test_tasks_are_drawn_for_all_groups_alike():
    """Every run of one group is better than all of the other on the same task, and on it alone."""
    other = np.arange(8) * 100.0 + np.arange(5)[:, None]
    drawn = scores_interval(probability_of_improvement, other + 10, other, drawn="runs and tasks")
    assert drawn == (1.0, 1.0)


def test_tasks_are_drawn_within_their_classes():
    scores = np.broadcast_to([0.0, 0.0, 30.0], (5, 3))
    classes = ["easy", "easy", "hard"]
    assert scores_interval(mean_score, scores, drawn="runs and tasks", classes=classes) == (10, 10)


def test_drawing_whole_runs_covers_where_the_scores_of_a_run_depend_on_each_other():
    rng = np.random.default_rng(0)
    within = {"runs": 0, "runs within tasks": 0}
    for _ in range(200):
        scores = rng.normal(size=(10, 1)) + 0.1 * rng.normal(size=(10, 20))
        for drawn in within:
            low, high = scores_interval(mean_score, scores, drawn=drawn, num_resamples=400)
            within[drawn] += bool(low < 0.0 < high)
    assert within["runs"] > 170  # of 10 values a percentile bootstrap covers about 90 %
    assert within["runs within tasks"] < 100


FIRST = np.array(
    [
        [1.13, 1.87, 3.64, 4.1, 4.46],
        [1.36, 3.3, 3.95, 3.3, 3.73],
        [0.38, 2.04, 0.67, 3.78, 3.75],
        [0.27, 1.46, 2.68, 4.41, 6.04],
        [0.87, 3.37, 2.33, 4.35, 5.9],
        [1.09, 1.26, 2.08, 3.54, 5.22],
    ]
)
SECOND = np.array(
    [
        [1.13, 1.43, 2.47, 4.03, 4.77],
        [0.88, 1.08, 2.5, 4.23, 5.79],
        [-0.41, 2.81, 3.68, 4.23, 4.81],
        [0.35, 2.77, 4.17, 5.04, 5.65],
    ]
)
LEVELS = np.array([0.0, 1.5, 3.0, 4.5])
"""What follows, of these, is by rliable 1.2.0 with arch 7.2.0 (pandas 2.3.3), `library` as `rly`:

aggregates: metrics.aggregate_iqm(FIRST), .aggregate_mean, .aggregate_median
their intervals: rly.get_interval_estimates({"a": FIRST, "b": SECOND}, all three stacked,
    reps=20000, random_state=RandomState(0))
improvement: metrics.probability_of_improvement(FIRST, SECOND); its interval by
    rly.get_interval_estimates({"ab": (FIRST, SECOND)}, ...) as above
profile: rly.create_performance_profile({"a": FIRST, "b": SECOND}, LEVELS, reps=20000)
"""
RLIABLE = [
    (interquartile_score, FIRST, 2.88625, (2.5225, 3.27)),
    (mean_score, FIRST, 2.8776666666666664, (2.599666666666667, 3.1563333333333334)),
    (median_score, FIRST, 2.558333333333333, (1.99, 3.3683333333333336)),
    (interquartile_score, SECOND, 3.232, (2.827, 3.621)),
    (mean_score, SECOND, 3.0705, (2.8064875, 3.339)),
    (median_score, SECOND, 3.205, (2.485, 3.925)),
]
RLIABLE_PROFILES = [
    (FIRST, [1.0, 0.7, 16 / 30, 0.1], ([1.0, 0.6, 13 / 30, 1 / 30], [1.0, 0.8, 19 / 30, 5 / 30])),
    (SECOND, [0.95, 0.7, 0.5, 0.25], ([0.85, 0.6, 0.4, 0.2], [1.0, 0.8, 0.6, 0.35])),
]


@pytest.mark.parametrize(("measure", "scores", "value", "interval"), RLIABLE)
def test_aggregates_and_their_intervals_are_rliables(measure, scores, value, interval):
    np.testing.assert_allclose(measure(scores), value, rtol=1e-12)
    found = scores_interval(measure, scores, drawn="runs within tasks", num_resamples=20_000)
    # Monte-Carlo error of both
    np.testing.assert_allclose(found, interval, atol=0.04 * np.ptp(interval))


def test_probability_of_improvement_and_its_interval_are_rliables():
    value = probability_of_improvement(FIRST, SECOND)
    np.testing.assert_allclose(value, 0.4541666666666667, rtol=1e-12)
    found = scores_interval(
        probability_of_improvement,
        FIRST,
        SECOND,
        drawn="runs within tasks",
        num_resamples=20_000,
    )
    np.testing.assert_allclose(found, (0.29166667, 0.6125), atol=0.01)


def test_probability_of_improvement_is_the_mann_whitney_statistic():
    pairs = zip(FIRST.T, SECOND.T, strict=True)
    reference = [scipy.stats.mannwhitneyu(x, y).statistic / (6 * 4) for x, y in pairs]
    np.testing.assert_allclose(probability_of_improvement(FIRST, SECOND), np.mean(reference))


@pytest.mark.parametrize(("scores", "shares", "interval"), RLIABLE_PROFILES)
def test_performance_profiles_and_their_intervals_are_rliables(scores, shares, interval):
    np.testing.assert_allclose(performance_profile(scores, LEVELS), shares, rtol=1e-12)
    found = scores_interval(
        lambda x: performance_profile(x, LEVELS),
        scores,
        drawn="runs within tasks",
        num_resamples=20_000,
    )
    np.testing.assert_allclose(found, interval, atol=1 / scores.size + 1e-9)


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
    with pytest.raises(ConfigError, match=r"expected \[runs, tasks\], not \(3,\)"):
        scores_interval(mean_score, np.ones(3))
