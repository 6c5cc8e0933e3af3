"""SVPG against independent runs of its inner algorithm: return and spread of the policies.

On `pendulum`, 8 particles against 8 runs of A2C with the same settings, networks and steps: for
both an iteration is 320 steps a policy and one step of the optimizer. Every policy is evaluated
after the last iteration, over 50 episodes in which it draws its actions. Several learning rates,
so that neither side is held against its worst.

    python benchmarks/svpg.py [--iterations 1000] [--seeds 0 1 2] [--out results/search/svpg.json]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from turns import write_report

from adaptax.algorithms.on_policy.a2c import A2C, A2CConfig
from adaptax.algorithms.on_policy.family import State
from adaptax.algorithms.on_policy.svpg import SVPG, SVPGConfig, particle_state
from adaptax.envs.suite import Suite
from adaptax.experiment.build import make_suite
from adaptax.experiment.evaluator import Evaluator, EvaluatorConfig
from adaptax.functional.stein import spread
from adaptax.networks.actor_critic import part_of
from adaptax.sampling.sampler import Sampler

NUM_POLICIES = 8
LEARNING_RATES = (1e-3, 3e-3, 1e-2)
INNER = {
    "num_lanes": 16,
    "num_steps": 320,
    "num_minibatches": 1,
    "hidden_sizes": (32,),
    "discount": 0.9,
    "gae_lambda": 0.9,
    "normalize_obs": True,
    "normalize_returns": True,
}


def independent(suite: Suite, inner: A2CConfig, seed: int, num_iterations: int) -> list[State]:
    """Runs of A2C that know nothing of each other."""
    algorithm, states = A2C(inner, suite.spec), []
    for i in range(NUM_POLICIES):
        sampler = Sampler(suite, suite.train, NUM_POLICIES * seed + i, "train")
        state = algorithm.init(jax.random.key(NUM_POLICIES * seed + i))
        for _ in range(num_iterations):
            state, _ = algorithm.iteration(state, sampler)
        states.append(state)
    return states


def together(suite: Suite, inner: A2CConfig, seed: int, num_iterations: int) -> list[State]:
    """The particles of one run of SVPG."""
    algorithm = SVPG(SVPGConfig(NUM_POLICIES, particle=inner), suite.spec)
    sampler = Sampler(suite, suite.train, seed, "train")
    state = algorithm.init(jax.random.key(seed))
    for _ in range(num_iterations):
        state, _ = algorithm.iteration(state, sampler)
    return [particle_state(state, i) for i in range(NUM_POLICIES)]


def judged(suite: Suite, inner: A2CConfig, states: list[State]) -> dict[str, Any]:
    """Return of every policy, and the mean distance between two policies' parameters."""
    algorithm = A2C(inner, suite.spec)
    evaluator = Evaluator(EvaluatorConfig(num_lanes=50), suite, seed=0)
    returns = [float(evaluator.evaluate(algorithm, state).returns.mean()) for state in states]
    vectors = jnp.stack([ravel_pytree(part_of(state.params, "policy"))[0] for state in states])
    mean, best, distance = np.mean(returns), max(returns), float(spread(vectors))
    return {"return_mean": mean, "return_best": best, "spread": distance, "returns": returns}


def compare(suite: Suite, inner: A2CConfig, seed: int, num_iterations: int) -> list[dict[str, Any]]:
    """A row for each contender."""
    rows = []
    for name, train in CONTENDERS.items():
        started = time.perf_counter()
        states = train(suite, inner, seed, num_iterations)
        seconds = time.perf_counter() - started
        row = {"lr": inner.lr, "seed": seed, "contender": name, "seconds": round(seconds, 1)}
        rows.append(row | judged(suite, inner, states))
        print(
            f"lr {inner.lr:g}, seed {seed}, {name:11s}: return {rows[-1]['return_mean']:8.1f} "
            f"(best policy {rows[-1]['return_best']:8.1f}), spread {rows[-1]['spread']:5.2f}, "
            f"{seconds:.0f} s",
            flush=True,
        )
    return rows


def print_means(rows: list[dict[str, Any]]) -> None:
    """Over seeds."""
    for lr in LEARNING_RATES:
        for name in CONTENDERS:
            own = [row for row in rows if (row["lr"], row["contender"]) == (lr, name)]
            mean, distance = (np.mean([r[k] for r in own]) for k in ("return_mean", "spread"))
            print(f"lr {lr:g}, {name:11s}: mean return {mean:8.1f}, spread {distance:5.2f}")


CONTENDERS = {"independent": independent, "svpg": together}


def main() -> None:
    """Train, judge, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--iterations", type=int, default=1000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    suite, rows = make_suite("pendulum"), []
    for lr in LEARNING_RATES:
        for seed in options.seeds:
            rows += compare(suite, A2CConfig(**INNER, lr=lr), seed, options.iterations)
    print_means(rows)
    if options.out:
        settings = {"inner": INNER, "temperature": SVPGConfig().temperature}
        settings |= {"iterations": options.iterations, "policies": NUM_POLICIES}
        write_report(options.out, {"settings": settings, "rows": rows}, suite)


if __name__ == "__main__":
    main()
