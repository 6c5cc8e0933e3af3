from __future__ import annotations

import numpy as np
import pytest

from adaptax.algorithms.base import Algorithm, check_finite, return_metrics
from adaptax.core.errors import NotFinite
from adaptax.core.experience import Rollout
from adaptax.core.spec import Continuous, EnvSpec

SPEC = EnvSpec(2, Continuous(1), horizon=3)


def rollout(reward, terminated=(), truncated=(), num_valid=None) -> Rollout:
    """Lanes [N, T] of rewards; (n, t) are the ends of episodes."""
    reward = np.array(reward, np.float32)[None]
    ends = [np.zeros(reward.shape, bool) for _ in range(2)]
    for flags, places in zip(ends, (terminated, truncated), strict=True):
        for n, t in places:
            flags[0, n, t] = True
    valid = np.arange(reward.shape[-1]) < np.array(num_valid or [reward.shape[-1]])[:, None]
    obs = np.zeros((*reward.shape, 2), np.float32)
    action = np.zeros((*reward.shape, 1), np.float32)
    valid = np.broadcast_to(valid, reward.shape)
    return Rollout(obs, action, reward, obs, *ends, valid)


def test_the_return_is_the_mean_over_whole_episodes():
    data = rollout(
        [[1, 2, 3], [4, 5, 0]], terminated=[(1, 1)], truncated=[(0, 2)], num_valid=[3, 2]
    )
    assert return_metrics(data, 1) == {"return": pytest.approx(7.5)}


def test_episodes_cut_by_the_end_of_a_rollout_do_not_count():
    data = rollout([[1, 2, 3, 100], [4, 5, 6, 7]], truncated=[(0, 2)])
    assert return_metrics(data, 1) == {"return": pytest.approx(6.0)}


def test_without_a_whole_episode_there_is_no_return():
    assert return_metrics(rollout([[1, 2, 3]]), 1) == {"return": None}


def test_returns_are_by_episode_of_a_lane():
    data = rollout(
        [[1, 2, 3, 4], [10, 20, 30, 40]], truncated=[(n, t) for n in (0, 1) for t in (1, 3)]
    )
    assert return_metrics(data, 2) == {
        "return": pytest.approx((3 + 7 + 30 + 70) / 4),
        "return/episode_1": pytest.approx((3 + 30) / 2),
        "return/episode_2": pytest.approx((7 + 70) / 2),
    }


def test_a_figure_that_is_not_finite_is_named():
    check_finite({"loss": 1.0, "kl": np.inf}, "loss")
    with pytest.raises(NotFinite, match="the update diverged: kl is inf; a smaller lr"):
        check_finite({"loss": 1.0, "kl": np.inf}, "loss", "kl")


class Plain(Algorithm):
    """Learns nothing and does not say how it adapts."""

    def init(self, key):
        return {}

    def iteration(self, state, sampler):
        return state, {}

    def actor(self, state, *, deterministic=False):
        return object()


def test_an_algorithm_that_does_not_adapt_gives_the_same_actor():
    algorithm = Plain(None, SPEC)
    actor = algorithm.actor({})
    assert algorithm.adapt({}, actor, [rollout([[1, 2, 3]])]) is actor


def test_an_algorithm_must_say_how_it_learns():
    with pytest.raises(TypeError, match="abstract"):
        Algorithm(None, SPEC)
