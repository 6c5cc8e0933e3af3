import numpy as np
import pytest
from factorized import factorized

from adaptax.learning.baselines import (
    fit_baseline,
    linear_features,
    linear_time_features,
    predict_baseline,
    zero_features,
)

MEMBERS, LANES, STEPS, SIZE = 2, 3, 20, 2


def lanes(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """obs [M, N, T, O], time and valid [M, N, T]: two episodes a lane, then padding."""
    rng = np.random.default_rng(seed)
    obs = rng.uniform(-3, 3, (MEMBERS, LANES, STEPS, SIZE)).astype(np.float32)
    time = np.broadcast_to(np.arange(STEPS) % 8, obs.shape[:3])
    valid = np.broadcast_to(np.arange(STEPS) < 16, obs.shape[:3])
    return obs, time, valid


def test_feature_row_golden():
    row = linear_features(np.array([[20.0]]), np.array([3]), np.array([True]))
    np.testing.assert_allclose(row, [[10, 100, 0.03, 9e-4, 2.7e-5, 1]], rtol=1e-12)


def test_time_feature_row_golden():
    row = linear_time_features(np.array([[20.0]]), np.array([3]), np.array([True]))
    np.testing.assert_allclose(row, [[0.03, 9e-4, 2.7e-5, 1]], rtol=1e-12)


def test_linear_target_is_fitted_exactly():
    obs, time, valid = lanes()
    features = linear_features(obs, 12 * time, valid)
    weights = np.random.default_rng(1).normal(size=(MEMBERS, features.shape[-1]))
    target = predict_baseline(features, weights)
    fitted = fit_baseline(features, target, valid)
    np.testing.assert_allclose(predict_baseline(features, fitted), target, atol=1e-4)


def test_weights_solve_the_ridge_equations():
    obs, time, valid = lanes()
    target = np.random.default_rng(1).normal(size=valid.shape)
    weights = fit_baseline(linear_features(obs, time, valid), target, valid)[0]
    phi = linear_features(obs, time, valid)[0][valid[0]]
    rows = np.concatenate([phi, np.sqrt(1e-5) * np.eye(phi.shape[1])])
    padded = np.concatenate([target[0][valid[0]], np.zeros(phi.shape[1])])
    np.testing.assert_allclose(weights, np.linalg.lstsq(rows, padded)[0], rtol=1e-6, atol=1e-8)


def test_each_task_has_a_fit_of_its_own():
    obs, time, valid = lanes()
    features = linear_features(obs, time, valid)
    target = np.random.default_rng(1).normal(size=valid.shape)
    together = fit_baseline(features, target, valid)
    alone = [fit_baseline(*(x[m : m + 1] for x in (features, target, valid)))[0] for m in range(2)]
    np.testing.assert_allclose(together, alone, rtol=1e-9)
    assert np.abs(together[0] - together[1]).max() > 0.01


def test_unfitted_baseline_predicts_zero():
    features = linear_features(*lanes())
    assert predict_baseline(features, None).shape == (MEMBERS, LANES, STEPS)
    assert np.abs(predict_baseline(features, None)).max() == 0.0


def test_zero_baseline_predicts_zero_after_a_fit():
    obs, time, valid = lanes()
    features = zero_features(obs, time, valid)
    weights = fit_baseline(features, np.ones(valid.shape), valid)
    assert np.abs(predict_baseline(features, weights)).max() == 0.0


@pytest.mark.parametrize("garbage", [1e30, np.nan])
def test_padding_changes_neither_weights_nor_predictions(garbage):
    obs, time, valid = lanes()
    target = np.random.default_rng(1).normal(size=valid.shape)
    noisy = (np.where(valid[..., None], obs, garbage), np.where(valid, time, 10**6), valid)
    clean_features, noisy_features = linear_features(obs, time, valid), linear_features(*noisy)
    clean = fit_baseline(clean_features, target, valid)
    weights = fit_baseline(noisy_features, np.where(valid, target, garbage), valid)
    np.testing.assert_array_equal(weights, clean)
    prediction = predict_baseline(noisy_features, weights)
    np.testing.assert_array_equal(prediction, predict_baseline(clean_features, clean))


def test_predictions_on_padding_are_zero():
    obs, time, valid = lanes()
    features = linear_features(obs, time, valid)
    prediction = predict_baseline(features, np.ones((MEMBERS, features.shape[-1])))
    assert np.abs(prediction[~valid]).max() == 0.0


def test_singular_features_get_a_larger_ridge():
    features = np.full((1, 4, 2), 1e7)  # 1e-5 vanishes beside 4e14, 0.1 does not
    target, valid = np.ones((1, 4)), np.ones((1, 4), bool)
    prediction = predict_baseline(features, fit_baseline(features, target, valid))
    np.testing.assert_allclose(prediction, target, rtol=1e-2)


def test_a_target_that_is_not_finite_gives_its_task_alone_weights_that_are_not():
    obs, time, valid = lanes()
    target = np.ones(valid.shape)
    target[0, 0, 3] = np.nan
    weights = fit_baseline(linear_features(obs, time, valid), target, valid)
    assert not np.isfinite(weights[0]).any() and np.isfinite(weights[1]).all()


def test_tasks_are_solved_one_after_another():
    """A batch of factorizations in one operation may wait for good: see `one_by_one`."""
    obs, time, valid = lanes()
    features = np.asarray(linear_features(obs, time, valid))
    shapes = factorized(fit_baseline, features, np.zeros(valid.shape), valid)
    assert shapes == [(features.shape[-1],) * 2]
