import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.functional.two_hot import (
    symexp,
    symlog,
    symlog_bins,
    two_hot,
    two_hot_loss,
    two_hot_value,
)

NUMBERS = np.array([-3e4, -700.0, -1.0, -0.3, -1e-6, 0.0, 1e-6, 0.2, 5.0, 999.0, 1e3, 2e3])
BINS = np.asarray(symlog_bins(7, 1e3), np.float64)
LOGITS = np.random.default_rng(0).normal(size=(len(NUMBERS), 7))


def test_symlog_is_a_logarithm_on_either_side_of_zero_and_symexp_undoes_it():
    expected = [np.log(1 + x) if x >= 0 else -np.log(1 - x) for x in NUMBERS]
    np.testing.assert_allclose(symlog(jnp.array(NUMBERS)), expected, rtol=1e-5)
    np.testing.assert_allclose(symexp(symlog(jnp.array(NUMBERS))), NUMBERS, rtol=1e-5)
    assert jax.grad(symlog)(0.0) == 1.0
    assert jax.grad(symexp)(0.0) == 1.0


def test_bins_are_equally_far_apart_from_the_largest_return_to_its_negative():
    np.testing.assert_allclose(np.diff(symlog(jnp.array(BINS))), 2 * np.log(1001) / 6, rtol=1e-5)
    np.testing.assert_allclose(BINS[[0, 3, 6]], [-1e3, 0, 1e3], rtol=1e-4)


def slow_two_hot(x):
    """Weights of one number, by a search for the bins next to it."""
    weights = np.zeros(7)
    if x <= BINS[0] or x >= BINS[-1]:
        weights[0 if x <= BINS[0] else -1] = 1.0
        return weights
    above = int(np.searchsorted(BINS, x, side="right"))
    share = (x - BINS[above - 1]) / (BINS[above] - BINS[above - 1])
    weights[above - 1], weights[above] = 1 - share, share
    return weights


def test_two_hot_lies_on_the_bins_next_to_a_number_and_beyond_them_on_the_last():
    found = np.asarray(two_hot(jnp.array(NUMBERS), jnp.array(BINS)))
    np.testing.assert_allclose(found, [slow_two_hot(x) for x in NUMBERS], atol=1e-5)
    np.testing.assert_allclose(found.sum(-1), 1.0, rtol=1e-6)
    assert np.all((found > 0).sum(-1) <= 2)


def test_a_number_within_the_bins_comes_back():
    inside = NUMBERS[(NUMBERS > -1e3) & (NUMBERS < 1e3)]
    weights = two_hot(jnp.array(inside), jnp.array(BINS))
    found = two_hot_value(jnp.log(jnp.maximum(weights, 1e-30)), jnp.array(BINS))
    np.testing.assert_allclose(found, inside, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("returns", [[0, 1000], [-100, 110], [90, 110], [0, 0, 0, 0, 0, 0, 5]])
def test_what_minimises_the_loss_stands_for_the_mean_of_returns_that_vary(returns):
    bins = symlog_bins(101, 1e4)
    weights = jnp.mean(two_hot(jnp.array(returns, float), bins), axis=0)
    found = two_hot_value(jnp.log(jnp.maximum(weights, 1e-30)), bins)
    np.testing.assert_allclose(found, np.mean(returns), rtol=1e-4)


def test_logits_that_are_alike_stand_for_nothing_whatever_the_bins():
    assert two_hot_value(jnp.full(101, 0.3), symlog_bins(101, 1e4)) == 0.0


def test_the_loss_is_the_cross_entropy_and_is_least_at_the_two_hot():
    given = jnp.array(LOGITS), jnp.array(NUMBERS), jnp.array(BINS)
    p = np.exp(LOGITS) / np.exp(LOGITS).sum(-1, keepdims=True)
    expected = [
        -sum(w * np.log(q) for w, q in zip(slow_two_hot(x), row, strict=True) if w > 0)
        for x, row in zip(NUMBERS, p, strict=True)
    ]
    np.testing.assert_allclose(two_hot_loss(*given), expected, rtol=1e-4)
    gradient = jax.grad(lambda logits: jnp.sum(two_hot_loss(logits, *given[1:])))(given[0])
    np.testing.assert_allclose(gradient, p - [slow_two_hot(x) for x in NUMBERS], atol=1e-5)


@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e2])
def test_the_loss_of_an_untrained_critic_is_alike_at_every_scale(scale):
    rng = np.random.default_rng(1)
    returns = jnp.array(scale * rng.normal(size=100))
    bins = symlog_bins(101, 1e4)
    loss = float(jnp.mean(two_hot_loss(jnp.zeros((100, 101)), returns, bins)))
    assert loss == pytest.approx(np.log(101), rel=1e-5)
