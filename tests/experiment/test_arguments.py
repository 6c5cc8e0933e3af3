from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Literal

import pytest

from adaptax.algorithms.registry import ALGORITHMS
from adaptax.core.errors import ConfigError
from adaptax.experiment.arguments import (
    FLAGS_ELSEWHERE,
    ResumeArgs,
    flag_value,
    full_flag,
    nearest_flag,
    parse,
)
from adaptax.experiment.trainer_config import TrainerConfig


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


@pytest.mark.parametrize("words", (["--recipe", "b"], ["--recipe=b"]))
def test_of_a_flag_that_is_given_twice_the_last_counts(words):
    assert flag_value(["--recipe", "a", *words, "--seed=3"], "--recipe") == "b"
    assert flag_value(words, "--seed") is None


FLAGS = [
    *("--num-steps", "--num-iterations", "--quiet", "--no-quiet", "--evaluation.num-tasks"),
    *("--algorithm.num-steps", "--algorithm.lr", "--algorithm.num-tasks", "--algorithm.clip-range"),
    *("--seeds", "--algorithm.heads.kind", "--algorithm.heads.rank"),
]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("--total-timesteps", "--num-steps"),
        ("--total_timesteps", "--num-steps"),
        ("--learning-rate", "--algorithm.lr"),
        ("--algorithm.learning-rate", "--algorithm.lr"),
        ("--algorithm.eps-clip", "--algorithm.clip-range"),
        ("--n-steps", "--algorithm.num-steps"),
        ("--lr", "--algorithm.lr"),
        ("--trainer.lr", "--algorithm.lr"),
        ("--num-step", "--num-steps"),
        ("--algorithm.num-step", "--algorithm.num-steps"),
        ("--evaluation.num-task", "--evaluation.num-tasks"),
        ("--no-quite", "--no-quiet"),
        ("--algorithm.heads", "--algorithm.heads.kind"),
        ("--gamma", None),  # what it means is not among these
        ("--colour", None),
    ],
)
def test_a_wrong_flag_is_led_to_the_one_that_is_meant(given, meant):
    assert nearest_flag(given, FLAGS) == meant


def test_names_of_other_toolkits_lead_to_flags_that_exist():
    rooms = [("--", TrainerConfig)]
    rooms += [("--algorithm.", entry.load()[1]) for entry in ALGORITHMS.values()]
    known = {room + f.name.replace("_", "-") for room, config in rooms for f in fields(config)}
    assert set(FLAGS_ELSEWHERE.values()) <= known


def test_words_without_a_flag_are_not_suggested():
    with pytest.raises(ConfigError) as refused:
        parse(ResumeArgs, ["run", "--run-dri", "x"], "adaptax resume")
    assert "did you mean" not in str(refused.value)
