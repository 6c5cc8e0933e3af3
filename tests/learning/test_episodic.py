"""The on-policy actor and its sequences at the boundaries of episodes, rollouts and lanes."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_end import RandomEndEnv, random_end

from adaptax.core.experience import Rollout
from adaptax.core.spec import ActionSpace, Continuous, Discrete
from adaptax.learning.sequences import (
    Batch,
    EpisodicActor,
    as_batch,
    as_sequences,
    episode_metrics,
)
from adaptax.networks.actor_critic import actor_critic
from adaptax.networks.normalizer import fresh_moments, updated_moments
from adaptax.sampling.sampler import Sampler

KEY = jax.random.key(0)
TWO, THREE = Continuous(2), Discrete(3)
NUM_STEPS = 8
both_loops = pytest.mark.parametrize("stepped", [False, True], ids=["scan", "host"])


@functools.cache
def agent(space: ActionSpace = TWO, memory_size: int | None = 4) -> EpisodicActor:
    spec = RandomEndEnv(space).spec
    network = actor_critic(spec, (5,), memory_size, 0.5)
    shapes = jax.eval_shape(lambda: network.init(KEY, spec.observation_size))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: 0.5 * rng.normal(size=x.shape).astype(np.float32), shapes)
    return EpisodicActor(params, network)


@functools.cache
def two_calls(space: ActionSpace = TWO, stepped: bool = False) -> tuple[Rollout, Rollout]:
    """Two calls of `steps` on three tasks in two lanes each, the second going on after the first.

    Episodes last five steps at most.
    """
    suite = random_end(RandomEndEnv(space), stepped=stepped)
    sampler = Sampler(suite, suite.train, 0, "train")
    tasks = suite.train.tasks
    first, second = (sampler.steps(agent(space), tasks, 2, NUM_STEPS) for _ in range(2))
    return first, second


def joined(first: Rollout, second: Rollout) -> Rollout:
    """Both rollouts as one twice as long."""
    bare = (replace(r, final_carry=None) for r in (first, second))
    whole = jax.tree.map(lambda a, b: np.concatenate([a, b], axis=2), *bare)
    return replace(whole, final_carry=second.final_carry)


def ends(rollout: Rollout) -> np.ndarray:
    return np.asarray(rollout.terminated | rollout.truncated)


@jax.jit
def again(actor: EpisodicActor, rollout: Rollout) -> tuple[jax.Array, jax.Array]:
    """Log-probabilities [B, T] of the actions, and the policy's memory [B, T, H] after each."""
    s = as_sequences(rollout, actor.obs_moments)
    network, memory = actor.network, s.memory.get("policy")
    params = actor.params["policy"]
    distribution, states = network.policy.apply(params, s.obs, memory, s.reset)
    return distribution.log_prob(s.action), states


@both_loops
def test_memory_is_cleared_where_an_episode_ends(stepped):
    rollout = joined(*two_calls(stepped=stepped))
    memory = np.asarray(rollout.extras["memory/policy"])
    after = np.concatenate([np.ones_like(ends(rollout)[..., :1]), ends(rollout)[..., :-1]], -1)
    assert after.sum() > 20
    assert np.abs(memory[after]).max() == 0.0
    assert (np.abs(memory[~after]).max(-1) > 0.0).all()


@both_loops
def test_the_next_call_goes_on_with_the_memory_of_the_last(stepped):
    first, second = two_calls(stepped=stepped)
    for name in ("policy", "value"):
        start = np.asarray(second.extras[f"memory/{name}"])[:, :, 0]
        np.testing.assert_array_equal(start, first.final_carry["memory"][name])
        assert (np.abs(start).max(-1) > 0.0).any()


@pytest.mark.parametrize("space", [TWO, THREE], ids=["continuous", "discrete"])
def test_log_probs_run_again_equal_the_sampled(space):
    for rollout in two_calls(space):
        log_prob, _ = again(agent(space), rollout)
        sampled = np.asarray(rollout.extras["log_prob"]).reshape(log_prob.shape)
        np.testing.assert_allclose(log_prob, sampled, atol=1e-5)


def test_memory_run_again_equals_the_actors():
    first, _ = two_calls()
    _, states = again(agent(), first)
    recorded = np.asarray(first.extras["memory/policy"]).reshape(6, NUM_STEPS, -1)
    inside = ~ends(first).reshape(6, -1)[:, :-1]
    np.testing.assert_allclose(states[:, :-1][inside], recorded[:, 1:][inside], atol=1e-5)


def test_a_sequence_is_reset_after_every_end_but_not_at_its_start():
    first, second = two_calls()
    for rollout in (first, second):
        reset = np.asarray(as_sequences(rollout, None).reset)
        np.testing.assert_array_equal(reset[:, 1:], ends(rollout).reshape(6, -1)[:, :-1])
        assert not reset[:, 0].any()


def test_cutting_a_lane_in_two_changes_no_log_prob():
    first, second = two_calls()
    whole, _ = again(agent(), joined(first, second))
    parts = np.concatenate([again(agent(), r)[0] for r in (first, second)], axis=1)
    np.testing.assert_allclose(parts, whole, atol=1e-5)


@both_loops
def test_returns_and_lengths_run_across_calls(stepped):
    rollout = joined(*two_calls(stepped=stepped))
    reward, end = np.asarray(rollout.reward).reshape(6, -1), ends(rollout).reshape(6, -1)
    expected = []
    for rewards, flags in zip(reward, end, strict=True):
        stops = np.flatnonzero(flags) + 1
        expected += np.split(rewards, stops)[: len(stops)]
    metrics = episode_metrics(rollout)
    returns = [part.sum() for part in expected]
    assert metrics["return"] == pytest.approx(np.mean(returns), rel=1e-5)
    assert metrics["return_median"] == pytest.approx(np.median(returns), rel=1e-5)
    assert metrics["return_std"] == pytest.approx(np.std(returns), rel=1e-5)
    assert metrics["return_min"] == pytest.approx(np.min(returns), rel=1e-5)
    assert metrics["return_max"] == pytest.approx(np.max(returns), rel=1e-5)
    assert metrics["episode_length"] == pytest.approx(np.mean([len(p) for p in expected]))


def test_an_episode_counts_in_the_call_in_which_it_ends():
    first, second = two_calls()
    begun_before = np.asarray(second.extras["length"])[:, :, 0]
    assert begun_before.max() > 0
    both = [episode_metrics(r) for r in (first, second)]
    counts = [ends(r).sum() for r in (first, second)]
    lengths = sum(m["episode_length"] * n for m, n in zip(both, counts, strict=True))
    unfinished = np.asarray(second.final_carry["length"]).sum()
    assert lengths + unfinished == pytest.approx(2 * 6 * NUM_STEPS)


def test_no_finished_episode_gives_no_figures():
    first, _ = two_calls()
    no = np.zeros(ends(first).shape, bool)
    never = replace(first, terminated=no, truncated=no)
    assert set(episode_metrics(never).values()) == {None}


def test_padding_counts_in_no_figure():
    suite = random_end(RandomEndEnv())
    sampler = Sampler(suite, suite.train, 0, "train")
    rollout = sampler.episodes(agent(), suite.train.tasks, 2, 2)
    padded = ~np.asarray(rollout.valid)
    assert padded.sum() > 5
    noisy = replace(
        rollout,
        terminated=rollout.terminated | padded,
        reward=np.where(padded, 1e9, rollout.reward),
    )
    assert episode_metrics(noisy) == episode_metrics(rollout)


def test_observations_are_seen_alike_by_actor_and_update():
    first, _ = two_calls(TWO)
    moments = updated_moments(fresh_moments(2), jnp.asarray(first.obs), jnp.asarray(first.valid))
    actor = replace(agent(), obs_moments=moments)
    suite = random_end(RandomEndEnv())
    rollout = Sampler(suite, suite.train, 0, "train").steps(actor, suite.train.tasks, 2, NUM_STEPS)
    log_prob, _ = again(actor, rollout)
    sampled = np.asarray(rollout.extras["log_prob"]).reshape(log_prob.shape)
    np.testing.assert_allclose(log_prob, sampled, atol=1e-5)
    assert np.abs(np.asarray(as_sequences(rollout, moments).obs)).max() <= 10.0


def batch_of(rollout: Rollout, *, whole: bool) -> Batch:
    s = as_sequences(rollout, None)
    return as_batch(s, s.reward, s.reward, s.reward, whole=whole)


def test_steps_of_a_batch_are_the_flattened_lanes():
    first, _ = two_calls()
    batch = batch_of(first, whole=False)
    assert batch.obs.shape == (6 * NUM_STEPS, 2)
    np.testing.assert_array_equal(batch.advantage, np.asarray(first.reward).reshape(-1))
    assert batch.memory == {} and batch.reset is None
    assert batch.rows(16) == 16


def test_whole_sequences_of_a_batch_are_the_lanes():
    first, _ = two_calls()
    batch = batch_of(first, whole=True)
    assert batch.obs.shape == (6, NUM_STEPS, 2)
    assert batch.memory["policy"].shape == (6, 4)
    assert [batch.rows(n) for n in (1, NUM_STEPS, 20, 6 * NUM_STEPS)] == [1, 1, 2, 6]
