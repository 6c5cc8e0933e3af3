from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from adaptax.functional.q_learning import (
    ensemble_loss,
    of_action,
    soft_value,
    td_target,
    temperature_loss,
)

RNG = np.random.default_rng(0)


def test_sac_target_is_the_golden_one():
    q = jnp.minimum(3.0, 2.5)
    value = soft_value(q[None], jnp.array([-1.3]), 0.2)
    assert td_target(2.0, 0.99, jnp.array(False), value) == pytest.approx(4.7324, abs=1e-6)


def test_a_terminal_step_is_worth_its_reward_whatever_comes_after():
    target = td_target(jnp.array([2.0, 2.0]), 0.9, jnp.array([True, False]), jnp.array([7.0, 7.0]))
    np.testing.assert_allclose(target, [2.0, 2.0 + 0.9 * 7.0], rtol=1e-6)


def test_nothing_of_what_follows_an_absorbing_state_reaches_the_target():
    target = td_target(jnp.array([2.0]), 0.9, jnp.array([True]), jnp.array([jnp.nan]))
    assert target[0] == 2.0


def test_huber_loss_is_the_golden_one():
    assert jnp.mean(optax.huber_loss(jnp.array([0.5, -2.0]))) == pytest.approx(0.8125)


def test_only_the_taken_actions_output_has_a_gradient():
    q, action = jnp.array(RNG.normal(size=(4, 3)), jnp.float32), jnp.array([2, 0, 1, 1])
    grads = jax.grad(lambda q: jnp.sum(optax.huber_loss(of_action(q, action), 9.0)))(q)
    taken = jax.nn.one_hot(action, 3, dtype=bool)
    np.testing.assert_array_equal(grads != 0, taken)


def test_ensemble_loss_is_half_the_sum_of_mean_squared_errors():
    q, y = RNG.normal(size=(2, 5)), RNG.normal(size=5)
    expected = 0.5 * (np.mean((q[0] - y) ** 2) + np.mean((q[1] - y) ** 2))
    assert ensemble_loss(jnp.array(q), jnp.array(y)) == pytest.approx(expected, rel=1e-6)


def test_soft_value_over_all_actions_is_the_expectation_by_their_probabilities():
    q, logits = RNG.normal(size=(6, 4)), RNG.normal(size=(6, 4))
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = [
        sum(p[i, a] * (q[i, a] - 0.3 * np.log(p[i, a])) for a in range(4)) for i in range(6)
    ]
    found = soft_value(jnp.array(q), jnp.log(jnp.array(p)), 0.3, jnp.array(p))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(("log_prob", "rises"), [(3.0, True), (-3.0, False)])
def test_temperature_rises_where_entropy_is_below_its_target_and_falls_above(log_prob, rises):
    """With a target entropy of -1, log pi = 3 is too certain, -3 too random."""
    gradient = jax.grad(temperature_loss)(jnp.array(-1.6), jnp.full(8, log_prob), -1.0)
    assert (-gradient > 0) == rises
    assert gradient == pytest.approx(-(log_prob - 1.0))


def test_the_temperature_loss_leaves_the_policy_alone():
    grads = jax.grad(temperature_loss, argnums=1)(jnp.array(0.5), jnp.ones(8), -1.0)
    np.testing.assert_array_equal(grads, 0.0)


def test_tau_weighs_the_new_values():
    """From target 0 and online 1, .005 gives .005."""
    after = optax.incremental_update({"w": jnp.ones(3)}, {"w": jnp.zeros(3)}, 0.005)
    np.testing.assert_allclose(after["w"], 0.005, rtol=1e-6)
