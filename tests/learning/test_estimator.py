"""The estimator: golden values, targets, fits, and what it does at boundaries."""

import functools
import itertools
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import advantages

from adaptax.algorithms.on_policy.family import State, fit_critic
from adaptax.algorithms.on_policy.ppo import CriticConfig, PPOConfig
from adaptax.algorithms.on_policy.trpo import TRPOConfig
from adaptax.core.spec import Discrete
from adaptax.learning import estimator
from adaptax.learning.estimator import Normalization, network_values, policy_advantage
from adaptax.learning.minibatches import optimizer
from adaptax.learning.sequences import Batch, Sequences
from adaptax.networks.actor_critic import ActorCritic, init_params, part_of
from adaptax.networks.memory import MemoryConfig
from adaptax.networks.normalizer import fresh_moments, restored, standardized, updated_moments

KEY = jax.random.key(0)
B, T, SIZE, H = 3, 12, 2, 8
GOLDEN = {"terminated": [4.19392, 4.286, 3.0], "truncated": [4.567168, 4.8044, 3.72]}


KINDS = ("gru", "lstm", "fast-weights", "min-gru", "lru", "transformer")


@dataclass(frozen=True)
class Settings:
    """What advantages are made by."""

    discount: float = 0.99
    gae_lambda: float = 0.95
    normalize_advantage: Normalization = "batch"
    positive_advantage: bool = False


SHORT = Settings(0.9, 0.8)


class TableValue:
    """A stub of an actor-critic: the value that it says is an observation's only number."""

    def initial(self, lanes):
        return ()

    def apply(self, params, memory, obs, reset=None):
        return memory, (None, obs[..., 0])


def golden_sequences(end: str) -> Sequences:
    """Three steps whose lambda-returns are known; observations are their values."""
    last = np.array([[False, False, True]])
    return sequences_of(
        obs=np.array([[[0.5], [0.6], [0.7]]], np.float32),
        next_obs=np.array([[[0.6], [0.7], [0.8]]], np.float32),
        reward=np.array([[1.0, 2.0, 3.0]], np.float32),
        terminated=last & (end == "terminated"),
        truncated=last & (end == "truncated"),
    )


def sequences_of(obs, next_obs, reward, terminated, truncated, **more) -> Sequences:
    ends = terminated | truncated
    fields = {
        "action": np.zeros(reward.shape, np.int32),
        "log_prob": np.zeros_like(reward),
        "valid": np.ones_like(ends),
        "reset": np.pad(ends[:, :-1], ((0, 0), (1, 0))),
        "memory": (),
        "inputs": obs,
    }
    given = {"obs": obs, "next_obs": next_obs, "reward": reward}
    flags = {"terminated": terminated, "truncated": truncated}
    return Sequences(**jax.tree.map(jnp.asarray, {**given, **flags, **fields, **more}))


@functools.cache
def random_sequences(kind: str = "none") -> Sequences:
    """Three lanes of several episodes each, the last unfinished; with memory, its starts."""
    rng = np.random.default_rng(0)
    obs, other = rng.normal(size=(2, B, T, SIZE)).astype(np.float32)
    terminated, truncated = rng.random((2, B, T)) < 0.15
    ends = terminated | truncated
    follows = np.concatenate([obs[:, 1:], other[:, -1:]], axis=1)
    reward = rng.normal(size=(B, T)).astype(np.float32)
    empty = network(kind)[0].initial((B,))
    return sequences_of(
        obs=obs,
        next_obs=np.where(ends[..., None], other, follows),
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        memory=jax.tree.map(lambda x: np.abs(rng.normal(size=x.shape)).astype(x.dtype), empty),
    )


@functools.cache
def network(kind: str = "none"):
    """An actor-critic and random parameters."""
    actor_critic = ActorCritic(Discrete(2), (5,), MemoryConfig(kind, H).make())
    shapes = jax.eval_shape(lambda: init_params(actor_critic, KEY, SIZE))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: 0.5 * rng.normal(size=x.shape).astype(np.float32), shapes)
    return actor_critic, params


def estimate(settings, agent, sequences: Sequences, scales=None, **more):
    """What the agent, a network and its parameters, says of sequences."""
    return estimator.estimate(settings, *agent, scales or {}, sequences, **more)[0]


TABLE = (TableValue(), {})


@pytest.mark.parametrize("end", GOLDEN)
def test_lambda_return_golden_vector(end):
    got = estimate(SHORT, TABLE, golden_sequences(end))
    np.testing.assert_allclose(got.target[0], GOLDEN[end], rtol=1e-6)
    np.testing.assert_allclose(got.advantage[0] + got.value[0], GOLDEN[end], rtol=1e-6)


def test_standardised_advantage_golden_vector():
    sequences = golden_sequences("terminated")
    raw = estimate(SHORT, TABLE, sequences).advantage
    standard, _ = policy_advantage(SHORT, raw, sequences.valid, {})
    np.testing.assert_allclose(standard[0], [0.713142, 0.701055, -1.414196], atol=1e-6)


@pytest.mark.parametrize("normalization", ["batch", "sequence", "none"])
def test_advantages_have_the_moments_that_the_setting_says(normalization):
    rng = np.random.default_rng(0)
    raw = rng.normal(3.0, [[1.0], [5.0]], size=(2, 9)).astype(np.float32)
    valid = np.arange(9) < [[9], [6]]
    settings = Settings(normalize_advantage=normalization)
    got, scales = policy_advantage(settings, jnp.asarray(raw), jnp.asarray(valid), {})
    assert scales == {}
    parts = (
        [valid]
        if normalization == "batch"
        else [valid & (np.arange(2)[:, None] == i) for i in (0, 1)]
    )
    for part in parts:
        own = raw[part].astype(float)
        if normalization != "none":
            own = (own - own.mean()) / own.std()
        np.testing.assert_allclose(np.asarray(got)[part], own, atol=1e-5)


def test_shifted_advantages_are_positive_and_keep_their_differences():
    raw, valid = jnp.array([[1.0, -2.0, 4.0, -9.0]]), jnp.array([[True, True, True, False]])
    settings = Settings(normalize_advantage="none", positive_advantage=True)
    got = np.asarray(policy_advantage(settings, raw, valid, {})[0])[0, :3]
    assert 0 < got.min() < 1e-3
    np.testing.assert_allclose(got - got[0], [0.0, -3.0, 3.0], atol=1e-6)


def test_standardised_advantages_are_then_shifted():
    sequences = golden_sequences("terminated")
    raw = estimate(SHORT, TABLE, sequences).advantage
    settings = replace(SHORT, positive_advantage=True)
    shifted, _ = policy_advantage(settings, raw, sequences.valid, {})
    np.testing.assert_allclose(shifted[0], [2.127338, 2.115251, 1e-8], rtol=1e-5)


@pytest.mark.parametrize("normalization", ["none", "batch"])
def test_targets_do_not_depend_on_the_standardisation_of_advantages(normalization):
    settings = replace(SHORT, normalize_advantage=normalization)
    got = estimate(settings, TABLE, golden_sequences("truncated"))
    np.testing.assert_allclose(got.target[0], GOLDEN["truncated"], rtol=1e-6)


@pytest.mark.parametrize(
    ("end", "expected"), [("terminated", [5.23, 4.7, 3.0]), ("truncated", [5.8132, 5.348, 3.72])]
)
def test_monte_carlo_returns_bootstrap_only_where_something_follows(end, expected):
    got = estimate(SHORT, TABLE, golden_sequences(end), monte_carlo=True)
    np.testing.assert_allclose(got.target[0], expected, rtol=1e-6)


def test_a_lane_of_several_episodes_equals_each_alone():
    sequences = random_sequences()
    advantage_of = jax.jit(lambda part: estimate(Settings(), network(), part).advantage)
    whole = np.asarray(estimate(Settings(), network(), sequences).advantage)
    ends = np.asarray(sequences.terminated | sequences.truncated)
    for lane in range(B):
        bounds = [0, *(np.flatnonzero(ends[lane]) + 1), T]
        for start, stop in itertools.pairwise(bounds):
            if start < stop:
                part = jax.tree.map(lambda x, n=lane, a=start, b=stop: x[n : n + 1, a:b], sequences)
                alone = np.asarray(advantage_of(part))
                np.testing.assert_allclose(alone[0], whole[lane, start:stop], atol=1e-5)


def test_lambda_one_gives_the_return_minus_the_value():
    got = estimate(Settings(gae_lambda=1.0), network(), random_sequences())
    returns = estimate(Settings(), network(), random_sequences(), monte_carlo=True).target
    np.testing.assert_allclose(got.advantage, returns - got.value, atol=1e-5)


def test_lambda_zero_gives_the_temporal_difference():
    s = random_sequences()
    got = estimate(Settings(gae_lambda=0.0), network(), s)
    output, following = network_values(*network(), s)
    expected = s.reward + 0.99 * jnp.where(s.terminated, 0.0, following) - output
    np.testing.assert_allclose(got.advantage, expected, atol=1e-6)


def test_advantages_equal_a_slow_double_sum():
    s = random_sequences()
    got = np.asarray(estimate(Settings(), network(), s).advantage, float)
    output, following = (np.asarray(x, float) for x in network_values(*network(), s))
    delta = np.asarray(s.reward) + 0.99 * np.where(s.terminated, 0.0, following) - output
    ends = np.asarray(s.terminated | s.truncated)
    for b in range(B):
        for t in range(T):
            total, factor = 0.0, 1.0
            for k in range(t, T):
                total, factor = total + factor * delta[b, k], factor * 0.99 * 0.95
                if ends[b, k]:
                    break
            assert got[b, t] == pytest.approx(total, abs=1e-5)


@pytest.mark.parametrize(
    "kind", ["gru", *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])]
)
def test_a_recurrent_value_equals_that_of_the_whole_sequence(kind):
    actor_critic, params = network(kind)
    s = random_sequences(kind)
    output, _ = network_values(actor_critic, params, s)
    given = (params, s.memory, s.obs, s.reset)
    _, (_, expected) = actor_critic.apply(*given, method="sequence")
    np.testing.assert_allclose(output, expected, atol=1e-5)


def test_what_follows_a_step_is_seen_with_the_memory_after_it():
    actor_critic, params = network("gru")
    s = random_sequences("gru")
    _, following = network_values(actor_critic, params, s)

    @jax.jit
    def value_after(t):
        """Of the sequence where the step after `t` is at what followed `t`."""
        obs, reset = (jnp.concatenate([x, x[:, :1]], axis=1) for x in (s.obs, s.reset))
        seen = obs.at[:, t + 1].set(s.next_obs[:, t]), reset.at[:, t + 1].set(False)
        _, (_, values) = actor_critic.apply(params, s.memory, *seen, method="sequence")
        return values[:, t + 1]

    for t in range(T):
        np.testing.assert_allclose(following[:, t], value_after(t), atol=1e-5)


def test_inside_an_episode_the_next_value_is_the_value_of_the_next_step():
    s = random_sequences("gru")
    output, following = map(np.asarray, network_values(*network("gru"), s))
    inside = ~np.asarray(s.terminated | s.truncated)[:, :-1]
    np.testing.assert_allclose(following[:, :-1][inside], output[:, 1:][inside], atol=1e-5)
    assert np.abs(following[:, :-1][~inside] - output[:, 1:][~inside]).min() > 1e-4


def chain(num_lanes: int = 4) -> tuple[Sequences, np.ndarray]:
    """Five states in a row, one-hot, reward 1 at the end; and their Monte-Carlo returns."""
    obs = np.tile(np.eye(5, dtype=np.float32), (num_lanes, 1, 1))
    reward = np.tile(np.array([0.0, 0.5, 0.0, -0.5, 1.0], np.float32), (num_lanes, 1))
    last = np.tile(np.arange(5) == 4, (num_lanes, 1))
    following = np.concatenate([obs[:, 1:], obs[:, :1]], axis=1)
    returns = [sum(0.9 ** (k - t) * reward[0, k] for k in range(t, 5)) for t in range(5)]
    return sequences_of(obs, following, reward, last, np.zeros_like(last)), np.array(returns)


LINEAR = ActorCritic(Discrete(2), ())


def linear_state(fit: CriticConfig) -> State:
    """A fresh linear value on the chain."""
    params = init_params(LINEAR, KEY, 5)
    opt_state = {"value": optimizer(fit).init(part_of(params, "value"))}
    return State(params, opt_state, {}, jnp.array(0), KEY)


@pytest.mark.parametrize("advantage_from", ["old", "new"])
def test_a_linear_value_on_one_hot_states_learns_their_returns(advantage_from):
    sequences, returns = chain()
    fit = CriticConfig(num_epochs=40, num_minibatches=2, lr=0.02, advantage_from=advantage_from)
    config = PPOConfig(discount=0.9, critic=fit)
    update = jax.jit(lambda state: fit_critic(config, fit, LINEAR, state, sequences))
    state = linear_state(fit)
    for _ in range(25):
        state, batch, figures = update(state)
    _, (_, learned) = LINEAR.apply(state.params, LINEAR.initial((5,)), sequences.obs[0])
    np.testing.assert_allclose(learned, returns, atol=1e-2)
    assert float(figures["explained_variance"]) > 0.99
    assert float(figures["value_loss"]) < 1e-4
    assert batch.obs.shape == (20, 5)


@functools.cache
def first_fit(
    advantage_from: str = "old",
    normalization: Normalization = "none",
    *,
    in_units: bool = False,
) -> tuple[PPOConfig, Sequences, State, State, Batch]:
    """Settings, data, the states before and after a fit, and what the policy learns from."""
    sequences, _ = chain()
    fit = CriticConfig(num_epochs=5, num_minibatches=2, lr=0.1, advantage_from=advantage_from)
    config = PPOConfig(discount=0.9, normalize_advantage=normalization, critic=fit)
    before = linear_state(fit)
    if in_units:
        seen = jnp.array([[-1.0], [3.0]])
        scale = updated_moments(fresh_moments(1), seen, jnp.ones(2, bool))
        before = replace(before, moments={"return": scale})
    fitted = jax.jit(lambda state: fit_critic(config, fit, LINEAR, state, sequences))
    after, batch, _ = fitted(before)
    return config, sequences, before, after, batch


@pytest.mark.parametrize(
    ("advantage_from", "in_units"), [("old", False), ("new", False), ("new", True)]
)
def test_advantages_come_from_the_value_that_the_setting_says(advantage_from, in_units):
    """And, where values are in units of returns, from the units that it was fitted in."""
    config, sequences, before, after, batch = first_fit(advantage_from, in_units=in_units)
    unit = np.sqrt(after.moments["return"]["variance"]) if in_units else 1.0
    used, other = (before, after) if advantage_from == "old" else (after, before)
    expected, differs = (
        estimate(config, (LINEAR, x.params), sequences, x.moments).advantage / unit
        for x in (used, other)
    )
    np.testing.assert_allclose(batch.advantage, expected.reshape(-1), atol=1e-6)
    assert np.abs(np.asarray(batch.advantage - differs.reshape(-1))).max() > 0.01


@pytest.mark.parametrize("normalization", ["none", "batch"])
def test_targets_stay_those_of_the_value_before_its_fit(normalization):
    """And are of raw advantages, however those that the policy gets are scaled."""
    config, sequences, before, _, batch = first_fit(normalization=normalization)
    expected = estimate(config, (LINEAR, before.params), sequences).target
    np.testing.assert_allclose(batch.target, expected.reshape(-1), atol=1e-6)


@pytest.mark.parametrize("name", ["ppo", "trpo"])
def test_a_value_is_fitted_to_monte_carlo_returns_where_its_settings_say_so(name):
    sequences, returns = chain()
    settings = {"num_epochs": 1, "num_minibatches": 1, "monte_carlo_returns": True}
    fit = (CriticConfig if name == "ppo" else TRPOConfig)(**settings)
    config = PPOConfig(discount=0.9, critic=fit) if name == "ppo" else replace(fit, discount=0.9)
    fitted = jax.jit(lambda state: fit_critic(config, fit, LINEAR, state, sequences))
    _, batch, _ = fitted(linear_state(fit))
    np.testing.assert_allclose(batch.target.reshape(4, 5), np.tile(returns, (4, 1)), rtol=1e-5)


def test_a_fit_of_the_value_leaves_the_policy_as_it_was():
    _, _, before, after, _ = first_fit()
    for name, alike in (("policy", True), ("value", False)):
        pairs = zip(
            *(jax.tree.leaves(part_of(s.params, name)) for s in (before, after)), strict=True
        )
        assert all(np.array_equal(a, b) == alike for a, b in pairs), name


def test_moments_equal_numpys_of_all_data_seen():
    rng = np.random.default_rng(0)
    parts = [rng.normal(3.0, 2.0, size=(5, n, 2)).astype(np.float32) for n in (1, 7, 20)]
    moments, kept = fresh_moments(2), []
    for part in parts:
        valid = rng.random(part.shape[:2]) < 0.7
        moments = updated_moments(moments, jnp.asarray(part), jnp.asarray(valid))
        kept.append(part[valid])
    seen = np.concatenate(kept)
    np.testing.assert_allclose(moments["mean"], seen.mean(0), rtol=1e-5)
    np.testing.assert_allclose(np.sqrt(moments["variance"]), seen.std(0), rtol=1e-5)
    assert float(moments["count"]) == len(seen)


def test_running_moments_are_of_all_advantages_seen():
    settings, rng = Settings(normalize_advantage="running"), np.random.default_rng(0)
    scales, seen = {"advantage": fresh_moments(1)}, []
    for _ in range(3):
        raw = rng.normal(5.0, 2.0, size=(2, 6)).astype(np.float32)
        valid = np.ones_like(raw, bool)
        seen.append(raw)
        standard, scales = policy_advantage(settings, jnp.asarray(raw), jnp.asarray(valid), scales)
    everything = np.concatenate(seen)
    expected = (raw - everything.mean()) / everything.std()
    np.testing.assert_allclose(standard, expected, atol=1e-5)


def test_values_in_units_of_returns_give_the_same_advantages():
    """A network that says (V - mean) / std is worth the same as one that says V."""
    s = golden_sequences("truncated")
    moments = {"mean": jnp.ones(1) * 2.0, "variance": jnp.ones(1) * 9.0, "count": jnp.ones(())}
    scaled = replace(
        s, obs=standardized(s.obs, moments), next_obs=standardized(s.next_obs, moments)
    )
    plain = estimate(SHORT, TABLE, s)
    got, scales = estimator.estimate(SHORT, *TABLE, {"return": moments}, scaled)
    np.testing.assert_allclose(got.advantage, plain.advantage, rtol=1e-5)
    np.testing.assert_allclose(restored(got.target, scales["return"]), plain.target, rtol=1e-5)
    assert float(scales["return"]["count"]) == 4.0


def test_padding_changes_no_estimate():
    s = random_sequences()
    valid = np.arange(T) < np.array([[T], [7], [4]])
    garbage = replace(
        s,
        valid=jnp.asarray(valid),
        reward=jnp.where(valid, s.reward, 1e9),
        obs=jnp.where(valid[..., None], s.obs, 1e9),
        terminated=jnp.where(valid, s.terminated, True),
    )
    clean = replace(s, valid=jnp.asarray(valid))
    one, other = (estimate(Settings(), network(), x) for x in (clean, garbage))
    np.testing.assert_array_equal(one.advantage, other.advantage)
    np.testing.assert_array_equal(np.asarray(one.target)[valid], np.asarray(other.target)[valid])


def test_estimates_equal_a_loop_over_the_steps_of_each_lane():
    s = replace(random_sequences(), valid=jnp.asarray(np.arange(T) < [[T], [7], [4]]))
    steps = {name: np.asarray(getattr(s, name)) for name in ("reward", "valid")}
    steps |= {"terminated": np.asarray(s.terminated), "truncated": np.asarray(s.truncated)}
    output, following = (np.asarray(x) for x in network_values(*network(), s))
    expected = advantages.gae(steps, output, following, discount=0.9, gae_lambda=0.8)
    found = estimate(SHORT, network(), s)
    np.testing.assert_allclose(found.advantage, expected, atol=1e-5)
    target = np.asarray(found.target)[steps["valid"]]
    np.testing.assert_allclose(target, (expected + output)[steps["valid"]], atol=1e-5)
