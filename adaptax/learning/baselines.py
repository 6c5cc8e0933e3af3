"""Baselines fitted to one batch: linear in features of observation and time, one fit a task.

A baseline is a function that gives features; fitting and predicting are the same for all. The
features are those of Duan et al. 2016, "Benchmarking deep reinforcement learning for continuous
control"; powers of time are badly conditioned, so all runs in float64, on the host.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from adaptax.core.errors import EnvironmentFault

TIME_SCALE = 100.0
"""Steps by which time is divided."""
_ROWS_OF_A_PART = 128
"""Rows that are multiplied at once."""


def time_in_episode(terminated: np.ndarray, truncated: np.ndarray) -> np.ndarray:
    """Steps since the episode's start, int [..., T], where lanes [..., T] hold whole episodes."""
    ends = terminated | truncated
    steps = np.arange(ends.shape[-1])
    starts = np.where(ends, steps + 1, 0)[..., :-1]
    first = np.concatenate([np.zeros_like(starts[..., :1]), starts], axis=-1)
    return steps - np.maximum.accumulate(first, axis=-1)


def linear_features(obs: np.ndarray, time: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Features [..., T, 2 O + 4]: clip(o, -10, 10), its square, tau, tau^2, tau^3 and 1.

    `obs` [..., T, O], `time` [..., T] steps since the episode's start, tau = time / TIME_SCALE;
    rows that are not `valid` are 0.
    """
    size = obs.shape[-1]
    features = np.empty((*valid.shape, 2 * size + 4))  # filled in place: half the time
    clipped = np.clip(obs, -10.0, 10.0, out=features[..., :size])
    np.square(clipped, out=features[..., size : 2 * size])
    features[..., 2 * size :] = _powers(time)
    features[~valid] = 0.0
    return features


def linear_time_features(obs: np.ndarray, time: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """Features [..., T, 4]: tau, tau^2, tau^3 and 1, whatever the observations."""
    return np.where(valid[..., None], _powers(time), 0.0)


def zero_features(obs: np.ndarray, time: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """No features [..., T, 0]: a baseline that predicts 0."""
    return np.zeros((*valid.shape, 0))


Features = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
FEATURES: dict[str, Features] = {
    "linear": linear_features,
    "linear_time": linear_time_features,
    "zero": zero_features,
}
"""By name: (obs [..., T, O], time [..., T], valid [..., T]) -> features [..., T, F]."""


def fit_baseline(
    features: np.ndarray, target: np.ndarray, valid: np.ndarray, ridge: float = 1e-5
) -> np.ndarray:
    """Weights [M, F] that give `target` [M, ..., T] from `features` [M, ..., T, F], task by task.

    Solves (Phi^T Phi + ridge I) w = Phi^T y; where that fails, with ten times the ridge, five
    tries in all.
    """
    phi = features.reshape(len(valid), valid[0].size, features.shape[-1])
    y = np.where(valid, target, 0.0).astype(np.float64).reshape(len(valid), -1, 1)
    pairs = zip(_products(phi, phi), _products(phi, y)[..., 0], strict=True)
    return np.stack([_solve(gram, moment, ridge) for gram, moment in pairs])


def predict_baseline(features: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Predictions [M, ..., T] from weights [M, F]; 0 where `weights` is None (nothing fitted)."""
    if weights is None:
        return np.zeros(features.shape[:-1])
    prediction: np.ndarray = np.einsum("m...f,mf->m...", features, weights)
    return prediction


def _products(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The sum over rows of left^T right, [M, F, G] from [M, R, F] and [M, R, G].

    In parts, each too small for the BLAS to call its threads: these would go on spinning beside
    the physics and slow it down.
    """
    num_parts = -(-left.shape[1] // _ROWS_OF_A_PART)
    parts = zip(*(np.array_split(x, num_parts, axis=1) for x in (left, right)), strict=True)
    total: np.ndarray = sum(a.swapaxes(1, 2) @ b for a, b in parts)
    return total


def _powers(time: np.ndarray) -> np.ndarray:
    tau = np.asarray(time, np.float64) / TIME_SCALE
    return np.stack([tau, tau**2, tau**3, np.ones_like(tau)], axis=-1)


def _solve(gram: np.ndarray, moment: np.ndarray, ridge: float) -> np.ndarray:
    """One task's weights [F]."""
    for attempt in range(5):
        regular = gram + ridge * 10**attempt * np.eye(len(gram))
        try:
            weights = np.linalg.solve(regular, moment)
        except np.linalg.LinAlgError:
            continue
        if np.isfinite(weights).all():
            return weights
    raise EnvironmentFault(
        f"baseline of {len(gram)} features cannot be fitted, even with ridge {ridge * 1e4:g}: "
        "observations or returns are not finite"
    )
