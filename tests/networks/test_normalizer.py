from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.networks.normalizer import (
    CLIP,
    OUTLIER,
    fresh_moments,
    normalized,
    observed,
    updated_moments,
)


@pytest.mark.parametrize("value", [0.0, 0.6, -1234.5])
def test_what_never_varied_is_seen_as_it_is_once_it_does(value):
    """Beside it an observation that varies is standardised, and clipped."""
    rng, moments = np.random.default_rng(0), fresh_moments(2)
    for _ in range(5):
        x = jnp.asarray(np.stack([np.full(50, value), rng.normal(3.0, 2.0, 50)], -1), jnp.float32)
        moments = updated_moments(moments, x, jnp.ones(50, bool))
    shown = normalized(jnp.asarray([[value, 3.0], [value + 0.5, 300.0]]), moments)
    np.testing.assert_allclose(shown[:, 0], [0.0, 0.5], atol=1e-3)
    assert abs(shown[0, 1]) < 0.5
    assert shown[1, 1] == CLIP


def test_an_object_that_flies_off_stays_an_object_that_is_seen():
    """Three steps of a thousand, a kilometre away, in the second of four iterations."""
    rng, moments, plain = np.random.default_rng(0), fresh_moments(1), fresh_moments(1)
    for iteration in range(4):
        x = rng.normal(0.5, 0.1, (1000, 1))
        if iteration == 1:
            x[:3] = 1000.0
        every = jnp.asarray(x, jnp.float32), jnp.ones(1000, bool)
        moments, plain = observed(moments, *every), updated_moments(plain, *every)
    assert 0.1 < moments["variance"][0] ** 0.5 < 0.25
    assert plain["variance"][0] ** 0.5 > 10
    assert moments["count"] == 4000


def test_what_is_rare_but_within_bounds_counts_in_full():
    """One in a thousand, as the flag of an episode's end; and what varies late or moves far."""
    assert OUTLIER**2 > 2000
    plain, moments = fresh_moments(3), fresh_moments(3)
    for iteration in range(4):
        x = np.zeros((2000, 3))
        x[::1000, 0] = 1.0
        x[:, 1] = iteration % 2 if iteration > 1 else 0.0
        x[:, 2] = np.arange(2000) / 2000 + 10 * iteration
        every = jnp.asarray(x, jnp.float32), jnp.ones(2000, bool)
        moments, plain = observed(moments, *every), updated_moments(plain, *every)
    for name, value in plain.items():
        np.testing.assert_array_equal(moments[name], value)
