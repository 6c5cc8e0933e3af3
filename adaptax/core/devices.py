"""One computation on several devices: the cores of the machine, or its accelerators."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from adaptax.core.errors import ConfigError
from adaptax.core.experience import PyTree


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
        num = len(os.sched_getaffinity(0))
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
