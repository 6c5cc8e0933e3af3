"""Data do not depend on how environments are run, only on what they are."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import jax
import numpy as np
import pytest
from entries import quick_for
from small import SMALL_SUITE
from toys import ChangingSampler, cliff_suite, fingerprint, point_suite, small_agent, trained

from adaptax.experiment.build import make_suite


class EnoughError(Exception):
    """Ends an iteration."""


def data(entry, suite, enough: int | None = None):
    """The rollouts of the first iteration, or only so many of them."""
    rollouts = []

    def record(rollout, actor):
        rollouts.append(rollout)
        if len(rollouts) == enough:
            raise EnoughError
        return rollout

    sampler = ChangingSampler(suite, record)
    with contextlib.suppress(EnoughError):
        trained(small_agent(entry, suite), sampler, 1)
    sampler.close()
    assert len(rollouts) > 0
    return rollouts


def assert_same_but_for_rounding(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["point", "cliff"])
@quick_for("nop", "ppo", "rl2-ppo")
def test_the_compiled_engine_equals_the_host_engine(entry, kind):
    suite = (
        point_suite(entry) if kind == "point" else cliff_suite(**SMALL_SUITE.get(entry.name, {}))
    )
    compiled = data(entry, suite)
    stepped = data(entry, replace(suite, engine="host"))
    assert_same_but_for_rounding(compiled, stepped)


def half_cheetah(entry, num_threads: int):
    if SMALL_SUITE.get(entry.name, {}):
        pytest.skip("it takes discrete actions, and nothing that runs in threads has any")
    return make_suite("half-cheetah-vel", horizon=4, num_threads=num_threads)


def in_processes(entry, num_workers: int):
    env_id = "CartPole-v1" if SMALL_SUITE.get(entry.name, {}) else "Pendulum-v1"
    return make_suite(f"gym:{env_id}", horizon=4, num_workers=num_workers)


HOSTS = {
    "2 threads": (half_cheetah, 1, 2),
    "3 threads": (half_cheetah, 1, 3),
    "1 process": (in_processes, 0, 1),
    "2 processes": (in_processes, 0, 2),
    "3 processes": (in_processes, 0, 3),
}
"""Suites, and numbers of workers that give the same environments in other pools."""
TWO = ("2 threads", "2 processes")
OTHERS = [pytest.param(host, marks=pytest.mark.slow) for host in HOSTS if host not in TWO]


@pytest.mark.parametrize("host", [*TWO, *OTHERS])
@quick_for("ppo")
def test_workers_change_nothing(entry, host):
    make, *num_workers = HOSTS[host]
    reference, other = (make(entry, num) for num in num_workers)
    # Without the update, which knows nothing of pools: it would have to be compiled once more.
    one, two = (data(entry, suite, enough=1) for suite in (reference, other))
    if make is half_cheetah and entry.name != "nop":
        # A policy's products are each thread's own, and round by how many rows they have.
        assert_same_but_for_rounding(one, two)
    else:
        assert fingerprint(one) == fingerprint(two)
