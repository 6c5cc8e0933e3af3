"""Every setting goes out as a flag and as JSON, and comes back equal."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from small import SMALL_SUITE
from toys import flags, point_suite, small_agent, suite_flags

from adaptax.core.config import from_dict, to_dict
from adaptax.core.errors import ConfigError
from adaptax.envs.registry import PREFIXES, SUITES, find_suite
from adaptax.experiment import cli
from adaptax.experiment.trainer import TrainerConfig

SUITE_NAMES = [name for name in SUITES if not name.startswith(PREFIXES)]
SUITE_NAMES += ["gym:CartPole-v1", "ml1-reach-v3"]
OF_MANY_CLASSES = {"ml10", "ml25", "ml45", "mt10", "mt25", "mt50"}
"""Those of Meta-World take seconds to draw their goals, but for `ml1-reach-v3`."""


def other_values(hint: Any, value: Any) -> Iterator[Any]:
    """Values of a field's type that differ from the one it has."""
    if dataclasses.is_dataclass(value):
        yield changed(value)
    elif get_origin(hint) is Literal:
        yield from (option for option in get_args(hint) if option != value)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (2 * value, value + 1, value - 1, 1)
    elif isinstance(value, float):
        yield from (0.75 * value, value + 0.125, value - 0.125)
    elif isinstance(value, str):
        options = [option for t in get_args(hint) for option in samples(t)]
        yield from (value + "-other", *reversed(options))  # the last memory has every setting
    elif isinstance(value, tuple) and get_origin(get_args(hint)[0]) is Literal:
        yield get_args(get_args(hint)[0])
    elif isinstance(value, tuple) and get_args(hint)[0] is str:
        yield ("one", "other")
    elif isinstance(value, tuple):
        yield from ((7, 5, 3), (0.5, 0.25))
    else:
        yield from (option for t in get_args(hint) for option in samples(t))


def samples(hint: Any) -> list[Any]:
    """Some values of a type, for fields that are None."""
    if get_origin(hint) is tuple:
        return [tuple(samples(get_args(hint)[0]))]
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return {int: [3, 4], float: [0.5], str: ["text"], bool: [True]}.get(hint, [])


def changed(config: Any) -> Any:
    """The config with every field at another value, but for those that exclude each other."""
    return variants(config)[0]


def variants(config: Any) -> list[Any]:
    """Configs in which every field has another value than in this one; one if they allow it."""
    start, left = config, []
    hints = get_type_hints(type(config))
    switches = [f for f in dataclasses.fields(config) if isinstance(getattr(config, f.name), bool)]
    for f in dict.fromkeys([*switches, *dataclasses.fields(config)]):  # which choices may need
        before = getattr(config, f.name)
        recipe = ["none"] if f.name == "recipe" else None  # which has to be there
        values = recipe or list(other_values(hints[f.name], before))
        config = with_one_of(config, f.name, values)
        if getattr(config, f.name) == before:
            alone = with_one_of(start, f.name, values)
            assert getattr(alone, f.name) != before, f"no other value of {f.name} is allowed"
            left.append(alone)
    return [config, *left]


def with_one_of(config: Any, name: str, values: list[Any]) -> Any:
    """The config with a field at the first of these that is allowed and another; else as it is."""
    for value in values:
        with suppress(ConfigError):
            other = dataclasses.replace(config, **{name: value})
            if value != getattr(config, name):
                return other
    return config


@pytest.fixture
def through_flags(monkeypatch, tmp_path):
    """Gives what `adaptax train` would have trained with, from its flags."""
    trainers = []

    class NoTrainer:
        def __init__(self, *given) -> None:
            self.config = given[0]
            trainers.append(given)

        def run(self) -> None:
            pass

        close = check_start = run

    monkeypatch.setattr("adaptax.experiment.trainer.Trainer", NoTrainer)
    monkeypatch.setattr("adaptax.experiment.cores.take_cores", lambda num_cores: None)
    monkeypatch.setattr("adaptax.experiment.callbacks.installed_callbacks", lambda names: [])

    def parse(algorithm: str, suite: str, words: list[str]):
        cli.main(["train", algorithm, suite, *words])
        return trainers.pop()

    return parse


def through_json(config: Any) -> Any:
    return from_dict(type(config), json.loads(json.dumps(to_dict(config))))


def test_algorithm_settings_come_back_equal(entry, through_flags):
    small = small_agent(entry, point_suite(entry)).config
    for config in (small, *variants(small), *variants(entry.load()[1]())):
        words = flags(config, "algorithm") + suite_flags(entry)
        _, algorithm, _ = through_flags(entry.name, "point-goal", words)
        assert algorithm.config == config
        assert through_json(config) == config


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name in OF_MANY_CLASSES else ())
        for name in SUITE_NAMES
    ],
)
def test_suite_settings_come_back_equal(name, through_flags):
    config = changed(find_suite(name).load()[0]())
    if hasattr(config, "num_ray_actors"):  # which exclude worker processes
        config = dataclasses.replace(config, num_ray_actors=0)
    chosen = {"classes": ("door-open-v3",), "test_classes": ()}  # no other strings are classes
    of_config = {name: value for name, value in chosen.items() if hasattr(config, name)}
    config = dataclasses.replace(config, **of_config)
    _, _, suite = through_flags("nop", name, flags(config, "suite"))
    assert suite.config == config
    assert through_json(config) == config


def test_trainer_settings_come_back_equal(through_flags):
    config = changed(TrainerConfig("here"))
    trainer_config, _, _ = through_flags("nop", "point-goal", flags(config, "trainer"))
    assert trainer_config == config
    assert through_json(config) == config


def test_trainer_flags_go_without_their_room(through_flags):
    config = changed(TrainerConfig("here"))
    words = [word.replace("--trainer.", "--") for word in flags(config, "trainer")]
    trainer_config, _, _ = through_flags("nop", "point-goal", words)
    assert trainer_config == config


def test_defaults_come_back_equal(entry, through_flags):
    words = [*suite_flags(entry), "--recipe", "none"]
    trainer_config, algorithm, suite = through_flags(entry.name, "point-goal", words)
    assert algorithm.config == entry.load()[1]()
    assert suite.config == find_suite("point-goal").load()[0](**SMALL_SUITE.get(entry.name, {}))
    assert trainer_config == TrainerConfig(f"runs/{entry.name}-point-goal", recipe="none")
