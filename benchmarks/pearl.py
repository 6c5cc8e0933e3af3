"""PEARL's gradient steps a second at the published sizes, and their share of what products reach.

16 tasks x 256 transitions, context of 100, latent of 5, policy and values 3 x 300, encoder 3 x 200,
observations and actions of `half-cheetah-vel`; replays of 100 tasks hold random numbers. Timed is
an update: draw minibatches from the replays, and all steps. In the
same run, by turns, one product of the size that the steps are made of.

    python benchmarks/pearl.py [--rounds 10] [--updates 40] [--out results/pearl/speed.json]
"""

from __future__ import annotations

import argparse
import resource
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from turns import median_milliseconds, write_report

from adaptax.algorithms.meta.pearl import PEARL, Data, State
from adaptax.algorithms.program import updated
from adaptax.core.experience import Rollout
from adaptax.core.memory import keep_freed_memory
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.learning.replay import add

NUM_PRODUCTS = 20
STEPS_HELD = 2000
"""Of each task."""


def flop_of_a_step(algorithm: PEARL) -> int:
    """Floating-point operations of the matrix products of one gradient step.

    Per row a layer from i to o is 2 i o forward, as much again for the gradient of its weights,
    and as much for that of its input. What of z is the same for all rows of a task, and the
    gradient of z, are left out: they are products of 16 rows.
    """
    config, spec = algorithm.config, algorithm.spec
    obs, act, hidden = spec.observation_size, spec.action.size, config.hidden_sizes
    inner = sum(i * o for i, o in pairwise(hidden))

    def forward(inputs: int, outputs: int) -> int:
        return 2 * (inputs * hidden[0] + inner + hidden[-1] * outputs)

    def backward(inputs: int, outputs: int) -> int:
        return 2 * (inputs * hidden[0] + 2 * (inner + hidden[-1] * outputs))

    policy, critic, value = (obs, 2 * act), (obs + act, 1), (obs, 1)
    # Backwards to the action only: no gradient of weights.
    to_action = 2 * (act * hidden[0] + inner + hidden[-1])
    rows = 2 * (forward(*critic) + backward(*critic))  # critics
    rows += forward(*policy) + backward(*policy) + 2 * (forward(*critic) + to_action)  # policy
    if config.critic == "value":
        rows += forward(*value) + forward(*value) + backward(*value)
    else:
        rows += forward(*policy) + 2 * forward(*critic)
    encoder = (algorithm.token_size, *config.encoder_hidden_sizes)
    layers = [
        *pairwise(encoder),
        (encoder[-1], (1 + config.information_bottleneck) * config.latent_size),
    ]
    token = 2 * (3 * sum(i * o for i, o in layers) - layers[0][0] * layers[0][1])
    return config.num_update_tasks * (config.batch_size * rows + config.step_context_size * token)


def random_steps(algorithm: PEARL, num_tasks: int) -> Rollout:
    """Steps [M, 1, T] of random numbers."""
    rng, spec = np.random.default_rng(0), algorithm.spec
    shape = (num_tasks, 1, STEPS_HELD)

    def normal(*more: int) -> np.ndarray:
        return rng.standard_normal((*shape, *more), np.float32)

    obs, no = normal(spec.observation_size), np.zeros(shape, bool)
    action = np.tanh(normal(spec.action.size))
    return Rollout(obs, action, normal(), obs, no, no, ~no)


def filled(algorithm: PEARL) -> State:
    """The state before training with replays full of random numbers."""
    state, num_tasks = algorithm.init(jax.random.key(0)), algorithm.config.num_train_tasks
    rollout, rings = random_steps(algorithm, num_tasks), jnp.arange(num_tasks)
    return replace(
        state, replay=add(state.replay, rollout, rings), context=add(state.context, rollout, rings)
    )


class Updates:
    """Updates one after another, each with the same visit of two episodes to five tasks."""

    def __init__(self, algorithm: PEARL) -> None:
        self.algorithm, self.state = algorithm, filled(algorithm)
        steps = jax.tree.map(lambda x: x[:5, :, :400], random_steps(algorithm, 5))
        self.data = Data(steps, jnp.arange(5), self.state.context, jnp.zeros(2), learn=True)

    def __call__(self) -> Any:
        """One more; its figures."""
        self.state, metrics = updated(self.algorithm, self.state, self.data)
        return metrics


def contenders(num_updates: int) -> tuple[dict[str, Callable[[], Any]], dict[str, int], Any]:
    """What is timed, the FLOP of each, and the suite."""
    suite = make_suite("half-cheetah-vel")
    work: dict[str, Callable[[], Any]] = {}
    flop: dict[str, int] = {}
    for critic in ("twin_target", "value"):
        algorithm: Any = make_algorithm(
            "pearl", suite.spec, critic=critic, num_updates=num_updates, buffer_size=2000
        )
        work[critic] = Updates(algorithm)
        flop[critic] = num_updates * flop_of_a_step(algorithm)
    rows, width = algorithm.config.num_update_tasks * algorithm.config.batch_size, 300
    x, w = jnp.ones((rows, width)), jnp.eye(width)
    product = jax.jit(lambda x: jax.lax.fori_loop(0, NUM_PRODUCTS, lambda _, y: y @ w, x))
    work["product"] = lambda: product(x)
    flop["product"] = NUM_PRODUCTS * 2 * rows * width**2
    return work, flop, suite


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--updates", type=int, default=40, help="gradient steps of a round")
    parser.add_argument("--out", type=Path, help="JSON file")
    options = parser.parse_args()
    keep_freed_memory()
    work, flop, suite = contenders(options.updates)
    times = median_milliseconds(work, options.rounds)
    seconds = {name: spent / 1e3 for name, spent in times.items()}
    rates = {name: flop[name] / seconds[name] for name in work}
    report: dict[str, Any] = {
        "product_gflops": rates["product"] / 1e9,
        "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    for name in ("twin_target", "value"):
        report[name] = {
            "steps_per_second": options.updates / seconds[name],
            "gflop_per_step": flop[name] / options.updates / 1e9,
            "gflops": rates[name] / 1e9,
            "share_of_product_rate": rates[name] / rates["product"],
        }
        print(name, {key: round(value, 2) for key, value in report[name].items()})
    print({k: round(v) for k, v in report.items() if not isinstance(v, dict)})
    if options.out:
        write_report(options.out, report, suite)


if __name__ == "__main__":
    main()
