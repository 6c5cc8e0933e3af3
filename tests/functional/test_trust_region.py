from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.core.errors import ConfigError
from adaptax.core.spec import Continuous
from adaptax.functional.distributions import Categorical, DiagonalGaussian
from adaptax.functional.trust_region import (
    TrustRegion,
    conjugate_gradient,
    finite_difference_product,
    gauss_newton_product,
    hessian_product,
    trust_region_step,
)
from adaptax.networks.actor_critic import Tower
from adaptax.networks.heads import ActionHead
from adaptax.networks.memory import GRU, Memory, NoMemory
from adaptax.networks.mlp import MLP

MATRIX = jnp.array([[4.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 1.0, 2.0]])
B = jnp.array([1.0, 2.0, 3.0])
SOLUTION = np.array([2 / 9, 1 / 9, 13 / 9])
STD = 0.7
ACTIONS = np.array([0, 1, 2, 2, 0, 1])
MAX_KL = 0.01


def product(v):
    return MATRIX @ v


def test_conjugate_gradient_golden():
    np.testing.assert_allclose(conjugate_gradient(product, B), SOLUTION, atol=1e-5)


def test_conjugate_gradient_stops_at_its_number_of_iterations():
    first = conjugate_gradient(product, B, num_iterations=1)
    np.testing.assert_allclose(first, B * (B @ B) / (B @ MATRIX @ B), rtol=1e-6)


def test_conjugate_gradient_stops_at_its_tolerance():
    once = conjugate_gradient(product, B, num_iterations=1)
    residual = float(jnp.sum(jnp.square(B - MATRIX @ once)))
    rough = conjugate_gradient(product, B, tolerance=1.01 * residual)
    np.testing.assert_array_equal(rough, once)


def test_conjugate_gradient_of_zero_is_zero():
    np.testing.assert_array_equal(conjugate_gradient(product, jnp.zeros(3)), np.zeros(3))


@cache
def gaussian_policy(memory: Memory = NoMemory()):  # noqa: B008 (it has no state)
    """Distributions of a 4-16-2 policy on 2 x 5 steps from its parameters [D], and parameters."""
    policy = Tower(MLP((16,)), memory, ActionHead(Continuous(2)))
    obs = jax.random.normal(jax.random.key(1), (2, 5, 4))
    start = memory.initial((2,))
    params = policy.init(jax.random.key(0), start, obs, None, sequence=True)
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    noise = np.random.default_rng(2).normal(size=flat.shape)

    def distribution(x):
        given = jax.tree.map(lambda y: y.astype(x.dtype), (start, obs))
        return policy.apply(unravel(x), *given, None, sequence=True)[1]

    return distribution, np.asarray(flat, float) + 0.1 * noise


def mean_kl(distribution, old):
    return lambda x: jnp.mean(distribution(old).kl(distribution(x)))


def relative_error(dtype, base_eps: float) -> float:
    """Of the finite-difference product against the exact one, on the 4-16-2 policy."""
    distribution, flat = gaussian_policy()

    def products(at, v):
        kl = mean_kl(distribution, at)
        return hessian_product(kl, at)(v), finite_difference_product(kl, at, base_eps)(v)

    with jax.enable_x64(dtype == np.float64):
        v = np.random.default_rng(0).normal(size=flat.shape)
        exact, close = jax.jit(products)(jnp.asarray(flat, dtype), jnp.asarray(v, dtype))
        return float(jnp.linalg.norm(close - exact) / jnp.linalg.norm(exact))


def test_finite_differences_equal_the_exact_product_in_float64():
    assert relative_error(np.float64, 1e-5) < 1e-6
    assert relative_error(np.float64, 1e-8) < 1e-6


def test_finite_differences_are_usable_in_float32_at_their_default_step():
    assert relative_error(np.float32, 1e-5) < 0.05


def test_a_useless_step_size_is_refused_in_float32():
    with pytest.raises(ConfigError, match="base_eps 1e-08"):
        finite_difference_product(jnp.sum, jnp.ones(3), base_eps=1e-8)
    with pytest.raises(ConfigError, match="base_eps 1e-08"):
        TrustRegion(hvp="finite_difference", base_eps=1e-8)


def test_finite_difference_product_with_zero_is_zero():
    close = finite_difference_product(lambda x: jnp.sum(x**2), jnp.ones(3))
    np.testing.assert_array_equal(close(jnp.zeros(3)), np.zeros(3))


@pytest.mark.parametrize("memory", [NoMemory(), GRU(3)])
def test_hessian_of_the_kl_is_the_fisher_matrix(memory):
    """F = E[J^T M J] with M = diag(1 / std^2, 2) for a Gaussian's mean and log std."""
    distribution, flat = gaussian_policy(memory)

    def both(at, v):
        exact = hessian_product(mean_kl(distribution, at), at)(v)
        jacobian = jax.jacrev(distribution)(at)
        weight = jnp.exp(-2 * distribution(at).log_std)
        by_mean, by_log_std = (x.reshape(-1, len(v)) for x in (jacobian.mean, jacobian.log_std))
        fisher_v = by_mean.T @ (weight.reshape(-1) * (by_mean @ v)) + by_log_std.T @ (
            2 * (by_log_std @ v)
        )
        return exact, fisher_v / 10  # a mean over 10 steps

    with jax.enable_x64(True):
        v = np.random.default_rng(0).normal(size=flat.shape)
        exact, expected = jax.jit(both)(jnp.asarray(flat), jnp.asarray(v))
        np.testing.assert_allclose(exact, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("memory", [NoMemory(), GRU(3)])
def test_gauss_newton_product_is_that_with_the_hessian_of_the_kl(memory):
    distribution, flat = gaussian_policy(memory)

    def both(at, v):
        old = distribution(at)
        close = gauss_newton_product(distribution, lambda new: jnp.mean(old.kl(new)), at)
        return close(v), hessian_product(mean_kl(distribution, at), at)(v)

    with jax.enable_x64(True):
        v = np.random.default_rng(0).normal(size=flat.shape)
        found, expected = jax.jit(both)(jnp.asarray(flat), jnp.asarray(v))
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_gauss_newton_product_of_a_categorical_policy_after_an_inner_step():
    """Logits of parameters that have taken a gradient step: J holds second derivatives."""
    rng = np.random.default_rng(0)
    obs, start, v = (rng.normal(size=shape) for shape in ((6, 4), (4 * 3,), (4 * 3,)))

    def both(x, v):
        def policy(y):
            inner = jax.grad(lambda z: -Categorical(obs @ jnp.tanh(z)).log_prob(ACTIONS).sum())
            w = y.reshape(4, 3)
            return Categorical(obs @ jnp.tanh(w - 0.1 * inner(w)))

        old = policy(x)
        found = gauss_newton_product(policy, lambda new: jnp.mean(old.kl(new)), x)(v)
        return found, hessian_product(mean_kl(policy, x), x)(v)

    with jax.enable_x64(True):
        found, expected = jax.jit(both)(jnp.asarray(start), jnp.asarray(v))
        assert np.linalg.norm(expected) > 0.1
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def linear_objective(advantage: float = 1.0):
    """A linear mean and a fixed std: the mean KL is exactly quadratic in the parameters [3, 2]."""
    rng = np.random.default_rng(0)
    obs, action = (jnp.asarray(rng.normal(size=(30, n)), jnp.float32) for n in (3, 2))
    weight = jnp.asarray(rng.normal(size=30) * advantage, jnp.float32)
    start = {"w": jnp.asarray(0.1 * rng.normal(size=(3, 2)), jnp.float32)}

    def distribution(params):
        mean = obs @ params["w"]
        return DiagonalGaussian(mean, jnp.full_like(mean, np.log(STD)))

    old = distribution(start)

    def objective(params):
        new = distribution(params)
        ratio = jnp.exp(new.log_prob(action) - old.log_prob(action))
        return -jnp.mean(ratio * weight), jnp.mean(old.kl(new))

    return objective, start


def step_with(objective, start, **settings):
    region = TrustRegion(max_kl_step=MAX_KL, **settings)
    return jax.jit(lambda p: trust_region_step(objective, p, region))(start)


def test_the_first_step_on_a_quadratic_kl_is_at_the_bound():
    objective, start = linear_objective()

    def kl_only(params):
        loss, kl = objective(params)
        return loss, kl - 1e-6  # the bound itself is hit within rounding: let it pass

    params, figures = step_with(kl_only, start, reg_coeff=0.0)
    assert float(figures["line_search_tries"]) == 1.0
    assert float(objective(params)[1]) == pytest.approx(MAX_KL, abs=1e-6)


@pytest.mark.parametrize("hvp", ["exact", "finite_difference"])
@pytest.mark.parametrize("advantage", [0.1, 1.0, 30.0])
def test_an_accepted_step_lowers_the_loss_within_the_bound(advantage, hvp):
    objective, start = linear_objective(advantage)
    params, figures = step_with(objective, start, hvp=hvp)
    loss, kl = objective(params)
    assert float(figures["line_search_accepted"]) == 1.0
    assert float(loss) < float(objective(start)[0])
    assert 0.3 * MAX_KL < float(kl) <= MAX_KL


def test_the_scale_of_a_step_golden():
    """For A, b of the golden system and a bound of 0.01 the step is 0.0646996639 x."""

    def objective(params):
        return B @ params, 0.5 * params @ MATRIX @ params - 1e-6  # rounding may pass the bound

    params, _ = step_with(objective, jnp.zeros(3), reg_coeff=0.0)
    np.testing.assert_allclose(params, -0.0646996639 * SOLUTION, rtol=1e-5)


def test_the_same_predicate_decides_at_an_exact_hit():
    def objective(params):
        kl = jnp.where(params[0] != 0, MAX_KL, 0.5 * jnp.sum(params**2))
        return jnp.sum(params), kl

    params, figures = step_with(objective, jnp.zeros(2))
    assert float(figures["line_search_accepted"]) == 1.0
    assert float(jnp.abs(params).max()) > 0.0


def test_no_acceptable_step_restores_the_parameters_bit_for_bit():
    objective, start = linear_objective()

    def never(params):
        loss, kl = objective(params)
        return loss, kl + 1.0

    params, figures = step_with(never, start)
    np.testing.assert_array_equal(params["w"], start["w"])
    assert float(figures["line_search_tries"]) == 15.0
    assert float(figures["line_search_accepted"]) == 0.0


def curved_down(params):
    """A KL that cannot be: its Hessian is negative, so that the step's scale is NaN."""
    return jnp.sum(params["w"]), -jnp.sum(jnp.square(params["w"]))


@pytest.mark.parametrize("objective", [linear_objective(advantage=np.nan)[0], curved_down])
def test_a_step_that_is_not_finite_is_not_tried(objective):
    start = linear_objective()[1]
    params, figures = step_with(objective, start)
    np.testing.assert_array_equal(params["w"], start["w"])
    assert float(figures["line_search_tries"]) == 0.0


@pytest.mark.parametrize(
    "settings",
    [{"max_kl_step": 0.0}, {"cg_iters": 0}, {"reg_coeff": -1.0}, {"backtrack_ratio": 1.0}],
)
def test_bad_settings_are_refused_by_name(settings):
    with pytest.raises(ConfigError, match=next(iter(settings))):
        TrustRegion(**settings)
