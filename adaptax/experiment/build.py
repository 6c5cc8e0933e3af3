"""From names and settings to suites, algorithms and trainers."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal, overload

from adaptax.algorithms.base import Algorithm
from adaptax.algorithms.registry import find_algorithm
from adaptax.core.config import as_list, check_numbers, from_dict, merged
from adaptax.core.errors import AdaptaxError, ConfigError, check, check_kind
from adaptax.core.imports import permit
from adaptax.core.spec import EnvSpec
from adaptax.envs.placement import PLACES
from adaptax.envs.registry import find_suite, module_of
from adaptax.envs.suite import Suite
from adaptax.experiment.callbacks import CALLBACKS_WANTED, Callback
from adaptax.experiment.console import say
from adaptax.experiment.group import Group, begun_member, group_seeds
from adaptax.experiment.own_parts import WHERE_HANDED_IN, is_own_suite
from adaptax.experiment.pretrained import run_path
from adaptax.experiment.provenance import check_networks
from adaptax.experiment.recipe import CLASS_DEFAULTS, Recipe, find_recipe, limits_among
from adaptax.experiment.resuming import check_same_suite
from adaptax.experiment.run_dir import CONFIG, exists, member_dir, read_config
from adaptax.experiment.trainer import Trainer, TrainerConfig


def make_suite(name: str, **settings: Any) -> Suite:
    """The registered suite `name`; settings are the fields of its config.

    The name may have a module imported, as `gym:MODULE:ID` does.
    """
    check_is_name(name, "suite")
    permit(module_of(name))
    return recorded_suite(name, **settings)


def recorded_suite(name: str, **settings: Any) -> Suite:
    """The same, of a name that a file says: it imports no module that nobody else asked for."""
    config_class, make = find_suite(name).load()
    return with_config(make, from_dict(config_class, settings, where="suite"))


def make_algorithm(
    name: str, spec: EnvSpec, networks: Any = None, **settings: Any
) -> Algorithm[Any, Any]:
    """The registered algorithm `name`; settings are the fields of its config.

    `networks` take the place of those that the config describes; the family's page says what they
    are called with.
    """
    check_is_name(name, "algorithm")
    return _algorithm(name, spec, networks, settings)


def check_is_name(name: str, what: str) -> None:
    """Raise a ConfigError where something else stands for the name of a suite or an algorithm."""
    check(isinstance(name, str), f"{what}: expected a name, not {name!r}")


def _algorithm(
    name: str, spec: EnvSpec, networks: Any, settings: dict[str, Any]
) -> Algorithm[Any, Any]:
    algorithm, config_class = find_algorithm(name).load()
    config = from_dict(config_class, settings, where="algorithm")
    # Not handed on where there are none: an algorithm of one's own need not take them.
    return algorithm(config, spec) if networks is None else algorithm(config, spec, networks)


@overload
def train(
    algorithm_or_name: str | Algorithm[Any, Any],
    suite_or_name: str | Suite,
    /,
    *,
    algorithm: Mapping[str, Any] | None = None,
    suite: Mapping[str, Any] | None = None,
    networks: Any = None,
    seeds: None = None,
    callbacks: Sequence[Callback | str] = (),
    **settings: Any,
) -> Trainer: ...


@overload
def train(
    algorithm_or_name: str | Algorithm[Any, Any],
    suite_or_name: str | Suite,
    /,
    *,
    algorithm: Mapping[str, Any] | None = None,
    suite: Mapping[str, Any] | None = None,
    networks: Any = None,
    seeds: Sequence[int],
    callbacks: Sequence[Callback | str] = (),
    **settings: Any,
) -> Group: ...


def train(
    algorithm_or_name: str | Algorithm[Any, Any],
    suite_or_name: str | Suite,
    /,
    *,
    algorithm: Mapping[str, Any] | None = None,
    suite: Mapping[str, Any] | None = None,
    networks: Any = None,
    seeds: Sequence[int] | None = None,
    callbacks: Sequence[Callback | str] = (),
    **settings: Any,
) -> Trainer | Group:
    """Train an algorithm on a suite, each an object or a registered name; the trainer afterwards.

    `algorithm` and `suite` are settings of what is named, `networks` the algorithm's, all others
    the trainer's. Where both are names, those that are not given are a recipe's, if there is one
    for the two, and with `recipe="none"` the defaults. The run is in `run_dir`, by default
    runs/ALGORITHM-SUITE, and calls `callbacks`, objects or names of installed packages' ones. With
    `seeds`, range(8) say, it is a group of runs, one a seed, in one program where the environment
    compiles.
    """
    _check_kind("an algorithm", algorithm_or_name, Algorithm)
    _check_kind("a suite", suite_or_name, Suite)
    check(seeds is None or "seed" not in settings, "train takes seed or seeds, not both")
    check_settings(algorithm=algorithm, suite=suite)
    own_callbacks, named = _own_and_named(callbacks)
    settings |= named
    recipe, limits = CLASS_DEFAULTS, limits_among(settings)
    if isinstance(suite_or_name, str) and isinstance(algorithm_or_name, str):
        recipe = find_recipe(settings.get("recipe"), algorithm_or_name, suite_or_name)
        if networks is not None:
            recipe = recipe.without_networks()
        for_run = recipe.for_run(suite_or_name, limits)
        algorithm = for_run.settings("algorithm", algorithm or {})
        suite = recipe.settings("suite", suite or {})
        settings = {"recipe": recipe.name or None, **recipe.settings("trainer", settings)}
    else:
        check("recipe" not in settings, "a recipe goes with the names of algorithm and suite")
    chosen = _suite_from(suite_or_name, suite)
    agent = _algorithm_from(algorithm_or_name, chosen.spec, networks, algorithm)
    _check_room(settings, "algorithm", algorithm_or_name, agent.config)
    if recipe is not CLASS_DEFAULTS:
        agent = agent.with_config(recipe.timed(agent.config, chosen.name, limits))
    _check_room(settings, "suite", suite_or_name, chosen.config)
    settings = {"run_dir": default_run_dir(agent.name, chosen.name), **settings}
    config = from_dict(TrainerConfig, settings, where="trainer")
    trainer: Trainer | Group
    if seeds is None:
        trainer = Trainer(config, agent, chosen, own_callbacks)
    else:
        trainer = Group(config, seeds, agent, chosen, own_callbacks)
    try:
        train_by_recipe(trainer, recipe, chosen.name, trainer.run)
    except BaseException:
        trainer.close()
        raise
    return trainer


def check_settings(**rooms: Any) -> None:
    """Raise a ConfigError where what is given as the settings of something are none."""
    for room, own in rooms.items():
        named = isinstance(own, Mapping) and all(isinstance(name, str) for name in own)
        is_one = own is None or named
        check(is_one, f"{room}: expected its settings, such as {{'lr': 0.1}}, not {own!r}")


def train_by_recipe(
    trainer: Trainer | Group, recipe: Recipe, suite_name: str, train: Callable[[], Any]
) -> None:
    """Call `train` once it is known that the run can begin, and its recipe has been named."""
    trainer.check_start()
    if recipe is not CLASS_DEFAULTS and not trainer.config.quiet:
        say(recipe.in_words(suite_name), sys.stdout)
    train()


def _suite_from(given: str | Suite, settings: Mapping[str, Any] | None) -> Suite:
    """The suite itself, or the registered one of this name."""
    if isinstance(given, str):
        return make_suite(given, **(settings or {}))
    check(settings is None, "settings of a suite go with its name, not with a suite that is made")
    return given


def _algorithm_from(
    given: str | Algorithm[Any, Any],
    spec: EnvSpec,
    networks: Any,
    settings: Mapping[str, Any] | None,
) -> Algorithm[Any, Any]:
    """The algorithm itself, or the registered one of this name."""
    if isinstance(given, str):
        return make_algorithm(given, spec, networks, **(settings or {}))
    alone = settings is None and networks is None
    check(alone, "settings and networks go with an algorithm's name, not with an object")
    return given


def _check_kind(what: str, given: Any, cls: type[Any]) -> None:
    """Raise a ConfigError unless it is a name or an object of the class."""
    is_class = isinstance(given, type)
    found = f"the class {given.__name__}: call it" if is_class else repr(given)
    is_one = isinstance(given, str | cls)
    check(is_one, f"expected the name of {what} or an adaptax.{cls.__name__}, not {found}")


def _own_and_named(callbacks: Sequence[Callback | str]) -> tuple[list[Callback], dict[str, Any]]:
    """The callbacks that are objects, and the setting that has the names of the others."""
    callbacks = as_list(callbacks, CALLBACKS_WANTED)
    names = [callback for callback in callbacks if isinstance(callback, str)]
    own = [callback for callback in callbacks if not isinstance(callback, str)]
    return own, {"callbacks": names} if names else {}


def _check_room(settings: Mapping[str, Any], room: str, given: str | object, config: Any) -> None:
    """Raise a ConfigError where one of the trainer's settings is one of an algorithm or a suite."""
    theirs = {f.name for f in fields(config)} if is_dataclass(config) else set[str]()
    for name in settings.keys() & (theirs - {f.name for f in fields(TrainerConfig)}):
        where = f"{room}={{{name!r}: {settings[name]!r}}}"
        where = where if isinstance(given, str) else f"it goes into the {room}'s config"
        raise ConfigError(f"{name!r} is a setting of the {room}, not of the trainer: {where}")


def default_run_dir(algorithm: str, suite: str, what: Literal["run", "sweep"] = "run") -> str:
    """Where a run or a sweep goes that is not told where."""
    ending = "-sweep" if what == "sweep" else ""
    return "runs/" + re.sub(r"[^\w.-]", "-", f"{algorithm}-{suite}") + ending


def with_config(make: Any, config: Any) -> Suite:
    """The suite that `make` gives for `config`, with the config on record."""
    check_numbers(config, "suite")
    suite: Suite = make(config)
    return replace(suite, config=config)


def load_run(
    run_dir: str | Path,
    *,
    suite: Suite | None = None,
    networks: Any = None,
    in_process: bool = False,
    num_workers: int | None = None,
    callbacks: Sequence[Callback | str] = (),
    **changes: Any,
) -> Trainer:
    """The trainer of a run directory, before it takes up a snapshot; `changes` are its settings.

    `suite` and `networks` are those that it was trained with, where they were one's own.
    `in_process` has environments in this process, wherever the run has them; `num_workers` in so
    many processes and not on Ray, where the suite has a say in that. `callbacks` are those that it
    was trained with, or others; names take the place of those that the run has on record.

    Raises an AdaptaxError where there is no run, it used something that is not registered, or it
    had other networks or another suite than the given ones.
    """
    own_callbacks, named = _own_and_named(callbacks)
    run_dir = run_path(run_dir)
    recorded = read_config(run_dir)
    if suite is None:
        suite = _suite_of(run_dir, recorded, in_process, num_workers)
    else:
        check_kind(suite, Suite, "load_run(run_dir, suite=...)")
        check(num_workers is None, f"num_workers: make {suite.name} with them and hand it in so")
        here = suite.engine != "workers" or not in_process
        check(here, f"{suite.name} has to run in this process: hand it in without workers")
        check_same_suite(run_dir, recorded, suite)
    try:
        algorithm = recorded_algorithm(recorded["algorithm"], suite.spec, networks)
    except ConfigError as error:
        raise ConfigError(f"{run_dir / CONFIG}: {error}") from None
    recorded_trainer(run_dir)
    check_networks(run_dir, recorded, algorithm)
    settings = merged(recorded["trainer"], {**changes, **named, "run_dir": run_dir})
    config = from_dict(TrainerConfig, settings, where="trainer")
    return Trainer(config, algorithm, suite, own_callbacks)


def _suite_of(
    run_dir: Path, recorded: dict[str, Any], in_process: bool, num_workers: int | None
) -> Suite:
    """The registered suite that the config of a run describes; the rest as in `load_run`."""
    settings = recorded["suite"]
    name = settings["name"]
    if is_own_suite(settings):
        raise AdaptaxError(
            f"{run_dir} was trained on {name!r}, no suite that is known here: install the package "
            "that offers it; one of your own is handed in again from Python, suite=... of "
            f"{WHERE_HANDED_IN}"
        )
    try:
        if in_process or num_workers is not None:
            settings = {k: 0 if k in PLACES else v for k, v in settings.items()}
        if num_workers is not None:
            check("num_workers" in settings, f"the environments of {name!r} have no workers")
            settings["num_workers"] = num_workers
        return recorded_suite(**settings)
    except ConfigError as error:
        raise ConfigError(f"{run_dir / CONFIG}: {error}") from None


def load_group(
    run_dir: str | Path,
    *,
    suite: Suite | None = None,
    networks: Any = None,
    num_workers: int | None = None,
    callbacks: Sequence[Callback | str] = (),
    **changes: Any,
) -> Group:
    """The group of a folder, before its members take up their snapshots; all else as `load_run`.

    `changes` are settings of all of its trainers; each has copies of `callbacks`.
    """
    own_callbacks, named = _own_and_named(callbacks)
    run_dir = run_path(run_dir)
    seeds = group_seeds(run_dir)
    if seeds is None:
        read_config(run_dir)  # which says what else is wrong
        raise ConfigError(f"{run_dir} is one run and no group: adaptax.load_run has it")
    begun = begun_member(run_dir, seeds)
    changes |= named
    first = load_run(begun, suite=suite, networks=networks, num_workers=num_workers, **changes)
    config = replace(first.config, run_dir=str(run_dir), quiet=changes.get("quiet", False))

    def own(seed: int) -> Algorithm[Any, Any]:
        folder = member_dir(run_dir, seed)
        if not exists(folder / CONFIG):  # it has not begun
            return first.algorithm
        recorded = read_config(folder)
        algorithm = recorded_algorithm(recorded["algorithm"], first.suite.spec, networks)
        check_networks(folder, recorded, algorithm)
        # The same object where it can be, whatever an algorithm compares itself by.
        return first.algorithm if algorithm.config == first.algorithm.config else algorithm

    return Group(config, seeds, [own(seed) for seed in seeds], first.suite, own_callbacks)


def recorded_trainer(run_dir: Path) -> TrainerConfig:
    """The trainer's settings that the config of a run holds."""
    try:
        return from_dict(TrainerConfig, read_config(run_dir)["trainer"], where="trainer")
    except ConfigError as error:
        raise ConfigError(f"{run_dir / CONFIG}: {error}") from None


def recorded_algorithm(
    described: dict[str, Any], spec: EnvSpec, networks: Any
) -> Algorithm[Any, Any]:
    """The algorithm that the config of a run describes, under `algorithm`."""
    settings = {k: v for k, v in described.items() if k != "networks"}
    name = settings.pop("name")
    try:
        find_algorithm(name)
    except ConfigError as error:
        raise ConfigError(
            f"{error}; a run of an algorithm of your own, not of an installed package, goes on "
            "from Python, with Trainer(config, algorithm, suite).resume()"
        ) from None
    return _algorithm(name, spec, networks, settings)
