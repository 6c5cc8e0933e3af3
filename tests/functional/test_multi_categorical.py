import itertools

import jax
import numpy as np
import pytest
from scipy import special

from adaptax.functional.distributions import Categorical, MultiCategorical

SIZES = (2, 3, 2)
RNG = np.random.default_rng(0)
LOGITS, OTHER_LOGITS = RNG.normal(size=(2, 4, sum(SIZES))).astype(np.float32)
CHOICES, OTHER = MultiCategorical(LOGITS, SIZES), MultiCategorical(OTHER_LOGITS, SIZES)
ACTIONS = np.array(list(itertools.product(*map(range, SIZES))), np.int32)
"""[12, 3]: every action there is."""


def joint(logits: np.ndarray) -> np.ndarray:
    """[12, 4] probability of every action, by the product of its parts'."""
    parts = np.split(logits.astype(float), [2, 5], axis=-1)
    marginals = [special.softmax(part, axis=-1) for part in parts]
    return np.stack(
        [np.prod([m[:, a] for m, a in zip(marginals, x, strict=True)], 0) for x in ACTIONS]
    )


def log_probs(distribution: MultiCategorical) -> np.ndarray:
    """[12, 4] of every action."""
    return np.stack([distribution.log_prob(np.tile(x, (4, 1))) for x in ACTIONS])


def test_log_prob_is_joint_and_sums_to_one():
    np.testing.assert_allclose(log_probs(CHOICES), np.log(joint(LOGITS)), atol=1e-5)
    np.testing.assert_allclose(np.exp(log_probs(CHOICES)).sum(0), 1.0, atol=1e-5)


def test_entropy_and_kl_equal_sums_over_every_action():
    p, q = joint(LOGITS), joint(OTHER_LOGITS)
    np.testing.assert_allclose(CHOICES.entropy(), -(p * np.log(p)).sum(0), atol=1e-5)
    np.testing.assert_allclose(CHOICES.kl(OTHER), (p * np.log(p / q)).sum(0), atol=1e-5)


def test_mode_is_the_likeliest_action():
    np.testing.assert_array_equal(CHOICES.mode(), ACTIONS[joint(LOGITS).argmax(0)])


def test_draws_follow_the_joint_distribution():
    keys = jax.random.split(jax.random.key(0), 20_000)
    draws = np.asarray(jax.vmap(CHOICES.sample)(keys))
    assert draws.dtype == np.int32
    shares = np.stack([(draws == x).all(-1).mean(0) for x in ACTIONS])
    np.testing.assert_allclose(shares, joint(LOGITS), atol=0.015)


def test_one_part_equals_a_categorical():
    one, plain = MultiCategorical(LOGITS, (7,)), Categorical(LOGITS)
    action = RNG.integers(0, 7, (4, 1))
    np.testing.assert_allclose(one.log_prob(action), plain.log_prob(action[:, 0]), rtol=1e-6)
    assert float(one.entropy()[0]) == pytest.approx(float(plain.entropy()[0]), rel=1e-6)
