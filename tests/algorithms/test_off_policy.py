"""What DQN, DDPG, TD3 and SAC share."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from small_worlds import Counter, OneState, suite_of
from toys import ChangingSampler, fingerprint, point_suite, train_sampler, trained

from adaptax.algorithms.off_policy.family import OffPolicyConfig, optimizer, updated_target
from adaptax.algorithms.registry import ALGORITHMS
from adaptax.core.errors import ConfigError
from adaptax.core.rng import named_key
from adaptax.core.snapshot import flatten, unflatten
from adaptax.core.spec import Continuous, Discrete
from adaptax.experiment.build import make_algorithm, make_suite

NAMES = ("dqn", "ddpg", "td3", "sac")
SMALL = {
    "num_cycles": 2,
    "num_steps": 10,
    "num_updates": 3,
    "num_initial_steps": 40,
    "batch_size": 8,
    "hidden_sizes": (8,),
    "n_step": 2,
    "normalize_rewards": True,
}
"""One for most tests, so that little is compiled."""


@pytest.fixture
def no_learning(monkeypatch):
    """Gradient steps are counted and not made; gives their arguments."""
    calls = []

    def count(update, config, networks, learner, batches, reward_scale):
        calls.append((batches, reward_scale))
        num_updates = learner.num_updates + len(batches.reward)
        return replace(learner, num_updates=num_updates), {"q": np.float32(0.0)}

    monkeypatch.setattr("adaptax.algorithms.off_policy.family.gradient_steps", lambda _: count)
    return calls


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


def agent(name: str, **settings):
    """A small one on a point in the plane, and a sampler for it."""
    suite = point_suite(ALGORITHMS[name])
    return make_algorithm(name, suite.spec, **{**SMALL, **settings}), train_sampler(suite)


@pytest.mark.parametrize(
    ("wanted", "fill"), [(None, 500), (10, 64), (100, 100), (10_000, 500), (64, 64)]
)
def test_the_memory_is_filled_by_the_rule(wanted, fill):
    """V1: memory_size 500, batch_size 64."""
    config = OffPolicyConfig(memory_size=500, num_initial_steps=wanted, batch_size=64)
    assert config.fill == fill


def test_no_gradient_step_is_made_before_the_memory_is_filled_and_all_of_them_after(name):
    """O1: 40 steps first, then 2 cycles of 10 steps and 3 updates."""
    algorithm, sampler = agent(name)
    made = []

    def steps(rollout, actor):
        made.append((rollout.valid.size, int(state.learner.num_updates)))
        return rollout

    sampler = ChangingSampler(sampler.suite, steps)
    state = algorithm.init(named_key(0, "init"))
    state, metrics = algorithm.iteration(state, sampler)
    assert [size for size, _ in made] == [40, 10, 10]
    assert all(before == 0 for _, before in made)
    assert int(state.learner.num_updates) == metrics["num_updates"] == 6
    state, metrics = algorithm.iteration(state, sampler)
    assert int(state.learner.num_updates) == 12
    assert state.replay.num_added[0] == 80


def test_auto_makes_as_many_updates_as_environment_steps():
    config = OffPolicyConfig(num_lanes=3, num_steps=10)
    assert (config.lane_steps, config.cycle_updates) == (4, 12)


def test_targets_are_copies_of_the_networks_at_the_start(name):
    """V5."""
    algorithm, _ = agent(name)
    learner = algorithm.init(named_key(0, "init")).learner
    online = {"dqn": lambda p: p["q"], "sac": lambda p: p["critics"]}.get(name, lambda p: p)
    assert fingerprint(learner.target) == fingerprint(online(learner.params))


def test_targets_are_copied_every_kth_gradient_step():
    """V5: with k = 3 and weight 0, from 0 towards 1, in 7 steps."""
    config = OffPolicyConfig(target_update_interval=3, polyak=0.0)
    target, copied = np.zeros(2), []
    for num in range(1, 8):
        after = updated_target(config, num, target, np.ones(2))
        copied.append(bool(np.all(after == 1)))
    assert copied == [False, False, True, False, False, True, False]


def test_both_conventions_of_tau_are_one_update():
    """V7."""
    for config in (OffPolicyConfig(polyak=0.995), OffPolicyConfig(tau=0.005)):
        moved = updated_target(config, 1, np.zeros(2), np.ones(2))
        np.testing.assert_allclose(moved, 0.005, rtol=1e-5)


def test_small_gradients_move_parameters_as_far_as_large_ones():
    """Adam's first step is lr g / (|g| + eps), by the 1e-8 of its paper."""
    step, grads = optimizer(OffPolicyConfig(lr=0.1)), np.array([1.0, -1e-6], np.float32)
    moved, _ = step.update(grads, step.init(grads))
    np.testing.assert_allclose(moved, [-0.1, 0.1 / 1.01], rtol=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"polyak": 1.0}, r"polyak must lie in \[0, 1\), not 1.0"),
        ({"tau": 0.0}, r"tau must lie in \(0, 1\], not 0.0: it is the weight of the new values"),
        ({"num_updates": 0}, "num_updates must be greater than 0 or 'auto', not 0"),
        ({"num_updates": "all"}, "num_updates must be greater than 0 or 'auto', not 'all'"),
        ({"n_step": 300}, "n_step must be less than 256, not 300"),
        ({"num_lanes": 3, "num_tasks": 2}, "num_lanes 3 must be a multiple of num_tasks 2"),
        ({"batch_size": 0}, "batch_size must be greater than 0, not 0"),
        ({"discount": 1.5}, r"discount must lie in \[0, 1\], not 1.5"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        OffPolicyConfig(**settings)


@pytest.mark.parametrize(
    ("name", "env_id", "message"),
    [
        ("dqn", "Pendulum-v1", "dqn takes one discrete action; for continuous ones take sac"),
        ("ddpg", "CartPole-v1", "ddpg takes continuous actions only; for discrete ones take dqn"),
        ("td3", "CartPole-v1", "td3 takes continuous actions only; for discrete ones take dqn"),
    ],
)
def test_actions_of_the_wrong_kind_are_refused(name, env_id, message):
    with pytest.raises(ConfigError, match=message):
        make_algorithm(name, make_suite(f"gym:{env_id}").spec)


def one_state(name: str, **settings):
    """The value learned of the one state, and the figures of the last iteration (O2)."""
    action = Discrete(2) if name == "dqn" else Continuous(1)
    suite = suite_of(OneState(action))
    shared = {
        "discount": 0.9,
        "hidden_sizes": (8,),
        "batch_size": 16,
        "num_initial_steps": 100,
        "num_steps": 20,
        "num_updates": 400,
        "num_cycles": 5,
        "lr": 3e-3,
        "polyak": 0.9,
        "target_update_interval": 1,
        "max_grad_norm": None,
    }
    special = {"sac": {"learn_temperature": False, "init_temperature": 1e-6}}.get(name, {})
    special |= {"optimizer": "adam"} if name == "dqn" else {}
    algorithm = make_algorithm(name, suite.spec, **{**shared, **special, **settings})
    return trained(algorithm, train_sampler(suite), 3)[1]


@pytest.mark.parametrize(
    ("name", "settings"), [*((name, {}) for name in NAMES), ("dqn", {"n_step": 3, "double": True})]
)
def test_a_time_limit_is_no_termination(name, settings):
    """O2: 1 / (1 - .9) = 10, where time limits taken for terminations would give 5.26."""
    assert one_state(name, **settings)["q"] == pytest.approx(10.0, abs=0.05)


def test_reward_scale_doubles_the_values_and_not_the_returns():
    """O3."""
    metrics = one_state("dqn", reward_scale=2.0)
    assert metrics["q"] == pytest.approx(20.0, abs=0.1)
    assert metrics["return"] == 10.0


def test_returns_of_episodes_cut_by_collections_are_counted_once_and_whole(no_learning):
    """O4: episodes of 20 steps in pieces of 15 after a first of 40."""
    suite, rollouts = make_suite("gym:Pendulum-v1", horizon=20), []
    sampler = ChangingSampler(suite, lambda rollout, actor: rollouts.append(rollout) or rollout)
    algorithm = make_algorithm("sac", suite.spec, **{**SMALL, "num_steps": 15})
    state = algorithm.init(named_key(0, "init"))
    means = []
    for _ in range(2):
        state, metrics = algorithm.iteration(state, sampler)
        means.append((metrics["return"], metrics["episode_length"]))
    rewards = np.concatenate([r.reward[0, 0] for r in rollouts])
    assert len(rewards) == 100
    whole = rewards.reshape(-1, 20).sum(-1)
    assert means[0] == pytest.approx((whole[:3].mean(), 20), rel=1e-5)
    assert means[1] == pytest.approx((whole[3:].mean(), 20), rel=1e-5)


def test_what_is_kept_leads_where_it_led(no_learning):
    """V2: of observations that count the steps, past falls and time limits."""
    suite = suite_of(Counter())
    algorithm = make_algorithm("dqn", suite.spec, **{**SMALL, "num_lanes": 2, "n_step": 1})
    state, _ = trained(algorithm, train_sampler(suite), 3)
    size = len(state.replay)
    rows = state.replay.read(np.zeros(size, int), np.arange(size))
    np.testing.assert_array_equal(rows.next_obs, rows.obs + 1)
    assert 0.05 < rows.terminated.mean() < 0.25
    assert rows.next_obs.max() == 7


def test_a_saved_state_goes_on_bit_for_bit(name):
    """A3, O5, in one process; `test_resume` kills one."""
    algorithm, sampler = agent(name)
    state, _ = trained(algorithm, sampler, 2)
    saved = {k: np.array(x) for k, x in flatten(state).items()}
    template = algorithm.init(named_key(0, "init"))
    place = sampler.save()
    state, _ = algorithm.iteration(state, sampler)
    sampler.restore(place)
    other, _ = algorithm.iteration(unflatten(template, saved), sampler)
    assert fingerprint(other) == fingerprint(state)


def test_reset_keeps_the_networks_and_forgets_the_rest(name):
    """A4."""
    algorithm, sampler = agent(name)
    state, _ = trained(algorithm, sampler, 2)
    fresh, again = algorithm.init(named_key(0, "init")), algorithm.reset(state)
    assert fingerprint(again.learner.params) == fingerprint(state.learner.params)
    assert fingerprint(again.learner.opt_state) == fingerprint(fresh.learner.opt_state)
    assert (len(again.replay), int(again.num_iterations)) == (0, 0)
    assert state.replay.num_added[0] == 80


@pytest.mark.parametrize("trained_policy", [False, True])
def test_a_refill_is_by_whom_it_should_be(trained_policy, no_learning):
    """The rule of conformance 4.6: at first uniform, after a reset by choice."""
    algorithm, sampler = agent("sac", use_trained_policy_for_refill=trained_policy)
    actors = []

    def note(rollout, actor):
        actors.append(type(actor.actor).__name__)
        return rollout

    sampler = ChangingSampler(sampler.suite, note)
    state, _ = trained(algorithm, sampler, 1)
    algorithm.iteration(algorithm.reset(state), sampler)
    policy = "PolicyActor"
    refill = policy if trained_policy else "UniformActor"
    assert actors == ["UniformActor", policy, policy, refill, policy, policy]


def test_rewards_are_learned_in_units_of_their_deviation(no_learning):
    algorithm, sampler = agent("sac", reward_scale=3.0, n_step=1)
    state, _ = trained(algorithm, sampler, 1)
    rewards = state.replay.read(np.zeros(60, int), np.arange(60)).reward
    _, reward_scale = no_learning[-1]
    assert reward_scale == pytest.approx(3.0 / rewards.std(), rel=1e-5)


def test_the_next_step_does_not_depend_on_who_looks(name):
    """Sampling, saving and reading a replay leave it as it is."""
    algorithm, sampler = agent(name)
    state, _ = trained(algorithm, sampler, 1)
    before = fingerprint(state)
    state.replay.sample(jax.random.key(0), 2, 4)
    algorithm.actor(state)
    replace(state).replay.save()
    assert fingerprint(state) == before
