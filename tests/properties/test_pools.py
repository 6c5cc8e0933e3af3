"""Check 2: data do not depend on how environments are run, only on what they are."""

from __future__ import annotations

import contextlib

import jax
import numpy as np
import pytest
from toys import ChangingSampler, cliff_suite, fingerprint, point_suite, small_agent, trained

from adaptax.experiment.build import make_suite
from adaptax.sampling.host_loop import host_loop


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


@pytest.mark.parametrize("make_suite", [point_suite, cliff_suite])
def test_the_compiled_scan_equals_its_step_by_step_loop(entry, make_suite, monkeypatch):
    suite = make_suite()
    scanned = data(entry, suite)
    monkeypatch.setattr("adaptax.sampling.sampler.scan_loop", host_loop)
    stepped = data(entry, suite)
    assert jax.tree.structure(scanned) == jax.tree.structure(stepped)
    for one, other in zip(jax.tree.leaves(scanned), jax.tree.leaves(stepped), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def half_cheetah(num_threads: int):
    return make_suite("half-cheetah-vel", horizon=4, num_threads=num_threads)


def pendulum(num_workers: int):
    return make_suite("gym:Pendulum-v1", horizon=4, num_workers=num_workers)


HOSTS = {
    "2 threads": (lambda: half_cheetah(1), lambda: half_cheetah(2)),
    "3 threads": (lambda: half_cheetah(1), lambda: half_cheetah(3)),
    "1 process": (lambda: pendulum(0), lambda: pendulum(1)),
    "2 processes": (lambda: pendulum(0), lambda: pendulum(2)),
    "3 processes": (lambda: pendulum(0), lambda: pendulum(3)),
}
"""Pairs of suites whose environments are the same and whose pools are not: (reference, other)."""


@pytest.mark.parametrize("host", HOSTS)
def test_workers_change_no_bit(entry, host):
    reference, other = (make() for make in HOSTS[host])
    # Without the update, which knows nothing of pools: it would have to be compiled once more.
    one, two = (data(entry, suite, enough=1) for suite in (reference, other))
    assert fingerprint(one) == fingerprint(two)
