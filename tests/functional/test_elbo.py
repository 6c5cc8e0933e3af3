import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import gaussian

from adaptax.functional.distributions import DiagonalGaussian
from adaptax.functional.elbo import decoding_errors, divergences

RNG = np.random.default_rng(0)
MEAN, LOG_STD = RNG.normal(size=(2, 4, 3)), RNG.normal(scale=0.3, size=(2, 4, 3))
BELIEFS = DiagonalGaussian(jnp.array(MEAN), jnp.array(LOG_STD))


def test_divergences_are_from_each_belief_to_the_one_before_and_first_to_the_standard_normal():
    found = np.asarray(divergences(BELIEFS))
    nothing = np.zeros((1, 3))
    for b in range(2):
        before = nothing, nothing
        for t in range(4):
            now = MEAN[b, t][None], LOG_STD[b, t][None]
            (expected,) = gaussian.kl(*now, *before)
            assert found[b, t] == pytest.approx(expected, rel=1e-5)
            before = now


def test_divergences_are_what_draws_find():
    z = MEAN[0, 2] + np.exp(LOG_STD[0, 2]) * RNG.standard_normal((200_000, 3))
    own, before = (gaussian.log_prob(MEAN[0, t], LOG_STD[0, t], z) for t in (2, 1))
    ratio = own - before
    margin = 5 * ratio.std() / np.sqrt(len(z))
    assert float(divergences(BELIEFS)[0, 2]) == pytest.approx(ratio.mean(), abs=margin)


def test_a_belief_that_does_not_change_has_no_divergence():
    same = jax.tree.map(lambda x: jnp.repeat(x[:, :1], 3, axis=1), BELIEFS)
    np.testing.assert_allclose(divergences(same)[:, 1:], 0.0, atol=1e-6)


def test_decoding_errors_are_summed_over_the_whole_trial_but_not_over_padding():
    prediction, target = RNG.normal(size=(2, 3, 5, 2)), RNG.normal(size=(2, 5, 2))
    valid = np.arange(5) < np.array([[5], [3]])
    prediction[1, :, 3:], target[1, 3:] = 1e6, -1e6
    found = decoding_errors(*map(jnp.array, (prediction, target, valid)))
    for b in range(2):
        for k in range(3):
            expected = 0.0
            for s in range(5 if b == 0 else 3):
                expected += sum((prediction[b, k, s, d] - target[b, s, d]) ** 2 for d in (0, 1)) / 2
            assert float(found[b, k]) == pytest.approx(expected, rel=1e-5)
