"""Recipes: settings that were found to work for an algorithm on a suite, and what came of them.

Each is a TOML file in `recipes/`, or anybody's:

    [recipe]
    algorithm = "ppo"
    suites = ["cartpole", "gym:CartPole-v1"]
    source = "Where the settings come from."

    [algorithm]
    lr = 1e-3

    [suite]

    [trainer]
    num_steps = 100000

TOML has no None: the word "None" stands for it, as on the command line.

`by_default = false` in the first table keeps it for who asks for it by name. `[[measured]]` tables
come from `benchmarks/recipes.py`.
"""

from __future__ import annotations

import json
import math
import os
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from adaptax.algorithms.registry import find_algorithm
from adaptax.core.config import from_dict, merged
from adaptax.core.errors import ConfigError, check, unknown_name
from adaptax.envs.registry import find_suite

FOLDER = Path(__file__).parent / "recipes"
NONE = "none"
"""Asks for the defaults of the classes."""
LENGTH = "lr_schedule_steps"
"""The setting of algorithms that says how long a schedule falls."""
NO_VALUE = "None"
"""What a file says for None."""
TABLES = ("algorithm", "suite", "trainer")
LIMITS = ("num_iterations", "num_steps", "max_seconds")
"""Settings of the trainer that say how long; whoever sets one of them wants none of the others."""


@dataclass(frozen=True)
class Measured:
    """What a recipe comes to on a suite, over seeds."""

    suite: str
    num_seeds: int
    num_steps: int
    """Environment steps of a run."""
    mean: float
    """Return of the last evaluation, after adaptation where the algorithm adapts: mean over seeds,
    and its 95 % interval from `low` to `high`, Student's."""
    low: float
    high: float
    minutes: float
    """Minutes of processor time of a run on one core, start and evaluations included: the median
    over seeds."""
    machine: str


@dataclass(frozen=True)
class About:
    """What a recipe is for."""

    algorithm: str
    suites: tuple[str, ...]
    """Names, or patterns such as ml1-*."""
    source: str = ""
    """Where its settings come from."""
    by_default: bool = True
    """Whether these pairs are trained with it where no recipe is named."""


@dataclass(frozen=True)
class Recipe:
    """Settings of algorithm, suite and trainer, by name."""

    name: str
    """Name of a recipe that comes with adaptax, or the path of a recipe's file."""
    about: About
    algorithm: dict[str, Any] = field(default_factory=dict)
    suite: dict[str, Any] = field(default_factory=dict)
    trainer: dict[str, Any] = field(default_factory=dict)
    measured: tuple[Measured, ...] = ()

    def is_for(self, algorithm: str, suite: str) -> bool:
        """Whether it was made for this algorithm on this suite."""
        patterns = self.about.suites
        return algorithm == self.about.algorithm and any(fnmatchcase(suite, p) for p in patterns)

    def settings(self, table: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Those of one of its tables, with the given ones over them."""
        own = getattr(self, table)
        if table == "trainer" and limits_among(given):
            own = without_limits(own)
        return merged(own, given)

    def without_networks(self) -> Recipe:
        """The same without settings that describe networks, for who has networks of his own."""
        if not self.algorithm:
            return self
        config_class = find_algorithm(self.about.algorithm).load()[1]
        described = getattr(config_class, "network_settings", ())
        own = {name: value for name, value in self.algorithm.items() if name not in described}
        return replace(self, algorithm=own)

    def for_run(self, suite: str, limits: Mapping[str, float]) -> Recipe:
        """The same for a run on a suite that ends by these limits, if any.

        A length that it gives a schedule is that of its own run: in another it is left out where
        the trainer knows how many iterations there are, and else in proportion to the steps.
        """
        if not self._ends_otherwise(limits):
            return self
        share = None if "num_iterations" in limits else self._share(suite, limits)
        return replace(self, algorithm=_stretched(self.algorithm, share))

    def expected_iterations(
        self, config: Any, suite: str, limits: Mapping[str, float]
    ) -> int | None:
        """How many iterations a run with these limits is expected to have, by the recipe's own.

        In proportion to the steps where both have a number of them; None where the trainer knows
        how many there are, or the recipe does not say it.
        """
        if not self._ends_otherwise(limits):
            return None
        from adaptax.learning.schedules import iterations_within  # which takes JAX

        if iterations_within(config, *(limits.get(name) for name in LIMITS[:2])) is not None:
            return None
        own = iterations_within(config, *(self.trainer.get(name) for name in LIMITS[:2]))
        return None if own is None else math.ceil(own * self._share(suite, limits))

    def timed(self, config: Any, suite: str, limits: Mapping[str, float]) -> Any:
        """An algorithm's config whose schedules fall as long as a run is expected to be."""
        from adaptax.learning.schedules import over_the_run  # which takes JAX

        expected = self.expected_iterations(config, suite, limits)
        return config if expected is None else over_the_run(config, expected)

    def _ends_otherwise(self, limits: Mapping[str, float]) -> bool:
        """Whether a run with these limits ends by others than the recipe's own, if it has some."""
        own = limits_among(self.trainer)
        return bool(limits) and bool(own) and limits != own

    def _share(self, suite: str, limits: Mapping[str, float]) -> float:
        """How many of its own run's steps one with these limits has; 1 where that is not known."""
        known = {found.suite: found.num_steps for found in self.measured}
        own = self.trainer.get("num_steps") or known.get(suite)
        return limits["num_steps"] / own if own and "num_steps" in limits else 1.0

    def check(self, suite: str) -> None:
        """Raise a ConfigError where its settings do not exist, or are wrong."""
        from adaptax.experiment.trainer_config import trainer_config  # which takes JAX

        try:
            from_dict(
                find_algorithm(self.about.algorithm).load()[1], self.algorithm, where="algorithm"
            )
            from_dict(find_suite(suite).load()[0], self.suite, where="suite")
            trainer_config(self.trainer)
        except ConfigError as error:
            raise ConfigError(f"recipe {self.name}: {error}") from None

    def to_dict(self) -> dict[str, Any]:
        """Everything about it as JSON-ready values."""
        tables = {table: getattr(self, table) for table in TABLES}
        measured = [asdict(found) for found in self.measured]
        return {"name": self.name, **asdict(self.about), "settings": tables, "measured": measured}

    def in_words(self, suite: str) -> str:
        """One line for the beginning of a run."""
        line = f"recipe {self.name}"
        if not self.is_for(self.about.algorithm, suite):
            line += f" (made for {', '.join(self.about.suites)})"
        for found in self.measured:
            if found.suite == suite:
                line += (
                    f" (return {found.mean:.4g} [{found.low:.4g}, {found.high:.4g}] over "
                    f"{found.num_seeds} seeds of {found.num_steps:,} steps)"
                )
        return f"{line}; without it: --recipe none"


CLASS_DEFAULTS = Recipe("", About("", ()))
"""No settings: those of the classes."""


def limits_among(settings: Mapping[str, Any]) -> dict[str, float]:
    """Those of a trainer's settings that end a run."""
    return {name: settings[name] for name in LIMITS if settings.get(name) is not None}


def without_limits(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a trainer's settings that do not end a run."""
    return {name: value for name, value in settings.items() if name not in LIMITS}


def _stretched(settings: Mapping[str, Any], share: float | None) -> dict[str, Any]:
    """The settings with lengths of schedules times a share, within them too; without, if None."""
    found = dict[str, Any]()
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found[name] = _stretched(value, share)
        elif name != LENGTH or value is None:
            found[name] = value
        elif share is not None:
            found[name] = max(1, round(value * share))
    return found


@cache
def all_recipes() -> dict[str, Recipe]:
    """Ours, by name."""
    return {path.stem: read_recipe(path, path.stem) for path in sorted(FOLDER.glob("*.toml"))}


def find_recipe(asked: str | os.PathLike[str] | None, algorithm: str, suite: str) -> Recipe:
    """The recipe of this name or in this file; None asks for the pair's own, if there is one."""
    if asked is not None:
        known = isinstance(asked, str | os.PathLike)
        check(known, f"recipe: expected a name or a file, not {asked!r}")
        asked = os.fspath(asked)
    if asked == NONE:
        return CLASS_DEFAULTS
    if asked is None:
        found = [r for r in all_recipes().values() if r.is_for(algorithm, suite)]
        found = [recipe for recipe in found if recipe.about.by_default]
        # A name goes before a pattern.
        found.sort(key=lambda recipe: suite not in recipe.about.suites)
        return found[0] if found else CLASS_DEFAULTS
    if asked.endswith(".toml"):
        recipe = read_recipe(Path(asked), asked)
    elif asked in all_recipes():
        recipe = all_recipes()[asked]
    else:
        allowed = [name for name, r in all_recipes().items() if r.about.algorithm == algorithm]
        raise unknown_name("recipe", asked, [NONE, *allowed])
    theirs = recipe.about.algorithm
    check(theirs == algorithm, f"recipe {asked} is for {theirs}, not for {algorithm}")
    recipe.check(suite)
    return recipe


def read_recipe(path: Path, name: str) -> Recipe:
    """The recipe in a file; a ConfigError where it is none."""
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:  # which TOML's and Unicode's errors are
        raise ConfigError(f"cannot read the recipe {path}: {error}") from None
    known = ("recipe", *TABLES, "measured")
    for table, value in tables.items():
        if table not in known:
            raise unknown_name(f"table of the recipe {path}:", table, known)
        kind = list if table == "measured" else dict
        check(isinstance(value, kind), f"the recipe {path}: {table} must be a table")
    check("recipe" in tables, f"the recipe {path} has no table [recipe]")
    where = f"the recipe {path}"
    return Recipe(
        name,
        from_dict(About, tables["recipe"], where=where),
        measured=tuple(from_dict(Measured, one, where=where) for one in tables.get("measured", [])),
        **{table: with_none(tables.get(table, {})) for table in TABLES},
    )


def with_none(value: Any) -> Any:
    """A setting, or a table of settings, with None where a file says "None"."""
    if isinstance(value, Mapping):
        return {name: with_none(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [with_none(inner) for inner in value]
    return None if value == NO_VALUE else value


def _without_none(value: Any) -> Any:
    """A setting as a file says it."""
    if isinstance(value, list | tuple):
        return [_without_none(inner) for inner in value]
    return NO_VALUE if value is None else value


def to_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Tables of plain values, and of tables of such, as TOML."""
    lines = list[str]()
    for table, values in tables.items():
        lines.append(f"[{table}]")
        inner = {name: value for name, value in values.items() if isinstance(value, Mapping)}
        for name, value in values.items():
            if name not in inner:
                lines.append(f"{name} = {json.dumps(_without_none(value), ensure_ascii=False)}")
        lines.append("")
        if inner:
            lines.append(to_toml({f"{table}.{name}": value for name, value in inner.items()}))
    return "\n".join(lines)
