"""Time of a meta-iteration of ProMP against the physics in it, and what the outer step costs.

One run: bare MuJoCo stepping with random controls (20,000 steps, in as many lanes), a whole
iteration of ProMP on `half-cheetah-vel` (10 tasks x 10 episodes x 100 steps before and after
adaptation, 2x64, 5 outer steps), its outer step and that of TRPO-MAML alone, and one matrix
product of the size that the outer step is made of. They take turns, so that a busy moment of the
machine hits all.

    python benchmarks/maml.py [--rounds 15] [--out results/maml/speed.json]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import sampling
from turns import median_milliseconds, write_report

from adaptax.algorithms.program import updated
from adaptax.core.devices import make_every_core_a_device
from adaptax.core.memory import keep_freed_memory
from adaptax.envs.suite import Suite
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.sampling.sampler import Sampler

NUM_TASKS, NUM_EPISODES, HORIZON, HIDDEN = 10, 10, 100, 64
SETTINGS = {"meta_batch_size": NUM_TASKS, "num_episodes": NUM_EPISODES}


def products_of_a_gradient(observation_size: int, action_size: int) -> int:
    """Floating-point operations in the matrix products of one outer gradient with one inner step.

    Forward and backward before and after adaptation, the product with the inner objective's
    Hessian (forwards over reverse), and the pull-back of the KL. No gradient reaches observations.
    """
    first, others = observation_size * HIDDEN, HIDDEN * HIDDEN + HIDDEN * action_size
    there_and_back = 2 * first + 3 * others
    along = 2 * first + 6 * others
    pull_back = first + 2 * others
    rows = NUM_TASKS * NUM_EPISODES * HORIZON
    return 2 * rows * (2 * there_and_back + along + pull_back)


def outer_steps(suite: Suite) -> dict[str, Callable[[], Any]]:
    """The compiled outer steps on collected data."""
    steps: dict[str, Callable[[], Any]] = {}
    for name in ("promp", "trpo-maml"):
        algorithm = make_algorithm(name, suite.spec, **SETTINGS)
        state = algorithm.init(jax.random.key(0))
        data = algorithm.collect(state, Sampler(suite, suite.train, 0, "benchmark"))
        steps[f"outer step of {name}"] = lambda a=algorithm, s=state, d=data: updated(a, s, d)
    return steps


def contenders(suite: Suite) -> dict[str, Callable[[], Any]]:
    """What is timed."""
    algorithm = make_algorithm("promp", suite.spec, **SETTINGS)
    sampler = Sampler(suite, suite.train, 0, "benchmark")
    state = algorithm.init(jax.random.key(0))
    episode = sampling.bare(NUM_TASKS * NUM_EPISODES)
    shape = (NUM_TASKS, NUM_EPISODES * HORIZON, HIDDEN)
    x, w = jnp.ones(shape), jnp.ones((NUM_TASKS, HIDDEN, HIDDEN))
    product = jax.jit(lambda x, w: x @ w)
    actor, tasks = algorithm.actor(state), sampler.sample_tasks(NUM_TASKS)
    return {
        "native physics, 20,000 steps": lambda: (episode(), episode()),
        "iteration of promp": lambda: algorithm.iteration(state, sampler)[0],
        "episodes, 10,000 steps": lambda: sampler.episodes(actor, tasks, NUM_EPISODES, 1).reward,
        **outer_steps(suite),
        "product [10x1000x64] x [10x64x64]": lambda: product(x, w),
    }


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    keep_freed_memory()
    make_every_core_a_device()
    suite = make_suite("half-cheetah-vel")
    times = median_milliseconds(contenders(suite), options.rounds)
    for name, milliseconds in times.items():
        print(f"{name:36s} {milliseconds:8.2f} ms")
    physics, iteration, _, outer, _, product = times.values()
    gradient = products_of_a_gradient(suite.spec.observation_size, suite.spec.action.size)
    full_rate = 2 * NUM_TASKS * NUM_EPISODES * HORIZON * HIDDEN**2 / product / 1e6
    rate = 5 * gradient / outer / 1e6
    figures = {
        "iteration_to_physics": iteration / physics,
        "outer_step_gflops": rate,
        "product_gflops": full_rate,
        "share_of_product_rate": rate / full_rate,
    }
    print(
        f"an iteration takes {figures['iteration_to_physics']:.2f} times its physics; the outer "
        f"step's products run at {rate:.0f} of {full_rate:.0f} GFLOP/s"
    )
    if options.out:
        write_report(options.out, {"milliseconds": times, **figures}, suite)


if __name__ == "__main__":
    main()
