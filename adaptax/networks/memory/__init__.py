"""Memories of recurrent policies: one protocol, one file a memory, one line here."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any, Literal, cast

from adaptax.core.config import check_positive
from adaptax.core.errors import check, unknown_name
from adaptax.core.plugins import described, loaded, plugins, sound_entries
from adaptax.networks.memory.fast_weights import NUM_HEADS, FastWeights
from adaptax.networks.memory.gru import GRU
from adaptax.networks.memory.lstm import LSTM
from adaptax.networks.memory.memory import Memory, NoMemory

Kind = Literal["none", "gru", "lstm", "fast-weights"]
MEMORIES: dict[str, type[Memory]] = {
    "none": NoMemory,
    "gru": GRU,
    "lstm": LSTM,
    "fast-weights": FastWeights,
}

ENTRY_POINTS = "adaptax.memories"
"""The group of installed packages' memories; each names MODULE:CLASS."""


@dataclass(frozen=True)
class MemoryConfig:
    """What a policy remembers by."""

    kind: Kind | str = "none"
    """A recurrent cell, or matrices that are written to and read by keys, or nothing; or what an
    installed package offers."""
    size: int = 64
    """Units; those of all heads together for fast weights."""

    def __post_init__(self) -> None:
        check_positive(self, "size")
        find_memory(self.kind)
        check(
            self.kind != "fast-weights" or (self.size % NUM_HEADS == 0 and self.size > NUM_HEADS),
            f"memory size {self.size} must be a multiple of {NUM_HEADS}, the heads of fast "
            "weights, and greater",
        )

    def make(self) -> Memory:
        """The memory as a Flax module."""
        return NoMemory() if self.kind == "none" else find_memory(self.kind)(self.size)


def find_memory(name: str) -> type[Memory]:
    """The class of ours or of an installed package; a ConfigError names the nearest match."""
    found = plugins(ENTRY_POINTS, MEMORIES.__contains__, name)
    if name in MEMORIES:
        return MEMORIES[name]
    if name not in found:
        others = plugins(ENTRY_POINTS, MEMORIES.__contains__)
        raise unknown_name("memory", name, [*MEMORIES, *others])
    return _plugin(found[name])


def plugin_memories() -> dict[str, type[Memory]]:
    """Those of installed packages, by name."""
    found = plugins(ENTRY_POINTS, MEMORIES.__contains__)
    return dict(sound_entries(found.values(), lambda point: (point.name, _plugin(point))))


def _plugin(point: EntryPoint) -> type[Memory]:
    memory: Any = loaded(point)
    is_one = isinstance(memory, type) and issubclass(memory, Memory)
    check(is_one, f"{described(point)} is not a subclass of adaptax.networks.memory.Memory")
    return cast(type[Memory], memory)


__all__ = [
    "GRU",
    "LSTM",
    "MEMORIES",
    "FastWeights",
    "Kind",
    "Memory",
    "MemoryConfig",
    "NoMemory",
    "find_memory",
    "plugin_memories",
]
