"""JAX's random bits on processors, without a loop in the program for each draw."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.extend.random import threefry2x32_p
from jax.interpreters import mlir

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def threefry2x32(key1: Any, key2: Any, count1: Any, count2: Any) -> tuple[Any, Any]:
    """Two uint32 words of random bits for every two of a counter, all of one shape.

    Threefry with 20 rounds (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
    """
    keys = (key1, key2, key1 ^ key2 ^ np.uint32(PARITY))
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
    mlir.register_lowering(threefry2x32_p, _lowered, platform="cpu")


def _rotated_left(x: Any, distance: int) -> Any:
    return (x << np.uint32(distance)) | (x >> np.uint32(32 - distance))


def _lowered(context: mlir.LoweringRuleContext, *operands: Any) -> list[Any]:
    """The compiler's operations for `threefry2x32`, whose operands may have to be broadcast.

    Written at once: to trace it as a function of JAX takes ten milliseconds a shape, which every
    program that draws would pay at a run's start.
    """
    shape = context.avals_out[0].shape
    kind = ir.RankedTensorType.get(shape, ir.IntegerType.get_unsigned(32))
    # Else draws from keys that were drawn themselves become one kernel, and LLVM (that of jaxlib
    # 0.11 and 0.12) does not come to an end with three in a row.
    keys = stablehlo.OptimizationBarrierOp(operands[:2]).results
    words = threefry2x32(*(_Word.of(x, kind) for x in (*keys, *operands[2:])))
    return [word.value for word in words]


@dataclass(frozen=True)
class _Word:
    """A value in a program, with the operators that Threefry takes."""

    value: Any

    @classmethod
    def of(cls, x: Any, kind: ir.RankedTensorType) -> _Word:
        """The value x broadcast to a type."""
        if x.type == kind:
            return cls(x)
        axes = range(kind.rank - ir.RankedTensorType(x.type).rank, kind.rank)
        return cls(stablehlo.broadcast_in_dim(kind, x, ir.DenseI64ArrayAttr.get(list(axes))))

    def __add__(self, other: _Word | np.uint32) -> _Word:
        return _Word(stablehlo.add(self.value, self._operand(other)))

    def __xor__(self, other: _Word | np.uint32) -> _Word:
        return _Word(stablehlo.xor(self.value, self._operand(other)))

    def __or__(self, other: _Word | np.uint32) -> _Word:
        return _Word(stablehlo.or_(self.value, self._operand(other)))

    def __lshift__(self, other: _Word | np.uint32) -> _Word:
        return _Word(stablehlo.shift_left(self.value, self._operand(other)))

    def __rshift__(self, other: _Word | np.uint32) -> _Word:
        return _Word(stablehlo.shift_right_logical(self.value, self._operand(other)))

    def _operand(self, other: _Word | np.uint32) -> Any:
        if isinstance(other, _Word):
            return other.value
        kind = ir.RankedTensorType(self.value.type)
        number = ir.IntegerAttr.get(kind.element_type, int(other))
        return stablehlo.constant(ir.DenseElementsAttr.get_splat(kind, number))
