"""Between Gymnasium's spaces, options and infos, and what adaptax makes of them."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from adaptax.core.errors import ConfigError
from adaptax.core.spec import ActionSpace, Continuous, Discrete, MultiDiscrete
from adaptax.envs.task import copied

PICTURE_NDIM = 3
"""A Box of bytes with so many axes is a picture."""
BRIGHTEST = 255
"""The highest byte of a plane that is a picture, and no table."""
UNBOUNDED = 1e30
"""A bound of actions from which on it is none."""
LEAST_SIDE = 8
"""Pixels of a side from which on bytes are a picture, and no table."""
Encoder = Callable[[Any], np.ndarray]


def observation_encoder(space: Any) -> tuple[int, Encoder]:
    """Size O of an observation space, and its encoder to float32 [O].

    Numbers are made flat, choices one-hot; the parts of a Dict (in the order of its keys) and of
    a Tuple follow one another, as in `gymnasium.spaces.flatten`. Pictures are divided by the
    space's highest value, row by row with the channels innermost (`picture_in`).
    """
    if (picture := picture_in(space)) is not None:
        brightest = np.float32(space.high.max())
        return math.prod(picture), lambda obs: _pixels(obs, space.shape, brightest)
    return _numbers(space)


def _numbers(space: Any) -> tuple[int, Encoder]:
    """The same, of what is no picture by itself."""
    if isinstance(space, spaces.Dict):
        return _joined(list(space.spaces.values()), lambda obs: [obs[k] for k in space.spaces])
    if isinstance(space, spaces.Tuple):
        return _joined(list(space.spaces), lambda obs: obs)
    if isinstance(space, spaces.Discrete):
        return int(space.n), lambda obs: _one_hot(_index(obs) - int(space.start), int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        sizes, start = space.nvec.flatten().tolist(), space.start.flatten()
        return sum(sizes), lambda obs: _one_hots(_flat(obs, space.shape) - start, sizes)
    pixels = isinstance(space, spaces.Box) and (
        picture_in(space) is not None
        or (space.dtype == np.uint8 and len(space.shape) > PICTURE_NDIM)
    )
    if not isinstance(space, spaces.Box | spaces.MultiBinary) or pixels:
        raise ConfigError(
            f"observations of {'pixels, ' if pixels else ''}{space} are not supported: "
            "adaptax takes a picture by itself (a Box of bytes), a Box of numbers, MultiBinary "
            "(made flat), Discrete, MultiDiscrete (made one-hot), and a Dict or Tuple of numbers"
        )
    return int(np.prod(space.shape)), lambda obs: _flat(obs, space.shape)


def picture_in(space: Any) -> tuple[int, int, int] | None:
    """Height, width and channels of an observation space of pictures; None where it has others.

    Pictures are a Box of bytes with sides of 8 pixels or more: [H, W, C], or [C, H, W] where the
    first axis is the shortest, or [H, W] of 0 to 255.
    """
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8:
        return None
    if len(space.shape) == 2 and (space.high == BRIGHTEST).all():
        picture = (*space.shape, 1)
    elif len(space.shape) == PICTURE_NDIM:
        first, second, third = space.shape
        first_is_channels = _channels_first(space.shape)
        picture = (second, third, first) if first_is_channels else (first, second, third)
    else:
        return None
    return picture if min(picture[:2]) >= LEAST_SIDE else None


def action_decoder(space: Any) -> tuple[ActionSpace, Callable[[Any], Any]]:
    """Our action space for Gymnasium's `space`, and the way from an action of ours to its own.

    Actions of a Box may also be many at once, [..., A].
    """
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n)), lambda action: _choice(space, int(action))
    if isinstance(space, spaces.MultiDiscrete):
        sizes = tuple(space.nvec.flatten().tolist())
        return MultiDiscrete(sizes), lambda action: _choices(space, action)
    if not isinstance(space, spaces.Box) or space.dtype.kind != "f":
        raise ConfigError(
            f"actions of {space} are not supported: "
            "adaptax takes a Discrete, a MultiDiscrete or a Box of floats"
        )
    if not space.low.size:
        raise ConfigError(f"actions of {space} are no numbers: there is nothing to choose")
    if not max(np.abs(space.low).max(), np.abs(space.high).max()) < UNBOUNDED:
        raise ConfigError(
            f"actions of {space} are unbounded: adaptax scales [-1, 1] to finite bounds; "
            "wrap the environment in gymnasium.wrappers.TransformAction with a bounded Box"
        )
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    centre, half_range = (low + high) / 2, (high - low) / 2

    def decode(action: np.ndarray) -> np.ndarray:
        """[..., A] to [..., *space.shape]."""
        if not np.isfinite(action).all():
            raise ValueError(f"the action {action} is not finite")
        clipped = np.minimum(np.maximum(action, -1.0), 1.0)  # np.clip takes twice as long
        shaped = clipped.reshape((*action.shape[:-1], *space.shape))
        scaled: np.ndarray = centre + half_range * shaped
        # In float64 the ends come out a rounding beside the bounds.
        return np.minimum(np.maximum(scaled, low), high).astype(space.dtype)

    return Continuous(int(np.prod(space.shape))), decode


def reset_options(params: Mapping[str, Any]) -> dict[str, Any] | None:
    """A task's parameters, for `reset` to keep and change; None where it has none."""
    return copied(params) if params else None


def success_in(info: Mapping[str, Any]) -> Any:
    """What a step's info says of success; None if it says nothing."""
    return info.get("success", info.get("is_success"))


def as_float32(values: Any, what: str) -> np.ndarray:
    """Numbers of an environment as we keep them; what float32 cannot hold becomes an infinity.

    Raises a TypeError where they are no real numbers.
    """
    array = np.asarray(values)
    lacks_some = array.dtype.kind == "O" and any(x is None for x in array.flat)
    if array.dtype.kind not in "biufO" or lacks_some:
        raise TypeError(f"{what} {reprlib.repr(values)} is not made of real numbers")
    with np.errstate(over="ignore"):  # the pools refuse infinities, by name
        return array.astype(np.float32, copy=False)


def as_number(value: Any, what: str) -> float:
    """A single number of an environment; raises a TypeError or ValueError where it is none."""
    return value if isinstance(value, float) else float(as_float32(value, what).item())


def as_flag(value: Any, what: str) -> bool:
    """A truth value of an environment; raises a TypeError where it is not a single one."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "biuf" or array.item() not in (0, 1):
        raise TypeError(f"{what} is {reprlib.repr(value)}, not True or False")
    return bool(array.item())


def _joined(parts: list[Any], take_apart: Callable[[Any], Any]) -> tuple[int, Encoder]:
    """Size and encoder of several spaces side by side."""
    encoders = [_numbers(part) for part in parts]

    def encode(obs: Any) -> np.ndarray:
        pairs = zip(encoders, take_apart(obs), strict=True)
        return np.concatenate([encode_part(part) for (_, encode_part), part in pairs])

    return sum(size for size, _ in encoders), encode


def _one_hot(index: int, size: int) -> np.ndarray:
    if not 0 <= index < size:
        raise ValueError(f"observation {index} is outside 0..{size - 1}")
    row = np.zeros(size, np.float32)
    row[index] = 1.0
    return row


def _one_hots(indices: np.ndarray, sizes: list[int]) -> np.ndarray:
    pairs = zip(indices, sizes, strict=True)
    return np.concatenate([_one_hot(_index(index), size) for index, size in pairs])


def _index(obs: Any) -> int:
    index = int(obs)
    if index != obs:
        raise ValueError(f"observation {obs} is no whole number")
    return index


def _flat(obs: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of a space of this shape, in which axes of one are nobody's concern."""
    array = as_float32(obs, "the observation")
    if array.shape != shape and _sides(array.shape) != _sides(shape):
        raise ValueError(f"the observation has the shape {array.shape}; its space has {shape}")
    return array.reshape(-1)


def _sides(shape: tuple[int, ...]) -> list[int]:
    return [side for side in shape if side != 1]


def _channels_first(shape: tuple[int, ...]) -> bool:
    return len(shape) == PICTURE_NDIM and shape[0] < min(shape[1:])


def _pixels(obs: Any, shape: tuple[int, ...], brightest: np.float32) -> np.ndarray:
    if np.asarray(obs).dtype.kind == "f":
        raise TypeError("the picture is made of fractions; its space is of bytes")
    pixels = _flat(obs, shape) / brightest
    channels_last = pixels.reshape(shape)
    if _channels_first(shape):
        channels_last = np.moveaxis(channels_last, 0, -1)
    return channels_last.reshape(-1)


def _choice(space: spaces.Discrete, action: int) -> int:
    if not 0 <= action < space.n:
        raise ValueError(f"action {action} is outside 0..{space.n - 1}")
    return action + int(space.start)


def _choices(space: spaces.MultiDiscrete, action: np.ndarray) -> np.ndarray:
    parts: np.ndarray = np.asarray(action).reshape(space.shape)
    if not ((parts >= 0) & (parts < space.nvec)).all():
        raise ValueError(f"action {action.tolist()} is outside 0..{(space.nvec - 1).tolist()}")
    return (parts + space.start).astype(space.dtype)
