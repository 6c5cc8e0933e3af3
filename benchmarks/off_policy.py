"""SAC, DQN, TD3 and DDPG against Stable-Baselines3 and sbx: return after equal steps, and speed.

One machine, equal hyper-parameters, networks, numbers of steps and of updates; the contenders take
turns, each in a process of its own, on the same cores. Every (case, contender, seed) leaves a JSON
file in results/off_policy; what is there is not run again, so that the whole can be made in
pieces.

    make bench-peers                                     once: the peers' own environment
    python benchmarks/off_policy.py run [--cases ...] [--seeds 0 1 2 3 4] --cores 0    learning
    python benchmarks/off_policy.py run --cases sac-updates sac-30k dqn-30k            speed
    python benchmarks/off_policy.py summary              table, summary.json and off_policy.png
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from learning_curves import NUM_EVALUATIONS, final_figures, learning, plot_curves, runs_of
from off_policy_cases import CASES, Case

ROOT = Path(__file__).parent.parent
OUT = ROOT / "results" / "off_policy"
PEERS = ROOT / ".venv-peers" / "bin" / "python"
PEER_SCRIPT = ROOT / "benchmarks" / "peers" / "off_policy.py"
OURS = "ours"
CONTENDERS = (OURS, "stable-baselines3", "sbx")


def run_peer(case: Case, contender: str, seed: int, python: Path) -> dict[str, Any]:
    """Train and evaluate with a peer, in its own environment."""
    request = {**asdict(case), "contender": contender, "seed": seed, "eval": NUM_EVALUATIONS}
    command = [str(python), str(PEER_SCRIPT), json.dumps(request)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "episodes" not in result:
        return result
    episodes = [(steps, value, 1) for steps, value in result.pop("episodes")]
    return {**result, **learning(case.total_steps, episodes)}


def run(options: argparse.Namespace) -> None:
    """Whatever of the chosen cases and seeds has no result yet; contenders take turns."""
    options.out.mkdir(parents=True, exist_ok=True)
    for seed in options.seeds:
        for name in options.cases:
            for contender in options.contenders:
                path = options.out / f"{name}.{contender}.{seed}.json"
                if path.exists():
                    continue
                command = [sys.executable, __file__, "one", name, contender, str(seed), str(path)]
                command += ["--python", str(options.python)]
                command += ["--cores", *map(str, options.cores)]
                if options.total_steps is not None:
                    command += ["--total-steps", str(options.total_steps)]
                subprocess.run(command, check=True)


def one(options: argparse.Namespace) -> None:
    """One (case, contender, seed)."""
    os.sched_setaffinity(0, options.cores)  # before JAX counts them
    case = CASES[options.case]
    if options.total_steps is not None:
        case = replace(case, total_steps=options.total_steps)
    if options.contender == OURS:
        from off_policy_ours import run_ours  # late: JAX must not count other cores

        result = run_ours(case, options.seed)
    else:
        result = run_peer(case, options.contender, options.seed, options.python)
    about = {"case": options.case, "contender": options.contender, "seed": options.seed}
    about["cores"] = len(options.cores)
    options.path.write_text(json.dumps({**about, **result}, indent=2) + "\n")
    figures = {k: v for k, v in result.items() if k not in ("curve", "about")}
    print(f"{options.case:18s} {options.contender:18s} seed {options.seed}: {figures}", flush=True)


def summary(options: argparse.Namespace) -> None:
    """Interquartile means with 95 % bootstrap intervals over seeds, and ratios of speed."""
    results = [json.loads(path.read_text()) for path in sorted(options.out.glob("*.*.*.json"))]
    rows: dict[str, Any] = {}
    for name in CASES:
        rows[name] = {}
        for contender in CONTENDERS:
            if runs := runs_of(results, name, contender):
                rows[name][contender] = summarised(CASES[name], runs)
        ours = rows[name].get(OURS, {})
        for row in rows[name].values():
            if "updates_per_second" in row and "updates_per_second" in ours:
                row["ours_times_faster"] = ours["updates_per_second"] / row["updates_per_second"]
            elif "seconds" in row and "seconds" in ours:
                row["ours_times_faster"] = row["seconds"] / ours["seconds"]
    (options.out / "summary.json").write_text(json.dumps(rows, indent=2) + "\n")
    print_table(rows)
    lengths = {name: case.total_steps for name, case in CASES.items() if is_learning(case)}
    contenders = dict.fromkeys(lengths, CONTENDERS)
    plot_curves(results, lengths, contenders, options.out / "off_policy.png")


def is_learning(case: Case) -> bool:
    """Whether a case is about returns rather than speed."""
    return case.total_steps == 100_000 and case.num_updates is None


def summarised(case: Case, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """One contender's figures in one case; of several sizes of calls the fastest counts.

    How long it took to learn is left out: those runs go on for hours, beside others.
    """
    row: dict[str, Any] = {"seeds": len(runs), "cores": sorted({r["cores"] for r in runs})}
    if is_learning(case):
        return {**row, **final_figures(runs)}
    if case.num_updates is not None:
        medians = [max(map(statistics.median, r["updates_per_second"].values())) for r in runs]
        row["updates_per_second"] = statistics.median(medians)
        if "share_of_products" in runs[0]:
            names = runs[0]["share_of_products"]
            row["share_of_products"] = {
                n: statistics.median(r["share_of_products"][n] for r in runs) for n in names
            }
        return row
    seconds = statistics.median(r["seconds"] for r in runs)
    return {**row, **final_figures(runs), "seconds": seconds}


def print_table(rows: dict[str, Any]) -> None:
    """The summary as lines of Markdown."""
    print("| case | contender | seeds | final return | by its mode | speed | ours is faster |")
    print("|---|---|---|---|---|---|---|")
    for name, contenders in rows.items():
        for contender, row in contenders.items():
            faster = f"{row['ours_times_faster']:.2f}" if "ours_times_faster" in row else "-"
            if "updates_per_second" in row:
                figures = ["-", "-", f"{row['updates_per_second']:.0f} updates/s"]
            else:
                figures = [
                    "{:.0f} ({:.0f} to {:.0f})".format(*row[k])
                    for k in ("final_return", "evaluation")
                ]
                figures.append(f"{row['seconds']:.0f} s" if "seconds" in row else "-")
            print("| " + " | ".join([name, contender, str(row["seeds"]), *figures, faster]) + " |")


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for name, function in (("run", run), ("one", one), ("summary", summary)):
        command = commands.add_parser(name)
        command.set_defaults(function=function)
        if name == "run":
            command.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
            command.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
            command.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
        if name != "one":
            command.add_argument("--out", type=Path, default=OUT)
        if name == "one":
            command.add_argument("case", choices=CASES)
            command.add_argument("contender")
            command.add_argument("seed", type=int)
            command.add_argument("path", type=Path)
        if name != "summary":
            command.add_argument("--python", type=Path, default=PEERS, help="the peers' Python")
            cores = sorted(os.sched_getaffinity(0))
            command.add_argument("--cores", nargs="+", type=int, default=cores)
            command.add_argument("--total-steps", type=int, help="other than the case's, for a try")
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
