"""JAX's random bits on processors, without a loop in the program for each draw."""

from __future__ import annotations

import numpy as np
from jax import Array
from jax.extend.random import threefry2x32_p
from jax.interpreters import mlir

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = np.uint32(0x1BD11BDA)


def threefry2x32(key1: Array, key2: Array, count1: Array, count2: Array) -> tuple[Array, Array]:
    """Two uint32 words of random bits for every two of a counter, all of one shape.

    Threefry with 20 rounds (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
    """
    keys = (key1, key2, key1 ^ key2 ^ PARITY)
    x, y = count1 + key1, count2 + key2
    for group in range(5):
        for rotation in ROTATIONS[group % 2]:
            x = x + y
            y = x ^ _rotated_left(y, rotation)
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def unroll() -> None:
    """Have programs for processors compute random bits in a row, not in a loop of five rounds.

    JAX loops there to compile sooner. Yet a draw in a step of a few microseconds then costs more
    than the step, and compilation is no faster for it. The bits are the same.
    """
    rule = mlir.lower_fun(threefry2x32, multiple_results=True)  # traced once a shape
    mlir.register_lowering(threefry2x32_p, rule, platform="cpu")


def _rotated_left(x: Array, distance: int) -> Array:
    return (x << np.uint32(distance)) | (x >> np.uint32(32 - distance))
