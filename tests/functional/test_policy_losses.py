import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.functional.distributions import DiagonalGaussian
from adaptax.functional.masking import masked_mean
from adaptax.functional.policy_losses import (
    clipped_ratio_loss,
    likelihood_ratio_loss,
    policy_gradient_loss,
)

RATIO = np.array([0.5, 0.9, 1.3, 1.3], np.float32)
ADVANTAGE = np.array([1.0, -1.0, 2.0, -2.0], np.float32)
ZERO = np.zeros(4, np.float32)


def loss(log_prob: jax.Array) -> jax.Array:
    return jnp.mean(clipped_ratio_loss(log_prob, ZERO, ADVANTAGE, 0.2))


def test_clipped_terms_golden():
    terms = clipped_ratio_loss(np.log(RATIO), ZERO, ADVANTAGE, 0.2)
    np.testing.assert_allclose(terms, [-0.5, 0.9, -2.4, 2.6], rtol=1e-6)


def test_clipped_loss_golden():
    assert float(loss(np.log(RATIO))) == pytest.approx(0.15, abs=1e-6)


def test_clipped_samples_have_zero_gradient():
    ratio = np.array([1.3, 0.5, 1.3, 0.5], np.float32)
    advantage = np.array([2.0, -1.0, -2.0, 1.0], np.float32)

    def total(log_prob: jax.Array) -> jax.Array:
        return jnp.sum(clipped_ratio_loss(log_prob, ZERO, advantage, 0.2))

    gradient = jax.grad(total)(np.log(ratio))  # of the last two the clipped term is not the lesser
    np.testing.assert_allclose(gradient, [0.0, 0.0, 2.6, -0.5], rtol=1e-6)


def test_clipped_loss_at_the_old_policy_is_minus_mean_advantage():
    tilted = ADVANTAGE + 0.5
    terms = clipped_ratio_loss(ZERO, ZERO, tilted, 0.2)
    assert float(np.mean(terms)) == pytest.approx(-0.5, rel=1e-6)


def test_clipped_gradient_at_the_old_policy_is_the_policy_gradient():
    clipped = jax.grad(loss)(ZERO)
    plain = jax.grad(lambda x: jnp.mean(policy_gradient_loss(x, ADVANTAGE)))(ZERO)
    np.testing.assert_allclose(clipped, plain, rtol=1e-6)


def test_ratio_is_joint_over_action_dimensions():
    action, std = np.array([0.5, 0.4, -0.3]), np.zeros(3)
    old = DiagonalGaussian(np.zeros(3), std).log_prob(action)
    new = DiagonalGaussian(np.array([0.3, -0.2, 0.1]), std).log_prob(action)
    term = clipped_ratio_loss(new, old, 1.0, 0.2)
    assert -float(term) == pytest.approx(0.970446, abs=1e-6)


def test_policy_gradient_terms_are_minus_advantage_times_log_prob():
    terms = policy_gradient_loss(np.array([-1.0, -2.0]), np.array([3.0, -4.0]))
    np.testing.assert_allclose(terms, [3.0, -8.0], rtol=1e-6)


@pytest.mark.parametrize("loss", [likelihood_ratio_loss, clipped_ratio_loss])
def test_padding_that_is_far_likelier_than_recorded_reaches_no_gradient(loss):
    """A narrow policy of many dimensions, whose mean in padding is next to the zeros there."""
    action, valid = jnp.zeros((2, 17)).at[0].set(1.0), jnp.array([True, False])
    log_std = jnp.full(17, jnp.log(1e-3))
    old = DiagonalGaussian(action + 1e-3, log_std).log_prob(action)
    rest = (0.2, valid) if loss is clipped_ratio_loss else (valid,)

    def mean_loss(mean: jax.Array) -> jax.Array:
        log_prob = DiagonalGaussian(mean * action, log_std).log_prob(action)
        terms = loss(log_prob, old * valid, jnp.array([1.0, 0.0]), *rest)
        return masked_mean(terms, valid)

    gradient = jax.grad(mean_loss)(jnp.ones(17))
    assert np.isfinite(gradient).all()
