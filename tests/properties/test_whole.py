"""Iterations as one program, several of them, several seeds: what they do stays the same."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from entries import quick_for
from small import SMALL_SUITE
from toys import cliff_suite, fingerprint, point_suite, small_agent, train_sampler

from adaptax.algorithms.base import Algorithm
from adaptax.algorithms.program import iteration_program, stacked, unstacked
from adaptax.algorithms.registry import find_algorithm
from adaptax.core.errors import NotFinite
from adaptax.core.rng import named_key
from adaptax.core.snapshot import flatten
from adaptax.experiment.build import make_suite
from adaptax.sampling.actors import UniformActor

CYCLE_BY_CYCLE = {"pearl", "cma-es"}
"""Algorithms whose iterations are not one program."""


@pytest.fixture(autouse=True)
def _one_device(monkeypatch):
    """Or several would share the updates of the MAML family out."""
    one = jax.local_devices()[:1]
    monkeypatch.setattr(jax, "local_devices", lambda: one)


def begun(entry, suite, seed: int = 0, scale: float = 1.0):
    """An algorithm, all its numbers so many times as large, its first state and its sampler."""
    algorithm = small_agent(entry, suite)
    if entry.name == "rl2-trpo":
        # Ten conjugate gradients on so few trials magnify what is rounded otherwise.
        config = algorithm.config
        fewer = replace(config, trust_region=replace(config.trust_region, cg_iters=4))
        algorithm = type(algorithm)(fewer, suite.spec)
    algorithm = jax.tree.map(lambda x: scale * x, algorithm)
    return algorithm, algorithm.init(named_key(seed, "init")), train_sampler(suite, seed)


def skip_unless_whole(entry):
    if entry.name in CYCLE_BY_CYCLE:
        pytest.skip("its iterations are not one program")


def assert_close(one, other, tolerance: float = 1e-5) -> None:
    one, other = flatten(one), flatten(other)
    assert one.keys() == other.keys()
    for name, x in one.items():
        if isinstance(x, str):
            assert x == other[name], name
        else:
            np.testing.assert_allclose(x, other[name], tolerance, tolerance, err_msg=name)


@pytest.mark.parametrize("kind", ["point", "cliff"])
@quick_for("nop", "ppo", "sac", "rl2-ppo")
def test_a_whole_iteration_is_its_collect_and_its_update(entry, kind):
    """State, figures, counters, unfinished episodes and statistics, three times."""
    skip_unless_whole(entry)
    suite = (
        point_suite(entry) if kind == "point" else cliff_suite(**SMALL_SUITE.get(entry.name, {}))
    )
    ends = []
    for collects_in_program in (True, False):
        algorithm, state, sampler = begun(entry, suite)
        algorithm.collects_in_program = collects_in_program
        assert (iteration_program(algorithm, state, sampler) is not None) == collects_in_program
        rows = []
        for _ in range(3):
            state, metrics = algorithm.iteration(state, sampler)
            rows.append({**metrics, **sampler.statistics.take()})
            rows[-1] = {
                name: np.float64(np.nan if x is None else x) for name, x in rows[-1].items()
            }
        ends.append((state, rows, sampler.save()))
    assert_close(ends[0][0], ends[1][0], 1e-4)
    assert_close(ends[0][1], ends[1][1], 1e-3)
    assert_close(ends[0][2], ends[1][2])


@quick_for("ppo")
def test_many_iterations_in_one_call_are_the_same_to_the_last_bit(entry):
    skip_unless_whole(entry)
    algorithm, state, sampler = begun(entry, cliff_suite(**SMALL_SUITE.get(entry.name, {})))
    program = iteration_program(algorithm, state, sampler)
    if program.iterations_per_call == 1:
        pytest.skip("it makes one iteration a call")
    alone, each = state, []
    for _ in range(3):
        alone, metrics, counted = program.run(algorithm, alone, sampler, 1)
        each.append((*metrics, *counted))
    other = train_sampler(sampler.suite)
    together, metrics, counted = program.run(algorithm, state, other, 3)
    assert fingerprint(together) == fingerprint(alone)
    assert fingerprint(other.save()) == fingerprint(sampler.save())
    for (one, did), new, done in zip(each, metrics, counted, strict=True):
        assert one == new
        assert (did.num_steps, did.num_episodes) == (done.num_steps, done.num_episodes)
        returns = [np.concatenate([x.returns for x in some.ended]) for some in (did, done)]
        np.testing.assert_array_equal(*returns)


@quick_for("ppo", "sac")
def test_three_seeds_and_settings_in_one_program_are_three_runs(entry):
    skip_unless_whole(entry)
    suite = cliff_suite(**SMALL_SUITE.get(entry.name, {}))
    alone, begins = [], []
    for place in ((0, 1.0), (1, 0.9), (5, 0.8)):
        algorithm, state, sampler = begun(entry, suite, *place)
        for _ in range(2):
            state, metrics = algorithm.iteration(state, sampler)
        alone.append((state, metrics, sampler.save()))
        begins.append(begun(entry, suite, *place))
    algorithms, states, samplers = zip(*begins, strict=True)
    program = iteration_program(algorithms[0], states[0], samplers[0])
    every, together = stacked(algorithms), stacked(states)
    for _ in range(2):
        together, figures = program.run_together(every, together, samplers, 1)
    for one, state, own, sampler in zip(
        alone, unstacked(together, 3), figures, samplers, strict=True
    ):
        assert_close(one[0], state, 1e-4)
        assert_close(one[1], own[0][0], 1e-3)
        assert_close(one[2], sampler.save())


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_a_fault_within_a_whole_iteration_says_where_it_was(name):
    class Sudden(type(cliff_suite().make_pool(1).env)):
        """Its reward is NaN at the seventh step of every episode."""

        def reset(self, key, task):
            state, obs = super().reset(key, task)
            return (state, jnp.int32(0)), obs

        def step(self, key, state, action, task):
            after, step = super().step(key, state[0], action, task)
            reward = jnp.where(state[1] == 6, jnp.nan, step.reward)
            return (after, state[1] + 1), replace(step, reward=reward)

    suite = cliff_suite()
    pool = suite.make_pool.func
    env = Sudden(fall=0.0)
    suite = replace(suite, make_pool=lambda num: pool(env, num))
    algorithm, state, sampler = begun(find_algorithm(name), suite)
    assert iteration_program(algorithm, state, sampler) is not None
    with pytest.raises(NotFinite, match=r"slot \d+, step 6, task '.*': the reward is not finite"):
        for _ in range(9):
            state, _ = algorithm.iteration(state, sampler)


class Collecting(Algorithm):
    """Learns nothing; `collects` says what of the sampler it asks for."""

    name = "collecting"
    collects_in_program = True

    def __init__(self, suite, collects):
        super().__init__(None, suite.spec)
        self.collects = collects

    def init(self, key):
        return {}

    def collect(self, state, sampler):
        return self.collects(sampler, self.actor(state))

    def update(self, state, data):
        return state, {"sum": jnp.sum(data.obs, where=data.valid[..., None])}

    def actor(self, state, *, deterministic=False):
        return UniformActor(self.spec.action)


def rows_of(algorithm, suite, num: int = 4):
    sampler, rows = train_sampler(suite), []
    for _ in range(num):
        _, metrics = algorithm.iteration({}, sampler)
        rows.append({**metrics, **sampler.statistics.take()})
    return rows


def alone_and_in_a_program(suite, collects):
    algorithm = Collecting(suite, collects)
    found = [rows_of(algorithm, suite)]
    algorithm.collects_in_program = False
    return [*found, rows_of(algorithm, suite)]


def test_episodes_that_steps_leaves_to_the_next_steps_count_as_they_are():
    suite = point_suite()

    def collects(sampler, actor):
        tasks = sampler.fixed_tasks(2)
        sampler.steps(actor, tasks, 3, 7)
        return sampler.steps(actor, tasks, 3, 9)

    assert_close(*alone_and_in_a_program(suite, collects))


def test_an_algorithm_that_asks_for_more_fixed_tasks_than_there_are_has_all_of_them():
    suite = make_suite("point-corners")
    assert len(suite.train.tasks) == 4

    def collects(sampler, actor):
        sampler.fixed_tasks(8)
        return sampler.episodes(actor, sampler.sample_tasks(4), 1, 1)

    assert_close(*alone_and_in_a_program(suite, collects))
