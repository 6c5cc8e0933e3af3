"""Baselines fitted to one batch: linear in features of observation and time, one fit a task.

A baseline is a function that gives features; fitting and predicting are the same for all. The
features are those of Duan et al. 2016, "Benchmarking deep reinforcement learning for continuous
control"; powers of time are badly conditioned, so all is float64, whatever JAX's default.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from adaptax.core.experience import Array
from adaptax.core.factorizations import one_by_one

TIME_SCALE = 100.0
"""Steps by which time is divided, unless somebody says otherwise."""
_TRIES = 5
"""Ridges that a fit may try."""


@jax.enable_x64(True)
def linear_features(
    obs: Array, time: Array, valid: Array, time_scale: float = TIME_SCALE
) -> jax.Array:
    """Features [..., T, 2 O + 4]: clip(o, -10, 10), its square, tau, tau^2, tau^3 and 1.

    `obs` [..., T, O], `time` [..., T] steps since the episode's start, tau = time / time_scale;
    rows that are not `valid` are 0.
    """
    clipped = jnp.clip(jnp.asarray(obs, jnp.float64), -10.0, 10.0)
    features = jnp.concatenate([clipped, jnp.square(clipped), _powers(time, time_scale)], axis=-1)
    return jnp.where(valid[..., None], features, 0.0)


@jax.enable_x64(True)
def linear_time_features(obs: Array, time: Array, valid: Array) -> jax.Array:
    """Features [..., T, 4]: tau, tau^2, tau^3 and 1, whatever the observations."""
    return jnp.where(valid[..., None], _powers(time), 0.0)


@jax.enable_x64(True)
def zero_features(obs: Array, time: Array, valid: Array) -> jax.Array:
    """No features [..., T, 0]: a baseline that predicts 0."""
    return jnp.zeros((*valid.shape, 0), jnp.float64)


Features = Callable[[Array, Array, Array], jax.Array]
FEATURES: dict[str, Features] = {
    "linear": linear_features,
    "linear_time": linear_time_features,
    "zero": zero_features,
}
"""By name: (obs [..., T, O], time [..., T], valid [..., T]) -> features [..., T, F]."""


@one_by_one
def _solution(matrix: jax.Array, vector: jax.Array) -> jax.Array:
    return jnp.linalg.solve(matrix, vector)


@jax.enable_x64(True)
@jax.jit
def fit_baseline(features: Array, target: Array, valid: Array, ridge: float = 1e-5) -> jax.Array:
    """Weights [M, F] that give `target` [M, ..., T] from `features` [M, ..., T, F], task by task.

    Solves (Phi^T Phi + ridge I) w = Phi^T y; where that gives no finite weights, with ten times the
    ridge, five tries in all. Weights that are not finite then come of data that are not.
    """
    num_members, size = len(valid), features.shape[-1]
    phi = features.reshape(num_members, valid[0].size, size)
    y = jnp.where(valid, target, 0.0).astype(jnp.float64).reshape(num_members, -1)
    gram = phi.swapaxes(1, 2) @ phi
    moment = jnp.einsum("mrf,mr->mf", phi, y)

    def unsolved(tries: tuple[jax.Array, jax.Array]) -> jax.Array:
        number, weights = tries
        return (number < _TRIES) & ~jnp.isfinite(weights).all()

    def solve(tries: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        number, weights = tries
        regular = gram + ridge * 10.0**number * jnp.eye(size)
        found = jax.vmap(_solution)(regular, moment)
        solved = jnp.isfinite(weights).all(-1, keepdims=True)
        return number + 1, jnp.where(solved, weights, found)

    start = (jnp.array(0), jnp.full_like(moment, jnp.nan))
    _, weights = jax.lax.while_loop(unsolved, solve, start)
    return weights


@jax.enable_x64(True)
def predict_baseline(features: Array, weights: Array | None) -> jax.Array:
    """Predictions [M, ..., T] from weights [M, F]; 0 where `weights` is None (nothing fitted)."""
    if weights is None:
        return jnp.zeros(features.shape[:-1], jnp.float64)
    return jnp.einsum("m...f,mf->m...", features, weights)


def _powers(time: Array, time_scale: float = TIME_SCALE) -> jax.Array:
    tau = jnp.asarray(time, jnp.float64) / time_scale
    return jnp.stack([tau, tau**2, tau**3, jnp.ones_like(tau)], axis=-1)
