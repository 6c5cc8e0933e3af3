"""From names and settings to suites, algorithms and trainers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from adaptax.algorithms.base import Algorithm
from adaptax.algorithms.registry import find_algorithm
from adaptax.core.config import check_finite_numbers, from_dict
from adaptax.core.errors import AdaptaxError, ConfigError
from adaptax.core.spec import EnvSpec
from adaptax.envs.registry import find_suite
from adaptax.envs.suite import Suite
from adaptax.experiment.run_dir import read_config
from adaptax.experiment.trainer import Trainer, TrainerConfig

PLACES = ("num_workers", "num_ray_actors")
"""Settings of suites that say where their environments run; 0 is in this process."""


def make_suite(name: str, **settings: Any) -> Suite:
    """The registered suite `name`; settings are the fields of its config."""
    config_class, make = find_suite(name).load()
    return with_config(make, from_dict(config_class, settings, where="suite"))


def make_algorithm(name: str, spec: EnvSpec, **settings: Any) -> Algorithm:
    """The registered algorithm `name`; settings are the fields of its config."""
    algorithm, config_class = find_algorithm(name).load()
    return algorithm(from_dict(config_class, settings, where="algorithm"), spec)


def with_config(make: Any, config: Any) -> Suite:
    """The suite that `make` gives for `config`, with the config on record."""
    check_finite_numbers(config, "suite")
    suite: Suite = make(config)
    return replace(suite, config=config)


def load_run(run_dir: Path, *, in_process: bool = False, **changes: Any) -> Trainer:
    """The trainer of a run directory, before it takes up a snapshot; `changes` are its settings.

    `in_process` has environments in this process, wherever the run has them.

    Raises an AdaptaxError where there is no run, or it used something that is not registered.
    """
    recorded = read_config(run_dir)
    name = recorded["suite"]["name"]
    try:
        find_suite(name)
    except ConfigError as error:
        raise AdaptaxError(
            f"{run_dir} was trained on {name!r}: {error}; a run on a suite of your own is resumed "
            "from Python, with Trainer(config, algorithm, suite).resume()"
        ) from None
    try:
        settings = recorded["suite"]
        if in_process:
            settings = {k: 0 if k in PLACES else v for k, v in settings.items()}
        suite = make_suite(**settings)
        algorithm = make_algorithm(spec=suite.spec, **recorded["algorithm"])
        from_dict(TrainerConfig, recorded["trainer"], where="trainer")
    except ConfigError as error:
        raise ConfigError(f"{run_dir / 'config.json'}: {error}") from None
    settings = {**recorded["trainer"], **changes, "run_dir": str(run_dir)}
    return Trainer(from_dict(TrainerConfig, settings, where="trainer"), algorithm, suite)
