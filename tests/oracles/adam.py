"""Adam (Kingma and Ba 2015, algorithm 1), behind a bound on the norm of all gradients."""

from __future__ import annotations

from typing import Any

import numpy as np

from oracles.trees import dot, mapped, plus


class Adam:
    """One optimizer, of one tree of parameters."""

    def __init__(self, lr: float, epsilon: float, max_norm: float | None = None) -> None:
        self.lr, self.epsilon, self.max_norm = lr, epsilon, max_norm
        self.steps, self.first, self.second = 0, None, None
        self.num_clipped = 0

    def step(self, params: Any, grads: Any) -> Any:
        """The parameters after a step down the gradients."""
        norm = np.sqrt(dot(grads, grads))
        if self.max_norm is not None and norm > self.max_norm:
            grads = mapped(lambda g: g * (self.max_norm / norm), grads)
            self.num_clipped += 1
        if self.steps == 0:
            self.first = self.second = mapped(np.zeros_like, grads)
        self.steps += 1
        self.first = mapped(lambda m, g: 0.9 * m + 0.1 * g, self.first, grads)
        self.second = mapped(lambda v, g: 0.999 * v + 0.001 * g**2, self.second, grads)
        scale1, scale2 = 1 - 0.9**self.steps, 1 - 0.999**self.steps

        def move(m: np.ndarray, v: np.ndarray) -> np.ndarray:
            return (m / scale1) / (np.sqrt(v / scale2) + self.epsilon)

        return plus(params, mapped(move, self.first, self.second), -self.lr)
