"""What a sweep searches: settings of the algorithm, each in a range or among choices."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaptax.algorithms.registry import find_algorithm
from adaptax.core.config import flat, from_dict, to_dict
from adaptax.core.errors import ConfigError, check, unknown_name
from adaptax.core.files import read_plain
from adaptax.experiment.recipe import with_none

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Settings = dict[str, Any]
Dimension = dict[str, Any]
"""What a setting is searched among: either `low`, `high` and `log`, or `choices`."""
Space = dict[str, Dimension]
KEYS = ("low", "high", "log", "choices")
ROOM = "algorithm"
"""What the names of settings begin with: nothing else can be searched."""


def read_space(path: Path) -> dict[str, Any]:
    """What a file of TOML holds; a ConfigError where it is none."""
    try:
        return dict(with_none(tomllib.loads(read_plain(path).decode())))
    except OSError as error:
        raise ConfigError(f"cannot read the space {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"the space {path} is not TOML: {error}") from None


def checked_space(given: Mapping[str, Any], algorithm: Settings, where: str) -> Space:
    """The space by the full names of its settings; a ConfigError where one of them cannot be.

    Names are those of the command line; `algorithm` has the name of one, and the settings that are
    not searched.
    """
    try:
        space = Space()
        for name, value in _named(given):
            check(name not in space, f"{name} comes twice: leave one of the two out")
            space[name] = _dimension(name, value)
        check(len(space) > 0, 'it names no setting, such as "algorithm.lr"')
        return {name: _of_setting(name, each, algorithm) for name, each in space.items()}
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _named(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Values by their names joined by dots: TOML's own dots and tables are as good as quoted."""
    for name, value in tree.items():
        check(isinstance(name, str), f"a setting goes by its name, not {name!r}")
        path = prefix + name.lstrip("-").replace("-", "_")
        if isinstance(value, dict) and not value.keys() & set(KEYS):
            check(len(value) > 0, f"{path}: give it low and high, or choices")
            yield from _named(value, f"{path}.")
        else:
            yield "algorithm.memory.kind" if path == "algorithm.memory" else path, value


def _dimension(name: str, value: Any) -> Dimension:
    """A range or choices, as far as that can be told without the setting."""
    if isinstance(value, list):
        value = {"choices": value}
    example = "for example {low = 1e-4, high = 1e-2, log = true}, or a list of choices"
    check(isinstance(value, dict), f"{name}: expected a range, {example}, not {value!r}")
    for key in value:
        if key not in KEYS:
            raise unknown_name(f"key of {name}:", key, KEYS)
    if "choices" in value:
        choices = value["choices"]
        check(len(value) == 1, f"{name} has choices, beside which no range can stand")
        several = isinstance(choices, list) and len(choices) > 1
        check(several, f"{name}: choices must be a list of two or more, not {choices!r}")
        twice = len({json.dumps(choice) for choice in choices}) < len(choices)
        check(not twice, f"{name}: a choice comes twice among {choices}")
        return {"choices": choices}
    check({"low", "high"} <= value.keys(), f"{name}: a range has low and high, {example}")
    low, high, log = value["low"], value["high"], value.get("log", False)
    for end in (low, high):
        finite = _is_number(end) and math.isfinite(end)
        check(finite, f"{name}: expected a finite number, not {end!r}")
    check(isinstance(log, bool), f"{name}: log must be true or false, not {log!r}")
    check(low < high, f"{name}: low must be less than high, not {low} and {high}")
    check(not log or low > 0, f"{name}: a range with log must have low > 0, not {low}")
    return {"low": low, "high": high, "log": log}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _of_setting(name: str, dimension: Dimension, algorithm: Settings) -> Dimension:
    """The dimension with its ends as the setting's own type has them, if that takes all of it."""
    room, _, _ = name.partition(".")
    searched = room not in ("suite", "trainer", "evaluation")
    check(
        searched, f"{name}: only settings of the algorithm are searched; give it as a flag instead"
    )
    known = [f"{ROOM}.{leaf}" for leaf in flat(to_dict(config_of(algorithm)))]
    if name not in known:
        meant = [other for other in known if other.rpartition(".")[2] == name.rpartition(".")[2]]
        raise unknown_name("setting", name, known, meant)
    if "choices" in dimension:
        for choice in dimension["choices"]:
            config_of(with_settings(algorithm, {name: choice}))
        return dimension
    ends = {}
    for end in ("low", "high"):
        config = config_of(with_settings(algorithm, {name: dimension[end]}))
        ends[end] = flat({ROOM: to_dict(config)})[name]
        check(_is_number(ends[end]), f"{name} is no number: give it a list of choices")
    return {**dimension, **ends}


def config_of(algorithm: Settings) -> Any:
    """The config of an algorithm with these settings."""
    settings = {name: value for name, value in algorithm.items() if name != "name"}
    return from_dict(find_algorithm(algorithm["name"]).load()[1], settings, where=ROOM)


def with_settings(algorithm: Settings, found: Settings) -> Settings:
    """The settings of an algorithm with others, by their full names, in their places."""
    algorithm = {**algorithm}
    for name, value in found.items():
        *path, last = name.split(".")[1:]
        inner = algorithm
        for part in path:
            inner[part] = {**inner[part]}
            inner = inner[part]
        inner[last] = value
    return algorithm


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """The space as Optuna knows it."""
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    found: dict[str, BaseDistribution] = {}
    for name, dimension in space.items():
        if "choices" in dimension:
            found[name] = CategoricalDistribution([_plain(c) for c in dimension["choices"]])
        elif isinstance(dimension["low"], int):
            found[name] = IntDistribution(**dimension)
        else:
            found[name] = FloatDistribution(**dimension)
    return found


def samples(space: Space) -> Iterator[Settings]:
    """Settings of the space: ranges at their low or high ends, and every choice once or more."""
    ends = {
        name: each.get("choices") or [each["low"], each["high"]] for name, each in space.items()
    }
    for i in range(max(map(len, ends.values()))):
        yield {name: values[i % len(values)] for name, values in ends.items()}


def settings_of(params: Mapping[str, Any], space: Space) -> Settings:
    """What Optuna chose, as settings in the order of the space."""
    settings = {}
    for name, dimension in space.items():
        choices = {_plain(choice): choice for choice in dimension.get("choices", ())}
        settings[name] = choices.get(params[name], params[name])
    return settings


def _plain(choice: Any) -> Any:
    """A choice that a database can hold: lists as text."""
    return json.dumps(choice) if isinstance(choice, list | dict) else choice
