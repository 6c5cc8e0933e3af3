from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from metaworld.utils import reward_utils
from scipy.spatial.transform import Rotation

from adaptax.envs.suites.metaworld.fast import FastRewards, FastRotation, fast_norm

DISTANCES = st.floats(-2.0, 2.0)
SIGMOIDS = ("long_tail", "gaussian", "hyperbolic", "linear", "tanh_squared", "quadratic")


@settings(max_examples=1000, deadline=None)
@given(
    x=DISTANCES,
    lower=DISTANCES,
    width=st.floats(0.0, 1.0),
    margin=st.one_of(st.just(0.0), st.floats(1e-300, 2.0), st.floats(0.01, 1.0)),
    sigmoid=st.sampled_from(SIGMOIDS),
    kind=st.sampled_from((float, np.float64)),
)
def test_tolerance_is_metaworlds_to_the_bit(x, lower, width, margin, sigmoid, kind):
    arguments = (kind(x), (lower, kind(lower + width)), kind(margin), sigmoid)
    with np.errstate(all="ignore"):
        expected = reward_utils.tolerance(*arguments)
        result = FastRewards.tolerance(*arguments)
    assert result == expected
    assert type(result) is type(expected)


def test_tolerance_is_metaworlds_on_many_plain_distances():
    rng = np.random.default_rng(0)
    cases = zip(rng.uniform(0, 1, 20_000), rng.uniform(0.001, 0.5, 20_000), strict=True)
    for x, margin in cases:
        for sigmoid in ("long_tail", "gaussian"):
            arguments = (float(x), (0.0, 0.05), margin, sigmoid)
            assert FastRewards.tolerance(*arguments) == reward_utils.tolerance(*arguments)


@pytest.mark.parametrize(
    "wrong", [{"bounds": (1.0, 0.0)}, {"margin": -1.0}, {"sigmoid": "none", "margin": 1.0}]
)
def test_tolerance_refuses_what_metaworld_refuses(wrong):
    with pytest.raises(ValueError):
        reward_utils.tolerance(0.5, **wrong)
    with pytest.raises(ValueError):
        FastRewards.tolerance(0.5, **wrong)


@pytest.mark.parametrize("noise", [0.0, 1e-15, 1e-12, 1e-6])
def test_rotations_are_scipys_to_the_bit(noise):
    rng = np.random.default_rng(0)
    for matrix in Rotation.random(2000, rng=rng).as_matrix():
        matrix = matrix + noise * rng.standard_normal((3, 3))
        ours, theirs = FastRotation.from_matrix(matrix), Rotation.from_matrix(matrix)
        np.testing.assert_array_equal(ours.as_quat(), theirs.as_quat())


def test_a_matrix_that_is_no_rotation_is_refused():
    with pytest.raises(ValueError, match="determinant"):
        FastRotation.from_matrix(np.zeros((3, 3)))
    with pytest.raises(ValueError, match="determinant"):
        FastRotation.from_matrix(np.diag([1.0, 1.0, -1.0]))


def test_norms_are_numpys_to_the_bit():
    rng = np.random.default_rng(0)
    for size in (1, 2, 3, 4, 7):
        for x in rng.standard_normal((500, size)) * 10.0 ** rng.integers(-9, 9, (500, 1)):
            assert fast_norm(x) == np.linalg.norm(x)
            assert type(fast_norm(x)) is type(np.linalg.norm(x))
    table = rng.standard_normal((6, 4))
    for x in (table[:, 1], table[::2, 0], table, table[0].astype(np.float32), [3.0, 4.0]):
        np.testing.assert_array_equal(fast_norm(x), np.linalg.norm(x))
    np.testing.assert_array_equal(fast_norm(table, axis=1), np.linalg.norm(table, axis=1))
    assert fast_norm(table[0], 1) == np.linalg.norm(table[0], 1)
