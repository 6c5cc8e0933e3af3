"""Remakes what recipes come to: final return over seeds, and a run's processor time on one core.

Every run is the command of a person who gives no flags, but for seed and folder, bound to one core.
A figure is the last evaluation of a run (after adaptation where the algorithm adapts), its mean
over seeds with Student's 95 % interval. Processor time is that of the whole program, start and
evaluations included, which other programs on the machine change little. Each (recipe, suite, seed)
leaves a JSON file in results/recipes; what is there is not run again, unless the recipe has other
settings by now. Peers are Stable-Baselines3 with the settings of RL Baselines3 Zoo, for as many
steps as these say, judged alike: 20 episodes of the last policy.

    python benchmarks/recipes.py measure [NAME ...] [--suites ...] [--seeds 0 1 2 3 4] [--cores 0 1]
    python benchmarks/recipes.py peers [NAME ...]     make bench-peers, once before
    python benchmarks/recipes.py write                figures to the recipes, docs/recipes.md
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from meta_runs import MACHINE
from turns import about, bound, check_known, command_line, read_json, write_json

from adaptax.algorithms.registry import find_algorithm
from adaptax.core.config import from_dict, merged, to_dict
from adaptax.core.files import replacing
from adaptax.experiment.logger import after_adaptation, read_rows
from adaptax.experiment.recipe import FOLDER, TABLES, Measured, Recipe, all_recipes
from adaptax.experiment.run_dir import EVALUATIONS, PROGRESS
from adaptax.experiment.statistics import student_interval
from adaptax.experiment.trainer_config import TrainerConfig

ROOT = Path(__file__).parent.parent
OUT = ROOT / "results" / "recipes"
RUNS = ROOT / "runs" / "recipes"
PEERS = ROOT / ".venv-peers" / "bin" / "python"
PEER_SCRIPT = ROOT / "benchmarks" / "peers" / "sb3_zoo.py"
ZOO = {
    "cartpole": "CartPole-v1",
    "pendulum": "Pendulum-v1",
    "half-cheetah": "HalfCheetah-v5",
    "hopper": "Hopper-v5",
    "walker": "Walker2d-v5",
}
"""Environments of suites that are not called gym:ID."""
MIN_SEEDS = 3
"""Fewer are no figure."""
SAME = {"ppo2": "ppo"}
"""Algorithms of Stable-Baselines3 under other names here."""


def pairs(options: argparse.Namespace) -> list[tuple[Recipe, str]]:
    """The chosen recipes, each with its suites."""
    check_known(options.names, all_recipes())
    chosen = [r for name, r in all_recipes().items() if not options.names or name in options.names]
    every = [(recipe, suite) for recipe in chosen for suite in recipe.about.suites]
    check_known(options.suites, dict.fromkeys(suite for _, suite in every))
    return [(r, suite) for r, suite in every if not options.suites or suite in options.suites]


def peer_of(recipe: Recipe, suite: str) -> tuple[str, str]:
    """The algorithm and environment of Stable-Baselines3 that a recipe on a suite stands beside."""
    algorithm = recipe.about.algorithm
    return SAME.get(algorithm, algorithm), ZOO.get(suite, suite.removeprefix("gym:"))


def path_of(recipe: Recipe, suite: str, seed: int, folder: Path = OUT) -> Path:
    """Where the figures of a run are."""
    return folder / f"{recipe.name}.{suite.replace(':', '-')}.{seed}.json"


def measure(options: argparse.Namespace) -> None:
    """Whatever of the chosen recipes, suites and seeds has no result yet."""
    work = [
        (recipe, suite, seed, path_of(recipe, suite, seed))
        for recipe, suite in pairs(options)
        for seed in options.seeds
    ]
    missing = [job for job in work if run_of(job[0], job[3]) is None]
    run_on_cores(options.cores, missing, partial(one_run, resume=options.resume))


def settings_of(recipe: Recipe) -> dict[str, Any]:
    """All that a recipe sets."""
    return {table: getattr(recipe, table) for table in TABLES}


def run_of(recipe: Recipe, path: Path) -> dict[str, Any] | None:
    """The figures of a run with the recipe's present settings; None where there are none.

    Settings are compared with what the class adds, since either may have changed: a setting that
    has become the default may go from the recipe. One that is not on record had its default.
    """
    figures = read_json(path)
    then = figures.get("settings", {})
    if then.get("suite") != recipe.suite:
        return None
    if trainer_of(then["trainer"]) != trainer_of(recipe.trainer):
        return None
    _, config_class = find_algorithm(recipe.about.algorithm).load()
    today = to_dict(from_dict(config_class, recipe.algorithm, where="algorithm"))
    was = merged(to_dict(config_class()), figures["algorithm"])
    return figures if differs_in(today, was) <= {"lr_schedule_steps"} else None


def trainer_of(settings: dict[str, Any]) -> TrainerConfig:
    """The trainer with these settings, but for how often it looks, which changes no return."""
    config = from_dict(TrainerConfig, {"run_dir": ".", **settings}, where="trainer")
    return replace(config, evaluation_interval=None, snapshot_interval=1)


def differs_in(today: dict[str, Any], then: dict[str, Any]) -> set[str]:
    """Names of settings that had another value."""
    found: set[str] = set()
    for name, value in today.items():
        if isinstance(value, dict) and isinstance(then.get(name), dict):
            found |= differs_in(value, then[name])
        elif name not in then or then[name] != value:
            found.add(name)
    return found


def run_on_cores(cores: list[int], work: list[Any], run: Callable[..., None]) -> None:
    """Each piece of work on one of the cores; the first that fails ends all."""
    free: queue.Queue[int] = queue.Queue()
    for core in cores:
        free.put(core)

    def on_a_core(job: tuple[Any, ...]) -> None:
        core = free.get()
        try:
            run(core, *job)
        finally:
            free.put(core)

    OUT.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(len(cores)) as threads:
        list(threads.map(on_a_core, work))


def one_run(core: int, recipe: Recipe, suite: str, seed: int, path: Path, *, resume: bool) -> None:
    """Train as a person would, and keep the last evaluation.

    The time of a run that was cut off and is resumed is that of its iterations, without starts and
    evaluations.
    """
    run_dir = RUNS / path.stem
    resume = resume and any(run_dir.glob("snapshots/*.json"))
    own = [] if recipe.about.by_default else ["--recipe", recipe.name]
    words = ["train", recipe.about.algorithm, suite, *own, "--seed", str(seed)]
    whole = [*words, "--run-dir", str(run_dir), "--overwrite", "--quiet"]
    command = [sys.executable, "-m", "adaptax", *(["resume", str(run_dir)] if resume else whole)]
    _, processor_seconds = finished([*bound(core), *command])
    config = json.loads((run_dir / "config.json").read_text())
    last, rows = read_rows(run_dir / PROGRESS)[-1], read_rows(run_dir / EVALUATIONS)
    if resume:
        processor_seconds = round(last["seconds"], 1)
    figures = {
        "recipe": recipe.name,
        "suite": suite,
        "seed": seed,
        "return": after_adaptation(rows[-1])["return_mean"],
        "first_episode": rows[-1]["episodes"][0]["return_mean"],
        "curve": [[row["num_steps"], after_adaptation(row)["return_mean"]] for row in rows],
        "num_steps": last["num_steps"],
        "processor_seconds": processor_seconds,
        "settings": settings_of(recipe),
        "command": " ".join(["adaptax", *words]),
        "trainer": {k: v for k, v in config["trainer"].items() if k != "run_dir"},
        **{name: config[name] for name in ("algorithm", "protocol", *MACHINE)},
    }
    write_json(path, figures)
    tell(path, figures)


def finished(command: list[str]) -> tuple[str, float]:
    """What a command printed, and the seconds of processor time that it took."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    return printed, round(used.ru_utime + used.ru_stime, 1)


def tell(path: Path, figures: dict[str, Any]) -> None:
    """Print what a run came to."""
    seconds = figures["processor_seconds"]
    print(f"{path.stem:48s} {figures['return']:10.2f} {seconds:7.1f} s", flush=True)


def peers(options: argparse.Namespace) -> None:
    """Stable-Baselines3 on the chosen recipes' algorithms and suites."""
    work = []
    for recipe, suite in pairs(options):
        algorithm, env_id = peer_of(recipe, suite)
        for seed in options.seeds:
            path = OUT / f"zoo.{algorithm}.{env_id}.{seed}.json"
            if not path.exists():
                work.append((algorithm, env_id, seed, path))
    run_on_cores(options.cores, list(dict.fromkeys(work)), one_peer)


def one_peer(core: int, algorithm: str, env_id: str, seed: int, path: Path) -> None:
    """One run of Stable-Baselines3."""
    request = json.dumps({"algorithm": algorithm, "env_id": env_id, "seed": seed})
    command = [*bound(core), str(PEERS), str(PEER_SCRIPT), request]
    printed, processor_seconds = finished(command)
    result = json.loads(printed.splitlines()[-1]) | {"processor_seconds": processor_seconds}
    here = about()
    result |= {"revision": here["revision"], "processor": here["processor"], "num_cores": 1}
    write_json(path, result)
    tell(path, result)


def write(options: argparse.Namespace) -> None:
    """Take the figures into the recipes."""
    for recipe in all_recipes().values():
        found = [measured(recipe, suite) for suite in recipe.about.suites]
        path = FOLDER / f"{recipe.name}.toml"
        text = path.read_text().partition("[[measured]]")[0].rstrip() + "\n"
        for figures in (one for one in found if one is not None):
            lines = [f"{name} = {json.dumps(value)}" for name, value in vars(figures).items()]
            text += "\n".join(["", "[[measured]]", *lines, ""])
        with replacing(path) as file:
            file.write(text.encode())


def measured(recipe: Recipe, suite: str) -> Measured | None:
    """What a recipe's runs on a suite came to; None where there are too few."""
    every_seed = path_of(recipe, suite, 0).stem.removesuffix("0") + "*.json"
    found = [run_of(recipe, path) for path in sorted(OUT.glob(every_seed))]
    runs = [run for run in found if run is not None]
    if len(runs) < MIN_SEEDS:
        return None
    returns = np.array([run["return"] for run in runs])
    low, high = student_interval(returns)
    machines = [run["processor" if run["device"] == "cpu" else "device"] for run in runs]
    return Measured(
        suite,
        len(runs),
        max(run["num_steps"] for run in runs),
        *(float(f"{x:.5g}") for x in (returns.mean(), low, high)),
        round(float(np.median([run["processor_seconds"] for run in runs])) / 60, 2),
        ", ".join(dict.fromkeys(machines)),
    )


def main() -> None:
    """See the head of this file."""
    parser, commands = command_line(__doc__, measure, peers, write)
    commands["measure"].add_argument(
        "--resume", action="store_true", help="go on with runs in runs/recipes that were cut off"
    )
    for command in (commands["measure"], commands["peers"]):
        command.add_argument("names", nargs="*")
        command.add_argument("--suites", nargs="+", default=[])
        command.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
        cores = sorted(os.sched_getaffinity(0))
        command.add_argument("--cores", nargs="+", type=int, default=cores)
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
