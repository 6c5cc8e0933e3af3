import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.functional.value_losses import (
    clipped_value_loss,
    explained_variance,
    squared_value_loss,
)

VALUE, OLD = np.array([1.5, 0.0], np.float32), np.array([1.0, 0.1], np.float32)
TARGET = np.array([2.0, -1.0], np.float32)
MASK = np.array([True, True, True, False])


def test_squared_loss_is_half_the_square():
    np.testing.assert_allclose(squared_value_loss(VALUE, TARGET), [0.125, 0.5], rtol=1e-6)


def test_clipped_value_loss_golden():
    terms = clipped_value_loss(VALUE, OLD, TARGET, 0.2)
    np.testing.assert_allclose(terms, [0.32, 0.5], rtol=1e-6)
    assert float(jnp.mean(terms)) == pytest.approx(0.41, abs=1e-6)


def test_a_value_clipped_towards_its_target_has_zero_gradient():
    gradient = jax.grad(lambda v: jnp.sum(clipped_value_loss(v, OLD, TARGET, 0.2)))(VALUE)
    np.testing.assert_allclose(gradient, [0.0, 1.0], atol=1e-6)


def test_explained_variance_of_a_perfect_value_is_one():
    target = np.array([1.0, 2.0, 4.0, 99.0], np.float32)
    value = np.array([1.0, 2.0, 4.0, -99.0], np.float32)
    assert float(explained_variance(value, target, MASK)) == 1.0


def test_explained_variance_of_a_constant_is_zero():
    target = np.array([1.0, 2.0, 4.0, 99.0], np.float32)
    assert float(explained_variance(np.full(4, 7.0), target, MASK)) == pytest.approx(0.0, abs=1e-6)


def test_explained_variance_of_a_target_that_does_not_vary_is_zero():
    assert float(explained_variance(VALUE, np.ones(2), np.ones(2, bool))) == 0.0
