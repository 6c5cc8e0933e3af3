"""Long runs do not grow: episodes that end early, and models made for tasks, leave nothing."""

from __future__ import annotations

import gc

import jax
import pytest

from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.sampling.sampler import Sampler

NUM_ITERATIONS, WARM_UP = 200, 40
LIMIT = 4.0
"""MiB of growth over 160 iterations; a kilobyte lost in each episode would be 5.

Measured: ant-dir 681 MiB and 0.0 more, compiled in full.
"""


def resident() -> float:
    """MiB in memory now."""
    gc.collect()
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096 / 2**20


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ant-dir", "hopper-params"])
def test_resident_memory_is_flat_over_200_iterations_with_early_terminations(name, capsys):
    suite = make_suite(name, num_threads=1, horizon=150)
    algorithm = make_algorithm("reinforce", suite.spec, num_lanes=16, num_episodes=2)
    sampler = Sampler(suite, suite.train, 0, "train")
    state, warm = algorithm.init(jax.random.key(0)), 0.0
    for iteration in range(1, NUM_ITERATIONS + 1):
        state, _ = algorithm.iteration(state, sampler)
        sampler.statistics.take()  # as whoever writes a log does
        if iteration == WARM_UP:
            warm = resident()
    sampler.close()
    growth = resident() - warm
    with capsys.disabled():
        print(f"\n{name}: {warm:.1f} MiB, {growth:+.1f} MiB after 160 iterations more")
    assert sampler.num_steps < 0.95 * sampler.num_episodes * suite.spec.horizon
    assert growth < LIMIT
