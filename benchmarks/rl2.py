"""Time of RL2-PPO's update against the length of a trial, and its share of the matrix-product rate.

One run: for every length an iteration's trials on 5-armed bandits, the compiled update on them,
and two matrix products of the sizes that it is made of: that of one step of the loop over time
(a minibatch's trials by the gates), and that of a minibatch's whole sequences. They take turns,
so that a busy moment of the machine hits all.

    python benchmarks/rl2.py [--rounds 9] [--lengths 10 50 100 ...] [--out results/rl2/speed.json]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from rl2_cells import RL2
from turns import median_milliseconds, write_report

from adaptax.algorithms.program import updated
from adaptax.core.memory import keep_freed_memory
from adaptax.core.spec import EnvSpec
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.sampling.sampler import Sampler

NUM_ARMS = 5
TRIALS, (EMBEDDING,), HIDDEN = RL2["meta_batch_size"], RL2["hidden_sizes"], RL2["memory"]["size"]
PART = TRIALS // RL2["num_minibatches"]
"""Trials in a minibatch."""


def products_of_an_update(spec: EnvSpec, length: int) -> int:
    """Floating-point operations in the matrix products of an update on trials of that length.

    Two passes forward judge the trials before; each epoch goes forward, and back to the weights
    and, but for the first layer, to the inputs. The backward pass of the cell multiplies by the
    recurrent weights once more, to have the gates again.
    """
    inputs = spec.observation_size + spec.action.size + 2
    first, recurrent = inputs * EMBEDDING, 3 * HIDDEN * HIDDEN
    others = EMBEDDING * 3 * HIDDEN + HIDDEN * (NUM_ARMS + 1)
    forward = first + others + recurrent
    there_and_back = 2 * first + 3 * others + 4 * recurrent
    return 2 * TRIALS * length * (2 * forward + RL2["num_epochs"] * there_and_back)


def contenders(length: int) -> tuple[EnvSpec, dict[str, Callable[[], Any]]]:
    """What is timed."""
    suite = make_suite("bandit", num_arms=NUM_ARMS, num_pulls=length)
    algorithm: Any = make_algorithm("rl2-ppo", suite.spec, **RL2)
    state = algorithm.init(jax.random.key(0))
    sampler = Sampler(suite, suite.train, 0, "benchmark")
    tasks, actor = sampler.sample_tasks(TRIALS), algorithm.actor(state)
    rollout = sampler.episodes(actor, tasks, 1, 1)
    in_loop, gates = jnp.ones((PART, HIDDEN)), jnp.ones((HIDDEN, 3 * HIDDEN))
    whole = jnp.ones((PART * length, HIDDEN))
    # Many in one call: a single one of this size takes less time than the call.
    many = jax.jit(
        lambda x, w: jax.lax.fori_loop(0, 1000, lambda _, y: (y @ w)[:, :HIDDEN] * 1e-3, x)
    )
    product = jax.jit(lambda x, w: x @ w)
    return suite.spec, {
        "trials": lambda: sampler.episodes(actor, tasks, 1, 1).reward,
        "update": lambda: updated(algorithm, state, rollout),
        "1000 products in the loop": lambda: many(in_loop, gates),
        "product of whole sequences": lambda: product(whole, gates),
    }


def row(length: int, rounds: int) -> dict[str, float]:
    """The figures of one length."""
    spec, work = contenders(length)
    times = median_milliseconds(work, rounds)
    rate = products_of_an_update(spec, length) / times["update"] / 1e6
    one = 2 * PART * HIDDEN * 3 * HIDDEN
    in_loop = 1000 * one / times["1000 products in the loop"] / 1e6
    whole = one * length / times["product of whole sequences"] / 1e6
    return {
        "length": length,
        "trials_ms": times["trials"],
        "update_ms": times["update"],
        "microseconds_per_trial_step": 1e3 * times["update"] / (TRIALS * length),
        "update_gflops": rate,
        "product_in_loop_gflops": in_loop,
        "product_of_sequences_gflops": whole,
        "share_of_product_in_loop": rate / in_loop,
        "share_of_product_of_sequences": rate / whole,
    }


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--lengths", type=int, nargs="+", default=[10, 50, 100, 250, 500, 1000])
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    keep_freed_memory()
    rows = []
    for length in options.lengths:
        rows.append(row(length, options.rounds))
        print(", ".join(f"{name} {value:.4g}" for name, value in rows[-1].items()), flush=True)
    if options.out:
        suite = make_suite("bandit", num_arms=NUM_ARMS)
        write_report(options.out, {"settings": RL2, "lengths": rows}, suite)


if __name__ == "__main__":
    main()
