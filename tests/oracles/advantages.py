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


def minibatches(orders: np.ndarray, valid: np.ndarray, num: int) -> list[np.ndarray]:
    """The valid entries of every minibatch that has any; one pass for each of `orders` [P, n].

    They are shared out evenly, in their order, among as many of the `num` as are filled by them.
    """
    num_filled = int(np.ceil(num * valid.sum() / len(valid)))
    return [part for order in orders for part in np.array_split(order[valid[order]], num_filled)]
