"""Observations of zeros and ones: bools in a rollout, numbers to whoever acts or learns."""

import dataclasses

import jax
import numpy as np
import pytest
from small import SMALL
from toys import fingerprint

from adaptax.algorithms.registry import ALGORITHMS
from adaptax.core.errors import ConfigError
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.sampling.in_program import SamplerInProgram
from adaptax.sampling.sampler import Sampler

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def suite():
    return make_suite("catch", size=5)


FAST = ("ppo2", "rl2-ppo", "dqn")


@pytest.mark.parametrize(
    "name", [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in ALGORITHMS]
)
def test_every_algorithm_learns_from_bools(suite, name):
    """It is traced only: what a bool cannot stand for is an error of its type."""
    try:
        algorithm = make_algorithm(name, suite.spec, **SMALL.get(name, {}))
    except ConfigError as error:
        pytest.skip(str(error))
    if not (algorithm.traceable and algorithm.collects_in_program):
        pytest.skip("its collection cannot be traced")
    sampler = Sampler(suite, suite.train, 0, "train")

    def iteration(state):
        asked = SamplerInProgram(sampler.env, None, None, example)
        return algorithm.update(state, algorithm.collect(state, asked))

    example = sampler.example_tasks()
    before = jax.eval_shape(algorithm.init, KEY)
    after, _ = jax.eval_shape(iteration, before)
    kinds = [jax.tree.map(lambda x: (x.shape, x.dtype), tree) for tree in (before, after)]
    assert kinds[0] == kinds[1]


@pytest.mark.slow
def test_what_is_learned_from_bools_is_what_is_learned_from_numbers(suite):
    algorithm = make_algorithm("ppo2", suite.spec, **SMALL["ppo2"])
    data = algorithm.collect(algorithm.init(KEY), Sampler(suite, suite.train, 0, "train"))
    assert data.obs.dtype == data.next_obs.dtype == bool
    as_numbers = {name: getattr(data, name).astype(np.float32) for name in ("obs", "next_obs")}
    learned = [
        jax.jit(algorithm.update)(algorithm.init(KEY), each)
        for each in (data, dataclasses.replace(data, **as_numbers))
    ]
    assert fingerprint(learned[0]) == fingerprint(learned[1])
