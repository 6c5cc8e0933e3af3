"""The tables of the RL2 paper (Duan et al. 2016, sections 3.1 and 3.2): RL2 beside other players.

Everybody plays the same held-out bandits and MDPs, those that the suites list as test tasks.

    python benchmarks/rl2_tables.py tune [CELL ...]     constants of players, on machines apart
    python benchmarks/rl2_tables.py players [CELL ...]  every reference player
    python benchmarks/rl2_tables.py train CELL          RL2, in runs/rl2-tables; again: it goes on
    python benchmarks/rl2_tables.py agent CELL          what was trained, as drawn and by its mode
    python benchmarks/rl2_tables.py table               results/rl2/*.json -> docs/rl2-tables.md

A cell is bandit-ARMSxPULLS or mdp-EPISODES. Without a cell, all required ones.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from meta_runs import estimate
from players import bandit_players as bandits
from players import mdp_players as mdps
from rl2_cells import CELLS, GRIDS, REQUIRED, Cell
from rl2_page import markdown, tuned_markdown
from turns import with_table

from adaptax.core.rng import named_generator
from adaptax.envs.suite import Suite
from adaptax.experiment.build import load_run, make_algorithm
from adaptax.experiment.logger import read_rows
from adaptax.experiment.run_dir import PROGRESS
from adaptax.experiment.trainer import Trainer, TrainerConfig
from adaptax.sampling.sampler import Sampler

ROOT = Path(__file__).parent.parent
OUT = ROOT / "results" / "rl2"
RUNS = ROOT / "runs" / "rl2-tables"
PAGE = ROOT / "docs" / "rl2-tables.md"
SEED = 0
NUM_TUNING_TASKS = {"bandit": 4_000, "tabular-mdp": 500}

Play = Callable[[np.random.Generator], np.ndarray]
"""From a generator to the worth [B] of what was chosen on each machine, see `worth`."""


def play_of(cell: Cell, machines: Any) -> Callable[[Any], Play]:
    """From a player to its play of the machines: `means` [B, k], or MDPs."""
    if cell.suite == "bandit":
        num_pulls = cell.settings["num_pulls"]
        return lambda player: partial(bandits.play, player, machines, num_pulls)

    def total(player: mdps.Player, rng: np.random.Generator) -> np.ndarray:
        return mdps.play(player, machines, cell.settings["num_episodes"], rng).sum(axis=-1)

    return lambda player: partial(total, player)


def machines_of(tasks: list[Any], suite: Suite) -> Any:
    """The parameters of tasks as one array or record."""
    stacked = {name: np.stack([task.params[name] for task in tasks]) for name in tasks[0].params}
    if "means" in stacked:
        return stacked["means"]
    horizon = suite.spec.horizon
    return mdps.MDPs(
        stacked["transition"].astype(float), stacked["reward_mean"].astype(float), horizon
    )


def reference_players(cell: Cell, machines: Any, constants: dict[str, float]) -> dict[str, Any]:
    """Every player of a cell by its name in the table, the best informed first."""
    tuned = {name: make(constants[name]) for name, (make, _) in GRIDS[cell.suite].items()}
    if cell.suite == "bandit":
        # A finer grid costs minutes at 500 pulls and changes no index by more than 1e-5.
        num_pulls = cell.settings["num_pulls"]
        table = bandits.gittins_table(num_pulls, 1024 if num_pulls <= 100 else 256)
        return {
            "Gittins index": bandits.gittins_player(table),
            "Thompson": bandits.thompson_player,
            "optimistic Thompson": bandits.optimistic_thompson_player,
            **tuned,
            "greedy": bandits.greedy_player,
            "random": bandits.random_player,
        }
    return {
        "known MDP": mdps.optimal_player(machines),
        "PSRL": mdps.psrl_player,
        **tuned,
        "greedy": mdps.greedy_player,
        "random": mdps.random_player,
    }


def tune(options: argparse.Namespace) -> None:
    """Mean total reward of every value of every grid, on machines of training."""
    for name in options.cells:
        cell = CELLS[name]
        suite = cell.make_suite()
        rng = named_generator(SEED, "rl2-tables", "tuning", name)
        tasks = suite.train.sample(rng, NUM_TUNING_TASKS[cell.suite])
        play = play_of(cell, machines_of(list(tasks), suite))
        found: dict[str, Any] = {}
        for player, (make, values) in GRIDS[cell.suite].items():
            generators = [named_generator(SEED, "rl2-tables", "tuning", player) for _ in values]
            means = [
                float(play(make(value))(generator).mean())
                for value, generator in zip(values, generators, strict=True)
            ]
            best = values[int(np.argmax(means))]
            found[player] = {"values": values, "means": means, "best": best}
            print(f"{name:14s} {player:16s} {best} of {dict(zip(values, means, strict=True))}")
        record(cell, name, {"tuning": {"num_tasks": len(tasks), **found}})


def players(options: argparse.Namespace) -> None:
    """Every reference player's mean total reward, with an interval over machines."""
    for name in options.cells:
        cell, totals = CELLS[name], {}
        for player, play in plays(name).items():
            totals[player] = play(named_generator(SEED, "rl2-tables", name, player))
            print(f"{name:14s} {player:20s} {totals[player].mean():8.2f}", flush=True)
        RUNS.mkdir(parents=True, exist_ok=True)
        np.savez(totals_path(name), **totals)
        rows = {player: estimate(total) for player, total in totals.items()}
        record(cell, name, {"num_tasks": cell.settings["num_test_tasks"], "players": rows})


def plays(name: str) -> dict[str, Play]:
    """What each reference player of a cell does with the held-out machines."""
    cell = CELLS[name]
    suite = cell.make_suite()
    machines = machines_of(suite.test.tasks, suite)
    tuning = recorded(cell)["cells"].get(name, {}).get("tuning")
    if tuning is None:
        raise SystemExit(f"the players of {name} are not tuned: run `tune {name}` first")
    constants = {player: tuning[player]["best"] for player in GRIDS[cell.suite]}
    chosen = reference_players(cell, machines, constants)
    play = play_of(cell, machines)
    return {player: play(choose) for player, choose in chosen.items()}


def train(options: argparse.Namespace) -> None:
    """Train RL2 for one cell, or go on where its newest snapshot stands."""
    cell, run_dir, start = CELLS[options.cell], RUNS / options.cell, None
    if cell.first:
        state = trained(cell, first_run(run_dir), cell.rl2(first=True), cell.num_first_iterations)
        start = {"params": state.params, "moments": state.moments}
    trained(cell, run_dir, cell.rl2(), cell.num_iterations, start)


def trained(
    cell: Cell, run_dir: Path, settings: dict[str, Any], num_iterations: int, start: Any = None
) -> Any:
    """State at the end of a run, new or gone on with, that begins with the fields `start`."""
    suite = cell.make_suite()
    algorithm = make_algorithm("rl2-ppo", suite.spec, **settings)
    if start is not None:
        fresh = algorithm.init
        algorithm.init = lambda key: replace(fresh(key), **start)
    config = TrainerConfig(
        str(run_dir),
        seed=SEED,
        num_iterations=num_iterations,
        evaluation_interval=None,
        snapshot_interval=50,
    )
    trainer = Trainer(config, algorithm, suite)
    if (run_dir / "config.json").exists():
        trainer.resume()
    else:
        trainer.run()
    trainer.close()
    return trainer.state


def agent(options: argparse.Namespace) -> None:
    """What a run directory holds, on the held-out machines: mean, and lead on each player."""
    name, cell = options.cell, CELLS[options.cell]
    trainer = load_run(options.run_dir or RUNS / name)
    trainer.load()
    if not totals_path(name).exists():
        players(argparse.Namespace(cells=[name]))
    others = np.load(totals_path(name))
    suite = cell.make_suite()
    if trainer.suite.spec != suite.spec:
        raise SystemExit(f"{trainer.run_dir} was not trained for {name}")
    tasks, episodes = suite.test.tasks, suite.spec.trial_episodes
    machines = machines_of(tasks, suite)
    rows: dict[str, Any] = {}
    for kind, deterministic in (("drawn", False), ("mode", True)):
        sampler = Sampler(suite, suite.test, SEED, "evaluation")
        actor = trainer.algorithm.actor(trainer.state, deterministic=deterministic)
        rollout = sampler.episodes(actor, tasks, 1, episodes)
        total = worth(machines, np.asarray(rollout.obs), np.asarray(rollout.action))
        lead = {player: estimate(total - theirs) for player, theirs in others.items()}
        rows[kind] = {**estimate(total), "lead": lead}
        print(f"{name:14s} RL2, {kind:6s} {total.mean():8.2f}", flush=True)
    record(cell, name, {"rl2": {**rows, **about(trainer)}})
    if cell.first:
        before = load_run(first_run(trainer.run_dir))
        record(cell, name, {"rl2_first": about(before)})
        before.close()
    trainer.close()


def about(trainer: Trainer) -> dict[str, Any]:
    """How far a run went, and with what settings."""
    last = read_rows(trainer.run_dir / PROGRESS)[-1]
    steps = {key: last[key] for key in ("iteration", "num_steps", "seconds")}
    return {**steps, "algorithm": trainer.description()["algorithm"]}


def first_run(run_dir: Path) -> Path:
    """Where the run is whose network another begins with."""
    return run_dir.with_name(f"{run_dir.name}-first")


def worth(machines: Any, obs: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Sum [B] of the mean rewards of what was chosen in trials [B, 1, T].

    Its expectation is that of the rewards paid, and it varies less. So do the players count.
    """
    action = action.reshape(len(action), -1)
    if isinstance(machines, np.ndarray):
        return np.take_along_axis(machines, action, axis=1).sum(axis=1, dtype=np.float64)
    state = obs.reshape(*action.shape, -1).argmax(axis=-1)
    lane = np.arange(len(action))[:, None]
    return machines.reward[lane, state, action].sum(axis=1)


def totals_path(name: str) -> Path:
    """Where the totals of every player stand, to compare machine by machine."""
    return RUNS / f"{name}.players.npz"


def results_path(cell: Cell) -> Path:
    return OUT / ("bandits.json" if cell.suite == "bandit" else "mdps.json")


def recorded(cell: Cell) -> dict[str, Any]:
    path = results_path(cell)
    return json.loads(path.read_text()) if path.exists() else {"cells": {}}


def record(cell: Cell, name: str, found: dict[str, Any]) -> None:
    """Put what was found of a cell into the table's results."""
    results = recorded(cell)
    cells = results["cells"]
    cells[name] = {**cells.get(name, {}), **found}
    results["cells"] = {key: cells[key] for key in CELLS if key in cells}
    OUT.mkdir(parents=True, exist_ok=True)
    results_path(cell).write_text(json.dumps(results, indent=2) + "\n")


def table(options: argparse.Namespace) -> None:
    """The page's tables anew, each between its two marks."""
    text = PAGE.read_text()
    for cell in (CELLS["bandit-5x10"], CELLS["mdp-10"]):
        mark = f"<!-- {cell.suite} -->"
        cells = {n: c for n, c in recorded(cell)["cells"].items() if "players" in c}
        text = with_table(text, mark, [markdown(cells), "", tuned_markdown(cells)])
    PAGE.write_text(text)


def cell_name(text: str) -> str:
    if text not in CELLS:
        raise argparse.ArgumentTypeError(f"no cell {text!r}; one of {', '.join(CELLS)}")
    return text


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for function in (tune, players, train, agent):
        command = commands.add_parser(function.__name__)
        command.set_defaults(function=function)
        if function in (tune, players):
            command.add_argument("cells", nargs="*", type=cell_name, default=REQUIRED)
        else:
            command.add_argument("cell", choices=CELLS)
        if function is agent:
            command.add_argument("run_dir", nargs="?", type=Path, help="by default train's")
    commands.add_parser("table").set_defaults(function=table)
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
