"""What A2C, PPO, PPO2 and TRPO have in common: boundaries, padding, memories, refusals."""

import functools
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import ChangingSampler, cliff_suite, fingerprint, point_suite, train_sampler

from adaptax.algorithms import program
from adaptax.algorithms.program import updated
from adaptax.core.errors import ConfigError, NotFinite
from adaptax.core.snapshot import flatten, unflatten
from adaptax.core.spec import Continuous, EnvSpec
from adaptax.experiment.build import make_algorithm
from adaptax.networks.actor_critic import ActorCritic
from adaptax.networks.memory import MEMORIES
from adaptax.networks.normalizer import normalized
from adaptax.sampling.memory_actors import MemoryActor

NAMES = ["a2c", "ppo", "ppo2", "trpo"]
SMALL = {"num_lanes": 4, "hidden_sizes": (5,), "lr": 0.01}
KEY = jax.random.key(0)
GRU = {"kind": "gru", "size": 3}
every_algorithm = pytest.mark.parametrize("name", NAMES)
every_run = pytest.mark.parametrize(
    ("name", "kind"),
    [*((name, "none") for name in NAMES), pytest.param("ppo", "gru", marks=pytest.mark.slow)],
)
QUICK_MEMORIES = {("a2c", "none"), ("ppo", "gru"), ("trpo", "none")}
EVERY_OPTION = {
    "num_episodes": 8,
    "init_std": 0.7,
    "normalize_advantage": "running",
    "normalize_obs": True,
    "normalize_returns": True,
    "lr_schedule": "linear",
    "lr_schedule_steps": 1000,
    "max_grad_norm": 0.5,
}


def agent(name: str, suite, *, num_minibatches: int, kind: str = "none", **settings):
    """A small agent; where the value has passes of its own, they are in as many parts."""
    critic = {"critic": {"lr": 0.01, "num_minibatches": num_minibatches}} if name == "ppo" else {}
    memory = {"kind": kind, "size": 8}
    given = {**SMALL, "num_minibatches": num_minibatches, **critic, "memory": memory, **settings}
    return make_algorithm(name, suite.spec, **given)


@dataclass
class Run:
    """Four iterations of an agent with every option on; entry k is of after k iterations."""

    algorithm: Any
    states: list
    samplers: list
    metrics: list
    rollouts: list
    cache_sizes: list


@functools.cache
def run(name: str, kind: str = "none") -> Run:
    """On a suite whose episodes end early: 8 whole ones of at most 20 steps an iteration."""
    suite, rollouts = cliff_suite(fall=0.3), []

    def record(rollout, actor):
        rollouts.append(rollout)
        return rollout

    algorithm = agent(name, suite, num_minibatches=8, kind=kind, **EVERY_OPTION)
    sampler, states = ChangingSampler(suite, record), [algorithm.init(KEY)]
    samplers, metrics, sizes = [sampler.save()], [], []
    for _ in range(4):
        state, figures = algorithm.iteration(states[-1], sampler)
        states.append(state)
        samplers.append(sampler.save())
        metrics.append(figures)
        sizes.append(program._compiled_update(())._cache_size())
    return Run(algorithm, states, samplers, metrics, rollouts, sizes)


def layouts(name: str, kind: str):
    """Updates on eight whole episodes, two in each of four lanes or one in each of eight."""
    suite = point_suite()
    algorithm = agent(name, suite, num_minibatches=1, num_episodes=8, kind=kind)
    sampler, state = train_sampler(suite), algorithm.init(KEY)
    actor, tasks = algorithm.actor(state), sampler.sample_tasks(1)
    along_time = sampler.episodes(actor, tasks, 4, 2)
    along_lanes = replace(
        jax.tree.map(lambda x: x.reshape(1, 8, 20, *x.shape[3:]), along_time.steps),
        initial_carry=actor.begin(1, 8, KEY),
    )
    return state, [updated(algorithm, state, r) for r in (along_time, along_lanes)]


def assert_close(one, other, tolerance: float):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a2c", "none"),
        *(pytest.param(*run, marks=pytest.mark.slow) for run in (("a2c", "gru"), ("ppo", "none"))),
    ],
)
def test_episodes_along_lanes_or_along_time_give_the_same_update(name, kind):
    state, ((one, figures), (other, other_figures)) = layouts(name, kind)
    assert_close(one.params, other.params, 1e-5)
    assert_close(figures, other_figures, 1e-4)
    moved = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), one.params, state.params)
    assert max(jax.tree.leaves(moved)) > 1e-3


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=() if (name, kind) in QUICK_MEMORIES else pytest.mark.slow)
        for name in ("a2c", "ppo", "trpo")
        for kind in MEMORIES
    ],
)
def test_every_memory_learns_with_policy_and_value(name, kind):
    """Over episodes that go on from one iteration to the next and end in mid-sequence."""
    suite = cliff_suite(fall=0.3)
    algorithm = agent(name, suite, num_minibatches=2, kind=kind, num_steps=32)
    sampler, states = train_sampler(suite), [algorithm.init(KEY)]
    for _ in range(2):
        state, figures = algorithm.iteration(states[-1], sampler)
        states.append(state)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((figures, state.params)))
    before, after = (flatten(s.params) for s in (states[0], state))
    still = [path for path, x in after.items() if np.array_equal(x, before[path])]
    assert not still
    assert any("memory" in path for path in after) == (kind != "none")


def polluted(rollout):
    """Arbitrary finite values in every padded entry of every array."""
    rng, valid = np.random.default_rng(0), np.asarray(rollout.valid)

    def pollute(x):
        x = np.array(x)
        noise = 1e3 * rng.standard_normal(x.shape)
        mask = valid.reshape(valid.shape + (1,) * (x.ndim - valid.ndim))
        return np.where(mask, x, noise > 0 if x.dtype == bool else noise.astype(x.dtype))

    noisy = jax.tree.map(pollute, rollout.steps)
    return replace(
        noisy,
        valid=valid,
        initial_carry=rollout.initial_carry,
        final_carry=rollout.final_carry,
        initial_return=rollout.initial_return,
    )


@every_run
def test_padding_changes_no_bit_of_an_update(name, kind):
    done = run(name, kind)
    rollout = done.rollouts[0]
    assert np.sum(~np.asarray(rollout.valid)) > 20
    state, _ = updated(done.algorithm, done.states[0], polluted(rollout))
    assert fingerprint(state) == fingerprint(done.states[1])


@pytest.mark.parametrize("name", ["ppo", "ppo2", "trpo"])
def test_padded_steps_make_no_updates(name):
    done = run(name)
    config, num_valid = done.algorithm.config, int(np.sum(done.rollouts[0].valid))
    minibatches = -(-num_valid // 20)
    assert minibatches < 4  # of the 160 steps with padding
    value_passes = config.critic if name == "ppo" else config
    counts = {int(x) for x in jax.tree.leaves(done.states[1].opt_state) if x.dtype == jnp.int32}
    assert value_passes.num_epochs * minibatches in counts


@every_algorithm
def test_every_pass_over_the_data_is_counted(name):
    done = run(name)
    each = {"a2c": 1, "ppo": 10, "ppo2": 10, "trpo": 10}[name]
    assert done.algorithm.config.passes_per_iteration == each
    assert [int(state.num_passes) for state in done.states] == [k * each for k in range(5)]


def test_minibatches_of_whole_lanes_need_not_divide_them():
    suite = point_suite()
    settings = {"num_lanes": 5, "num_steps": 100, "shuffle": "sequences"}
    algorithm = agent("ppo2", suite, num_minibatches=2, **settings)
    state, _ = algorithm.iteration(algorithm.init(KEY), train_sampler(suite))
    counts = {int(x) for x in jax.tree.leaves(state.opt_state) if x.dtype == jnp.int32}
    assert counts == {10 * 2}  # minibatches of three lanes and of two


@every_run
def test_nothing_recompiles_after_the_second_iteration(name, kind):
    sizes = run(name, kind).cache_sizes
    assert sizes[1] == sizes[3]


@every_run
def test_three_updates_after_save_and_load_are_bitwise_equal(name, kind):
    done = run(name, kind)
    saved = jax.tree.map(np.array, flatten(done.states[1]))
    state = unflatten(done.algorithm.init(jax.random.key(9)), saved)
    sampler = train_sampler(cliff_suite(fall=0.3))
    sampler.restore(done.samplers[1])
    for _ in range(3):
        state, _ = done.algorithm.iteration(state, sampler)
    assert fingerprint(state) == fingerprint(done.states[4])


def test_a_warm_start_is_fresh_given_or_loaded():
    algorithm = run("ppo").algorithm
    fresh, same, other = (algorithm.init(jax.random.key(k)) for k in (0, 0, 1))
    assert fingerprint(fresh) == fingerprint(same) != fingerprint(other)
    given = replace(fresh, params=other.params)
    assert fingerprint(algorithm.actor(given).params) == fingerprint(other.params)
    loaded = unflatten(fresh, jax.tree.map(np.array, flatten(other)))
    assert fingerprint(loaded) == fingerprint(other)


@every_run
def test_observations_returns_and_advantages_are_counted_once_each(name, kind):
    done = run(name, kind)
    seen = np.concatenate([np.asarray(r.obs)[np.asarray(r.valid)] for r in done.rollouts])
    moments = done.states[4].moments
    for what in ("obs", "return", "advantage"):
        assert float(moments[what]["count"]) == len(seen)
    np.testing.assert_allclose(moments["obs"]["mean"], seen.mean(0), atol=1e-5)
    np.testing.assert_allclose(moments["obs"]["variance"], seen.var(0), rtol=1e-4)


def test_gradients_of_policy_exploration_and_value_share_one_clip():
    done = run("a2c")
    # Before any step RMSprop's mean of squares is 0: after one on g it is 0.01 g^2.
    settings = {"num_minibatches": 1, "num_episodes": 8, "max_grad_norm": 1e-3}
    algorithm = agent("a2c", cliff_suite(), **settings)
    after, figures = updated(algorithm, algorithm.init(KEY), done.rollouts[0])
    assert float(figures["grad_norm"]) > 0.1
    squares = {path: x for path, x in flatten(after.opt_state).items() if ".nu" in path}
    assert {part for path in squares for part in ("log_std", "'value'") if part in path} == {
        "log_std",
        "'value'",
    }
    total = sum(float(jnp.sum(x)) for x in squares.values())
    assert np.sqrt(total / 0.01) == pytest.approx(1e-3, rel=1e-3)


def test_target_kl_ends_the_passes():
    done = run("ppo2")
    state, rollout, config = done.states[0], done.rollouts[0], done.algorithm.config
    strict, loose = (
        type(done.algorithm)(replace(config, target_kl=kl), done.algorithm.spec)
        for kl in (1e-9, 1e9)
    )
    after, figures = updated(strict, state, rollout)
    num_live = config.num_epochs * -(-int(np.sum(rollout.valid)) // 20)
    assert float(figures["update_share"]) == pytest.approx(1 / num_live)  # the first is at KL 0
    after, figures = updated(loose, state, rollout)
    assert float(figures["update_share"]) == 1.0
    assert_close(after.params, done.states[1].params, 1e-6)


def test_every_task_of_an_iteration_has_its_share_of_the_lanes():
    suite, shapes = point_suite(), []
    for settings in ({"num_steps": 78}, {"num_episodes": 5}):
        algorithm = agent("a2c", suite, num_minibatches=4, num_tasks=2, **settings)
        rollout = algorithm.collect(algorithm.init(KEY), train_sampler(suite))
        shapes.append(rollout.valid.shape)
    assert shapes == [(2, 2, 20), (2, 2, 40)]


@every_algorithm
@pytest.mark.parametrize("network", ["policy", "value"])
def test_an_update_that_is_not_finite_is_one_clear_error(name, network):
    done = run(name)
    towers = done.states[0].params["params"]
    nan = jax.tree.map(lambda x: x * np.nan, towers[network])
    broken = {"params": {**towers, network: nan}}
    sampler = train_sampler(cliff_suite(fall=0.3))
    where = {"policy": "task 'cliff': the action is not", "value": "diverged: loss_before is nan"}
    with pytest.raises(NotFinite, match=where[network]) as error:
        done.algorithm.iteration(replace(done.states[0], params=broken), sampler)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["ppo", "trpo"])
def test_the_kl_counts_what_the_values_fit_does_to_a_policy_that_shares_parameters(name):
    suite = point_suite()
    network = ActorCritic(suite.spec.action, (5,), shared=True)
    settings = {**SMALL, "num_minibatches": 4, "num_epochs": 5, "num_steps": 80}
    if name == "ppo":
        settings["critic"] = {"lr": 0.01, "num_minibatches": 4}
    algorithm = make_algorithm(name, suite.spec, networks=network, **settings)
    state, sampler = algorithm.init(KEY), train_sampler(suite)
    for _ in range(2):  # the first policy ignores what it sees
        data, acted = algorithm.collect(state, sampler), state
        state, metrics = updated(algorithm, jax.tree.map(jnp.array, state), data)
    obs = normalized(jnp.asarray(data.obs), acted.moments["obs"])
    (_, (old, _)), (_, (new, _)) = (network.apply(s.params, (), obs) for s in (acted, state))
    assert np.all(data.valid)
    np.testing.assert_allclose(metrics["kl"], np.mean(old.kl(new)), rtol=1e-3)


@every_algorithm
def test_networks_of_ones_own_with_a_memory_do_not_learn_from_single_steps(name):
    spec = EnvSpec(2, Continuous(2), 20)
    with_memory = make_algorithm(name, spec, memory=GRU).networks
    with pytest.raises(ConfigError, match="whole sequences, not from shuffled steps"):
        make_algorithm(name, spec, shuffle="steps", networks=with_memory)
    assert make_algorithm(name, spec, networks=with_memory).networks is with_memory


@every_algorithm
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"discount": 1.1}, "discount must lie in"),
        ({"gae_lambda": -0.1}, "gae_lambda must lie in"),
        ({"memory": GRU, "shuffle": "steps"}, "whole sequences, not from shuffled steps"),
        ({"num_tasks": 3}, "num_lanes 4 must be a multiple of num_tasks 3"),
        ({"hidden_sizes": (8, 0)}, "hidden_sizes"),
        ({"lr": 0.0}, "lr must be greater than 0"),
        ({"num_bptt_steps": 5, "shuffle": "steps"}, "needs shuffle 'auto' or 'sequences'"),
        (
            {"num_minibatches": 41},
            "41 is more than the 40 steps of an iteration: lower it, or raise num_steps",
        ),
    ],
)
def test_wrong_settings_are_refused_in_one_line(name, settings, message):
    spec = EnvSpec(2, Continuous(2), 20)
    given = {**SMALL, "num_steps": 40, "num_minibatches": 2, **settings}
    if name == "ppo":
        given["critic"] = {"num_minibatches": 2}
    with pytest.raises(ConfigError, match=message) as caught:
        make_algorithm(name, spec, **given)
    assert "\n" not in str(caught.value)


def test_more_minibatches_of_the_value_than_steps_are_refused():
    spec = EnvSpec(2, Continuous(2), 20)
    with pytest.raises(ConfigError, match=r"critic\.num_minibatches 32 is more than the 24 steps"):
        make_algorithm("ppo", spec, **SMALL, num_steps=24, num_minibatches=2)


def test_ppo2_is_refused_without_standardised_advantages():
    with pytest.raises(ConfigError, match="normalize_advantage must not be"):
        make_algorithm("ppo2", EnvSpec(2, Continuous(2), 20), normalize_advantage="none")


@pytest.mark.parametrize("name", ["a2c", "ppo2"])
def test_negative_weights_of_the_loss_are_refused(name):
    with pytest.raises(ConfigError, match="entropy_coeff must not be negative"):
        make_algorithm(name, EnvSpec(2, Continuous(2), 20), entropy_coeff=-1.0)


def test_the_actor_takes_the_policy_and_its_normalisation():
    algorithm, state = run("ppo").algorithm, run("ppo").states[1]
    actor = algorithm.actor(state, deterministic=True)
    assert isinstance(actor, MemoryActor) and actor.deterministic
    assert actor.obs_moments is state.moments["obs"]
    assert actor.params is state.params
    assert not algorithm.actor(state).deterministic
