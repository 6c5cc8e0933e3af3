"""Advantages of lanes [L, T] in which episodes follow one another and padding comes last."""

from __future__ import annotations

import numpy as np


def gae(
    steps: dict[str, np.ndarray],
    value: np.ndarray,
    next_value: np.ndarray,
    discount: float,
    gae_lambda: float,
) -> np.ndarray:
    """Generalised advantages (Schulman et al. 2016, eq. 16), 0 where padded."""
    advantage = np.zeros(value.shape)
    for lane in range(len(value)):
        following = 0.0
        for t in reversed(range(value.shape[1])):
            if not steps["valid"][lane, t]:
                continue
            after = 0.0 if steps["terminated"][lane, t] else next_value[lane, t]
            delta = steps["reward"][lane, t] + discount * after - value[lane, t]
            if steps["terminated"][lane, t] or steps["truncated"][lane, t]:
                following = 0.0
            following = delta + discount * gae_lambda * following
            advantage[lane, t] = following
    return advantage


def minibatches(orders: np.ndarray, valid: np.ndarray, size: int) -> list[np.ndarray]:
    """The valid entries of every minibatch that has any; one pass for each of `orders` [P, n].

    A pass goes through its order with valid entries before the others.
    """
    parts = []
    for order in orders:
        rows = np.concatenate([order[valid[order]], order[~valid[order]]])
        chunks = [rows[i : i + size] for i in range(0, len(rows), size)]
        parts += [chunk[valid[chunk]] for chunk in chunks if valid[chunk].any()]
    return parts
