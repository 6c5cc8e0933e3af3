"""Where the defaults of the classic algorithms and the MAML family come from.

One setting for all suites, the best.

A setting is tried on every suite of its algorithm, three seeds in one program. On a suite its worth
is how much of the way it goes, in the mean return of the last evaluation, from an agent that acts
at random to the best of all settings tried; over the suites, the mean of that. The default is the
setting that is worth most.

    python benchmarks/defaults.py run [ALGORITHM[/SETTING] ...] [--core C]
    python benchmarks/defaults.py write      the tables of docs/defaults.md

`run` does what has no figures yet.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from turns import bound, check_known, command_line, read_json, with_table, write_json

from adaptax.core.files import replacing
from adaptax.experiment.curves import load_groups
from adaptax.experiment.logger import after_adaptation
from adaptax.experiment.statistics import student_interval

ROOT = Path(__file__).parent.parent
OUT = ROOT / "results" / "defaults.json"
"""Figures by algorithm, setting and suite."""
RUNS = ROOT / "runs" / "defaults"
PAGE = ROOT / "docs" / "defaults.md"
SEEDS = "20:23"
"""No recipe is measured on these."""
CONTINUOUS = {"cartpole": 100_000, "pendulum": 100_000, "half-cheetah": 300_000}
DISCRETE = {"cartpole": 50_000, "gym:Acrobot-v1": 50_000, "catch": 50_000}
FAMILIES = {"point-goal": 1_280_000, "half-cheetah-vel": 2_000_000}
"""Suites and environment steps."""
FLOORS = {
    "cartpole": 22.0,
    "pendulum": -1220.0,
    "half-cheetah": -280.0,
    "gym:Acrobot-v1": -500.0,
    "catch": -0.8,
    "point-goal": -20.4,
    "half-cheetah-vel": -128.0,
}
"""Returns of random play."""
INPUTS = "--algorithm.normalize-obs"
BOTH = f"{INPUTS} --algorithm.normalize-returns"
STD = "--algorithm.init-std"
PASSES = "--algorithm.num-epochs 10 --algorithm.clip-range 0.2 --algorithm.lr 3e-4"
LAMBDA = "--algorithm.no-clip-value --algorithm.no-monte-carlo-returns"
LR, INNER_LR = "--algorithm.lr", "--algorithm.inner-lr"
MAX_KL = "--algorithm.trust-region.max-kl-step"
PUBLISHED = "--algorithm.clip-range 0.3 --algorithm.init-kl-coeff 5e-4 --algorithm.no-adaptive-kl"
TENS = "--algorithm.meta-batch-size 10 --algorithm.num-episodes 10 --algorithm.min-std 0.2"
SETTINGS: dict[str, dict[str, str]] = {
    "ppo": {
        "Pyrado": "",
        "inputs": INPUTS,
        "inputs, returns": BOTH,
        "passes": PASSES,
        "passes, inputs": f"{PASSES} {INPUTS}",
        "passes, inputs, returns": f"{PASSES} {BOTH}",
        "passes, inputs, returns, init_std 0.5": f"{PASSES} {BOTH} {STD} 0.5",
        "passes, inputs, returns, init_std 0.4": f"{PASSES} {BOTH} {STD} 0.4",
        "passes, inputs, returns, init_std 0.25": f"{PASSES} {BOTH} {STD} 0.25",
        "passes, inputs, returns, init_std 0.14": f"{PASSES} {BOTH} {STD} 0.14",
    },
    "ppo2": {
        "Pyrado": "",
        "inputs, returns": BOTH,
        "passes, lambda-returns": f"{PASSES} {LAMBDA}",
        "passes, lambda-returns, inputs, returns": f"{PASSES} {LAMBDA} {BOTH}",
        "passes, inputs, returns": f"{PASSES} {BOTH}",
        "passes, inputs, returns, init_std 0.5": f"{PASSES} {BOTH} {STD} 0.5",
        "passes, inputs, returns, init_std 0.4": f"{PASSES} {BOTH} {STD} 0.4",
        "passes, inputs, returns, init_std 0.25": f"{PASSES} {BOTH} {STD} 0.25",
    },
    "trpo": {
        "Pyrado": "",
        "inputs": INPUTS,
        "inputs, returns": BOTH,
        "inputs, returns, gae_lambda 0.95": f"{BOTH} --algorithm.gae-lambda 0.95",
        "inputs, returns, gae_lambda 0.95, init_std 0.5": (
            f"{BOTH} --algorithm.gae-lambda 0.95 {STD} 0.5"
        ),
        "inputs, returns, gae_lambda 0.95, init_std 0.4": (
            f"{BOTH} --algorithm.gae-lambda 0.95 {STD} 0.4"
        ),
        "inputs, returns, gae_lambda 0.95, init_std 0.25": (
            f"{BOTH} --algorithm.gae-lambda 0.95 {STD} 0.25"
        ),
    },
    "a2c": {
        "present": "",
        "inputs, returns": BOTH,
        "128 steps": "--algorithm.num-steps 128",
        "128 steps, inputs, returns": f"--algorithm.num-steps 128 {BOTH}",
        "128 steps, inputs, returns, lr 1e-3": (
            f"--algorithm.num-steps 128 {BOTH} --algorithm.lr 1e-3"
        ),
        "128 steps, inputs, returns, lr 3e-3": (
            f"--algorithm.num-steps 128 {BOTH} --algorithm.lr 3e-3"
        ),
        "128 steps, inputs, returns, init_std 0.5": (f"--algorithm.num-steps 128 {BOTH} {STD} 0.5"),
        "128 steps, inputs, returns, init_std 0.4": (f"--algorithm.num-steps 128 {BOTH} {STD} 0.4"),
        "64 steps, inputs, returns, init_std 0.4": f"--algorithm.num-steps 64 {BOTH} {STD} 0.4",
        "64 steps, inputs, returns": f"--algorithm.num-steps 64 {BOTH}",
        "64 steps, inputs, returns, lr 1e-3": (
            f"--algorithm.num-steps 64 {BOTH} --algorithm.lr 1e-3"
        ),
    },
    "dqn": {
        "present": "",
        "tau 0.005": "--algorithm.tau 0.005",
        "double": "--algorithm.double",
        "rewards by ten": "--algorithm.reward-scale 0.1",
    },
    "promp": {
        "ProMP's": "",
        "inputs": INPUTS,
        "inputs, 10 x 10": f"{INPUTS} {TENS}",
        "inputs, 10 x 10, lr 3e-3": f"{INPUTS} {TENS} {LR} 3e-3",
        "inputs, 10 x 10, published loss": f"{INPUTS} {TENS} {PUBLISHED}",
        "inputs, 10 x 10, published loss, lr 3e-3": f"{INPUTS} {TENS} {PUBLISHED} {LR} 3e-3",
    },
    "trpo-maml": {
        "ProMP's": "",
        "inputs": INPUTS,
        "inputs, 10 x 10": f"{INPUTS} {TENS}",
        "inputs, 10 x 10, max_kl_step 0.05": f"{INPUTS} {TENS} {MAX_KL} 0.05",
    },
    "vpg-maml": {
        "ProMP's": "",
        "inputs": INPUTS,
        "inputs, lr 3e-3": f"{INPUTS} {LR} 3e-3",
        "inputs, lr 1e-2": f"{INPUTS} {LR} 1e-2",
        "inputs, lr 3e-3, 10 x 10": f"{INPUTS} {LR} 3e-3 {TENS}",
        "inputs, lr 1e-3, 10 x 10": f"{INPUTS} {LR} 1e-3 {TENS}",
    },
    "dice-maml": {
        "ProMP's": "",
        "inputs": INPUTS,
        "inputs, lr 3e-3, inner_lr 0.03": f"{INPUTS} {LR} 3e-3 {INNER_LR} 0.03",
        "inputs, lr 3e-3, inner_lr 0.01": f"{INPUTS} {LR} 3e-3 {INNER_LR} 0.01",
        "inputs, lr 3e-3, inner_lr 0.03, min_std 0.2": (
            f"{INPUTS} {LR} 3e-3 {INNER_LR} 0.03 --algorithm.min-std 0.2"
        ),
        "inputs, lr 3e-3, inner_lr 0.03, 10 x 10": f"{INPUTS} {LR} 3e-3 {INNER_LR} 0.03 {TENS}",
        "inputs, lr 1e-3, inner_lr 0.03, 10 x 10": f"{INPUTS} {LR} 1e-3 {INNER_LR} 0.03 {TENS}",
        "inputs, lr 1e-3, inner_lr 0.01, 10 x 10": f"{INPUTS} {LR} 1e-3 {INNER_LR} 0.01 {TENS}",
    },
}
"""By algorithm and name: flags, behind those of `THEN`."""
_THEN_ON_POLICY = f"{STD} 1 --algorithm.no-normalize-obs --algorithm.no-normalize-returns"
_THEN_PPO = "--algorithm.num-epochs 3 --algorithm.clip-range 0.1 --algorithm.lr 5e-4"
_THEN_MAML = (
    "--algorithm.no-normalize-obs --algorithm.meta-batch-size 40 --algorithm.num-episodes 20 "
    "--algorithm.min-std 1e-6"
)
THEN = {
    "ppo": f"{_THEN_PPO} {_THEN_ON_POLICY}",
    "ppo2": f"{_THEN_PPO} {_THEN_ON_POLICY}",
    "trpo": f"--algorithm.gae-lambda 0.98 {_THEN_ON_POLICY}",
    "a2c": f"--algorithm.num-steps 512 {_THEN_ON_POLICY}",
    "dqn": "--algorithm.reward-scale 1",
    "promp": _THEN_MAML,
    "trpo-maml": _THEN_MAML,
    "vpg-maml": _THEN_MAML,
    "dice-maml": f"{_THEN_MAML} {LR} 1e-3 {INNER_LR} 0.1",
}
"""What was the default before this was run, where it has another value since."""


def suites_of(algorithm: str) -> dict[str, int]:
    """What it is tried on, and for how many steps."""
    if algorithm in ("promp", "trpo-maml", "vpg-maml", "dice-maml"):
        return FAMILIES
    return DISCRETE if algorithm == "dqn" else CONTINUOUS


def chosen(names: list[str]) -> Iterator[tuple[str, str]]:
    """Algorithms and settings by `ALGORITHM` or `ALGORITHM/SETTING`; no names are all."""
    check_known(
        names, [*SETTINGS, *(f"{a}/{setting}" for a in SETTINGS for setting in SETTINGS[a])]
    )
    for algorithm, settings in SETTINGS.items():
        for setting in settings:
            if not names or {algorithm, f"{algorithm}/{setting}"} & set(names):
                yield algorithm, setting


def run(options: argparse.Namespace) -> None:
    """Whatever of the chosen has no figures, one group of seeds after another."""
    for algorithm, setting in chosen(options.names):
        for suite, num_steps in suites_of(algorithm).items():
            if suite not in read_json(OUT).get(algorithm, {}).get(setting, {}):
                found = one_group(algorithm, setting, suite, num_steps, options.core)
                everything = read_json(OUT)  # anew: others may have written meanwhile
                everything.setdefault(algorithm, {}).setdefault(setting, {})[suite] = found
                write_json(OUT, everything)
                print(algorithm, setting, suite, found["returns"], flush=True)


def one_group(
    algorithm: str, setting: str, suite: str, num_steps: int, core: int | None
) -> dict[str, Any]:
    """Train the seeds of a setting on a suite."""
    limits = f"--seeds {SEEDS} --num-steps {num_steps} --evaluation-interval 100000"
    words = ["train", algorithm, suite, "--recipe", "none", *shlex.split(limits)]
    # An agent of the MAML family that acts by its mode has no gradient to adapt by.
    how = "num-lanes 20" if suite in FAMILIES else "deterministic"
    flags = f"{THEN[algorithm]} {SETTINGS[algorithm][setting]}"  # of one flag twice, the last
    words += shlex.split(f"--trainer.evaluation.{how} {flags}")
    folder = RUNS / f"{algorithm}-{suite}-{setting}".replace(":", "-").replace(" ", "-")
    program = [*bound(core), sys.executable, "-m", "adaptax", *words]
    subprocess.run([*program, "--run-dir", str(folder), "--overwrite", "--quiet"], check=True)
    runs = load_groups([folder])[0].runs
    return {
        "returns": [after_adaptation(run.evaluations[-1])["return_mean"] for run in runs],
        "num_steps": max(run.evaluations[-1]["num_steps"] for run in runs),
        "algorithm": runs[0].config["algorithm"],
        "command": shlex.join(["adaptax", *words]),
        **{name: runs[0].config[name] for name in ("versions", "revision", "device", "processor")},
    }


def worths(algorithm: str, figures: dict[str, dict[str, Any]]) -> dict[str, float]:
    """What each setting is worth; only of settings that were tried on every suite."""
    suites = suites_of(algorithm)
    whole = {setting: of for setting, of in figures.items() if set(suites) <= set(of)}
    means = {
        s: {suite: np.mean(of[suite]["returns"]) for suite in suites} for s, of in whole.items()
    }
    best = {suite: max((mean[suite] for mean in means.values()), default=0.0) for suite in suites}
    return {
        setting: float(np.mean([(mean[s] - FLOORS[s]) / (best[s] - FLOORS[s]) for s in suites]))
        for setting, mean in means.items()
    }


def rows_of(algorithm: str, figures: dict[str, dict[str, Any]]) -> Iterator[str]:
    """A table, the setting that is worth most first."""
    suites = suites_of(algorithm)
    heads = [f"`{suite}`, {num_steps:,} steps" for suite, num_steps in suites.items()]
    yield f"| setting | flags | {' | '.join(heads)} | worth |"
    yield "|---|---|" + "---|" * (len(suites) + 1)
    worth = worths(algorithm, figures)
    for setting in sorted(worth, key=worth.__getitem__, reverse=True):
        cells = []
        for suite in suites:
            returns = np.array(figures[setting][suite]["returns"])
            low, high = student_interval(returns)
            cells.append(f"{returns.mean():.4g} [{low:.4g}, {high:.4g}]")
        cells.append(f"{worth[setting]:.2f}")
        flags = SETTINGS[algorithm][setting]
        yield f"| {setting} | {f'`{flags}`' if flags else ''} | {' | '.join(cells)} |"


def write(options: argparse.Namespace) -> None:
    """The tables of the page."""
    text = PAGE.read_text()
    for algorithm, figures in read_json(OUT).items():
        text = with_table(text, f"<!-- {algorithm} -->", rows_of(algorithm, figures))
    with replacing(PAGE) as file:
        file.write(text.encode())


def main() -> None:
    """See the head of this file."""
    parser, commands = command_line(__doc__, run, write)
    running = commands["run"]
    running.add_argument("names", nargs="*")
    running.add_argument("--core", type=int)
    options = parser.parse_args()
    options.function(options)


if __name__ == "__main__":
    main()
