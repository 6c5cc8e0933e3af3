"""Convolutions on flat pictures equal JAX's own, and networks that see pictures have them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.core.spec import Continuous, Discrete, EnvSpec
from adaptax.experiment.build import make_algorithm
from adaptax.networks.convolutions import Convolutions, channels_of, patches


@pytest.mark.parametrize("shape", [(2, 5, 8, 3), (1, 16, 16, 1), (3, 7, 7, 2)])
def test_a_layer_over_patches_is_a_convolution(shape):
    keys = jax.random.split(jax.random.key(0))
    pixels = jax.random.normal(keys[0], shape)
    kernel = jax.random.normal(keys[1], (3, 3, shape[-1], 4))
    expected = jax.lax.conv_general_dilated(
        pixels, kernel, (2, 2), [(1, 1), (1, 1)], dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    found = patches(pixels) @ kernel.reshape(-1, 4)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_layers_halve_a_picture_until_it_is_small():
    assert [len(channels_of((side, side, 1))) for side in (3, 8, 16, 84)] == [1, 1, 2, 5]
    network = Convolutions((16, 10, 2))
    x = jax.random.normal(jax.random.key(0), (3, 2, 16 * 10 * 2 + 4))
    features, params = network.init_with_output(jax.random.key(1), x)
    assert features.shape == (3, 2, 4 * 3 * 32 + 4)
    np.testing.assert_array_equal(features[..., -4:], x[..., -4:])
    moved = network.apply(params, x.at[..., 0].add(1.0))
    assert np.any(moved != features)


PICTURES = {
    "reinforce": Discrete(3),
    "a2c": Discrete(3),
    "ppo": Discrete(3),
    "ppo2": Discrete(3),
    "trpo": Discrete(3),
    "svpg": Discrete(3),
    "rl2-ppo": Discrete(3),
    "rl2-trpo": Discrete(3),
    "rl2-sac": Discrete(3),
    "dqn": Discrete(3),
    "sac": Discrete(3),
    "ddpg": Continuous(2),
    "td3": Continuous(2),
}


@pytest.mark.parametrize("name", PICTURES)
def test_networks_that_see_pictures_begin_with_convolutions(name):
    spec = EnvSpec(8 * 8 * 2, PICTURES[name], 5, picture=(8, 8, 2))

    def kernels(spec: EnvSpec) -> list[tuple[int, ...]]:
        state = jax.eval_shape(make_algorithm(name, spec).init, jax.random.key(0))
        shapes = {leaf.shape[-2:] for leaf in jax.tree.leaves(state) if leaf.ndim >= 2}
        return [shape for shape in shapes if shape == (9 * 2, 16)]

    assert kernels(spec) == [(18, 16)]
    assert kernels(EnvSpec(8 * 8 * 2, PICTURES[name], 5)) == []


def test_gradients_reach_the_first_layer():
    network = Convolutions((8, 8, 1))
    x = jax.random.normal(jax.random.key(0), (4, 64))
    params = network.init(jax.random.key(1), x)
    grads = jax.grad(lambda p: jnp.sum(jnp.square(network.apply(p, x))))(params)
    assert all(np.any(g != 0) for g in jax.tree.leaves(grads))
