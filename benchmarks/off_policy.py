"""SAC, DQN, TD3 and DDPG against Stable-Baselines3 and sbx: return after equal steps, and speed.

One machine, equal hyper-parameters, networks, numbers of steps and of updates; the contenders take
turns, each in a process of its own, on the same cores. Every (case, contender, seed) leaves a JSON
file in results/off_policy; what is there is not run again, so that the whole can be made in
pieces.

    make bench-peers                                     once: the peers' own environment
    python benchmarks/off_policy.py run [--cases ...] [--contenders ...] [--seeds 0 1 2 3 4]
    python benchmarks/off_policy.py run --cases sac-updates sac-30k dqn-30k --cores 0
    python benchmarks/off_policy.py summary              table, summary.json and off_policy.png
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
OUT = ROOT / "results" / "off_policy"
PEERS = ROOT / ".venv-peers" / "bin" / "python"
PEER_SCRIPT = ROOT / "benchmarks" / "peers" / "off_policy.py"
OURS = "ours"
CONTENDERS = (OURS, "stable-baselines3", "sbx")
NUM_BINS = 20
"""Points of a learning curve."""
NUM_EVALUATIONS = 20
"""Episodes of the final policy's evaluation, acting by its mode."""


@dataclass(frozen=True)
class Case:
    """One comparison: the settings of all sides, in Stable-Baselines3's words."""

    algorithm: str
    env_id: str
    suite: str
    total_steps: int
    learning_rate: float
    net_arch: tuple[int, ...]
    gamma: float = 0.99
    batch_size: int = 256
    buffer_size: int = 1_000_000
    learning_starts: int = 10_000
    tau: float = 0.005
    train_freq: int = 1
    gradient_steps: int = 1
    action_noise: float | None = None
    """Standard deviation."""
    target_update_interval: int = 1
    exploration_fraction: float = 0.1
    exploration_final_eps: float = 0.05
    num_updates: int | None = None
    """If given, only updates are timed, so many in a block."""
    blocks: tuple[int, ...] = (1, 50)
    """Sizes of the calls in which peers make them."""
    num_blocks: int = 6


# Settings of RL Baselines3 Zoo, https://github.com/DLR-RM/rl-baselines3-zoo (hyperparams/).
SAC = Case("sac", "HalfCheetah-v5", "half-cheetah", 100_000, 3e-4, (256, 256))
DQN = Case(
    "dqn",
    "CartPole-v1",
    "gym:CartPole-v1",
    100_000,
    2.3e-3,
    (256, 256),
    batch_size=64,
    buffer_size=100_000,
    learning_starts=1_000,
    tau=1.0,
    train_freq=256,
    gradient_steps=128,
    target_update_interval=10,
    exploration_fraction=0.16,
    exploration_final_eps=0.04,
)
TD3 = Case(
    "td3",
    "Pendulum-v1",
    "gym:Pendulum-v1",
    100_000,
    1e-3,
    (400, 300),
    gamma=0.98,
    buffer_size=200_000,
    action_noise=0.1,
)
CASES = {
    "sac-half-cheetah": SAC,
    "dqn-cartpole": DQN,
    "td3-pendulum": TD3,
    "ddpg-pendulum": replace(TD3, algorithm="ddpg"),
    "sac-30k": replace(SAC, total_steps=30_000),
    "dqn-30k": replace(DQN, total_steps=30_000),
    "sac-updates": replace(SAC, num_updates=1_000),
}


def run_peer(case: Case, contender: str, seed: int, python: Path) -> dict[str, Any]:
    """Train and evaluate with a peer, in its own environment."""
    request = {**asdict(case), "contender": contender, "seed": seed, "eval": NUM_EVALUATIONS}
    command = [str(python), str(PEER_SCRIPT), json.dumps(request)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "episodes" not in result:
        return result
    episodes = [(steps, value, 1) for steps, value in result.pop("episodes")]
    return {**result, **learning(case, episodes)}


def learning(case: Case, episodes: list[tuple[int, float, int]]) -> dict[str, Any]:
    """The learning curve, and the mean return of episodes that ended in the last tenth of steps.

    `episodes` are (steps so far, mean return, number of episodes).
    """
    bins: list[list[tuple[float, int]]] = [[] for _ in range(NUM_BINS)]
    for steps, mean, count in episodes:
        bins[min(NUM_BINS * steps // case.total_steps, NUM_BINS - 1)].append((mean, count))

    def mean_of(pairs: list[tuple[float, int]]) -> float | None:
        total = sum(count for _, count in pairs)
        return sum(mean * count for mean, count in pairs) / total if total else None

    last = [pair for part in bins[-NUM_BINS // 10 :] for pair in part]
    return {"final_return": mean_of(last), "curve": [mean_of(part) for part in bins]}


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
        result = run_ours(case, options.seed)
    else:
        result = run_peer(case, options.contender, options.seed, options.python)
    about = {"case": options.case, "contender": options.contender, "seed": options.seed}
    about["cores"] = len(options.cores)
    options.path.write_text(json.dumps({**about, **result}, indent=2) + "\n")
    figures = {k: v for k, v in result.items() if k not in ("curve", "about")}
    print(f"{options.case:18s} {options.contender:18s} seed {options.seed}: {figures}", flush=True)


def main() -> None:
    """See the head of this file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    for name, function in (("run", run), ("one", one)):
        command = commands.add_parser(name)
        command.set_defaults(function=function)
        if name == "run":
            command.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
            command.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
            command.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
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
