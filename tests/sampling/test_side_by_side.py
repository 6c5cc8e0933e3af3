"""Lanes in parts on several threads: the data are those of one thread, for every kind of actor."""

from __future__ import annotations

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import CliffEnv, cliff_suite, small_agent, train_sampler

from adaptax.algorithms.registry import find_algorithm
from adaptax.core.experience import Rollout
from adaptax.core.rng import lane_keys, lane_numbers, normal
from adaptax.envs.pools.compiled import CompiledPool
from adaptax.functional.belief import Belief
from adaptax.sampling import compiled_engine
from adaptax.sampling.actors import Actor, Memoryless, Part, PerMember, UniformActor, is_by_lane
from adaptax.sampling.compiled_engine import shared_out
from adaptax.sampling.sampler import Sampler

MEMBERS = 4
EPISODES = 2


@pytest.fixture(autouse=True)
def _however_few_steps(monkeypatch):
    """Short rollouts are shared out too."""
    monkeypatch.setattr(compiled_engine, "LEAST_STEPS", 1)


def sampler(num_threads: int) -> Sampler:
    pool = functools.partial(CompiledPool, CliffEnv(), num_threads=num_threads)
    return train_sampler(replace(cliff_suite(), make_pool=pool))


def rollouts(actor: Actor, num_threads: int, num_lanes: int) -> list[Rollout]:
    """Whole episodes, and steps that go on in mid-episode."""
    mine = sampler(num_threads)
    tasks = mine.sample_tasks(MEMBERS)
    return [
        mine.episodes(actor, tasks, num_lanes, EPISODES),
        mine.steps(actor, tasks, num_lanes, 13),
        mine.steps(actor, tasks, num_lanes, 13),
    ]


def assert_same(one: list[Rollout], other: list[Rollout]) -> None:
    for mine, theirs in zip(one, other, strict=True):
        assert jax.tree.structure(mine) == jax.tree.structure(theirs)
        for x, y in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
            assert x.dtype == y.dtype
            if not jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
                np.testing.assert_allclose(x, y, rtol=0, atol=2e-5)


def acting(name: str) -> Actor:
    agent = small_agent(find_algorithm(name), cliff_suite())
    return agent.actor(agent.init(jax.random.key(0)))


def own_beliefs() -> Actor:
    """PEARL's actor with another belief in each lane: actions follow it closely."""
    shared = acting("pearl")
    size = shared.belief.mean.shape[-1]
    mean = 3.0 * jax.random.normal(jax.random.key(5), (MEMBERS, 3, size))
    return replace(shared, belief=Belief(mean, jnp.zeros_like(mean)))


def own_memories() -> Actor:
    """RL2's actor after a trial: every lane goes on from a memory of its own."""
    actor, mine = acting("rl2-ppo"), sampler(1)
    trial = mine.episodes(actor, mine.sample_tasks(MEMBERS), 3, 1)
    return actor.adapted(trial, deterministic=False)


def own_policies() -> Actor:
    """A policy for every member."""
    agent = small_agent(find_algorithm("ppo"), cliff_suite())
    each = [agent.actor(agent.init(jax.random.key(i))) for i in range(MEMBERS)]
    return PerMember(jax.tree.map(lambda *xs: jnp.stack(xs), *each))


ACTORS = {
    "uniform": lambda: UniformActor(cliff_suite().spec.action),
    "policy": lambda: acting("ppo"),
    "trial": lambda: acting("rl2-ppo"),
    "own memories": own_memories,
    "own beliefs": own_beliefs,
    "own policies": own_policies,
}


def quick_for(*kinds: str):
    """The others among the slow tests."""
    marks = {kind: [] if kind in kinds else [pytest.mark.slow] for kind in ACTORS}
    return pytest.mark.parametrize("kind", [pytest.param(k, marks=m) for k, m in marks.items()])


@quick_for("own policies")
def test_parts_of_the_members_give_the_data_of_the_whole(kind):
    actor = ACTORS[kind]()
    assert is_by_lane(actor) and shared_out((MEMBERS, 3), 2, 13) == (2, 3)
    assert_same(rollouts(actor, 1, 3), rollouts(actor, 2, 3))


@quick_for("own memories")
def test_parts_of_every_members_lanes_give_the_data_of_the_whole(kind):
    """Three threads, which divide the lanes and not the members."""
    actor = ACTORS[kind]()
    assert shared_out((MEMBERS, 3), 3, 13) == (MEMBERS, 1)
    assert_same(rollouts(actor, 1, 3), rollouts(actor, 3, 3))


@pytest.mark.parametrize(
    ("shape", "num_threads", "share"),
    [
        ((1, 1), 8, (1, 1)),
        ((1, 2), 8, (1, 2)),
        ((1, 16), 2, (1, 8)),
        ((1, 16), 3, (1, 8)),
        ((40, 20), 16, (4, 20)),
        ((7, 5), 2, (7, 5)),
        ((2, 1), 2, (2, 1)),
    ],
)
def test_shares_are_equal_and_of_more_than_one_lane(shape, num_threads, share):
    assert shared_out(shape, num_threads, 100) == share


def test_an_actor_that_takes_one_key_for_all_is_not_taken_apart():
    class Alone(Memoryless):
        pass

    assert not is_by_lane(Alone()) and not is_by_lane(PerMember(Alone()))


def test_what_a_lane_draws_depends_on_its_number_alone():
    key, t = jax.random.key(0), jnp.uint32(5)
    numbers = lane_numbers(3, 4)
    every = normal(lane_keys(key, t, numbers), (3, 4, 2))
    assert len(np.unique(every)) == 24
    some = Part(1, 2, 1).lanes(numbers)
    np.testing.assert_array_equal(normal(lane_keys(key, t, some), (3, 2, 2)), every[:, 1:3])
    later = normal(lane_keys(key, t + 1, numbers), (3, 4, 2))
    assert not np.intersect1d(every, later).size


def test_draws_by_lane_are_standard_normal():
    draws = np.asarray(normal(lane_keys(jax.random.key(1), 0, lane_numbers(40, 50)), (40, 50, 5)))
    assert abs(draws.mean()) < 0.03 and abs(draws.std() - 1) < 0.03
    assert np.abs(np.corrcoef(draws.reshape(-1, 5).T) - np.eye(5)).max() < 0.06


def test_a_part_is_worth_a_thread(monkeypatch):
    monkeypatch.undo()
    assert shared_out((1, 8), 2, 1) == (1, 8)
    assert shared_out((1, 8), 2, 100) == (1, 4)
