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
from adaptax.functional.returns import returns_so_far
from adaptax.learning.sequences import Batch, as_batch, episode_sequences, in_pieces
from adaptax.networks.actor_critic import ActorCritic, init_params
from adaptax.networks.memory import GRU, MEMORIES, MemoryConfig
from adaptax.networks.normalizer import fresh_moments, updated_moments
from adaptax.sampling.memory_actors import MemoryActor
from adaptax.sampling.sampler import Sampler

KEY = jax.random.key(0)
TWO, THREE = Continuous(2), Discrete(3)
NUM_STEPS = 8
both_loops = pytest.mark.parametrize("stepped", [False, True], ids=["scan", "host"])


@functools.cache
def agent(space: ActionSpace = TWO) -> MemoryActor:
    """Policy and value with a GRU each; parameters drawn anew, so that no small gain hides any."""
    network = ActorCritic(space, (5,), GRU(4), 0.5)
    shapes = jax.eval_shape(lambda: init_params(network, KEY, 2))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: 0.5 * rng.normal(size=x.shape).astype(np.float32), shapes)
    return MemoryActor(params, network)


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
    whole = jax.tree.map(
        lambda a, b: np.concatenate([a, b], axis=2), *(r.steps for r in (first, second))
    )
    return replace(
        whole,
        initial_carry=first.initial_carry,
        final_carry=second.final_carry,
        initial_return=first.initial_return,
    )


def ends(rollout: Rollout) -> np.ndarray:
    return np.asarray(rollout.terminated | rollout.truncated)


def starts(rollout: Rollout) -> np.ndarray:
    """Where [M, N, T] episodes begin, if one does with the rollout."""
    return np.concatenate([np.ones_like(ends(rollout)[..., :1]), ends(rollout)[..., :-1]], -1)


@jax.jit
def again(actor: MemoryActor, rollout: Rollout) -> jax.Array:
    """Log-probabilities [B, T] of the actions."""
    s = episode_sequences(rollout, actor.obs_moments)
    given = (actor.params, s.memory, s.obs, s.reset)
    _, (distribution, _) = actor.network.apply(*given, method="sequence")
    return distribution.log_prob(s.action)


@jax.jit
def blind(actor: MemoryActor, rollout: Rollout) -> jax.Array:
    """Log-probabilities [M, N, T] of the actions, had nothing been seen before."""
    nothing = actor.network.initial(rollout.reward.shape)
    _, (distribution, _) = actor.network.apply(actor.params, nothing, rollout.obs)
    return distribution.log_prob(rollout.action)


@both_loops
def test_memory_is_cleared_where_an_episode_ends_and_nowhere_else(stepped):
    rollout = joined(*two_calls(stepped=stepped))
    first = starts(rollout)
    assert first.sum() > 20
    difference = np.abs(np.asarray(blind(agent(), rollout)) - rollout.extras["log_prob"])
    np.testing.assert_allclose(difference[first], 0.0, atol=1e-5)
    assert (difference[~first] > 1e-5).mean() > 0.9


@both_loops
def test_the_next_call_goes_on_with_the_memory_of_the_last(stepped):
    first, second = two_calls(stepped=stepped)
    for one, other in zip(
        *map(jax.tree.leaves, (second.initial_carry, first.final_carry)), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    for memory in second.initial_carry["memory"].values():
        assert (np.abs(memory).max(-1) > 0.0).all()
    np.testing.assert_array_equal(second.initial_carry["reset"], ends(first)[..., -1])
    assert 0 < ends(first)[..., -1].sum() < 6


@pytest.mark.parametrize("space", [TWO, THREE], ids=["continuous", "discrete"])
def test_log_probs_run_again_equal_the_sampled(space):
    for rollout in two_calls(space):
        log_prob = again(agent(space), rollout)
        sampled = np.asarray(rollout.extras["log_prob"]).reshape(log_prob.shape)
        np.testing.assert_allclose(log_prob, sampled, atol=1e-5)


def test_memory_run_again_equals_the_actors():
    for rollout in two_calls():
        s = episode_sequences(rollout, None)
        after, _ = agent().network.apply(
            agent().params, s.memory, s.obs, s.reset, method="sequence"
        )
        for name, memory in after.items():
            expected = np.asarray(rollout.final_carry["memory"][name]).reshape(memory.shape)
            np.testing.assert_allclose(memory, expected, atol=1e-5)


def test_a_sequence_is_reset_after_every_end_that_of_the_last_call_included():
    first, second = two_calls()
    for rollout, before in ((first, np.zeros(6, bool)), (second, ends(first)[..., -1].reshape(6))):
        reset = np.asarray(episode_sequences(rollout, None).reset)
        np.testing.assert_array_equal(reset[:, 1:], ends(rollout).reshape(6, -1)[:, :-1])
        np.testing.assert_array_equal(reset[:, 0], before)


def test_cutting_a_lane_in_two_changes_no_log_prob():
    first, second = two_calls()
    whole = again(agent(), joined(first, second))
    parts = np.concatenate([again(agent(), r) for r in (first, second)], axis=1)
    np.testing.assert_allclose(parts, whole, atol=1e-5)


@both_loops
def test_returns_run_across_calls(stepped):
    first, second = two_calls(stepped=stepped)
    whole, expected = joined(first, second), []
    for rewards, flags in zip(
        np.asarray(whole.reward).reshape(6, -1), ends(whole).reshape(6, -1), strict=True
    ):
        total = 0.0
        for reward, end in zip(rewards, flags, strict=True):
            total += reward
            expected.append(total)
            total = 0.0 if end else total
    expected = np.reshape(expected, whole.reward.shape)
    assert not np.asarray(first.initial_return).any()
    assert np.asarray(second.initial_return).any()
    found = [
        returns_so_far(jnp.asarray(r.reward), jnp.asarray(ends(r)), jnp.asarray(r.initial_return))
        for r in (first, second)
    ]
    np.testing.assert_allclose(np.concatenate(found, axis=2), expected, rtol=1e-4, atol=1e-4)


def test_observations_are_seen_alike_by_actor_and_update():
    first, _ = two_calls(TWO)
    moments = updated_moments(fresh_moments(2), jnp.asarray(first.obs), jnp.asarray(first.valid))
    actor = replace(agent(), obs_moments=moments)
    suite = random_end(RandomEndEnv())
    rollout = Sampler(suite, suite.train, 0, "train").steps(actor, suite.train.tasks, 2, NUM_STEPS)
    log_prob = again(actor, rollout)
    sampled = np.asarray(rollout.extras["log_prob"]).reshape(log_prob.shape)
    np.testing.assert_allclose(log_prob, sampled, atol=1e-5)
    sequences = episode_sequences(rollout, moments)
    assert np.abs(np.asarray(sequences.obs)).max() <= 10.0
    np.testing.assert_array_equal(sequences.inputs, np.asarray(rollout.obs).reshape(6, -1, 2))


def test_padding_is_zero_in_every_field():
    suite = random_end(RandomEndEnv())
    rollout = Sampler(suite, suite.train, 0, "train").episodes(agent(), suite.train.tasks, 2, 2)
    valid = np.asarray(rollout.valid)
    assert (~valid).sum() > 5
    noisy = replace(
        rollout,
        obs=np.where(valid[..., None], rollout.obs, 7.0),
        reward=np.where(valid, rollout.reward, 1e9),
        terminated=rollout.terminated | ~valid,
    )
    s = episode_sequences(noisy, None)
    clean = episode_sequences(rollout, None)
    for name in ("obs", "next_obs", "action", "reward", "log_prob", "terminated", "truncated"):
        x = np.asarray(getattr(s, name))
        assert not x[~valid.reshape(6, -1)].any(), name
        np.testing.assert_array_equal(x, getattr(clean, name))


def batch_of(rollout: Rollout, *, whole: bool) -> Batch:
    s = episode_sequences(rollout, None)
    return as_batch(s, s.reward, s.reward, s.reward, whole=whole)


def test_steps_of_a_batch_are_the_flattened_lanes():
    first, _ = two_calls()
    batch = batch_of(first, whole=False)
    assert batch.obs.shape == (6 * NUM_STEPS, 2)
    np.testing.assert_array_equal(batch.advantage, np.asarray(first.reward).reshape(-1))
    assert batch.memory == () and batch.reset is None
    np.testing.assert_array_equal(batch.usable, np.asarray(first.valid).reshape(-1))


def test_whole_sequences_of_a_batch_are_the_lanes():
    first, _ = two_calls()
    batch = batch_of(first, whole=True)
    assert batch.obs.shape == (6, NUM_STEPS, 2)
    assert batch.memory["policy"].shape == (6, 4)
    assert batch.usable.shape == (6,) and np.all(batch.usable)
    empty = replace(batch, valid=batch.valid.at[2].set(False).at[3, 1:].set(False))
    np.testing.assert_array_equal(empty.usable, np.arange(6) != 2)


def sequences_with_ends(network: ActorCritic) -> Batch:
    """Four sequences of up to eleven steps in which the memory is cleared here and there."""
    rng = np.random.default_rng(0)
    valid = np.arange(11) < np.array([11, 3, 8, 1])[:, None]
    numbers = {
        name: rng.normal(size=valid.shape).astype(np.float32) * valid
        for name in ("log_prob", "advantage", "value", "target")
    }
    obs, action = (rng.normal(size=(*valid.shape, 2)).astype(np.float32) for _ in range(2))
    reset = rng.random(valid.shape) < 0.2
    batch = Batch(obs, action, **numbers, valid=valid, reset=reset, memory=network.initial((4,)))
    return jax.tree.map(jnp.asarray, batch)


def in_place(pieces: jax.Array, length: int = 11) -> np.ndarray:
    """What is said of pieces [K * 4, t] as of the sequences [4, length]."""
    return np.moveaxis(np.asarray(pieces).reshape(-1, 4, pieces.shape[1]), 0, 1).reshape(4, -1)[
        :, :length
    ]


@pytest.mark.parametrize(
    "kind", ["gru", *(pytest.param(k, marks=pytest.mark.slow) for k in MEMORIES if k != "gru")]
)
@pytest.mark.parametrize("num_steps", [4, 11, 20])
def test_pieces_of_sequences_begin_with_what_was_remembered_there(kind, num_steps):
    network = ActorCritic(TWO, (5,), MemoryConfig(kind, 16).make(11))
    params = init_params(network, KEY, 2)
    batch = sequences_with_ends(network)
    pieces = in_pieces(batch, network, params, num_steps)
    assert pieces.valid.shape == (4 * -(-11 // num_steps), num_steps)
    for name in ("advantage", "target", "valid", "reset", "log_prob", "value"):
        np.testing.assert_array_equal(in_place(getattr(pieces, name)), getattr(batch, name))
    (whole, value), (cut, value_cut) = (b.outputs(network, params) for b in (batch, pieces))
    valid = np.asarray(batch.valid)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    close(in_place(value_cut)[valid], np.asarray(value)[valid])
    close(in_place(cut.log_prob(pieces.action))[valid], whole.log_prob(batch.action)[valid])


def test_no_gradient_flows_back_beyond_a_piece():
    network = ActorCritic(TWO, (5,), GRU(4))
    params = init_params(network, KEY, 2)
    batch = sequences_with_ends(network)
    batch = replace(batch, reset=jnp.zeros_like(batch.reset))

    def last_value(obs: jax.Array, num_steps: int) -> jax.Array:
        pieces = in_pieces(batch, network, params, num_steps)
        first = pieces.obs.reshape(-1, 4, num_steps, 2).swapaxes(0, 1).reshape(4, -1, 2)
        seen = first.at[:, :11].set(obs).reshape(4, -1, num_steps, 2).swapaxes(0, 1)
        pieces = replace(pieces, obs=seen.reshape(-1, num_steps, 2))
        value = pieces.outputs(network, params)[1]
        return value.reshape(-1, 4, num_steps).swapaxes(0, 1).reshape(4, -1)[0, 10]

    for num_steps, reached in ((4, 3), (11, 11)):
        grads = jax.grad(last_value)(batch.obs, num_steps)
        felt = np.any(np.asarray(grads[0]) != 0, axis=-1)
        np.testing.assert_array_equal(felt, np.arange(11) >= 11 - reached)
