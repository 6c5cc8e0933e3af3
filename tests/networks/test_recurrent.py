"""The LSTM of RL2's network against Flax's cell, and every cell step by step."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.core.spec import Discrete
from adaptax.networks.memory.recurrent import LAYERS, LSTM, RecurrentActorCritic

SIZE, BATCH, STEPS = 4, (2, 3), 6


@pytest.fixture(scope="module")
def lstm():
    """The layer, its parameters, inputs [2, 3, 6, 5] and a memory [2, 3, 8]."""
    layer = LSTM(SIZE)
    x = jax.random.normal(jax.random.key(0), (*BATCH, STEPS, 5))
    memory = jax.random.normal(jax.random.key(1), (*BATCH, 2 * SIZE))
    return layer, layer.init(jax.random.key(2), x, memory), x, memory


def test_lstm_equals_a_loop_of_flax_cells(lstm):
    layer, params, x, memory = lstm
    (own,) = params["params"].values()
    cell, carry = nn.LSTMCell(SIZE), tuple(jnp.split(memory, 2, axis=-1))
    expected = []
    for t in range(STEPS):
        carry, hidden = cell.apply({"params": own}, carry, x[..., t, :])
        expected.append(hidden)
    states, last = layer.apply(params, x, memory)
    np.testing.assert_allclose(states, jnp.stack(expected, axis=-2), atol=1e-6)
    np.testing.assert_allclose(last, jnp.concatenate(carry, axis=-1), atol=1e-6)


@pytest.mark.parametrize("cell", LAYERS)
def test_one_step_at_a_time_equals_the_whole_sequence(cell):
    network = RecurrentActorCritic(Discrete(3), 5, SIZE, cell=cell)
    x = jax.random.normal(jax.random.key(0), (*BATCH, STEPS, 5))
    memory = jnp.zeros((*BATCH, network.memory_size))
    params = network.init(jax.random.key(2), x, memory)
    _, value, last = network.apply(params, x, memory)
    for t in range(STEPS):
        _, one, memory = network.apply(params, x[..., t : t + 1, :], memory)
        np.testing.assert_allclose(one[..., 0], value[..., t], atol=1e-6)
    np.testing.assert_allclose(memory, last, atol=1e-6)
