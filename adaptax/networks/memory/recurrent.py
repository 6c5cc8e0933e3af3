"""Recurrent cells over whole sequences, and the recurrent actor-critic of RL2."""

from __future__ import annotations

from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.core.errors import check
from adaptax.core.spec import ActionSpace
from adaptax.functional.distributions import Distribution
from adaptax.functional.gru import gru_sequence
from adaptax.networks.heads import ActionHead
from adaptax.networks.memory.fast_weights import NUM_HEADS, FastWeights
from adaptax.networks.mlp import dense
from adaptax.networks.normalizer import Normalizer


class GRU(nn.Module):
    """A GRU layer (Cho et al. 2014) run over a sequence.

    The input's part of all gates is one product over the whole sequence, so that the loop over
    time holds only what depends on the hidden state.
    """

    size: int

    @staticmethod
    def memory_size(size: int) -> int:
        """Figures of the memory of so many units."""
        return size

    @nn.compact
    def __call__(
        self, x: jax.Array, hidden: jax.Array, reset: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """X [..., T, F] and the hidden state [..., H] before it -> states [..., T, H], the last.

        Where `reset` [..., T] is True, the state is zero before that step.
        """
        gates = nn.Dense(3 * self.size, name="input")(x)
        weights = self.param(
            "recurrent", _orthogonal_blocks, (self.size, 3 * self.size), jnp.float32
        )
        bias = self.param("candidate_bias", nn.initializers.zeros, (self.size,))
        batch, (steps, width) = gates.shape[:-2], gates.shape[-2:]
        time_first = jnp.moveaxis(gates.reshape(-1, steps, width), 1, 0)
        if reset is not None:
            reset = jnp.moveaxis(reset.reshape(-1, steps), 1, 0)
        states = gru_sequence(weights, bias, time_first, hidden.reshape(-1, self.size), reset)
        sequence = jnp.moveaxis(states, 0, 1).reshape(*batch, steps, self.size)
        return sequence, sequence[..., -1, :]


def _orthogonal_blocks(key: jax.Array, shape: tuple[int, int], dtype: jnp.dtype) -> jax.Array:
    """One orthogonal [H, H] block for each of the three gates."""
    size = shape[0]
    block = nn.initializers.orthogonal()
    return jnp.concatenate([block(k, (size, size), dtype) for k in jax.random.split(key, 3)], -1)


class LSTM(nn.Module):
    """An LSTM layer (Hochreiter and Schmidhuber 1997) run over a sequence."""

    size: int

    @staticmethod
    def memory_size(size: int) -> int:
        """Figures of the memory of so many units."""
        return 2 * size

    @nn.compact
    def __call__(self, x: jax.Array, memory: jax.Array) -> tuple[jax.Array, jax.Array]:
        """X [..., T, F] and the memory [..., 2 H] before it -> states [..., T, H], the memory.

        The memory is the cell's state and the hidden state side by side.
        """
        batch = x.shape[:-2]
        cell, hidden = jnp.split(memory.reshape(-1, 2 * self.size), 2, axis=-1)
        run = nn.RNN(nn.OptimizedLSTMCell(self.size), return_carry=True)
        last, states = run(x.reshape(-1, *x.shape[-2:]), initial_carry=(cell, hidden))
        memory = jnp.concatenate(last, axis=-1).reshape(*batch, 2 * self.size)
        return states.reshape(*batch, *states.shape[1:]), memory


Cell = Literal["gru", "lstm", "fast-weights"]
LAYERS: dict[Cell, type[GRU] | type[LSTM] | type[FastWeights]] = {
    "gru": GRU,
    "lstm": LSTM,
    "fast-weights": FastWeights,
}


def check_cell(cell: Cell, hidden_size: int) -> None:
    """Raise unless the cell can have so many units."""
    check(
        cell != "fast-weights" or hidden_size % NUM_HEADS == 0,
        f"hidden_size {hidden_size} must be a multiple of {NUM_HEADS}, the heads of fast weights",
    )


class RecurrentActorCritic(nn.Module):
    """Embedding, a recurrent cell, and separate heads for the policy and the value."""

    space: ActionSpace
    embedding_size: int = 64
    hidden_size: int = 64
    init_std: float = 1.0
    normalize: bool = False
    """Whether inputs are normalised by their running moments."""
    cell: Cell = "gru"

    @property
    def memory_size(self) -> int:
        """Figures that the cell remembers from step to step."""
        return LAYERS[self.cell].memory_size(self.hidden_size)

    @nn.compact
    def __call__(
        self, x: jax.Array, memory: jax.Array
    ) -> tuple[Distribution, jax.Array, jax.Array]:
        """Inputs [..., T, F], memory [..., S] -> distribution [..., T], value [..., T], memory."""
        if self.normalize:
            x = Normalizer(name="normalizer")(x)
        embedded = nn.tanh(dense(self.embedding_size)(x))
        layer = LAYERS[self.cell](self.hidden_size)
        features, memory = layer(embedded, memory)
        value = dense(1, scale=1.0)(features)[..., 0]
        return ActionHead(self.space, self.init_std)(features), value, memory
