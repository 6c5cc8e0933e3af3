"""What stands in padded entries changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
from small import SMALL_SUITE
from toys import (
    ChangingSampler,
    behaviour,
    cliff_suite,
    fingerprint,
    has_padding,
    polluted,
    small_agent,
    train_sampler,
    trained,
    trained_on_polluted,
)


def test_arbitrary_values_in_padded_entries_leave_the_update_unchanged(entry):
    suite = cliff_suite(**SMALL_SUITE.get(entry.name, {}))
    algorithm = small_agent(entry, suite)
    other, other_metrics, rollouts = trained_on_polluted(algorithm, suite)
    if not has_padding(rollouts):
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
