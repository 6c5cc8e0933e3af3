"""Between Gymnasium's spaces and the flat float32 observations and actions of adaptax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from adaptax.core.errors import ConfigError
from adaptax.core.spec import ActionSpace, Continuous, Discrete

PIXEL_NDIM = 3
"""A uint8 Box with so many axes is an image."""


def observation_encoder(space: Any) -> tuple[int, Callable[[Any], np.ndarray]]:
    """Size O and encoder to float32 [O] of an observation space: a Box flat, a Discrete one-hot."""
    if isinstance(space, spaces.Discrete):
        return int(space.n), lambda obs: _one_hot(int(obs) - int(space.start), int(space.n))
    pixels = isinstance(space, spaces.Box) and (
        space.dtype == np.uint8 and len(space.shape) >= PIXEL_NDIM
    )
    if not isinstance(space, spaces.Box) or pixels:
        raise ConfigError(
            f"observations of {'pixels, ' if pixels else ''}{space} are not supported: "
            "adaptax takes a Box of numbers (made flat) or a Discrete (made one-hot)"
        )
    size = int(np.prod(space.shape))
    return size, lambda obs: _flat(obs, size)


def action_decoder(space: Any) -> tuple[ActionSpace, Callable[[Any], Any]]:
    """Our action space for Gymnasium's `space`, and the way from an action of ours to its own."""
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n)), lambda action: _choice(space, int(action))
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        raise ConfigError(
            f"actions of {space} are not supported: adaptax takes a Discrete or a Box of floats"
        )
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        raise ConfigError(
            f"actions of {space} are unbounded: adaptax scales [-1, 1] to finite bounds; "
            "wrap the environment in gymnasium.wrappers.TransformAction with a bounded Box"
        )
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    centre, half_range = (low + high) / 2, (high - low) / 2

    def decode(action: np.ndarray) -> np.ndarray:
        scaled: np.ndarray = centre + half_range * np.clip(action, -1.0, 1.0).reshape(space.shape)
        return scaled.astype(space.dtype)

    return Continuous(int(np.prod(space.shape))), decode


def _one_hot(index: int, size: int) -> np.ndarray:
    if not 0 <= index < size:
        raise ValueError(f"observation {index} is outside 0..{size - 1}")
    row = np.zeros(size, np.float32)
    row[index] = 1.0
    return row


def _flat(obs: Any, size: int) -> np.ndarray:
    row = np.asarray(obs, np.float32).reshape(-1)
    if row.size != size:
        raise ValueError(f"the observation has {row.size} numbers; its space has {size}")
    return row


def _choice(space: spaces.Discrete, action: int) -> int:
    if not 0 <= action < space.n:
        raise ValueError(f"action {action} is outside 0..{space.n - 1}")
    return action + int(space.start)
