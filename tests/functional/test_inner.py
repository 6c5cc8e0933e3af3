"""Derivatives of the inner objectives, and of the step that descends them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.functional.distributions import Categorical, DiagonalGaussian
from adaptax.functional.inner import dice_loss, inner_step, magic_box
from adaptax.functional.policy_losses import likelihood_ratio_loss, policy_gradient_loss

MEAN, STD, ALPHA = 0.2, 0.5, 0.1
ACTION = np.array([0.7, -0.3, 0.1, 0.9])
ADVANTAGE = np.array([1.0, -0.5, 0.25, 0.5])
ROWS, REWARDS = ACTION.reshape(2, 2), np.array([[1.0, -0.5], [0.25, 0.5]])
TO_GO = np.cumsum(REWARDS[:, ::-1], axis=1)[:, ::-1]
VALID = np.ones((2, 2), bool)


@pytest.fixture(autouse=True)
def float64():
    with jax.enable_x64(True):
        yield


def log_prob(mean, action):
    """Of a scalar Gaussian."""
    each = jnp.full((*action.shape, 1), mean)
    log_std = jnp.full_like(each, np.log(STD))
    return DiagonalGaussian(each, log_std).log_prob(jnp.asarray(action)[..., None])


def ratio(mean, action, advantage):
    return likelihood_ratio_loss(log_prob(mean, action), log_prob(MEAN, action), advantage)


def log_likelihood(mean, action, advantage):
    return policy_gradient_loss(log_prob(mean, action), advantage)


def dice(mean, action, reward):
    return dice_loss(log_prob(mean, action), reward, VALID)


ONE_STEP = {
    "ratio": lambda mean: jnp.mean(ratio(mean, ACTION, ADVANTAGE)),
    "log-likelihood": lambda mean: jnp.mean(log_likelihood(mean, ACTION, ADVANTAGE)),
    # Actions that end their episode at once: nothing is carried from one to the next.
    "dice": lambda mean: jnp.mean(
        dice_loss(log_prob(mean, ACTION[:, None]), ADVANTAGE[:, None], np.ones((4, 1), bool))
    ),
}
TWO_STEPS = {
    "dice": lambda mean: jnp.mean(dice(mean, ROWS, REWARDS).sum(1)),
    "low-variance curvature": lambda mean: jnp.mean(ratio(mean, ROWS, TO_GO).sum(1)),
    "log-likelihood": lambda mean: jnp.mean(log_likelihood(mean, ROWS, TO_GO).sum(1)),
}


@pytest.mark.parametrize(
    ("name", "hessian"), [("ratio", -0.24), ("log-likelihood", 1.25), ("dice", -0.24)]
)
def test_objectives_of_one_step_have_one_gradient_and_their_own_hessian(name, hessian):
    objective = ONE_STEP[name]
    assert float(jax.grad(objective)(MEAN)) == pytest.approx(-1.075, abs=1e-12)
    assert float(jax.grad(jax.grad(objective))(MEAN)) == pytest.approx(hessian, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "hessian"),
    [("dice", -0.96), ("low-variance curvature", 0.48), ("log-likelihood", 2.5)],
)
def test_objectives_of_two_steps_have_one_gradient_and_their_own_hessian(name, hessian):
    objective = TWO_STEPS[name]
    assert float(jax.grad(objective)(MEAN)) == pytest.approx(-1.55, abs=1e-12)
    assert float(jax.grad(jax.grad(objective))(MEAN)) == pytest.approx(hessian, abs=1e-12)


@pytest.mark.parametrize(
    ("name", "first_order", "slope"),
    [("ratio", False, 1.024), ("log-likelihood", False, 0.875), ("ratio", True, 1.0)],
)
def test_a_step_moves_alike_and_its_derivative_tells_them_apart(name, first_order, slope):
    def stepped(mean):
        objective = ONE_STEP[name]
        return inner_step(lambda x: (objective(x), None), mean, ALPHA, first_order=first_order)[0]

    assert float(stepped(MEAN)) == pytest.approx(0.3075, abs=1e-12)
    assert float(jax.grad(stepped)(MEAN)) == pytest.approx(slope, abs=1e-12)


def test_every_array_has_a_step_size_of_its_own():
    params = {"a": jnp.array([1.0, 2.0]), "b": jnp.array(3.0)}

    def square(p):
        return jnp.sum(p["a"] ** 2) + p["b"] ** 2, 2 * p["b"]

    new, besides = inner_step(square, params, {"a": 0.1, "b": 0.25})
    np.testing.assert_allclose(new["a"], [0.8, 1.6])
    np.testing.assert_allclose(new["b"], 1.5)
    assert float(besides) == 6.0


def test_the_magic_box_is_1_with_the_derivatives_of_exp():
    assert float(magic_box(jnp.array(5.0))) == 1.0
    assert float(jax.grad(magic_box)(5.0)) == 1.0
    assert float(jax.grad(jax.grad(magic_box))(5.0)) == 1.0


def test_expected_dice_derivatives_are_those_of_the_expected_return():
    """All eight courses of a game of three choices with rewards for what was chosen before."""
    actions = np.array(list(itertools.product([0, 1], repeat=3)))
    rewards = np.cumsum(actions * [1.0, -2.0, 0.5], axis=1) * [1.0, 0.9, 0.81]
    rows = np.arange(3)

    def log_probs(theta):
        logits = jnp.stack([theta[0] * rows, theta[1] - 0.3 * rows], axis=-1)
        return Categorical(jnp.broadcast_to(logits, (8, 3, 2))).log_prob(jnp.asarray(actions))

    def expected_return(theta):
        return jnp.sum(jnp.exp(log_probs(theta).sum(1)) * rewards.sum(1))

    theta = jnp.array([0.4, -0.2])
    chance = jax.lax.stop_gradient(jnp.exp(log_probs(theta).sum(1)))

    def expected_dice(x):
        return jnp.sum(chance * dice_loss(log_probs(x), rewards, np.ones((8, 3), bool)).sum(1))

    for order in (jax.grad, jax.hessian):
        expected = -jax.jit(order(expected_return))(theta)
        assert float(jnp.abs(expected).max()) > 0.05
        np.testing.assert_allclose(jax.jit(order(expected_dice))(theta), expected, rtol=1e-10)


def test_dice_ignores_padding():
    padded = np.array([[True, False], [True, True]])
    reward = np.where(padded, REWARDS, 0.0)

    def objective(mean, action):
        return jnp.sum(dice_loss(log_prob(mean, action), reward, padded))

    polluted = np.where(padded, ROWS, 1e3)
    for order in (jax.grad, jax.hessian):
        derivative = jax.jit(order(objective))
        np.testing.assert_array_equal(derivative(MEAN, polluted), derivative(MEAN, ROWS))
