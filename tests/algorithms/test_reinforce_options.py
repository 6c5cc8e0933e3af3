"""REINFORCE with a baseline, with memory, with normalised observations and a schedule."""

import functools
from dataclasses import replace

import jax
import numpy as np
import pytest
from toys import ChangingSampler, cliff_suite, fingerprint, point_suite, train_sampler, trained

from adaptax.algorithms.on_policy.reinforce import Reinforce, ReinforceConfig
from adaptax.algorithms.program import iteration_program, updated
from adaptax.core.errors import ConfigError
from adaptax.core.snapshot import flatten
from adaptax.networks.memory import MemoryConfig

CONFIG = ReinforceConfig(
    num_lanes=4,
    num_episodes=2,
    hidden_sizes=(5,),
    baseline="linear",
    memory=MemoryConfig("gru", 3),
    normalize_obs=True,
    lr_schedule="linear",
    lr_schedule_steps=1000,
    max_grad_norm=0.5,
)


class Given:
    """A sampler that gives one rollout, whatever it is asked for."""

    def __init__(self, rollout):
        self.rollout = rollout

    def sample_tasks(self, n):
        return ()

    def episodes(self, *asked):
        return self.rollout


def baseline(config, algorithm, state, rollout):
    """What is subtracted from the rollout's returns."""
    return Reinforce(config, algorithm.spec).collect(state, Given(rollout))[1]


@functools.cache
def run():
    """Two iterations with every option on: the algorithm, its states and the data."""
    suite, rollouts = cliff_suite(), []

    def record(rollout, actor):
        rollouts.append(rollout)
        return rollout

    algorithm = Reinforce(CONFIG, suite.spec)
    sampler, states = ChangingSampler(suite, record), [algorithm.init(jax.random.key(0))]
    for _ in range(2):
        states.append(algorithm.iteration(states[-1], sampler)[0])
    return algorithm, states, rollouts


def test_the_linear_baseline_is_the_ridge_fit_of_discounted_returns():
    """Features of observation and time by hand, episode by episode; ridge 1e-5, as extra rows."""
    algorithm, states, rollouts = run()
    r, rows, returns, places = rollouts[0], [], [], []
    for lane in np.ndindex(r.valid.shape[:2]):
        later, episode = 0.0, []
        for t in reversed(range(int(np.sum(r.valid[lane])))):
            later = r.reward[lane][t] + CONFIG.discount * later
            episode.insert(0, later)
            if t == 0 or r.terminated[lane][t - 1] or r.truncated[lane][t - 1]:
                for i, one in enumerate(episode):
                    obs, tau = np.clip(r.obs[lane][t + i].astype(float), -10, 10), i / 100
                    rows.append([*obs, *obs**2, tau, tau**2, tau**3, 1.0])
                    returns.append(one)
                    places.append((*lane, t + i))
                later, episode = 0.0, []
    assert len(rows) == np.sum(r.valid) and len(r.valid) == 1  # one task, hence one fit
    size = len(rows[0])
    more = np.concatenate([rows, np.sqrt(1e-5) * np.eye(size)])
    weights = np.linalg.lstsq(more, np.concatenate([returns, np.zeros(size)]))[0]
    found = baseline(CONFIG, algorithm, states[0], r)
    at_places = found[tuple(np.transpose(places))]
    np.testing.assert_allclose(at_places, rows @ weights, rtol=1e-4, atol=1e-4)
    assert np.std(at_places) > 0.1
    without = replace(CONFIG, baseline="none")
    assert np.all(baseline(without, algorithm, states[0], r) == 0.0)


def test_an_iteration_with_a_baseline_as_one_program_is_that_of_its_parts():
    suite = cliff_suite()
    whole, parts = (Reinforce(CONFIG, suite.spec) for _ in range(2))
    parts.collects_in_program = False
    samplers = [train_sampler(suite) for _ in range(2)]
    assert iteration_program(whole, whole.init(jax.random.key(0)), samplers[0]) is not None
    results = [flatten(trained(a, s, 1)) for a, s in zip((whole, parts), samplers, strict=True)]
    for name, x in results[0].items():
        np.testing.assert_allclose(x, results[1][name], rtol=1e-5, atol=1e-5, err_msg=name)


def test_the_baseline_changes_the_step():
    algorithm, states, rollouts = run()
    fitted = baseline(CONFIG, algorithm, states[0], rollouts[0])
    with_it, without = (
        updated(algorithm, states[0], (rollouts[0], b))[0] for b in (fitted, 0 * fitted)
    )
    assert fingerprint(with_it) == fingerprint(states[1])
    assert fingerprint(with_it.params) != fingerprint(without.params)


def test_padding_changes_no_bit():
    algorithm, states, rollouts = run()
    rollout, valid = rollouts[0], np.asarray(rollouts[0].valid)
    assert (~valid).sum() > 10
    noisy = replace(
        rollout,
        reward=np.where(valid, rollout.reward, 1e6).astype(np.float32),
        obs=np.where(valid[..., None], rollout.obs, 1e6).astype(np.float32),
        terminated=np.asarray(rollout.terminated) | ~valid,
    )
    fitted = baseline(CONFIG, algorithm, states[0], noisy)
    state, _ = updated(algorithm, states[0], (noisy, fitted))
    assert fingerprint(state) == fingerprint(states[1])


def test_observations_are_counted_once():
    _, states, rollouts = run()
    seen = np.concatenate([np.asarray(r.obs)[np.asarray(r.valid)] for r in rollouts])
    assert float(states[2].moments["obs"]["count"]) == len(seen)
    np.testing.assert_allclose(states[2].moments["obs"]["mean"], seen.mean(0), atol=1e-5)


@pytest.mark.slow
def test_episodes_along_lanes_or_along_time_give_the_same_update():
    suite = point_suite()
    memory = MemoryConfig("gru", 3)
    config = ReinforceConfig(num_lanes=4, num_episodes=2, hidden_sizes=(5,), memory=memory)
    algorithm, sampler = Reinforce(config, suite.spec), train_sampler(suite)
    state = algorithm.init(jax.random.key(0))
    actor, (along_time, nothing) = algorithm.actor(state), algorithm.collect(state, sampler)
    along_lanes = replace(
        jax.tree.map(lambda x: x.reshape(1, 8, 20, *x.shape[3:]), along_time.steps),
        initial_carry=actor.begin(1, 8, jax.random.key(0)),
    )
    assert not nothing.any()
    one, other = (
        updated(algorithm, state, (r, nothing.reshape(r.reward.shape)))[0].params
        for r in (along_time, along_lanes)
    )
    for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("settings", [{"lr_schedule_steps": 0}, {"max_grad_norm": 0.0}])
def test_bad_options_are_refused_by_name(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        ReinforceConfig(**settings)
