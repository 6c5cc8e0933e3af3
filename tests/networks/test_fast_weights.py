"""Fast weights against the loop over time that they are defined by."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.networks.memory import fast_weights as module
from adaptax.networks.memory.fast_weights import FastWeights, fast_weights

BATCH, HEADS, KEYS, VALUES = 2, 3, 4, 5


@pytest.mark.parametrize("steps", [1, 3, 4, 9])
def test_chunks_equal_the_loop_over_time(monkeypatch, steps):
    monkeypatch.setattr(module, "CHUNK", 4)
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(2, BATCH, HEADS, steps, KEYS)).astype(np.float32)
    value = rng.normal(size=(BATCH, HEADS, steps, VALUES)).astype(np.float32)
    start = rng.normal(size=(BATCH, HEADS, KEYS, VALUES)).astype(np.float32)

    weights, expected = start.copy(), np.empty_like(value)
    for b, h, t in np.ndindex(BATCH, HEADS, steps):
        weights[b, h] += np.outer(key[b, h, t], value[b, h, t])
        expected[b, h, t] = query[b, h, t] @ weights[b, h]

    read, last = fast_weights(query, key, value, start)
    np.testing.assert_allclose(read, expected, atol=1e-5)
    np.testing.assert_allclose(last, weights, atol=1e-5)


def test_what_a_step_stores_is_found_under_the_input_before_it():
    layer = FastWeights(8)
    x = jax.random.normal(jax.random.key(0), (1, 5, 3))
    memory = jnp.zeros((1, FastWeights.memory_size(8)))
    params = layer.init(jax.random.key(1), x, memory)

    def features(x):
        return layer.apply(params, x, memory)[0]

    gradient = jax.jacobian(lambda x: features(x)[0, -1].sum())(x)[0]
    assert np.all(np.abs(gradient).sum(-1) > 0)
    # At the first step nothing was seen before: no key, nothing stored, whatever its value.
    one = features(x[:, :1])[0, 0]
    without_memory = {
        **params["params"],
        "Dense_2": jax.tree.map(jnp.zeros_like, params["params"]["Dense_2"]),
    }
    blind = layer.apply({"params": without_memory}, x[:, :1], memory)[0][0, 0]
    np.testing.assert_array_equal(one, blind)
    two = layer.apply({"params": without_memory}, x, memory)[0][0, 1]
    assert np.abs(two - features(x)[0, 1]).max() > 1e-3
