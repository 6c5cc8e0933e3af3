"""Figures of training episodes: against a slow loop, across rollouts, padding and restores."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import jax
import numpy as np
import pytest
from random_end import DRIFTS, RandomEndEnv, random_end, trial_actor

from adaptax.core.experience import Rollout
from adaptax.envs.task import Task
from adaptax.sampling.actors import UniformActor
from adaptax.sampling.sampler import Sampler
from adaptax.sampling.statistics import EpisodeStatistics, Unfinished, ended_episodes

TASKS = tuple(Task(f"t-{i}", i, {"class": name}) for i, name in enumerate("aab"))
SHAPE = (3, 2)
LANES, STEPS = 2, 3
both_engines = pytest.mark.parametrize("stepped", [False, True], ids=["compiled", "host"])


def random_rollout(rng: np.random.Generator, num_steps: int, padded: bool = True) -> Rollout:
    """Rewards of any sign, episodes that end at random, and padding of any values."""
    shape = (*SHAPE, num_steps)
    ends, terminated = rng.random(shape) < 0.2, rng.random(shape) < 0.5
    lengths = rng.integers(0 if padded else num_steps, num_steps + 1, (*SHAPE, 1))
    valid = np.arange(num_steps) < lengths
    reward = rng.normal(size=shape).astype(np.float32)
    reward[~valid] = np.nan
    blank = np.zeros(shape, np.float32)
    extras = {"success": rng.random(shape) < 0.15}
    return Rollout(
        blank, blank, reward, blank, ends & terminated, ends & ~terminated, valid, extras
    )


def slow(rollout: Rollout, before: Unfinished) -> tuple[dict[str, list], Unfinished]:
    """Return, length and success of every episode, step by step, and what is unfinished."""
    found = defaultdict(list)
    total, length = before.reward_sum.astype(np.float64), before.length.copy()
    succeeded = before.success.copy()
    for m, task in enumerate(TASKS):
        for n in range(SHAPE[1]):
            for t in np.flatnonzero(rollout.valid[m, n]):
                total[m, n] += rollout.reward[m, n, t]
                length[m, n] += 1
                succeeded[m, n] |= rollout.extras["success"][m, n, t]
                if rollout.terminated[m, n, t] or rollout.truncated[m, n, t]:
                    found["return"].append(total[m, n])
                    found["length"].append(length[m, n])
                    for name in ("success", f"success/{task.class_name}"):
                        found[name].append(succeeded[m, n])
                    total[m, n], length[m, n], succeeded[m, n] = 0, 0, False
    return found, Unfinished(total, length, succeeded)


def figures(found: dict[str, list]) -> dict[str, float]:
    """What a slow loop's findings come to."""
    returns = np.array(found["return"])
    named = {name: np.mean(x) for name, x in found.items() if name.startswith("success")}
    return named | {
        "return": returns.mean(),
        "return_median": np.median(returns),
        "return_min": returns.min(),
        "return_max": returns.max(),
        "return_std": returns.std(),
        "episode_length": np.mean(found["length"]),
    }


def assert_unfinished(got: Unfinished, expected: Unfinished) -> None:
    np.testing.assert_allclose(got.reward_sum, expected.reward_sum, atol=1e-5)
    np.testing.assert_array_equal(got.length, expected.length)
    np.testing.assert_array_equal(got.success, expected.success)


@pytest.mark.parametrize("seed", range(20))
def test_figures_are_those_of_a_slow_loop_whatever_the_padding_holds(seed):
    rng = np.random.default_rng(seed)
    before = Unfinished(
        rng.normal(size=SHAPE).astype(np.float32),
        rng.integers(9, size=SHAPE),
        rng.random(SHAPE) < 0.5,
    )
    rollout, statistics = random_rollout(rng, 15), EpisodeStatistics()
    after = statistics.add(rollout, TASKS, before)
    found, expected = slow(rollout, before)
    assert statistics.take() == pytest.approx(figures(found), abs=1e-6)
    assert_unfinished(after, expected)


@pytest.mark.parametrize("parts", [[10, 20], [1, 2, 3, 24], [15, 14, 1]])
def test_episodes_cut_in_several_rollouts_count_once_and_whole(parts):
    whole = random_rollout(np.random.default_rng(1), 30, padded=False)
    found, expected = slow(whole, Unfinished.fresh(SHAPE))
    statistics, unfinished = EpisodeStatistics(), Unfinished.fresh(SHAPE)
    for start, stop in zip(np.cumsum([0, *parts]), np.cumsum(parts), strict=False):
        part = jax.tree.map(lambda x, a=start, b=stop: x[:, :, a:b], whole)
        unfinished = statistics.add(part, TASKS, unfinished)
    assert statistics.take() == pytest.approx(figures(found), abs=1e-5)
    assert_unfinished(unfinished, expected)


def test_without_an_episode_that_ended_figures_are_none_and_success_is_left_out():
    rollout = random_rollout(np.random.default_rng(0), 5)
    going_on = replace(
        rollout,
        terminated=np.zeros_like(rollout.terminated),
        truncated=np.zeros_like(rollout.truncated),
    )
    statistics = EpisodeStatistics()
    statistics.add(going_on, TASKS, Unfinished.fresh(SHAPE))
    taken = statistics.take()
    assert set(taken.values()) == {None}
    assert {"return", "return_std", "episode_length"} <= taken.keys()
    assert "success" not in taken


def test_what_was_taken_is_not_counted_again():
    rollout, statistics = random_rollout(np.random.default_rng(0), 15), EpisodeStatistics()
    taken = []
    for _ in range(2):
        statistics.add(rollout, TASKS, Unfinished.fresh(SHAPE))
        taken.append(statistics.take())
    assert taken[0] == taken[1]
    assert set(statistics.take().values()) == {None}


def test_a_suite_without_success_has_no_figure_of_it():
    rollout = replace(random_rollout(np.random.default_rng(0), 15), extras={})
    statistics = EpisodeStatistics()
    statistics.add(rollout, TASKS, Unfinished.fresh(SHAPE))
    assert not any(name.startswith("success") for name in statistics.take())


def test_small_rewards_after_large_ones_are_not_lost():
    """In float32 a lane's running sum of ten million would swallow them."""
    ends = np.zeros((1, 1, 2000), bool)
    ends[..., 999::1000] = True
    reward = np.full((1, 1, 2000), 1e4, np.float32)
    reward[..., 1000:] = 1e-3
    blank = np.zeros_like(reward)
    rollout = Rollout(blank, blank, reward, blank, blank > 0, ends, blank == 0)
    statistics = EpisodeStatistics()
    statistics.add(rollout, TASKS[:1], Unfinished.fresh((1, 1)))
    assert statistics.take()["return_min"] == pytest.approx(1.0, rel=1e-4)


def new_sampler(stepped: bool) -> Sampler:
    suite = random_end(RandomEndEnv(), stepped=stepped)
    return Sampler(suite, suite.train, 0, "test")


def collect(sampler: Sampler, num_steps: int = STEPS) -> Rollout:
    return sampler.steps(UniformActor(sampler.spec.action), sampler.suite.train.tasks, 8, num_steps)


@both_engines
def test_a_sampler_goes_on_counting_after_a_restore_in_mid_episode(stepped):
    sampler, other = new_sampler(stepped), new_sampler(stepped)
    collect(sampler)
    saved = sampler.save()
    unfinished = saved["cursor"]["unfinished"]
    assert unfinished["success"].any() and (unfinished["length"] > 1).any()
    assert unfinished["reward_sum"].any()
    sampler.statistics.take()
    other.restore(saved)
    taken = []
    for going_on in (sampler, other):
        collect(going_on)
        taken.append(going_on.statistics.take())
    assert taken[0] == taken[1]
    assert 0.0 < taken[0]["success"] < 1.0


@both_engines
def test_figures_do_not_depend_on_how_many_calls_made_the_steps(stepped):
    one, many = new_sampler(stepped), new_sampler(stepped)
    collect(one, 12)
    for _ in range(4):
        collect(many, 3)
    assert many.statistics.take() == pytest.approx(one.statistics.take(), rel=1e-5)


@both_engines
def test_a_fault_drops_what_was_counted(stepped):
    sampler = new_sampler(stepped)
    collect(sampler, 12)
    sampler.abandon()
    assert set(sampler.statistics.take().values()) == {None}


@both_engines
def test_a_rollout_tells_what_its_first_episodes_have_brought_so_far(stepped):
    sampler = new_sampler(stepped)
    first, second = collect(sampler), collect(sampler)
    np.testing.assert_array_equal(first.initial_return, np.zeros((3, 8)))
    ends = np.asarray(first.terminated | first.truncated)
    since = np.cumsum(ends[..., ::-1], axis=-1)[..., ::-1] == 0
    expected = (np.asarray(first.reward) * since).sum(-1)
    assert 0 < np.count_nonzero(expected) < expected.size
    np.testing.assert_allclose(second.initial_return, expected, atol=1e-5)
    fresh = sampler.episodes(UniformActor(sampler.spec.action), sampler.suite.train.tasks, 8, 1)
    np.testing.assert_array_equal(fresh.initial_return, np.zeros((3, 8)))


@both_engines
def test_a_rollout_begins_with_the_carry_that_the_last_one_ended_with(stepped):
    suite = random_end(RandomEndEnv(), stepped=stepped)
    sampler = Sampler(suite, suite.train, 0, "test")
    actor, tasks = trial_actor(suite.spec.action), suite.train.tasks
    first, second = (sampler.steps(actor, tasks, LANES, STEPS) for _ in range(2))
    start = actor.begin(len(DRIFTS), LANES, jax.random.key(0))
    for rollout, expected in ((first, start), (second, first.final_carry)):
        assert jax.tree.structure(rollout.initial_carry) == jax.tree.structure(expected)
        for one, other in zip(
            jax.tree.leaves(rollout.initial_carry), jax.tree.leaves(expected), strict=True
        ):
            np.testing.assert_array_equal(one, other)
    assert np.abs(np.asarray(second.initial_carry["actor"]["memory"])).min() > 0


def test_a_huge_reward_spoils_no_later_episode():
    reward = np.array([[[-1e17, 0, 1, 1, 1, 2, 2, 2]]], np.float32)
    ended = np.array([[[0, 1, 0, 0, 1, 0, 0, 0]]], bool)
    steps = {"reward": reward, "ended": ended, "valid": np.ones_like(ended), "success": None}
    some, left = ended_episodes(["task"], steps, Unfinished.fresh((1, 1)))
    np.testing.assert_array_equal(some.returns, [np.float32(-1e17), 3])
    np.testing.assert_array_equal(some.lengths, [2, 3])
    assert left.reward_sum == 6 and left.length == 3
