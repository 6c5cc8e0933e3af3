from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import pytest

from adaptax.core.errors import ConfigError
from adaptax.experiment.arguments import full_flag, parse


@dataclass(frozen=True)
class MemoryConfig:
    kind: Literal["none", "gru", "lstm"] = "none"
    size: int = 64


@dataclass(frozen=True)
class OwnConfig:
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    memory_steps: int = 1


@dataclass(frozen=True)
class Settings:
    algorithm: OwnConfig = field(default_factory=OwnConfig)


def settings(line: str) -> OwnConfig:
    words = [full_flag(word, {"seed"}) for word in line.split()]
    return parse(Settings, words, "adaptax train").algorithm


@pytest.mark.parametrize(
    ("line", "kind", "size"),
    [
        ("--algorithm.memory gru", "gru", 64),
        ("--algorithm.memory=gru", "gru", 64),
        ("--algorithm.memory.kind gru", "gru", 64),
        ("--algorithm.memory lstm --algorithm.memory.size 8", "lstm", 8),
        ("--algorithm.memory.size 8", "none", 8),
        ("", "none", 64),
    ],
)
def test_a_memory_is_named_by_one_flag(line, kind, size):
    assert settings(line).memory == MemoryConfig(kind, size)


def test_flags_that_only_begin_so_are_left_alone():
    assert settings("--algorithm.memory-steps 3").memory_steps == 3
    for flag in ("--algorithm.memory-steps", "--algorithm.memory.size=3", "--suite.memory"):
        assert full_flag(flag, set()) == flag


def test_a_wrong_memory_is_one_line():
    with pytest.raises(
        ConfigError, match=r"'gur' for argument '--algorithm\.memory\.kind'"
    ) as refused:
        settings("--algorithm.memory gur")
    assert "\n" not in str(refused.value)


def test_the_trainers_flags_go_without_their_room():
    assert full_flag("--seed=3", {"seed"}) == "--trainer.seed=3"
    assert full_flag("--no-seed", {"seed"}) == "--trainer.no-seed"
    assert full_flag("--algorithm.seed", {"seed"}) == "--algorithm.seed"
