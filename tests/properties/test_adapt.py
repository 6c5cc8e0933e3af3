"""Adapting changes nothing but the actor it gives, and every adapted actor is its own."""

from __future__ import annotations

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import (
    EVALUATION,
    KEY,
    behaviour,
    fingerprint,
    point_suite,
    small_agent,
    train_sampler,
    trained,
)

from adaptax.algorithms.registry import find_algorithm
from adaptax.core.snapshot import flatten
from adaptax.experiment.weights import WEIGHTS_ONLY, saved_state, weights_of
from adaptax.sampling.sampler import Sampler

NUM_TASKS = EVALUATION.num_tasks


@cache
def trained_agent(entry):
    """Once for all tests of an algorithm: none of them may change the state."""
    suite = point_suite(entry)
    algorithm = small_agent(entry, suite)
    return algorithm, trained(algorithm, train_sampler(suite), 2)[0], suite


@pytest.fixture
def agent(entry):
    algorithm, state, suite = trained_agent(entry)
    return algorithm, state, Sampler(suite, suite.test, 0, "evaluation")


def adapted_to(agent, part: int, deterministic: bool = False):
    """An actor adapted to two episodes on each of some held-out tasks, and these episodes."""
    algorithm, state, sampler = agent
    tasks = sampler.tasks.tasks[part * NUM_TASKS : (part + 1) * NUM_TASKS]
    actor = algorithm.actor(state, deterministic=deterministic)
    history = []
    for _ in range(2):
        rollout = sampler.episodes(actor, tasks, 1, 1)
        history.append(jax.tree.map(np.array, rollout))
        actor = algorithm.adapt(state, actor, history, deterministic=deterministic)
    return actor, history


@pytest.mark.parametrize("deterministic", [False, True])
def test_adapting_leaves_the_states_bytes_unchanged(agent, deterministic):
    before = fingerprint(agent[1])
    adapted_to(agent, 0, deterministic)
    assert fingerprint(agent[1]) == before


def test_an_adapted_actor_is_unchanged_by_adapting_another(agent):
    first, _ = adapted_to(agent, 0)
    before = np.asarray(behaviour(first))
    second, _ = adapted_to(agent, 1)
    behaviour(second)
    np.testing.assert_array_equal(behaviour(first), before)


def test_an_adapted_actor_owns_what_it_remembers(agent):
    actor, history = adapted_to(agent, 0)
    before = np.asarray(behaviour(actor))
    for array in jax.tree.leaves(history):
        array[...] = 7
    np.testing.assert_array_equal(behaviour(actor), before)


def test_adapting_gives_the_same_actor_from_the_same_history(agent):
    algorithm, state, _ = agent
    _, history = adapted_to(agent, 0)
    again = [algorithm.adapt(state, algorithm.actor(state), history) for _ in range(2)]
    np.testing.assert_array_equal(*map(behaviour, again))


def test_begin_is_the_same_after_100_steps(agent):
    actor, _ = adapted_to(agent, 0)
    before = fingerprint(actor.begin(NUM_TASKS, 1, KEY))
    _, _, sampler = agent
    for _ in range(5):
        sampler.episodes(actor, sampler.tasks.tasks[:NUM_TASKS], 1, 1)
    assert fingerprint(actor.begin(NUM_TASKS, 1, KEY)) == before


def test_a_recurrent_actor_begins_from_its_memory_after_100_steps():
    suite = point_suite()
    algorithm = small_agent(find_algorithm("rl2-ppo"), suite)
    state, _ = trained(algorithm, train_sampler(suite), 1)
    sampler = Sampler(suite, suite.test, 0, "evaluation")
    actor, history = adapted_to((algorithm, state, sampler), 0)
    for _ in range(5):
        sampler.episodes(actor, suite.test.tasks[:NUM_TASKS], 1, 1)
    carry = actor.begin(NUM_TASKS, 1, KEY)
    assert fingerprint(carry) == fingerprint(history[-1].final_carry)
    assert float(jnp.abs(carry["actor"]["memory"]).sum()) > 0


def test_weights_alone_act_and_adapt_as_the_whole_state(agent):
    """What `adaptax export` leaves out is not needed, whatever it is in another state."""
    algorithm, state, sampler = agent
    weights = weights_of(algorithm, flatten(state))
    other = saved_state(algorithm, {"state": weights, WEIGHTS_ONLY: True}, jax.random.key(9))
    both = []
    for each in (state, other):
        sampler.restart()
        both.append([behaviour(algorithm.actor(each)), *adapted_behaviour(algorithm, each, agent)])
    for whole, alone in zip(*both, strict=True):
        np.testing.assert_array_equal(whole, alone)


def adapted_behaviour(algorithm, state, agent):
    for deterministic in (False, True):
        actor, _ = adapted_to((algorithm, state, agent[2]), 0, deterministic)
        yield behaviour(actor)
