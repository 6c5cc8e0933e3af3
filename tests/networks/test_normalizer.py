from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.networks.normalizer import CLIP, fresh_moments, normalized, updated_moments


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
