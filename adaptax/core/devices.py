"""The devices JAX computes on: the cores of the machine, or its accelerators."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from adaptax.core.cores import usable_cores
from adaptax.core.errors import ConfigError
from adaptax.core.experience import PyTree

GIB = 2**30
_LITTLE = GIB // 4
"""Bytes that any machine has, so that nobody need ask."""
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")
_MEMINFO = Path("/proc/meminfo")


def make_every_core_a_device() -> None:
    """Let JAX take every core that this process may use as a device, for `over_devices`.

    XLA runs the batched products of a program on one thread of a CPU; measured, an update of ProMP
    takes as long on two cores as on one. It changes the whole process, therefore programs call it
    and the library does not: before JAX computes anything. Does nothing where it already has, or
    where the environment's `JAX_NUM_CPU_DEVICES` says how many devices there are.
    """
    if "JAX_NUM_CPU_DEVICES" in os.environ:
        return
    with contextlib.suppress(RuntimeError):
        num = len(usable_cores())
        jax.config.update("jax_num_cpu_devices", num)  # type: ignore[no-untyped-call]


def check_platform() -> None:
    """Raise a ConfigError where JAX cannot have the platform that it is told to take."""
    try:
        jax.local_devices()
    except (RuntimeError, AssertionError) as error:
        # Of a platform whose plugin is not installed JAX says nothing.
        said = " ".join(str(error).split()) or "there is no such platform"
        platform = jax.config.jax_platforms  # type: ignore[attr-defined]
        raise ConfigError(
            f"JAX cannot compute on {platform!r}: {said}; install JAX for it, for example "
            "jax[cuda12], or take another by JAX_PLATFORMS, for example JAX_PLATFORMS=cpu"
        ) from None


def processor() -> jax.Device:
    """The device that computes on the CPU, beside a GPU where there is one."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        platforms = jax.config.jax_platforms  # type: ignore[attr-defined]
        raise ConfigError(
            f"JAX_PLATFORMS={platforms} has JAX leave out the processor, where MuJoCo runs; "
            f"say JAX_PLATFORMS={platforms},cpu"
        ) from None


def over_devices(function: Callable[[PyTree, PyTree], Any], shared: PyTree, parts: PyTree) -> Any:
    """What `function(shared, parts)`, compiled, gives; the parts lie on several devices meanwhile.

    All leaves of `parts` are [M, ...], and as many devices share them as divide M. Figures differ
    from those of one device by rounding, since sums go by device first.
    """
    devices, num_parts = jax.local_devices(), len(jax.tree.leaves(parts)[0])
    num = max(n for n in range(1, len(devices) + 1) if num_parts % n == 0)
    if num == 1:
        return function(shared, parts)
    mesh = jax.make_mesh((num,), ("parts",), (AxisType.Auto,), devices=devices[:num])
    copied, split = (
        NamedSharding(mesh, PartitionSpec(*axes))  # type: ignore[no-untyped-call]
        for axes in ((), ("parts",))
    )
    result = function(jax.device_put(shared, copied), jax.device_put(parts, split))
    return jax.tree.map(_uncommitted, result)


def _uncommitted(x: jax.Array) -> jax.Array:
    """A copy that no computation is bound to a device by, as if nothing had been divided.

    Were results committed to a device, so would everything be that is computed with them, and
    every program that had seen its inputs free would be compiled once more.
    """
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        data = _uncommitted(jax.random.key_data(x))
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(x))
    return jnp.asarray(np.asarray(x))


def memory_size() -> int | None:
    """Bytes of the device that JAX computes on, used or not; None if nobody says."""
    return _memory("MemTotal", in_use=True)


def memory_available() -> int | None:
    """Bytes that can still be had of it; None if nobody says."""
    return _memory("MemAvailable", in_use=False)


def _memory(entry: str, *, in_use: bool) -> int | None:
    device = jax.local_devices()[0]
    if device.platform != "cpu":
        stats = device.memory_stats() or {}
        used = 0 if in_use else stats.get("bytes_in_use", 0)
        return stats["bytes_limit"] - used if "bytes_limit" in stats else None
    limits = []
    if _MEMINFO.exists():
        entries = dict(line.split(":") for line in _MEMINFO.read_text().splitlines())
        limits.append(int(entries[entry].split()[0]) * 1024)
    if _CGROUP_LIMIT.exists() and (text := _CGROUP_LIMIT.read_text().strip()) != "max":
        limits.append(int(text))
    return min(limits, default=None)


def check_fits(needed: int, what: str, remedy: str) -> None:
    """Raise a ConfigError where what needs so many bytes can never have them."""
    if needed < _LITTLE:
        return
    size = memory_size()
    if size is not None and needed > size:
        raise ConfigError(
            f"{what}: at least {needed / GIB:,.0f} GiB, of {size / GIB:.1f} GiB that there are; "
            f"{remedy}"
        )
