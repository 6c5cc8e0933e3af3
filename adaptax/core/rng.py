"""Named random streams: every draw is a pure function of the run's seed, a name and a counter."""

from __future__ import annotations

import zlib
from typing import TypeVar

import jax
import numpy as np

from adaptax.core.errors import check

ArrayT = TypeVar("ArrayT", np.ndarray, jax.Array)


def named_key(seed: int, *path: str | int) -> jax.Array:
    """A JAX key for the stream `path`, for example `named_key(seed, "train", "actions", 3)`."""
    key = jax.random.fold_in(jax.random.key(seed % 2**32), seed >> 32)
    return _folded(key, np.array([_word(part) for part in path], np.uint32))


@jax.jit
def _folded(key: jax.Array, words: jax.Array) -> jax.Array:
    for word in words:
        key = jax.random.fold_in(key, word)
    return key


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
