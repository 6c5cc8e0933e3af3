"""What stands in padded entries changes nothing."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from small import SMALL_SUITE
from toys import (
    ChangingSampler,
    behaviour,
    cliff_suite,
    fingerprint,
    small_agent,
    train_sampler,
    trained,
)

OF_LANES = ("initial_carry", "final_carry", "initial_return")
"""What a rollout says of whole lanes, not of steps."""


def polluted(rollout, actor=None):
    """The rollout with arbitrary finite values in every padded entry of every array."""
    rng = np.random.default_rng(0)
    valid = np.asarray(rollout.valid)

    def pollute(x):
        x = np.array(x)
        noise = 1e3 * rng.standard_normal(x.shape)
        mask = valid.reshape(valid.shape + (1,) * (x.ndim - valid.ndim))
        return np.where(mask, x, noise > 0 if x.dtype == bool else noise.astype(x.dtype))

    steps = jax.tree.map(pollute, replace(rollout.steps, valid=None))
    of_lanes = {name: getattr(rollout, name) for name in OF_LANES}
    return replace(steps, valid=rollout.valid, **of_lanes)


def test_arbitrary_values_in_padded_entries_leave_the_update_unchanged(entry):
    suite, padded = cliff_suite(**SMALL_SUITE.get(entry.name, {})), []

    def change(rollout, actor):
        padded.append(int(np.sum(~np.asarray(rollout.valid))))
        return polluted(rollout)

    algorithm = small_agent(entry, suite)
    other, other_metrics = trained(algorithm, ChangingSampler(suite, change), 2)
    if not any(padded):
        pytest.skip("this algorithm asks for steps, which are never padded")
    clean, metrics = trained(algorithm, ChangingSampler(suite, lambda rollout, actor: rollout), 2)
    assert fingerprint(other) == fingerprint(clean)
    assert fingerprint(other_metrics) == fingerprint(metrics)


def test_arbitrary_values_in_padded_entries_leave_adaptation_unchanged(entry):
    suite = cliff_suite(**SMALL_SUITE.get(entry.name, {}))
    algorithm = small_agent(entry, suite)
    state, _ = trained(algorithm, train_sampler(suite), 1)
    sampler, tasks = train_sampler(suite), suite.test.tasks
    actor = algorithm.actor(state)
    rollout = sampler.episodes(actor, tasks, 1, 1)
    assert np.sum(~np.asarray(rollout.valid)) > 100
    clean, other = (
        behaviour(algorithm.adapt(state, actor, [history]))
        for history in (rollout, polluted(rollout))
    )
    np.testing.assert_array_equal(other, clean)
