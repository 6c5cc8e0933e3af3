"""Where a replay's transitions lie: NumPy arrays on a CPU, device arrays where there is a GPU.

Both are made in full at once. On a CPU that costs nothing yet: the system gives memory to a page
when something is first written there, so that what is used grows with what is held.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.errors import AdaptaxError

Arrays = dict[str, Any]
"""By name, NumPy or JAX."""
Fields = Mapping[str, tuple[tuple[int, ...], Any]]
"""Shape and type of each field of a row, by name."""
_GIB = 2**30
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_MEMINFO = Path("/proc/meminfo")


class Rows(Protocol):
    """`num` rows in each of M rings."""

    def write(self, ring: int, places: np.ndarray, new: Arrays) -> None:
        """Put new [n, ...] at places [n] of a ring."""

    def read(self, rings: np.ndarray, places: np.ndarray) -> Arrays:
        """The rows at places [...] of rings [...]."""

    def first(self, num: int) -> Arrays:
        """The first rows of every ring, [M, num, ...]."""

    def fill(self, saved: Arrays) -> None:
        """Put saved [M, n, ...] at the first places of every ring."""


def make_rows(fields: Fields, num_rings: int, size: int) -> Rows:
    """Rows on the device that JAX computes on; raises an AdaptaxError if they do not fit there."""
    device = jax.local_devices()[0]
    on_host = device.platform == "cpu"
    row = sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in fields.values())
    needed, available = num_rings * size * row, _available(None if on_host else device)
    if available is not None and needed > available:
        raise AdaptaxError(
            f"a replay of {num_rings} x {size} transitions of {row} bytes needs "
            f"{needed / _GIB:.1f} GiB, of which {available / _GIB:.1f} GiB are available; "
            "a smaller memory_size fits"
        )
    return (HostRows if on_host else DeviceRows)(fields, num_rings, size)


class HostRows:
    """Rows in NumPy arrays [M * size, ...], written in place."""

    def __init__(self, fields: Fields, num_rings: int, size: int) -> None:
        self.num_rings, self.size = num_rings, size
        rows = num_rings * size
        self.arrays = {name: np.zeros((rows, *s), dtype) for name, (s, dtype) in fields.items()}

    def write(self, ring: int, places: np.ndarray, new: Arrays) -> None:
        """See `Rows`."""
        for name, array in self.arrays.items():
            array[ring * self.size + places] = new[name]

    def read(self, rings: np.ndarray, places: np.ndarray) -> Arrays:
        """See `Rows`."""
        index = rings * self.size + places
        return {name: np.take(array, index, axis=0) for name, array in self.arrays.items()}

    def first(self, num: int) -> Arrays:
        """See `Rows`."""
        return {name: self._by_ring(array)[:, :num] for name, array in self.arrays.items()}

    def fill(self, saved: Arrays) -> None:
        """See `Rows`."""
        for name, array in self.arrays.items():
            self._by_ring(array)[:, : saved[name].shape[1]] = saved[name]

    def _by_ring(self, array: np.ndarray) -> np.ndarray:
        return array.reshape(self.num_rings, self.size, *array.shape[1:])


class DeviceRows:
    """Rows in device arrays [M * size, ...], whose memory every write takes over."""

    def __init__(self, fields: Fields, num_rings: int, size: int) -> None:
        self.num_rings, self.size = num_rings, size
        rows = num_rings * size
        self.arrays = {name: jnp.zeros((rows, *s), dtype) for name, (s, dtype) in fields.items()}

    def write(self, ring: int, places: np.ndarray, new: Arrays) -> None:
        """See `Rows`."""
        # Filled up to a power of two with places that do not exist: few sizes to compile for.
        fill = (1 << (len(places) - 1).bit_length()) - len(places) if len(places) else 0
        index = np.pad(ring * self.size + places, (0, fill), constant_values=2**31 - 1)
        widths = {name: [(0, fill), *[(0, 0)] * (array.ndim - 1)] for name, array in new.items()}
        filled = {name: np.pad(array, widths[name]) for name, array in new.items()}
        self.arrays = _written(self.arrays, index.astype(np.int32), filled)

    def read(self, rings: np.ndarray, places: np.ndarray) -> Arrays:
        """See `Rows`."""
        return _taken(self.arrays, (rings * self.size + places).astype(np.int32))

    def first(self, num: int) -> Arrays:
        """See `Rows`."""
        return {
            name: np.asarray(array.reshape(self.num_rings, self.size, *array.shape[1:])[:, :num])
            for name, array in self.arrays.items()
        }

    def fill(self, saved: Arrays) -> None:
        """See `Rows`."""
        for ring in range(self.num_rings):
            new = {name: np.asarray(x[ring]) for name, x in saved.items()}
            self.write(ring, np.arange(len(new["reward"])), new)


@partial(jax.jit, donate_argnums=0)
def _written(arrays: Arrays, index: jax.Array, new: Arrays) -> Arrays:
    return {name: x.at[index].set(new[name], mode="drop") for name, x in arrays.items()}


@jax.jit
def _taken(arrays: Arrays, index: jax.Array) -> Arrays:
    return {name: x[index] for name, x in arrays.items()}


def _available(device: jax.Device | None) -> int | None:
    """Bytes that can still be had, of the host or of a device; None if nobody says."""
    if device is not None:
        stats = device.memory_stats() or {}
        return stats["bytes_limit"] - stats["bytes_in_use"] if "bytes_limit" in stats else None
    limits = []
    if _MEMINFO.exists():
        entries = dict(line.split(":") for line in _MEMINFO.read_text().splitlines())
        limits.append(int(entries["MemAvailable"].split()[0]) * 1024)
    if _CGROUP_LIMIT.exists() and (text := _CGROUP_LIMIT.read_text().strip()) != "max":
        limits.append(int(text))
    return min(limits, default=None)
