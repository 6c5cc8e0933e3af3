"""Search in parameter space and SVPG: what a generation, or an iteration, costs. All in one run.

Generations of CMA-ES on CartPole-v1: ours, and pycma with a loop over Gymnasium's environment;
both search a linear policy from a zero or near-zero start, 30 generations to a run, run after
run, so that the short episodes of the first generations count on both sides. Environment steps of
CEM on HalfCheetah-v5 against bare MuJoCo stepping. Iterations of SVPG with 8 particles against
one. The contenders take turns.

    python benchmarks/search.py [--seconds 10] [--out results/search/speed.json]
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import cma
import gymnasium
import jax
import numpy as np
from sampling import Work, bare, measure
from turns import write_report

from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.sampling.sampler import Sampler

CANDIDATES = (16, 64, 256)
GENERATIONS_A_RUN = 30
NUM_PARTICLES = 8
PARTICLE_STEPS = (320, 2048)
"""Of one particle, an iteration."""
HALF_CHEETAH_CANDIDATES = 64


def iterations(suite_name: str, name: str, *, in_steps: bool = False, **settings: Any) -> Work:
    """Iterations of one of our algorithms, begun anew after GENERATIONS_A_RUN.

    It counts iterations, or environment steps if `in_steps`.
    """
    suite = make_suite(suite_name)
    algorithm = make_algorithm(name, suite.spec, **settings)
    sampler = Sampler(suite, suite.train, 0, "benchmark")
    run: dict[str, Any] = {"number": 0, "iteration": 0}

    def work() -> int:
        if run["iteration"] % GENERATIONS_A_RUN == 0:
            run["number"] += 1
            run["state"] = algorithm.init(jax.random.key(run["number"]))
        before = sampler.num_steps
        run["state"], _ = algorithm.iteration(run["state"], sampler)
        jax.block_until_ready(run["state"])
        run["iteration"] += 1
        return sampler.num_steps - before if in_steps else 1

    return work


def python_loop(num_candidates: int) -> Work:
    """Generations of pycma, each candidate playing an episode of Gymnasium's CartPole-v1."""
    env = gymnasium.make("CartPole-v1", disable_env_checker=True)
    run: dict[str, Any] = {"number": 0, "generation": 0}

    def episode_return(x: np.ndarray) -> float:
        weights, bias = x[:8].reshape(4, 2), x[8:]
        obs, _ = env.reset(seed=run["number"] * 1_000_003 + run["generation"])
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(int(np.argmax(obs @ weights + bias)))
            total, over = total + float(reward), terminated or truncated
        return total

    def work() -> int:
        if run["generation"] % GENERATIONS_A_RUN == 0:
            run["number"] += 1
            options = {"popsize": num_candidates, "verbose": -10, "seed": run["number"]}
            run["strategy"] = cma.CMAEvolutionStrategy(np.zeros(10), 1.0, options)
        candidates = run["strategy"].ask()
        run["strategy"].tell(candidates, [-episode_return(x) for x in candidates])
        run["generation"] += 1
        return 1

    return work


def cart_pole(seconds: float) -> list[dict[str, Any]]:
    """Generations a second."""
    rows = []
    for num in CANDIDATES:
        contenders = {
            "ours": iterations("cartpole", "cma-es", population_size=num),
            "pycma and Gymnasium": python_loop(num),
        }
        rates = measure(contenders, seconds)
        times = rates["ours"] / rates["pycma and Gymnasium"]
        rows.append({"candidates": num, **rates, "times": times})
        print(
            f"CartPole, {num} candidates: {rates['ours']:.1f} generations a second, pycma and "
            f"Gymnasium {rates['pycma and Gymnasium']:.2f}: {times:.0f} times",
            flush=True,
        )
    return rows


def half_cheetah(seconds: float) -> dict[str, Any]:
    """Environment steps a second."""
    num = HALF_CHEETAH_CANDIDATES
    ours = iterations("half-cheetah", "cem", in_steps=True, population_size=num)
    rates = measure({"ours": ours, "bare": bare(num)}, seconds)
    share = rates["ours"] / rates["bare"]
    print(
        f"HalfCheetah, {num} linear candidates: {rates['ours']:,.0f} steps a second, {share:.2f} "
        f"of bare {rates['bare']:,.0f}",
        flush=True,
    )
    return {"candidates": num, **rates, "share_of_bare": share}


def particles(seconds: float) -> list[dict[str, Any]]:
    """Iterations a second of SVPG, by the number of particles; one step of each an iteration.

    Networks are 2x64. A rollout of 320 steps is what benchmarks/svpg.py learns from; one of 2,048
    is arithmetic for the most part, of which eight particles have eight times as much.
    """
    rows = []
    for num_steps in PARTICLE_STEPS:
        inner = {"num_lanes": 16, "num_steps": num_steps, "num_minibatches": 1}
        contenders = {
            f"{n} particles": iterations("pendulum", "svpg", num_particles=n, particle=inner)
            for n in (1, NUM_PARTICLES)
        }
        rates = measure(contenders, seconds)
        one, many = rates.values()
        rows.append({**inner, **rates, "cost_times": one / many})
        print(
            f"SVPG on pendulum, {num_steps} steps: {one:.1f} iterations a second with 1 particle, "
            f"{many:.1f} with {NUM_PARTICLES}, which cost {one / many:.2f} times as much",
            flush=True,
        )
    return rows


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="per contender and size")
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", message="cma-es: pycma would stop")
    report: dict[str, Any] = {
        "cart_pole_generations_per_second": cart_pole(options.seconds),
        "half_cheetah_steps_per_second": half_cheetah(options.seconds),
        "svpg_iterations_per_second": particles(options.seconds),
    }
    if options.out:
        write_report(options.out, report)


if __name__ == "__main__":
    main()
