"""Gaussians with independent dimensions, and squashed by tanh; arrays [B, A]."""

from __future__ import annotations

import numpy as np


def log_prob(mean: np.ndarray, log_std: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Joint log-density [B]."""
    z = (x - mean) / np.exp(log_std)
    return np.sum(-0.5 * z**2 - log_std - 0.5 * np.log(2 * np.pi), axis=-1)


def log_prob_slopes(
    mean: np.ndarray, log_std: np.ndarray, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Derivatives of the log-density by mean and by log_std, [B, A] each."""
    z = (x - mean) / np.exp(log_std)
    return z / np.exp(log_std), z**2 - 1.0


def kl(
    mean: np.ndarray, log_std: np.ndarray, other_mean: np.ndarray, other_log_std: np.ndarray
) -> np.ndarray:
    """KL(first || other) [B]."""
    variance, other = np.exp(2 * log_std), np.exp(2 * other_log_std)
    spread = (variance + (mean - other_mean) ** 2) / (2 * other)
    return np.sum(other_log_std - log_std + spread - 0.5, axis=-1)


def squashed_draw(
    mean: np.ndarray, log_std: np.ndarray, noise: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(u, tanh u [B, A], log-density of tanh u [B]), u = mean + std * noise."""
    u = mean + np.exp(log_std) * noise
    # 1 - tanh(u)^2 = 1 / cosh(u)^2; the logarithm of cosh without overflow.
    log_cosh = np.logaddexp(u, -u) - np.log(2.0)
    return u, np.tanh(u), log_prob(mean, log_std, u) + np.sum(2.0 * log_cosh, axis=-1)


def squashed_draw_backward(
    log_std: np.ndarray,
    noise: np.ndarray,
    u: np.ndarray,
    grads: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of mean and log_std from those of u, tanh u [B, A] and the log-density [B].

    The noise stands still, so log N(u; mean, std) changes with log_std alone, by -1.
    """
    grad_u, grad_action, grad_log_prob = grads
    squashed = np.tanh(u)
    of_log_prob = grad_log_prob[:, None]
    grad_mean = grad_u + grad_action * (1 - squashed**2) + of_log_prob * 2 * squashed
    return grad_mean, grad_mean * np.exp(log_std) * noise - of_log_prob
