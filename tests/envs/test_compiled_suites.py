"""What holds for every suite of a compiled environment."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.core.rng import episode_seeds
from adaptax.envs.env import reset_lanes, step_lanes
from adaptax.envs.suite import Suite
from adaptax.experiment.build import make_suite
from adaptax.sampling.actors import UniformActor
from adaptax.sampling.sampler import Sampler

SETTINGS = {
    "point-goal": {"horizon": 5},
    "point-goal-sparse": {"horizon": 5},
    "point-corners": {"horizon": 5, "start_range": 0.1},
    "point-momentum": {"horizon": 5},
    "point-walls": {"horizon": 5, "step_size": 0.9},
    "bandit": {"num_pulls": 5},
    "gaussian-bandit": {"num_pulls": 5, "reward": "gaussian"},
    "tabular-mdp": {"horizon": 5, "num_states": 3},
    "catch": {"size": 5},
    "cartpole": {"horizon": 20},
    "pendulum": {"horizon": 5},
}
"""Small suites, by name; a few steps reach their time limits."""
LANES, EPISODES, STEPS = 3, 2, 3
ALIKE = {"point-goal-sparse", "point-corners", "point-walls", "gaussian-bandit"}
"""Suites that differ from another one in rewards or ranges."""
every_suite = pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow if x in ALIKE else ()) for x in SETTINGS]
)


@functools.cache
def suite(name: str) -> Suite:
    return make_suite(name.removeprefix("gaussian-"), **SETTINGS[name])


def sampler(name: str, engine: str = "compiled") -> Sampler:
    return Sampler(replace(suite(name), engine=engine), suite(name).train, 0, "train")


def episodes(name: str, engine: str = "compiled"):
    collector = sampler(name, engine)
    actor = UniformActor(collector.spec.action)
    return collector.episodes(actor, collector.sample_tasks(2), LANES, EPISODES)


@functools.cache
def compiled(name: str):
    return episodes(name)


@every_suite
def test_the_compiled_engine_equals_the_host_engine(name):
    stepped = episodes(name, "host")
    assert jax.tree.structure(compiled(name)) == jax.tree.structure(stepped)
    for one, other in zip(jax.tree.leaves(compiled(name)), jax.tree.leaves(stepped), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@every_suite
def test_going_on_from_mid_episode_is_bit_exact(name):
    actor = UniformActor(suite(name).spec.action)
    first, other = sampler(name), sampler(name)
    tasks = first.sample_tasks(2)
    begun = first.steps(actor, tasks, LANES, STEPS)
    assert not np.any(begun.truncated | begun.terminated)
    other.restore(first.save())
    goes_on, resumed = (s.steps(actor, tasks, LANES, STEPS) for s in (first, other))
    for one, two in zip(jax.tree.leaves(goes_on), jax.tree.leaves(resumed), strict=True):
        np.testing.assert_array_equal(one, two)


@every_suite
def test_episodes_end_at_their_horizon_and_only_the_cart_pole_falls_before(name):
    rollout, spec = compiled(name), suite(name).spec
    ends = np.asarray(rollout.truncated | rollout.terminated)
    np.testing.assert_array_equal(ends.sum(-1), np.full((2, LANES), EPISODES))
    first = np.argmax(ends, axis=-1)
    at_horizon = first + 1 == spec.horizon
    at_end = rollout.terminated if spec.horizon_terminates else rollout.truncated
    marked = np.take_along_axis(np.asarray(at_end), first[..., None], axis=-1)[..., 0]
    np.testing.assert_array_equal(marked, at_horizon)
    assert bool(np.any(~at_horizon)) == (name == "cartpole")


@every_suite
def test_lanes_are_not_copies_of_each_other(name):
    rollout = compiled(name)
    seen = [np.asarray(x).reshape(2 * LANES, -1) for x in (rollout.obs, rollout.reward)]
    assert len(np.unique(np.concatenate(seen, axis=1), axis=0)) == 2 * LANES


@pytest.mark.parametrize(("name", "draws"), [("cartpole", False), ("tabular-mdp", True)])
def test_keys_of_steps_that_draw_nothing_cost_nothing(name, draws):
    pool = suite(name).make_pool(2)
    pool.reset(np.arange(2), np.zeros(2, np.uint32), [suite(name).test.tasks[0]] * 2)
    step = jax.jit(step_lanes, static_argnums=0)
    program = step.lower(pool.env, pool.task_arrays, pool.lanes, jnp.zeros(2, jnp.int32)).compile()
    # Threefry turns words by shifting them; nothing else in these environments does.
    assert ("shift-right-logical" in program.as_text()) == draws


def test_first_states_follow_from_the_episodes_seed():
    pool = suite("cartpole").make_pool(3)
    seeds = episode_seeds(np.array([1, 2], np.uint32), np.array([7, 8, 7], np.uint32))
    lanes = reset_lanes(pool.env, {}, jnp.asarray(seeds))
    np.testing.assert_array_equal(lanes.obs[0], lanes.obs[2])
    assert float(jnp.abs(lanes.obs[0] - lanes.obs[1]).max()) > 1e-3
