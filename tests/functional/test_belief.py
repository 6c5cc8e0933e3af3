import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.functional.belief import Belief, average, prior, product_of_gaussians

RNG = np.random.default_rng(0)
KEY = jax.random.key(0)
MEAN = jnp.array([[1.0], [3.0]])
VARIANCE = jnp.array([[1.0], [3.0]])
BOTH = jnp.array([True, True])


def factors(num: int = 6, dims: int = 3):
    mean = jnp.asarray(RNG.normal(size=(num, dims)), jnp.float32)
    return mean, jnp.asarray(RNG.uniform(0.1, 2.0, (num, dims)), jnp.float32)


def test_product_of_gaussians_is_the_golden_one():
    belief = product_of_gaussians(MEAN, VARIANCE, BOTH)
    np.testing.assert_allclose((belief.mean[0], belief.variance[0]), (1.5, 0.75), rtol=1e-6)


def test_kl_from_the_prior_is_the_golden_one():
    belief = product_of_gaussians(MEAN, VARIANCE, BOTH)
    assert belief.kl_from_prior() == pytest.approx(1.143841, abs=1e-6)


def test_product_is_the_normalised_product_of_densities():
    """On a grid, with mean and variance by summation."""
    mean, variance = (np.asarray(x, np.float64) for x in factors(5, 1))
    z = np.linspace(-15, 15, 200_001)
    density = np.exp(-0.5 * ((z - mean) ** 2 / variance).sum(0))
    density /= density.sum()
    expected = (density * z).sum()
    belief = product_of_gaussians(jnp.array(mean), jnp.array(variance), jnp.ones(5, bool))
    assert belief.mean[0] == pytest.approx(expected, abs=1e-5)
    assert belief.variance[0] == pytest.approx((density * (z - expected) ** 2).sum(), abs=1e-5)


def test_kl_is_the_integral_it_stands_for():
    m, s2 = 0.7, 0.4
    z = np.linspace(-15, 15, 200_001)
    log_p = -0.5 * ((z - m) ** 2 / s2 + np.log(2 * np.pi * s2))
    log_q = -0.5 * (z**2 + np.log(2 * np.pi))
    expected = np.sum(np.exp(log_p) * (log_p - log_q)) * (z[1] - z[0])
    found = Belief(jnp.array([m]), jnp.array([s2])).kl_from_prior()
    assert found == pytest.approx(expected, abs=1e-5)


def test_the_order_of_tokens_is_no_matter():
    mean, variance = factors()
    order, all_valid = RNG.permutation(6), jnp.ones(6, bool)
    one = product_of_gaussians(mean, variance, all_valid)
    other = product_of_gaussians(mean[order], variance[order], all_valid)
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-5)
    np.testing.assert_allclose(one.variance, other.variance, rtol=1e-5)


@pytest.mark.parametrize("n", [1, 4, 100])
def test_n_identical_tokens_have_an_nth_of_the_variance(n):
    """One token's belief may be wider than the prior, which is no factor."""
    mean, variance = jnp.full((n, 2), 0.3), jnp.full((n, 2), 1.6)
    belief = product_of_gaussians(mean, variance, jnp.ones(n, bool))
    np.testing.assert_allclose(belief.variance, 1.6 / n, rtol=1e-5)
    np.testing.assert_allclose(belief.mean, 0.3, rtol=1e-5)


@pytest.mark.parametrize("combine", [product_of_gaussians, lambda m, _, v: average(m, v)])
def test_tokens_that_are_not_valid_do_not_count_whatever_they_hold(combine):
    mean, variance = factors()
    valid = jnp.array([True, False, True, True, False, False])
    kept = jnp.array([0, 2, 3])
    spoilt = jnp.where(valid[:, None], mean, 1e6)
    one = combine(spoilt, variance, valid)
    other = combine(mean[kept], variance[kept], jnp.ones(3, bool))
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-5)
    np.testing.assert_allclose(one.variance, other.variance, rtol=1e-5)


def test_the_average_knows_its_z():
    belief = average(jnp.array([[1.0, 0.0], [3.0, 5.0]]), BOTH)
    np.testing.assert_array_equal(belief.sample(KEY), [2.0, 2.5])


@pytest.mark.parametrize(("known", "variance"), [(False, 1.0), (True, 0.0)])
def test_the_prior_is_standard_or_zero(known, variance):
    belief = prior(3, known=known)
    np.testing.assert_array_equal(belief.mean, 0.0)
    np.testing.assert_array_equal(belief.variance, variance)


def test_draws_have_the_mean_and_variance_of_the_belief():
    belief = Belief(jnp.array([0.5, -2.0]), jnp.array([0.25, 4.0]))
    z = np.asarray(belief.sample(KEY, (100_000,)))
    np.testing.assert_allclose(z.mean(0), belief.mean, atol=0.03)
    np.testing.assert_allclose(z.var(0), belief.variance, rtol=0.03)


def test_a_draw_carries_the_gradient_of_mean_and_deviation():
    def draw(mean, variance):
        return Belief(mean, variance).sample(KEY)[0]

    by_mean, by_variance = jax.grad(draw, (0, 1))(jnp.array([0.5]), jnp.array([0.25]))
    noise = float((draw(jnp.array([0.5]), jnp.array([0.25])) - 0.5) / 0.5)
    assert by_mean[0] == 1.0
    assert by_variance[0] == pytest.approx(noise / (2 * 0.5), rel=1e-5)
