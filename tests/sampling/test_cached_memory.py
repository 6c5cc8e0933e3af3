"""A memory with a cache, which no engine copies: what acted is what a sequence says."""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
import pytest
from toys import cliff_suite, train_sampler

from adaptax.algorithms.meta import rl2
from adaptax.core.experience import Cache
from adaptax.experiment.build import make_algorithm
from adaptax.learning.sequences import trial_sequences

SETTINGS = {
    "meta_batch_size": 4,
    "num_episodes": 3,
    "num_minibatches": 1,
    "hidden_sizes": (4,),
    "normalize_obs": False,
    "memory": {"kind": "transformer", "size": 8, "context": 5, "num_layers": 1},
}


@pytest.mark.parametrize("engine", [pytest.param("compiled", marks=pytest.mark.slow), "host"])
def test_a_lane_that_stands_still_keeps_what_it_remembers(engine):
    """Trials of several lengths, then more episodes from what is remembered at their ends."""
    suite = replace(cliff_suite(), engine=engine)
    algorithm = make_algorithm("rl2-ppo", suite.spec, **SETTINGS)
    state, sampler = algorithm.init(jax.random.key(0)), train_sampler(suite)
    tasks = sampler.sample_tasks(4)
    first = sampler.episodes(algorithm.actor(state), tasks, 1, 3)
    assert len(set(np.asarray(first.valid).sum(-1).ravel())) > 1
    adapted = rl2.adapted(algorithm.actor(state), [first], deterministic=False)
    second = sampler.episodes(adapted, tasks, 1, 2)

    network = algorithm.networks
    memory = network.initial((4,))
    sequence = jax.jit(partial(network.apply, method="sequence"))
    carry = None
    for rollout in (first, second):
        sequences = trial_sequences(rollout, suite.spec.action, None, bootstrap_end=True)
        obs = np.asarray(sequences.obs)
        if carry is not None:  # what the first of these steps led from
            obs = obs.copy()
            size = suite.spec.observation_size
            last = [np.asarray(carry[k])[:, 0] for k in ("last_action", "last_reward", "boundary")]
            inputs = np.concatenate([last[0], np.stack(last[1:], -1)], axis=-1)
            obs[:, 0, size:] = inputs
        lengths = np.asarray(sequences.valid).sum(-1)
        for i, length in enumerate(lengths):
            own = jax.tree.map(lambda x, i=i: x[i : i + 1], memory)
            _, (acted, _) = sequence(state.params, own, obs[i : i + 1], None)
            found = acted.log_prob(sequences.action[i : i + 1])[0, :length]
            expected = sequences.log_prob[i, :length]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
        carry = rollout.final_carry
        memory = jax.tree.map(lambda x: x[:, 0], carry["actor"]["memory"])
    assert isinstance(carry["actor"]["memory"]["cache"], Cache)
