"""Named random streams: every draw is a pure function of the run's seed, a name and a counter."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.errors import check
from adaptax.core.threefry import unroll

ArrayT = TypeVar("ArrayT", np.ndarray, jax.Array)

unroll()


def named_key(seed: int, *path: str | int) -> jax.Array:
    """A JAX key for the stream `path`, for example `named_key(seed, "train", "actions", 3)`."""
    return folded(path_words(seed, *path))


def path_words(seed: int, *path: str | int) -> np.ndarray:
    """What `folded` makes `named_key(seed, *path)` of, uint32 [W]."""
    return np.array([seed % 2**32, seed >> 32, *(_word(part) for part in path)], np.uint32)


@jax.jit
def folded(words: jax.Array) -> jax.Array:
    """The JAX key of a stream whose path is these words [W]."""
    key = jax.random.key(words[0])
    for word in words[1:]:
        key = jax.random.fold_in(key, word)
    return key


def lane_keys(key: jax.Array, t: Any, lanes: jax.Array) -> jax.Array:
    """Keys of the lanes numbered `lanes` (any shape) at step t.

    What a lane draws does not depend on which lanes there are beside it, nor on where they run.
    """
    fold = partial(jax.random.fold_in, jax.random.fold_in(key, t))
    return _over(lanes, fold)


def lane_numbers(num_members: int, num_lanes: int) -> jax.Array:
    """The numbers [M, N] of all lanes."""
    return jnp.arange(num_members * num_lanes, dtype=jnp.uint32).reshape(num_members, num_lanes)


def split(key: jax.Array, num: int = 2) -> tuple[jax.Array, ...]:
    """As many keys, each of the shape of `key`, which may be keys with axes."""
    keys = _over(key, lambda one: jax.random.split(one, num))
    return tuple(keys[..., i] for i in range(num))


def normal(key: jax.Array, shape: Sequence[int]) -> jax.Array:
    """Standard normal numbers; the axes of `key`, if it has any, are the first of `shape`."""
    return _over(key, lambda one: jax.random.normal(one, tuple(shape[key.ndim :])))


def uniform(key: jax.Array, shape: Sequence[int], low: float = 0.0) -> jax.Array:
    """Numbers uniform on [low, 1); the axes of `key`, if it has any, are the first of `shape`."""
    return _over(key, lambda one: jax.random.uniform(one, tuple(shape[key.ndim :]), minval=low))


def randint(key: jax.Array, shape: Sequence[int], sizes: Any) -> jax.Array:
    """Integers from 0 to below `sizes`; the axes of `key`, if any, are the first of `shape`."""
    return _over(key, lambda one: jax.random.randint(one, tuple(shape[key.ndim :]), 0, sizes))


def categorical(key: jax.Array, logits: jax.Array) -> jax.Array:
    """Choices [...] int32 from logits [..., A]; the axes of `key`, if any, are the first of those.

    By the greatest of the logits with Gumbel noise, as `jax.random.categorical`.
    """
    noise = _over(key, lambda one: jax.random.gumbel(one, logits.shape[key.ndim :], logits.dtype))
    return jnp.argmax(logits + noise, axis=-1).astype(jnp.int32)


def _over(x: jax.Array, function: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """`function` of every entry of x."""
    for _ in range(x.ndim):
        function = jax.vmap(function)
    return function(x)


def named_generator(seed: int, *path: str | int) -> np.random.Generator:
    """A NumPy generator for the stream `path`."""
    return np.random.default_rng(_entropy(seed, path))


def stream_root(seed: int, *path: str | int) -> np.ndarray:
    """Two uint32 words [2] that identify the stream `path` for `episode_seeds`."""
    return np.random.SeedSequence(_entropy(seed, path)).generate_state(2, np.uint32)


def episode_seeds(root: ArrayT, index: ArrayT) -> ArrayT:
    """Seeds of the episodes numbered `index` (uint32, any shape) in the stream `root` (uint32 [2]).

    Works alike on NumPy and JAX arrays, so that a compiled loop and a host loop draw the same
    seeds. For one root it is a bijection on 32 bits (MurmurHash3's finaliser, twice): no two
    episodes of a stream share a seed.
    """
    return _mix(_mix(index ^ root[0]) ^ root[1])


def _mix(h: ArrayT) -> ArrayT:
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    h = (h ^ (h >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return h ^ (h >> np.uint32(16))


def _entropy(seed: int, path: tuple[str | int, ...]) -> list[int]:
    check(seed >= 0, f"a seed must not be negative, not {seed}")
    # The length, because NumPy pads with zeros: ("a",) and ("a", 0) would be one stream.
    return [seed, len(path), *(_word(part) for part in path)]


def _word(part: str | int) -> int:
    return zlib.crc32(part.encode()) if isinstance(part, str) else part
