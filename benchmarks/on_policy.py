"""PPO and A2C against Stable-Baselines3: return after equal steps, and wall-clock time.

One machine, equal hyper-parameters, networks, lanes and numbers of steps; the contenders take
turns, each in a process of its own. Every (case, contender, seed) leaves a JSON file in
results/on_policy; what is there is not run again, so that the whole can be made in pieces. What
runs take is measured apart, one seed of each in one go: the machine must do nothing else then.
CartPole is learned within a few seconds of ours, so that runs which are timed are longer.

    make bench-peers                                     once: the peers' own environment
    python benchmarks/on_policy.py run [--cases ...] [--seeds 0 1 2 3 4]
    python benchmarks/on_policy.py time [--cases ...]    on a quiet machine
    python benchmarks/on_policy.py summary               table, summary.json and on_policy.png
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from learning_curves import NUM_EVALUATIONS, final_figures, learning, plot_curves, runs_of

from adaptax.core.compilation import keep_compiled_programs

ROOT = Path(__file__).parent.parent
OUT = ROOT / "results" / "on_policy"
PEERS = ROOT / ".venv-peers" / "bin" / "python"
PEER, COMPILED_PEER = "stable-baselines3", "rejax"
PEER_SCRIPTS = {
    PEER: ROOT / "benchmarks" / "peers" / "sb3_on_policy.py",
    COMPILED_PEER: ROOT / "benchmarks" / "peers" / "rejax_ppo.py",
}


@dataclass(frozen=True)
class Case:
    """One comparison: the settings of both sides, in Stable-Baselines3's words."""

    algorithm: str
    env_id: str
    suites: dict[str, str]
    """Our contenders' suites by the contender's name."""
    total_steps: int
    n_envs: int
    n_steps: int
    """In each environment, an iteration."""
    learning_rate: float
    gae_lambda: float
    timed_steps: int
    """Length of the runs whose time is taken."""
    gamma: float = 0.99
    batch_size: int | None = None
    n_epochs: int = 1
    clip_range: float | None = None
    ent_coef: float = 0.0
    vf_coef: float = 0.5
    max_grad_norm: float = 0.5
    timed_against: tuple[str, ...] = ()
    """Peers whose time alone is taken."""


CARTPOLE = {"ours, gym": "gym:CartPole-v1", "ours, cartpole": "cartpole"}
CASES = {
    "a2c-cartpole": Case("a2c", "CartPole-v1", CARTPOLE, 200_000, 8, 5, 7e-4, 1.0, 500_000),
    "ppo-cartpole": Case(
        "ppo",
        "CartPole-v1",
        CARTPOLE,
        100_000,
        n_envs=8,
        n_steps=128,
        learning_rate=1e-3,
        gae_lambda=0.95,
        timed_steps=500_000,
        batch_size=64,
        n_epochs=10,
        clip_range=0.2,
        timed_against=(COMPILED_PEER,),
    ),
    "ppo-half-cheetah": Case(
        "ppo",
        "HalfCheetah-v5",
        {"ours": "half-cheetah"},
        300_000,
        n_envs=8,
        n_steps=256,
        learning_rate=3e-4,
        gae_lambda=0.95,
        timed_steps=300_000,
        batch_size=64,
        n_epochs=10,
        clip_range=0.2,
    ),
}


def our_algorithm(case: Case, spec: Any) -> Any:
    """The algorithm whose update is that of Stable-Baselines3: for PPO this is `ppo2`.

    Their value loss is the squared error, ours half of it.
    """
    from adaptax.experiment.build import make_algorithm

    shared = {
        "num_lanes": case.n_envs,
        "num_steps": case.n_envs * case.n_steps,
        "discount": case.gamma,
        "gae_lambda": case.gae_lambda,
        "lr": case.learning_rate,
        "entropy_coeff": case.ent_coef,
        "value_coeff": 2 * case.vf_coef,
        "max_grad_norm": case.max_grad_norm,
        "monte_carlo_returns": False,
        "normalize_obs": False,
        "normalize_returns": False,
        "init_std": 1.0,
        "num_minibatches": case.n_envs * case.n_steps // case.batch_size if case.batch_size else 1,
    }
    if case.algorithm == "a2c":
        return make_algorithm("a2c", spec, **shared, normalize_advantage="none")
    clipped = {"clip_range": case.clip_range, "num_epochs": case.n_epochs, "clip_value": False}
    return make_algorithm("ppo2", spec, **shared, **clipped)


def run_ours(case: Case, suite_name: str, seed: int) -> dict[str, Any]:
    """Train and evaluate one of our contenders in this process."""
    import numpy as np

    from adaptax.algorithms.program import iteration_program
    from adaptax.core.rng import named_key
    from adaptax.experiment.build import make_suite
    from adaptax.experiment.evaluator import Evaluator, EvaluatorConfig
    from adaptax.experiment.provenance import provenance
    from adaptax.sampling.draws import Counted
    from adaptax.sampling.sampler import Sampler

    suite = make_suite(suite_name)
    algorithm = our_algorithm(case, suite.spec)
    sampler = Sampler(suite, suite.train, seed, "train")
    state = algorithm.init(named_key(seed, "init"))
    program = iteration_program(algorithm, state, sampler)
    episodes, marks, num_steps = [], [time.perf_counter()], 0
    while num_steps < case.total_steps:
        if program is None:
            before = sampler.num_steps, sampler.num_episodes
            state, _ = algorithm.iteration(state, sampler)
            steps, ended = sampler.num_steps - before[0], sampler.num_episodes - before[1]
            counted = [Counted(steps, ended, ())]
        else:
            left = -(-(case.total_steps - num_steps) // program.steps_per_iteration)
            state, _, counted = program.run(
                algorithm, state, sampler, min(left, program.iterations_per_call)
            )
        for did in counted:
            num_steps += did.num_steps
            sampler.statistics.count(*did.ended)
            mean_return = sampler.statistics.take()["return"]
            if did.num_episodes:
                episodes.append((num_steps, mean_return, did.num_episodes))
        marks.append(time.perf_counter())
    laps = np.diff(marks)
    protocol = EvaluatorConfig(num_tasks=1, num_lanes=NUM_EVALUATIONS, deterministic=True)
    evaluation = Evaluator(protocol, suite, seed).evaluate(algorithm, state)
    return {
        "seconds": float(laps.sum()),
        # The first two calls compile or read; the others say what one takes.
        "seconds_compiled": float(laps[2:].mean() * len(laps)),
        "num_steps": sampler.num_steps,
        "evaluation": float(evaluation.returns.mean()),
        **learning(case.total_steps, episodes),
        "about": provenance(suite),
    }


def run_peer(
    case: Case, contender: str, seed: int, python: Path, num_threads: int
) -> dict[str, Any]:
    """Train and evaluate with a peer, in the peers' environment."""
    request = {**asdict(case), "seed": seed, "num_threads": num_threads, "eval": NUM_EVALUATIONS}
    command = [str(python), str(PEER_SCRIPTS[contender]), json.dumps(request)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    result = json.loads(done.stdout.splitlines()[-1])
    episodes = [(steps, value, 1) for steps, value in result.pop("episodes")]
    return {**result, **learning(case.total_steps, episodes)}


def run(options: argparse.Namespace) -> None:
    """Whatever of the chosen cases and seeds has no result yet; contenders take turns."""
    OUT.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        for name in options.cases:
            for contender in [*CASES[name].suites, PEER]:
                path = OUT / _file(name, contender, seed)
                if not path.exists():
                    one_process(options, name, contender, seed, path, CASES[name].total_steps)


def time_all(options: argparse.Namespace) -> None:
    """Seed 0 of every case and contender, one after another.

    Ours twice: the second time with the programs that the first one compiled.
    """
    (OUT / "time").mkdir(parents=True, exist_ok=True)
    for name in options.cases:
        for contender in [*CASES[name].suites, PEER, *CASES[name].timed_against]:
            path = OUT / "time" / _file(name, contender, 0)
            with tempfile.TemporaryDirectory() as home:
                os.environ["XDG_CACHE_HOME"] = home
                one_process(options, name, contender, 0, path, CASES[name].timed_steps)
                if contender not in PEER_SCRIPTS:
                    first = json.loads(path.read_text())
                    one_process(options, name, contender, 0, path, CASES[name].timed_steps)
                    first["seconds_again"] = json.loads(path.read_text())["seconds"]
                    path.write_text(json.dumps(first, indent=2) + "\n")


def _file(name: str, contender: str, seed: int) -> str:
    return f"{name}.{contender.replace(', ', '-')}.{seed}.json"


def one_process(
    options: argparse.Namespace, name: str, contender: str, seed: int, path: Path, steps: int
) -> None:
    """One (case, contender, seed) in a process of its own."""
    command = [sys.executable, __file__, "one", name, contender, str(seed), str(path), str(steps)]
    command += ["--python", str(options.python), "--threads", str(options.threads)]
    subprocess.run(command, check=True)


def one(options: argparse.Namespace) -> None:
    """One (case, contender, seed)."""
    case = replace(CASES[options.case], total_steps=options.steps)
    keep_compiled_programs()
    if options.contender in PEER_SCRIPTS:
        result = run_peer(case, options.contender, options.seed, options.python, options.threads)
    else:
        result = run_ours(case, case.suites[options.contender], options.seed)
    about = {"case": options.case, "contender": options.contender, "seed": options.seed}
    options.path.write_text(json.dumps({**about, **result}, indent=2) + "\n")
    print(
        f"{options.case:18s} {options.contender:18s} seed {options.seed}: "
        f"{result['seconds']:7.1f} s, final return {result['final_return'] or math.nan:8.1f}, "
        f"by its mode {result['evaluation']:8.1f}",
        flush=True,
    )


def summary(options: argparse.Namespace) -> None:
    """Interquartile means with 95 % bootstrap intervals over seeds, and ratios of time."""
    rows: dict[str, Any] = {}
    results = [json.loads(path.read_text()) for path in sorted(OUT.glob("*.*.*.json"))]
    for name, case in CASES.items():
        rows[name] = {}
        for contender in [*case.suites, PEER, *case.timed_against]:
            runs = runs_of(results, name, contender)
            if not runs and contender not in case.timed_against:
                continue
            row: dict[str, Any] = {"seeds": len(runs), **final_figures(runs)} if runs else {}
            timed = OUT / "time" / _file(name, contender, 0)
            if timed.exists():
                taken = json.loads(timed.read_text())
                row["seconds"] = taken["seconds"]
                row |= {
                    kind: taken[kind]
                    for kind in ("seconds_again", "seconds_compiled")
                    if kind in taken
                }
            rows[name][contender] = row
        for row in rows[name].values():
            theirs = rows[name].get(PEER, {}).get("seconds")
            if theirs and "seconds" in row:
                for kind in ("", "_again", "_compiled"):
                    if f"seconds{kind}" in row:
                        row[f"times_faster{kind}"] = theirs / row[f"seconds{kind}"]
    (OUT / "summary.json").write_text(json.dumps(rows, indent=2) + "\n")
    print_table(rows)
    lengths = {name: case.total_steps for name, case in CASES.items()}
    contenders = {name: [*case.suites, PEER] for name, case in CASES.items()}
    plot_curves(results, lengths, contenders, OUT / "on_policy.png")


def print_table(rows: dict[str, Any]) -> None:
    """The summary as lines of Markdown."""
    print(
        "| case | contender | final return | by its mode | seconds | x faster | again | compiled |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, contenders in rows.items():
        for contender, row in contenders.items():
            returns = [
                "{:.0f} ({:.0f} to {:.0f})".format(*row[k]) if k in row else ""
                for k in ("final_return", "evaluation")
            ]
            names = ("seconds", "times_faster", "times_faster_again", "times_faster_compiled")
            figures = [f"{row[k]:.1f}" if k in row else "" for k in names]
            print("| " + " | ".join([name, contender, *returns, *figures]) + " |")


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for name, function in (("run", run), ("time", time_all), ("one", one), ("summary", summary)):
        command = commands.add_parser(name)
        command.set_defaults(function=function)
        if name in ("run", "time"):
            command.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
        if name == "run":
            command.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
        if name == "one":
            command.add_argument("case", choices=CASES)
            command.add_argument("contender")
            command.add_argument("seed", type=int)
            command.add_argument("path", type=Path)
            command.add_argument("steps", type=int)
        if name != "summary":
            command.add_argument("--python", type=Path, default=PEERS, help="the peers' Python")
            command.add_argument("--threads", type=int, default=1, help="PyTorch's threads")
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
