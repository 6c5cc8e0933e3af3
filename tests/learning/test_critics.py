"""Critics: the linear baseline by closed forms, two-hot values by hand, what cannot be."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trial_agents import (
    SMALL_TRIALS,
    check_goes_on_as_if_nothing_had_happened,
    check_padding_counts_for_nothing,
)

from adaptax.core.errors import ConfigError
from adaptax.core.spec import Continuous, EnvSpec
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.functional.two_hot import symlog_bins, two_hot_value
from adaptax.learning.critics import LinearBaseline, TwoHotNetwork
from adaptax.learning.sequences import Sequences
from adaptax.networks.actor_critic import ActorCritic, init_params

KEY = jax.random.key(0)
CRITICS = {"two_hot": {"num_bins": 7, "max_return": 5.0}, "linear": {}}


def trials(reward, lengths, obs=None) -> Sequences:
    """Trials of so many steps, the rest padding; all end as if they had terminated."""
    reward = np.asarray(reward, np.float32)
    num, length = reward.shape
    valid = np.arange(length) < np.asarray(lengths)[:, None]
    seen = np.zeros((num, length + 1, 1), np.float32) if obs is None else obs
    nothing = np.zeros_like(valid)
    return Sequences(
        obs=jnp.asarray(np.where(valid[..., None], seen[:, :-1], 0)),
        next_obs=jnp.asarray(np.where(valid[..., None], seen[:, 1:], 0)),
        action=jnp.zeros((num, length, 1)),
        reward=jnp.asarray(np.where(valid, reward, 0)),
        log_prob=jnp.zeros((num, length)),
        terminated=jnp.asarray(np.arange(length) == np.asarray(lengths)[:, None] - 1),
        truncated=jnp.asarray(nothing),
        valid=jnp.asarray(valid),
        reset=jnp.asarray(nothing),
        memory=(),
        inputs=jnp.zeros((num, length, 1)),
        trials=True,
    )


def baseline(sequences: Sequences, discount: float = 1.0):
    value, after = LinearBaseline(discount).values(None, None, sequences)
    assert value.dtype == after.dtype == jnp.float32
    return np.asarray(value), np.asarray(after)


def test_returns_that_are_linear_in_time_are_the_baselines_values():
    value, after = baseline(trials(np.ones((3, 50)), [50, 50, 50]))
    left = 50.0 - np.arange(51)  # but for the ridge
    np.testing.assert_allclose(value, np.tile(left[:-1], (3, 1)), atol=1e-3)
    np.testing.assert_allclose(after, np.tile(left[1:], (3, 1)), atol=1e-3)


def test_all_trials_together_have_one_fit_which_tells_them_apart_by_what_is_seen():
    signs = np.array([[1.0], [-1.0], [1.0], [-1.0]])
    obs = np.tile(signs[..., None], (1, 9, 1)).astype(np.float32)
    reward = np.zeros((4, 8))
    reward[:, -1] = signs[:, 0]
    value, after = baseline(trials(reward, [8] * 4, obs))
    np.testing.assert_allclose(value, np.tile(signs, (1, 8)), atol=1e-4)
    np.testing.assert_allclose(after, np.tile(signs, (1, 8)), atol=1e-4)


def test_trials_of_thousands_of_steps_have_the_least_squares_cubic_in_time():
    rng, length = np.random.default_rng(0), 5000
    reward = rng.normal(1.0, 1.0, (2, length))
    value, _ = baseline(trials(reward, [length, length]))
    tau = np.tile(np.arange(length) / length, 2)
    returns = np.cumsum(reward[:, ::-1], axis=1)[:, ::-1].ravel()
    cubic = np.polynomial.polynomial.Polynomial.fit(tau, returns, 3)
    np.testing.assert_allclose(value.ravel(), cubic(tau), rtol=1e-4, atol=0.01)


def test_padding_has_no_part_in_the_fit():
    rng = np.random.default_rng(0)
    reward, obs = rng.normal(size=(3, 6)), rng.normal(size=(3, 7, 1)).astype(np.float32)
    short = trials(reward, [6, 3, 4], obs)
    value, after = baseline(short, 0.9)
    rows, returns = [], []
    for i, length in enumerate([6, 3, 4]):
        for t in range(length):
            o, tau = float(obs[i, t, 0]), t / 6
            rows.append([o, o * o, tau, tau**2, tau**3, 1])
            returns.append(sum(0.9 ** (k - t) * reward[i, k] for k in range(t, length)))
    rows, ridge = np.array(rows), np.sqrt(1e-5) * np.eye(6)
    targets = np.concatenate([returns, np.zeros(6)])
    weights = np.linalg.lstsq(np.concatenate([rows, ridge]), targets, rcond=None)[0]
    valid = np.asarray(short.valid)
    np.testing.assert_allclose(value[valid], rows @ weights, rtol=1e-4, atol=1e-4)
    within = valid[:, 1:]
    np.testing.assert_allclose(after[:, :-1][within], value[:, 1:][within], rtol=1e-6)


def test_a_fit_under_vmap_is_that_of_each():
    rng = np.random.default_rng(0)
    both = [trials(rng.normal(size=(2, 5)), [5, 4]) for _ in range(2)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *both)
    found = jax.jit(jax.vmap(lambda s: LinearBaseline(0.9).values(None, None, s)[0]))(stacked)
    for own, part in zip(found, both, strict=True):
        np.testing.assert_allclose(own, baseline(part, 0.9)[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["plain", "generated"])
def test_two_hot_values_begin_at_zero_whatever_is_seen(kind):
    spec = EnvSpec(2, Continuous(2), 5)
    heads = {"kind": kind, "hidden_sizes": (3,)}
    algorithm = make_algorithm("rl2-ppo", spec, **SMALL_TRIALS, critic="two_hot", heads=heads)
    network = algorithm.networks
    params, x = init_params(network, KEY, 6), jax.random.normal(KEY, (20, 6))
    _, (_, logits) = network.apply(params, network.initial((20,)), x)
    assert logits.shape == (20, 101)
    values = np.asarray(two_hot_value(logits, symlog_bins(101, 1e4)))
    np.testing.assert_array_equal(values, 0.0)


def test_networks_of_ones_own_without_logits_are_refused_by_name():
    network = ActorCritic(Continuous(1), (3,))
    params = init_params(network, KEY, 1)
    critic = TwoHotNetwork(symlog_bins(7, 5.0))
    with pytest.raises(ConfigError) as refused:
        critic.values(network, params, trials(np.ones((2, 4)), [4, 4]))
    assert str(refused.value) == (
        "critic 'two_hot' needs networks that give 7 logits for a value: [2, 4, 7], not [2, 4]"
    )


@pytest.mark.slow
@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.parametrize("name", ["rl2-ppo", "varibad"])
def test_algorithms_take_them_and_padding_changes_nothing(name, critic):
    settings = {**SMALL_TRIALS, "critic": critic, **CRITICS[critic]}
    check_padding_counts_for_nothing(lambda spec: make_algorithm(name, spec, **settings))


@pytest.mark.slow
@pytest.mark.parametrize("critic", CRITICS)
@pytest.mark.parametrize("name", ["rl2-ppo", "varibad"])
def test_a_run_with_them_goes_on_as_if_nothing_had_happened(name, critic, tmp_path):
    bounds = {"min_std": 0.4, "max_std": 1.5, "tanh_mean": True}
    settings = {**SMALL_TRIALS, **bounds, "critic": critic, **CRITICS[critic]}
    config = check_goes_on_as_if_nothing_had_happened(
        lambda spec: make_algorithm(name, spec, **settings), tmp_path
    )
    assert config.critic == critic


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"critic": "two_hot", "num_bins": 1}, "num_bins must be at least 2, not 1"),
        ({"max_return": 0.0}, "max_return must be greater than 0, not 0.0"),
        (
            {"critic": "linear", "normalize_returns": True},
            "critic 'linear' needs normalize_returns off: it is fitted to returns as they are",
        ),
    ],
)
@pytest.mark.parametrize("name", ["rl2-ppo", "varibad"])
def test_settings_that_cannot_be_are_refused(name, settings, message):
    with pytest.raises(ConfigError) as refused:
        make_algorithm(name, EnvSpec(2, Continuous(2), 5), **settings)
    assert str(refused.value) == message


def test_a_linear_baseline_takes_no_pictures():
    with pytest.raises(ConfigError, match="critic 'linear' does not take pictures"):
        make_algorithm("rl2-ppo", make_suite("catch").spec, critic="linear")
