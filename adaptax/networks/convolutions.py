"""What sees pictures: convolutions in front of the hidden layers of a network."""

from __future__ import annotations

from math import prod

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.networks.mlp import MLP, dense

Picture = tuple[int, int, int]
"""Height, width and channels."""
NUM_CHANNELS = (16, 32)
"""Channels of the first layer, and of every later one."""
LEAST_SIDE = 4
"""Pixels: a layer halves the sides of a picture until the longer one is at most so long."""


class Convolutions(nn.Module):
    """Pictures made flat, and numbers that may follow, [..., H W C + K] -> features [..., F + K].

    Layers of 3 x 3 convolutions at every second pixel, and rectified linear units: two of
    them for 16 x 16 pixels, five for 84 x 84. The K numbers are left as they are.
    """

    picture: Picture

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Features."""
        pixels, others = jnp.split(x, [prod(self.picture)], axis=-1)
        pixels = pixels.reshape(-1, *self.picture)
        for channels in channels_of(self.picture):
            pixels = nn.relu(dense(channels)(patches(pixels)))
        return jnp.concatenate([pixels.reshape(*x.shape[:-1], -1), others], axis=-1)


def channels_of(picture: Picture) -> list[int]:
    """Channels of each layer for pictures of a size; at least one layer."""
    side, channels = -(-max(picture[:2]) // 2), [NUM_CHANNELS[0]]
    while side > LEAST_SIDE:
        side, channels = -(-side // 2), [*channels, NUM_CHANNELS[1]]
    return channels


def patches(pixels: jax.Array) -> jax.Array:
    """The 3 x 3 pixels around every second one, [B, H, W, C] -> [B, ceil(H/2), ceil(W/2), 9 C].

    Beyond the edges there are zeros. A linear layer over them is a convolution. XLA's own are slow
    within a loop on a processor: an iteration of PPO on `catch` took 33 s with them, and 2.7 s so.
    """
    height, width = pixels.shape[1:3]
    padded = jnp.pad(pixels, ((0, 0), (1, 1), (1, 1), (0, 0)))
    shifted = (padded[:, i : i + height : 2, j : j + width : 2] for i in range(3) for j in range(3))
    return jnp.concatenate(list(shifted), axis=-1)


class PictureMLP(nn.Module):
    """Convolutions, then hidden layers of tanh units; [..., H W C + K] -> [..., hidden_sizes[-1]].

    It is the torso of an `ActorCritic` whose observations are pictures.
    """

    picture: Picture
    hidden_sizes: tuple[int, ...]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Features of the last hidden layer."""
        return MLP(self.hidden_sizes)(Convolutions(self.picture)(x))


def torso_for(picture: Picture | None, hidden_sizes: tuple[int, ...]) -> nn.Module | None:
    """The torso of an actor-critic that sees pictures; None, which is an MLP, for numbers."""
    return None if picture is None else PictureMLP(picture, hidden_sizes)
