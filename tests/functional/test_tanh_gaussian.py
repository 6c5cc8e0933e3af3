from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.functional.distributions import TanhGaussian


def one(mean: float, std: float) -> TanhGaussian:
    return TanhGaussian(jnp.array([mean]), jnp.log(jnp.array([std])))


@pytest.mark.parametrize(
    ("mean", "std", "u", "expected"), [(0.0, 5.0, 8.0, 10.805329), (0.3, 0.5, 0.9, -0.226130493)]
)
def test_log_prob_is_the_golden_one(mean, std, u, expected):
    found = one(mean, std).log_prob_of_unbounded(jnp.array([u]))
    assert found == pytest.approx(expected, abs=3e-6)


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (0.7, 0.3), (-0.5, 0.6)])
def test_density_integrates_to_one(mean, std):
    edges = jnp.tanh(jnp.linspace(-6.0, 6.0, 20001))
    middle, width = (edges[1:] + edges[:-1]) / 2, jnp.diff(edges)
    density = jnp.exp(jax.vmap(lambda a: one(mean, std).log_prob(a[None]))(middle))
    assert jnp.sum(density * width) == pytest.approx(1.0, abs=1e-3)


def test_log_prob_is_joint_over_dimensions():
    whole = TanhGaussian(jnp.array([0.1, -0.4, 0.8]), jnp.log(jnp.array([0.5, 1.0, 0.2])))
    u = jnp.array([0.3, 0.2, 0.7])
    each = TanhGaussian(whole.mean[:, None], whole.log_std[:, None])
    parts = each.log_prob_of_unbounded(u[:, None])
    assert whole.log_prob_of_unbounded(u) == pytest.approx(float(parts.sum()), abs=1e-5)


def test_a_draw_comes_with_its_own_log_prob():
    distribution = TanhGaussian(jnp.full((100, 2), 0.2), jnp.full((100, 2), -0.5))
    action, log_prob = distribution.sample_and_log_prob(jax.random.key(0))
    np.testing.assert_allclose(log_prob, distribution.log_prob(action), rtol=1e-3, atol=1e-3)
    np.testing.assert_array_equal(action, distribution.sample(jax.random.key(0)))


def test_actions_at_the_bound_have_a_finite_log_prob_and_gradient():
    distribution = one(0.0, 1.0)
    value, slope = jax.value_and_grad(lambda a: distribution.log_prob(a))(jnp.array([1.0]))
    assert np.isfinite(value)
    assert np.all(np.isfinite(slope))
    far = TanhGaussian(jnp.array([30.0]), jnp.array([0.0]))
    action, log_prob = far.sample_and_log_prob(jax.random.key(0))
    assert action[0] == 1.0
    assert np.isfinite(log_prob)


def test_kl_is_that_of_draws():
    p, q = one(0.4, 0.6), one(-0.1, 0.9)
    u = (
        p.unbounded.sample(jax.random.key(1)) * 0
        + 0.4
        + 0.6 * jax.random.normal(jax.random.key(2), (200_000, 1))
    )
    sampled = jnp.mean(p.log_prob_of_unbounded(u) - q.log_prob_of_unbounded(u))
    assert p.kl(q) == pytest.approx(float(sampled), abs=0.01)


def test_log_prob_has_the_gradient_of_the_formula_on_both_sides_of_zero():
    distribution, u = one(0.0, 1.0), jnp.array([[-9.0], [-0.3], [0.0], [0.7], [9.0]])
    slopes = jax.vmap(jax.grad(distribution.log_prob_of_unbounded))(u)
    np.testing.assert_allclose(slopes, -u + 2 * jnp.tanh(u), atol=1e-5)


def test_the_mode_is_the_squashed_mean():
    assert one(0.5, 2.0).mode()[0] == pytest.approx(np.tanh(0.5), rel=1e-6)
