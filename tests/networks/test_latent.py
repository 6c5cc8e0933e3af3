import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.functional.belief import MIN_VARIANCE
from adaptax.networks.critics import ensemble
from adaptax.networks.encoders import (
    ORIGINAL,
    ORIGINAL_POLICY,
    ContextEncoder,
    JointDense,
    LatentPolicy,
    LatentValue,
)

KEY = jax.random.key(0)
OBS = jax.random.normal(jax.random.key(1), (4, 6, 3))
Z = jax.random.normal(jax.random.key(2), (4, 1, 2))
TOKENS = jax.random.normal(jax.random.key(3), (4, 6, 5))
ALL = jnp.ones((4, 6), bool)


def side_by_side(obs, z):
    return jnp.concatenate([obs, jnp.broadcast_to(z, (*obs.shape[:-1], z.shape[-1]))], axis=-1)


def test_a_joint_layer_is_a_dense_one_of_what_stands_side_by_side():
    layer = JointDense(7)
    params = layer.init(KEY, OBS, Z)
    together = nn.Dense(7).apply(params, side_by_side(OBS, Z))
    np.testing.assert_allclose(layer.apply(params, OBS, Z), together, rtol=1e-5, atol=1e-6)


def test_a_joint_layer_starts_as_a_dense_one_of_all_its_inputs():
    wide = jnp.zeros((1, 400)), jnp.zeros((1, 100))
    kernel = JointDense(300).init(KEY, *wide)["params"]["kernel"]
    assert kernel.shape == (500, 300)
    assert jnp.std(kernel) == pytest.approx(500**-0.5, rel=0.02)


@pytest.mark.parametrize(
    ("network", "inputs", "last"),
    [
        (LatentPolicy((120, 90), 20, ORIGINAL_POLICY), (OBS, Z), 1e-3),
        (ContextEncoder((120, 90), 20, True, ORIGINAL), (TOKENS, ALL), 3e-3),
        (ensemble(LatentValue, 2)((120, 90), ORIGINAL), (OBS, Z), 3e-3),
    ],
)
def test_the_originals_start_is_uniform_by_outputs_with_biases_and_a_small_last_layer(
    network, inputs, last
):
    """Each layer nearly reaches its bound and has the deviation of a uniform one."""
    layers = network.init(KEY, *inputs)["params"]["JointMLP_0"]
    hidden = {120: layers["JointDense_0"], 90: layers["ReluMLP_0"]["Dense_0"]}
    for outputs, layer in hidden.items():
        np.testing.assert_array_equal(layer["bias"], np.float32(0.1))
        assert layer["kernel"].shape[-1] == outputs
        is_uniform_within(outputs**-0.5, layer["kernel"])
    is_uniform_within(last, layers["Dense_0"]["kernel"])
    bias = np.abs(layers["Dense_0"]["bias"])
    assert 0 < bias.max() <= last


def is_uniform_within(bound, kernel):
    assert 0.9 * bound < np.abs(kernel).max() <= bound
    assert np.std(kernel) == pytest.approx(bound / np.sqrt(3), rel=0.1)


def test_gradients_by_what_is_shared_are_sums_over_what_shares_it():
    value = LatentValue((8,))
    params = value.init(KEY, OBS, Z)
    shared = jax.grad(lambda z: value.apply(params, OBS, z).sum())(Z)
    spread = jnp.broadcast_to(Z, (4, 6, 2))
    each = jax.grad(lambda z: value.apply(params, OBS, z).sum())(spread)
    np.testing.assert_allclose(shared, each.sum(1, keepdims=True), rtol=1e-5, atol=1e-6)


def test_values_and_policies_are_of_observation_and_z():
    value, policy = LatentValue((8, 8)), LatentPolicy((8,), 2)
    assert value.apply(value.init(KEY, OBS, Z), OBS, Z).shape == (4, 6)
    distribution = policy.apply(policy.init(KEY, OBS, Z), OBS, Z)
    assert distribution.mean.shape == distribution.log_std.shape == (4, 6, 2)


@pytest.mark.parametrize("bottleneck", [True, False])
def test_the_order_of_context_is_no_matter(bottleneck):
    encoder, order = ContextEncoder((8,), 2, bottleneck), np.random.default_rng(0).permutation(6)
    params = encoder.init(KEY, TOKENS, ALL)
    one, other = (encoder.apply(params, x, ALL) for x in (TOKENS, TOKENS[:, order]))
    np.testing.assert_allclose(one.mean, other.mean, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(one.variance, other.variance, rtol=1e-5)
    assert one.mean.shape == (4, 2)


def test_factors_are_no_narrower_than_the_bound():
    encoder = ContextEncoder((8,), 2, True)
    params = encoder.init(KEY, TOKENS, ALL)
    low = jax.tree.map(jnp.zeros_like, params)
    low["params"]["JointMLP_0"]["Dense_0"]["bias"] = jnp.full(4, -1e3)  # softplus of it is 0
    belief = encoder.apply(low, TOKENS, ALL)
    np.testing.assert_allclose(belief.variance, MIN_VARIANCE / 6, rtol=1e-5)
    np.testing.assert_allclose(belief.mean, -1e3, rtol=1e-5)


def test_without_the_bottleneck_z_is_the_mean_of_what_tokens_say():
    encoder = ContextEncoder((8,), 2, False)
    params = encoder.init(KEY, TOKENS, ALL)
    alone = [encoder.apply(params, TOKENS[:, i : i + 1], ALL[:, :1]).mean for i in range(6)]
    belief = encoder.apply(params, TOKENS, ALL)
    np.testing.assert_allclose(belief.mean, np.mean(alone, axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(belief.variance, 0.0)
