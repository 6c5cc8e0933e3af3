"""The estimator: golden values, targets, fits, and what it does at boundaries."""

import functools
import itertools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import advantages

from adaptax.core.errors import ConfigError
from adaptax.learning.estimator import GAE, CriticConfig
from adaptax.learning.minibatches import optimizer
from adaptax.learning.sequences import Sequences
from adaptax.networks.actor_critic import Body, Value
from adaptax.networks.normalizer import fresh_moments, restored, standardized, updated_moments

KEY = jax.random.key(0)
B, T, SIZE, H = 3, 12, 2, 4
GOLDEN = {"terminated": [4.19392, 4.286, 3.0], "truncated": [4.567168, 4.8044, 3.72]}


class TableValue:
    """A stub of a value network: what it says is an observation's only number."""

    def apply(self, params, obs, memory=None, reset=None):
        return obs[..., 0], None


def golden_sequences(end: str) -> Sequences:
    """The golden vector of conformance 2.2; observations are their values."""
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
        "memory": {},
    }
    given = {"obs": obs, "next_obs": next_obs, "reward": reward}
    flags = {"terminated": terminated, "truncated": truncated}
    return Sequences(**jax.tree.map(jnp.asarray, {**given, **flags, **fields, **more}))


@functools.cache
def random_sequences(memory: bool = False) -> Sequences:
    """Three lanes of several episodes each, the last unfinished; with memory, its starts."""
    rng = np.random.default_rng(0)
    obs, other = rng.normal(size=(2, B, T, SIZE)).astype(np.float32)
    terminated, truncated = rng.random((2, B, T)) < 0.15
    ends = terminated | truncated
    follows = np.concatenate([obs[:, 1:], other[:, -1:]], axis=1)
    start = rng.normal(size=(B, H)).astype(np.float32)
    return sequences_of(
        obs=obs,
        next_obs=np.where(ends[..., None], other, follows),
        reward=rng.normal(size=(B, T)).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        memory={"value": start} if memory else {},
    )


@functools.cache
def network(memory_size: int | None = None):
    value = Value(Body((5,), memory_size))
    memory = None if memory_size is None else jnp.zeros((1, memory_size))
    shapes = jax.eval_shape(lambda: value.init(KEY, jnp.zeros((1, 1, SIZE)), memory))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: 0.5 * rng.normal(size=x.shape).astype(np.float32), shapes)
    return value, params


def estimate(critic: GAE, params, sequences: Sequences, scales=None, **settings):
    return critic.estimate(params, scales or {}, sequences, **settings)[0]


@pytest.mark.parametrize("end", GOLDEN)
def test_lambda_return_golden_vector(end):
    critic = GAE(TableValue(), 0.9, 0.8)
    got = estimate(critic, {}, golden_sequences(end))
    np.testing.assert_allclose(got.target[0], GOLDEN[end], rtol=1e-6)
    np.testing.assert_allclose(got.advantage[0] + got.value[0], GOLDEN[end], rtol=1e-6)


def test_standardised_advantage_golden_vector():
    critic, sequences = GAE(TableValue(), 0.9, 0.8), golden_sequences("terminated")
    raw = estimate(critic, {}, sequences).advantage
    standard, _ = critic.policy_advantage(raw, sequences.valid, {})
    np.testing.assert_allclose(standard[0], [0.713142, 0.701055, -1.414196], atol=1e-6)


@pytest.mark.parametrize("standardize_adv", [True, False])
def test_targets_do_not_depend_on_the_standardisation_of_advantages(standardize_adv):
    critic = GAE(TableValue(), 0.9, 0.8, standardize_adv)
    got = estimate(critic, {}, golden_sequences("truncated"))
    np.testing.assert_allclose(got.target[0], GOLDEN["truncated"], rtol=1e-6)


@pytest.mark.parametrize(
    ("end", "expected"), [("terminated", [5.23, 4.7, 3.0]), ("truncated", [5.8132, 5.348, 3.72])]
)
def test_empirical_returns_bootstrap_only_where_something_follows(end, expected):
    critic = GAE(TableValue(), 0.9, 0.8)
    got = estimate(critic, {}, golden_sequences(end), empirical=True)
    np.testing.assert_allclose(got.target[0], expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["discount", "gae_lambda"])
@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_discount_and_lambda_outside_the_unit_interval_are_refused(name, value):
    with pytest.raises(ConfigError, match=name):
        GAE(TableValue(), **{name: value})


def test_a_lane_of_several_episodes_equals_each_alone():
    value, params = network()
    sequences, critic = random_sequences(), GAE(value)
    whole = np.asarray(estimate(critic, params, sequences).advantage)
    ends = np.asarray(sequences.terminated | sequences.truncated)
    for lane in range(B):
        bounds = [0, *(np.flatnonzero(ends[lane]) + 1), T]
        for start, stop in itertools.pairwise(bounds):
            if start < stop:
                part = jax.tree.map(lambda x, n=lane, a=start, b=stop: x[n : n + 1, a:b], sequences)
                alone = np.asarray(estimate(critic, params, part).advantage)
                np.testing.assert_allclose(alone[0], whole[lane, start:stop], atol=1e-5)


def test_lambda_one_gives_the_return_minus_the_value():
    value, params = network()
    got = estimate(GAE(value, gae_lambda=1.0), params, random_sequences())
    returns = estimate(GAE(value), params, random_sequences(), empirical=True).target
    np.testing.assert_allclose(got.advantage, returns - got.value, atol=1e-5)


def test_lambda_zero_gives_the_temporal_difference():
    value, params = network()
    s = random_sequences()
    got = estimate(GAE(value, gae_lambda=0.0), params, s)
    output, following = GAE(value).values(params, s)
    expected = s.reward + 0.99 * jnp.where(s.terminated, 0.0, following) - output
    np.testing.assert_allclose(got.advantage, expected, atol=1e-6)


def test_advantages_equal_a_slow_double_sum():
    value, params = network()
    s, got = random_sequences(), None
    got = np.asarray(estimate(GAE(value), params, s).advantage, float)
    output, following = (np.asarray(x, float) for x in GAE(value).values(params, s))
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


def test_a_recurrent_value_step_by_step_equals_the_whole_sequence():
    value, params = network(H)
    s = random_sequences(memory=True)
    output, following = GAE(value).values(params, s)
    memory, states = s.memory["value"], []
    for t in range(T):
        memory = jnp.where(s.reset[:, t, None], 0.0, memory)
        one, after = value.apply(params, s.obs[:, t, None], memory)
        np.testing.assert_allclose(output[:, t], one[:, 0], atol=1e-5)
        memory = after[:, 0]
        states.append(memory)
        next_one, _ = value.apply(params, s.next_obs[:, t, None], memory)
        np.testing.assert_allclose(following[:, t], next_one[:, 0], atol=1e-5)


def test_inside_an_episode_the_next_value_is_the_value_of_the_next_step():
    value, params = network(H)
    s = random_sequences(memory=True)
    output, following = map(np.asarray, GAE(value).values(params, s))
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


@pytest.mark.parametrize("adv_from", ["old", "new"])
def test_a_linear_value_on_one_hot_states_learns_their_returns(adv_from):
    sequences, returns = chain()
    value = Value(Body(()))
    params = value.init(KEY, sequences.obs)
    config = CriticConfig(num_epoch=40, batch_size=10, lr=0.02, adv_from=adv_from)
    critic = GAE(value, 0.9, 0.95)
    update = jax.jit(lambda now, key: critic.update(config, now, {}, sequences, key))
    now = (params, optimizer(config).init(params))
    for i in range(25):
        now, _, batch, figures = update(now, jax.random.fold_in(KEY, i))
    learned, _ = value.apply(now[0], sequences.obs[0])
    np.testing.assert_allclose(learned, returns, atol=1e-2)
    assert float(figures["explained_variance"]) > 0.99
    assert float(figures["value_loss"]) < 1e-4
    assert batch.obs.shape == (20, 5)


def first_update(config: CriticConfig, *, standardize_adv: bool = False):
    sequences, _ = chain()
    value = Value(Body(()))
    params = value.init(KEY, sequences.obs)
    critic = GAE(value, 0.9, 0.95, standardize_adv)
    start = (params, optimizer(config).init(params))
    end, _, batch, _ = critic.update(config, start, {}, sequences, KEY)
    return critic, sequences, start[0], end[0], batch


@pytest.mark.parametrize("adv_from", ["old", "new"])
def test_advantages_come_from_the_value_that_the_setting_says(adv_from):
    config = CriticConfig(num_epoch=5, batch_size=10, lr=0.1, adv_from=adv_from)
    critic, sequences, before, after, batch = first_update(config)
    used, other = (before, after) if adv_from == "old" else (after, before)
    expected, differs = (estimate(critic, p, sequences).advantage for p in (used, other))
    np.testing.assert_allclose(batch.advantage, expected.reshape(-1), atol=1e-6)
    assert np.abs(np.asarray(batch.advantage - differs.reshape(-1))).max() > 0.01


@pytest.mark.parametrize("standardize_adv", [True, False])
def test_targets_stay_those_of_the_value_before_its_fit(standardize_adv):
    """And are of raw advantages, however those that the policy gets are scaled."""
    config = CriticConfig(num_epoch=5, batch_size=10)
    critic, sequences, before, _, batch = first_update(config, standardize_adv=standardize_adv)
    expected = estimate(critic, before, sequences).target
    np.testing.assert_allclose(batch.target, expected.reshape(-1), atol=1e-6)


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


def test_the_running_standardiser_uses_all_advantages_seen():
    critic, rng = GAE(TableValue()), np.random.default_rng(0)
    scales, seen = {"advantage": fresh_moments(1)}, []
    for _ in range(3):
        raw = rng.normal(5.0, 2.0, size=(2, 6)).astype(np.float32)
        valid = np.ones_like(raw, bool)
        seen.append(raw)
        standard, scales = critic.policy_advantage(jnp.asarray(raw), jnp.asarray(valid), scales)
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
    critic = GAE(TableValue(), 0.9, 0.8)
    plain = estimate(critic, {}, s)
    got, scales = critic.estimate({}, {"return": moments}, scaled)
    np.testing.assert_allclose(got.advantage, plain.advantage, rtol=1e-5)
    np.testing.assert_allclose(restored(got.target, scales["return"]), plain.target, rtol=1e-5)
    assert float(scales["return"]["count"]) == 4.0


def test_padding_changes_no_estimate():
    value, params = network()
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
    one, other = (estimate(GAE(value), params, x) for x in (clean, garbage))
    np.testing.assert_array_equal(one.advantage, other.advantage)
    np.testing.assert_array_equal(np.asarray(one.target)[valid], np.asarray(other.target)[valid])


def test_estimates_equal_a_loop_over_the_steps_of_each_lane():
    value, params = network()
    s = replace(random_sequences(), valid=jnp.asarray(np.arange(T) < [[T], [7], [4]]))
    steps = {name: np.asarray(getattr(s, name)) for name in ("reward", "valid")}
    steps |= {"terminated": np.asarray(s.terminated), "truncated": np.asarray(s.truncated)}
    output, following = (np.asarray(value.apply(params, x)[0]) for x in (s.obs, s.next_obs))
    expected = advantages.gae(steps, output, following, discount=0.9, gae_lambda=0.8)
    found = estimate(GAE(value, 0.9, 0.8), params, s)
    np.testing.assert_allclose(found.advantage, expected, atol=1e-5)
    target = np.asarray(found.target)[steps["valid"]]
    np.testing.assert_allclose(target, (expected + output)[steps["valid"]], atol=1e-5)
