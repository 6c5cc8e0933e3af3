"""Memories of recurrent policies: one protocol, one file a memory, one line here."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any, Literal

from adaptax.core.config import check_positive, check_types
from adaptax.core.errors import check, unknown_name
from adaptax.core.plugins import loaded_class, plugins, sound_entries
from adaptax.networks.memory import fast_weights, transformer
from adaptax.networks.memory.fast_weights import FastWeights
from adaptax.networks.memory.gru import GRU
from adaptax.networks.memory.lru import LRU
from adaptax.networks.memory.lstm import LSTM
from adaptax.networks.memory.memory import Memory, NoMemory
from adaptax.networks.memory.min_gru import MinGRU
from adaptax.networks.memory.transformer import Transformer

Kind = Literal["none", "gru", "lstm", "fast-weights", "min-gru", "lru", "transformer"]
MEMORIES: dict[str, type[Memory]] = {
    "none": NoMemory,
    "gru": GRU,
    "lstm": LSTM,
    "fast-weights": FastWeights,
    "min-gru": MinGRU,
    "lru": LRU,
    "transformer": Transformer,
}
LAYERED = ("min-gru", "lru", "transformer")
"""Those of as many layers as one likes; the others have one."""
LOOKING_BACK = ("transformer",)
"""Those that look back at so many steps; the others keep a state."""

ENTRY_POINTS = "adaptax.memories"
"""The group of installed packages' memories; each names MODULE:CLASS."""


@dataclass(frozen=True)
class MemoryConfig:
    """What a policy remembers by."""

    kind: Kind | str = "none"
    """Nothing (`none`), a recurrent cell (`gru`, `lstm`), matrices written and read by keys
    (`fast-weights`), linear recurrences (`min-gru`, `lru`), attention (`transformer`), or the name
    of an installed package's memory."""
    size: int = 64
    """Units; those of all heads together for fast weights and transformers."""
    num_layers: int = 2
    """Layers of min-gru, lru and transformer; the others have one."""
    context: int = 1000
    """Steps that a transformer looks back at, this one included; of shorter trials or episodes all
    there are."""

    def __post_init__(self) -> None:
        check_types(self, "memory")
        check_positive(self, "size", "num_layers", "context")
        find_memory(self.kind)
        for name, kinds in {"num_layers": LAYERED, "context": LOOKING_BACK}.items():
            check(
                self.kind in kinds or getattr(self, name) == getattr(MemoryConfig, name),
                f"{name} is of {', '.join(kinds)}: kind {self.kind} has none",
            )
        heads = fast_weights.NUM_HEADS
        check(
            self.kind != "fast-weights" or (self.size % heads == 0 and self.size > heads),
            f"memory size {self.size} must be a multiple of {heads}, the heads of fast "
            "weights, and greater",
        )
        least = 2 * transformer.NUM_HEADS
        check(
            self.kind != "transformer" or self.size % least == 0,
            f"memory size {self.size} must be a multiple of {least}: a transformer has "
            f"{transformer.NUM_HEADS} heads of pairs of units",
        )

    def make(self, num_steps: int | None = None) -> Memory:
        """The memory as a Flax module; `num_steps` are the most that it will be run for."""
        more: dict[str, Any] = {}
        if self.kind in LAYERED:
            more["num_layers"] = self.num_layers
        if self.kind in LOOKING_BACK:
            more["context"] = min(self.context, num_steps or self.context)
        return NoMemory() if self.kind == "none" else find_memory(self.kind)(self.size, **more)


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
    memory: type[Memory] = loaded_class(point, Memory, "adaptax.networks.memory.Memory")
    return memory


__all__ = [
    "GRU",
    "LRU",
    "LSTM",
    "MEMORIES",
    "FastWeights",
    "Kind",
    "Memory",
    "MemoryConfig",
    "MinGRU",
    "NoMemory",
    "Transformer",
    "find_memory",
    "plugin_memories",
]
