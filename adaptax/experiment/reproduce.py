"""The command that trains a run again, from what its `config.json` holds."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from adaptax.algorithms.registry import find_algorithm
from adaptax.core.config import flat, from_dict, to_dict
from adaptax.core.errors import ConfigError
from adaptax.envs.placement import PLACES
from adaptax.envs.registry import find_suite
from adaptax.experiment.curves import Run
from adaptax.experiment.own_parts import own_functions, own_parts
from adaptax.experiment.recipe import CLASS_DEFAULTS, LIMITS, NONE, TABLES, Recipe, find_recipe
from adaptax.experiment.trainer_config import DEFAULT_ITERATIONS, trainer_config

APART = {("trainer", name) for name in ("run_dir", "seed", "recipe", "quiet", "overwrite")}
"""Settings of a run that are told elsewhere, or change nothing in it."""


def recipe_of(config: dict[str, Any]) -> tuple[Recipe, str]:
    """The recipe that a run took its settings from, and a sentence that names it."""
    asked = config.get("trainer", {}).get("recipe")
    if asked in (None, NONE):
        return CLASS_DEFAULTS, "Trained without a recipe, from the defaults."
    names = config["algorithm"]["name"], config["suite"]["name"]
    try:
        return find_recipe(asked, *names), f"Trained with the recipe {asked}."
    except (ConfigError, TypeError):  # a file that is not here, a recipe that is no more, no name
        return CLASS_DEFAULTS, f"Trained with the recipe {asked}, which is not known here."


def differing_from(recipe: Recipe, config: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The settings of a run that are not the recipe's, nor the defaults of their classes."""
    for table_name in TABLES:
        settings = {
            name: value
            for name, value in config.get(table_name, {}).items()
            if name not in ("name", "networks") and (table_name, name) not in APART
        }
        given = flat({table_name: settings})
        usual = flat({table_name: _usual(table_name, config, recipe)})
        yield from ((name, value) for name, value in given.items() if usual.get(name, ...) != value)


def _usual(table_name: str, config: dict[str, Any], recipe: Recipe) -> dict[str, Any]:
    """What one of a run's tables holds where only a recipe was given; nothing of unknown names."""
    try:
        if table_name == "trainer":
            return to_dict(trainer_config(recipe.trainer))
        name = config[table_name]["name"]
        if table_name == "algorithm":
            return to_dict(from_dict(find_algorithm(name).load()[1], recipe.algorithm))
        return to_dict(from_dict(find_suite(name).load()[0], recipe.suite))
    except (ConfigError, TypeError):  # one of somebody's own; a setting without a default
        return {}


def from_python(config: dict[str, Any]) -> str:
    """A sentence that says what of a run no command can make; nothing where one makes all of it."""
    found = ", ".join([*own_parts(config).values(), *own_functions(config)])
    return f"Trained from Python, which no command does: {found}." if found else ""


def trainings(runs: Sequence[Run]) -> list[tuple[dict[str, Any], list[int]]]:
    """The configs of runs that were trained alike but for their seeds, each with these seeds."""
    found: dict[str, tuple[dict[str, Any], list[int]]] = {}
    for run in runs:
        suite = {name: x for name, x in run.config["suite"].items() if name not in PLACES}
        alike = {**run.config, "suite": suite}
        same = recipe_of(alike)[1] + from_python(alike) + command_of(alike, [0])
        found.setdefault(same, (run.config, []))[1].append(run.seed)
    return list(found.values())


def command_of(config: dict[str, Any], seeds: Sequence[int]) -> str:
    """The command that trains the same from these seeds, a flag a line."""
    recipe, _ = recipe_of(config)
    seeds = list(dict.fromkeys(seeds))
    names = config["algorithm"]["name"], config["suite"]["name"]
    lines = [["adaptax", "train", *names]]
    by_default = find_recipe(None, *names)
    if recipe is not by_default:  # which it would be trained with
        lines.append(["--recipe", recipe.name or NONE])
    lines.append(["--seeds", _seeds_text(seeds)] if len(seeds) > 1 else ["--seed", str(seeds[0])])
    trainer = config.get("trainer", {})
    limits = {name: trainer[name] for name in LIMITS if trainer.get(name) is not None}
    if not limits and any(name in recipe.trainer for name in LIMITS):
        limits = {"num_iterations": DEFAULT_ITERATIONS}  # or it would have the recipe's
    for name, limit in limits.items():
        lines.append([f"--{name.replace('_', '-')}", str(limit)])
    for name, value in differing_from(recipe, config):
        if name.rpartition(".")[2] in LIMITS and name.startswith("trainer."):
            continue
        flag = f"--{name.removeprefix('trainer.').replace('_', '-')}"
        if isinstance(value, bool):
            room, _, last = flag.removeprefix("--").rpartition(".")
            no = last if value else f"no-{last}"
            lines.append([f"--{room}.{no}" if room else f"--{no}"])
        else:
            lines.append([flag, *map(str, value if isinstance(value, list) else [value])])
    return " \\\n    ".join(map(shlex.join, lines))


def _seeds_text(seeds: Sequence[int]) -> str:
    """Seeds as `--seeds` takes them."""
    in_a_row = all(later - seed == 1 for seed, later in pairwise(seeds))
    return f"{seeds[0]}:{seeds[-1] + 1}" if in_a_row else ",".join(map(str, seeds))


def setting_words(value: Any) -> str:
    """A setting as on the command line."""
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
