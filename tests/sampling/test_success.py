from __future__ import annotations

import numpy as np
import pytest
from random_end import RandomEndEnv, random_end

from adaptax.core.experience import Rollout
from adaptax.envs.task import Task
from adaptax.sampling.actors import UniformActor
from adaptax.sampling.sampler import Sampler
from adaptax.sampling.statistics import SuccessCount

TASKS = tuple(Task(f"t-{i}", i, {"class": name}) for i, name in enumerate("aab"))


def rollout_of(success, ends, valid):
    blank = np.zeros(success.shape, np.float32)
    none = np.zeros_like(ends)
    return Rollout(blank, blank, blank, blank, none, ends, valid, {"success": success})


def slow(success, ends, valid, before):
    """Episodes and successes by class, and what is pending, step by step."""
    counts, after = {}, before.copy()
    for m, task in enumerate(TASKS):
        for n in range(success.shape[1]):
            for t in np.flatnonzero(valid[m, n]):
                after[m, n] |= success[m, n, t]
                if ends[m, n, t]:
                    for key in ("success", f"success/{task.class_name}"):
                        ended, solved = counts.get(key, (0, 0))
                        counts[key] = (ended + 1, solved + int(after[m, n]))
                    after[m, n] = False
    return {key: solved / ended for key, (ended, solved) in counts.items()}, after


@pytest.mark.parametrize("seed", range(20))
def test_counts_are_those_of_a_slow_loop(seed):
    rng = np.random.default_rng(seed)
    shape = (3, 2, 15)
    success, ends = rng.random(shape) < 0.15, rng.random(shape) < 0.2
    valid = np.arange(15) < rng.integers(0, 16, (3, 2, 1))
    before = rng.random((3, 2)) < 0.5
    count = SuccessCount()
    after = count.add(rollout_of(success, ends, valid), TASKS, before)
    expected, pending = slow(success, ends, valid, before)
    assert count.take() == pytest.approx(expected)
    np.testing.assert_array_equal(after, pending)
    assert count.take() == {}


def test_an_episode_cut_in_two_rollouts_counts_once():
    count, ends = SuccessCount(), np.zeros((3, 1, 4), bool)
    valid, success = np.ones_like(ends), np.zeros_like(ends)
    success[:, :, 1] = True
    before = count.add(rollout_of(success, ends, valid), TASKS, np.zeros((3, 1), bool))
    assert count.take() == {}
    ends[..., -1] = True
    count.add(rollout_of(np.zeros_like(ends), ends, valid), TASKS, before)
    assert count.take() == {"success": 1.0, "success/a": 1.0, "success/b": 1.0}


@pytest.mark.parametrize("stepped", [False, True])
def test_a_sampler_goes_on_counting_after_a_restore(stepped):
    suite = random_end(RandomEndEnv(), stepped=stepped)
    actor, shares = UniformActor(suite.spec.action), []
    sampler = Sampler(suite, suite.train, 0, "test")
    tasks = sampler.sample_tasks(3)
    sampler.steps(actor, tasks, 8, 3)
    saved = sampler.save()
    assert saved["cursor"]["succeeded"].any()
    sampler.success.take()
    for going_on in (sampler, Sampler(suite, suite.train, 0, "test")):
        going_on.restore(saved)
        going_on.steps(actor, tasks, 8, 3)
        shares.append(going_on.success.take())
    assert shares[0] == shares[1]
    assert 0.0 < shares[0]["success"] < 1.0
