"""The buffer of trials against a list of them."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.core.experience import Rollout
from adaptax.core.spec import Discrete, EnvSpec
from adaptax.learning.replay import clear, draw_rings
from adaptax.learning.trials import make_trials, read_trials, with_trials

SPEC, ROOM, LENGTH = EnvSpec(2, Discrete(3), 4), 5, 7
added = jax.jit(lambda *arguments: with_trials(*arguments)[0])


def rollout(rng, members=2, lanes=1) -> Rollout:
    shape = (members, lanes, LENGTH)
    lengths = rng.integers(1, LENGTH + 1, shape[:2])[..., None]
    valid = np.arange(LENGTH) < lengths

    def numbers(*more):
        return rng.normal(size=(*shape, *more)).astype(np.float32)  # in the padding too

    ends = rng.integers(3, size=shape)
    action = rng.integers(3, size=shape).astype(np.int32)
    steps = (numbers(2), action, numbers(), numbers(2), ends == 1, ends == 2, valid)
    return Rollout(*steps, extras={"log_prob": numbers()}, final_carry=numbers())


FIELDS = ("obs", "action", "reward", "next_obs", "terminated", "truncated")


def test_the_last_trials_are_kept_whole_with_zeros_behind_them():
    rng, expected = np.random.default_rng(0), [None] * ROOM
    trials, num = make_trials(ROOM, LENGTH, SPEC, 0.9, truncated=True), 0
    for _ in range(4):
        new = rollout(rng)
        trials = added(trials, jnp.int32(num), new)
        for i in range(2):
            expected[(num + i) % ROOM] = (new, i)
        num += 2
        steps, valid = read_trials(trials, jnp.arange(ROOM))
        for ring, given in enumerate(expected):
            length = 0 if given is None else int(given[0].valid[given[1]].sum())
            assert int(valid[ring].sum()) == length
            for name in FIELDS:
                found = np.asarray(getattr(steps, name))[ring]
                assert not found[length:].any()
                if given is not None:
                    kept = getattr(given[0], name)[given[1], 0, :length]
                    np.testing.assert_array_equal(found[:length], kept)


def test_lanes_are_trials_whatever_member_they_belong_to():
    new = rollout(np.random.default_rng(1), members=2, lanes=2)
    as_one = jax.tree.map(lambda x: x.reshape(4, 1, *x.shape[2:]), new.steps)
    empty, zero = make_trials(ROOM, LENGTH, SPEC, 0.9, truncated=True), jnp.int32(0)
    found, expected = (read_trials(added(empty, zero, x), jnp.arange(4)) for x in (new, as_one))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


def of_length(length: int) -> Rollout:
    new = rollout(np.random.default_rng(length), members=1)
    return replace(new, valid=np.arange(LENGTH)[None, None] < length)


@pytest.mark.parametrize(("first", "second", "is_there"), [(LENGTH, 2, False), (4, 3, True)])
def test_a_trial_of_which_later_ones_have_overwritten_a_part_is_gone(first, second, is_there):
    """As when an iteration is undone: what is left would look like a trial of its own."""
    before = added(make_trials(1, LENGTH, SPEC, 0.9), jnp.int32(0), of_length(first))
    after = added(before, jnp.int32(1), of_length(second))
    again, valid = read_trials(before.rewound(after), jnp.array([0]))
    assert int(valid.sum()) == (first if is_there else 0)
    expected = of_length(first).reward[0, 0] * (np.arange(LENGTH) < first * is_there)
    np.testing.assert_array_equal(again.reward[0], expected)


def test_only_trials_that_are_there_are_drawn():
    trials = make_trials(ROOM, LENGTH, SPEC, 0.9)
    trials = added(trials, jnp.int32(0), rollout(np.random.default_rng(2), members=3))
    rings = np.asarray(draw_rings(trials, jax.random.key(0), (300,)))
    np.testing.assert_allclose(np.bincount(rings), 100, atol=30)
    assert rings.max() == 2
    trials = clear(trials, jnp.array([1]))
    rings = np.asarray(draw_rings(trials, jax.random.key(0), (3, 100)))
    assert rings.shape == (3, 100) and set(np.unique(rings)) == {0, 2}


def test_time_limits_are_kept_only_where_that_is_asked():
    trials = make_trials(ROOM, LENGTH, SPEC, 0.9)
    assert "truncated" not in trials.rows
    assert read_trials(trials, jnp.arange(2))[0].truncated is None
    with_limits = make_trials(ROOM, LENGTH, SPEC, 0.9, truncated=True)
    assert with_limits.rows["truncated"].shape == (ROOM * LENGTH,)


def test_what_is_saved_comes_back():
    trials = make_trials(ROOM, LENGTH, SPEC, 0.9, truncated=True)
    empty = make_trials(ROOM, LENGTH, SPEC, 0.9, truncated=True)
    trials = added(trials, jnp.int32(0), rollout(np.random.default_rng(3)))
    again = empty.restore(trials.save())
    both = (read_trials(x, jnp.arange(ROOM)) for x in (trials, again))
    jax.tree.map(np.testing.assert_array_equal, *both)
    assert bool(read_trials(again, jnp.arange(1))[1].any())


@pytest.mark.parametrize("num_before", [0, 2**31 - 1])
def test_a_place_is_found_however_many_came_before(num_before):
    trials = make_trials(ROOM, LENGTH, SPEC, 0.9)
    after = added(trials, jnp.int32(num_before), rollout(np.random.default_rng(4), members=1))
    assert np.asarray(after.sizes > 0).sum() == 1
