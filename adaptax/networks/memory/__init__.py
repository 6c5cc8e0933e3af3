"""Memories of recurrent policies: one protocol, one file a memory, one line here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from adaptax.core.config import check_positive
from adaptax.core.errors import check
from adaptax.networks.memory.fast_weights import NUM_HEADS, FastWeights
from adaptax.networks.memory.gru import GRU
from adaptax.networks.memory.lstm import LSTM
from adaptax.networks.memory.memory import Memory, NoMemory

Kind = Literal["none", "gru", "lstm", "fast-weights"]
MEMORIES: dict[Kind, type[Memory]] = {
    "none": NoMemory,
    "gru": GRU,
    "lstm": LSTM,
    "fast-weights": FastWeights,
}


@dataclass(frozen=True)
class MemoryConfig:
    """What a policy remembers by."""

    kind: Kind = "none"
    """A recurrent cell, or matrices that are written to and read by keys, or nothing."""
    size: int = 64
    """Units; those of all heads together for fast weights."""

    def __post_init__(self) -> None:
        check_positive(self, "size")
        check(
            self.kind != "fast-weights" or (self.size % NUM_HEADS == 0 and self.size > NUM_HEADS),
            f"memory size {self.size} must be a multiple of {NUM_HEADS}, the heads of fast "
            "weights, and greater",
        )

    def make(self) -> Memory:
        """The memory as a Flax module."""
        return NoMemory() if self.kind == "none" else MEMORIES[self.kind](self.size)


__all__ = ["GRU", "LSTM", "MEMORIES", "FastWeights", "Kind", "Memory", "MemoryConfig", "NoMemory"]
