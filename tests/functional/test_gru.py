import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.functional.gru import gru_sequence

STEPS, BATCH, SIZE = 3, 2, 4


def arguments(seed: int = 0) -> list[np.ndarray]:
    """weights [H, 3 H], bias [H], gates [T, B, 3 H], hidden [B, H] in float64."""
    rng = np.random.default_rng(seed)
    shapes = ((SIZE, 3 * SIZE), (SIZE,), (STEPS, BATCH, 3 * SIZE), (BATCH, SIZE))
    return [rng.normal(size=shape) for shape in shapes]


def plain(weights: jax.Array, bias: jax.Array, gates: jax.Array, hidden: jax.Array) -> jax.Array:
    """The recursion as written in the docstring, one step after another."""
    w_r, w_u, w_c = jnp.split(weights, 3, axis=-1)
    states = []
    for gate in gates:
        g_r, g_u, g_c = jnp.split(gate, 3, axis=-1)
        r = jax.nn.sigmoid(g_r + hidden @ w_r)
        u = jax.nn.sigmoid(g_u + hidden @ w_u)
        c = jnp.tanh(g_c + r * (hidden @ w_c + bias))
        hidden = u * hidden + (1 - u) * c
        states.append(hidden)
    return jnp.stack(states)


def gradient(function):
    """The gradient of a nonlinear scalar of all states, by all four arguments."""

    def scalar(*args: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(2.0 * function(*args)))

    return jax.grad(scalar, argnums=(0, 1, 2, 3))


def second_derivative(function):
    """The Hessian times a direction, by reverse mode over reverse mode."""

    def slope(args: list[jax.Array], direction: list[jax.Array]) -> jax.Array:
        parts = zip(gradient(function)(*args), direction, strict=True)
        return sum(jnp.sum(a * b) for a, b in parts)

    return jax.grad(slope)


def assert_same(got, expected) -> None:
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_states_equal_a_plain_loop():
    with jax.enable_x64(True):
        assert_same([jax.jit(gru_sequence)(*arguments())], [jax.jit(plain)(*arguments())])


def test_gradient_equals_that_of_the_plain_loop():
    with jax.enable_x64(True):
        got, expected = (jax.jit(gradient(f))(*arguments()) for f in (gru_sequence, plain))
        assert_same(got, expected)


def test_second_derivative_equals_that_of_the_plain_loop():
    with jax.enable_x64(True):
        functions = (gru_sequence, plain)
        given = (arguments(), arguments(seed=1))
        got, expected = (jax.jit(second_derivative(f))(*given) for f in functions)
        assert_same(got, expected)


def test_states_equal_flax_gru_cell():
    weights, bias, _, hidden = (x.astype(np.float32) for x in arguments())
    inputs = np.random.default_rng(2).normal(size=(STEPS, BATCH, 2)).astype(np.float32)
    kernel = np.random.default_rng(3).normal(size=(2, 3 * SIZE)).astype(np.float32)
    into, own = np.split(kernel, 3, axis=-1), np.split(weights, 3, axis=-1)
    pairs = zip(("ir", "iz", "in"), into, strict=True)
    params = {
        **{name: {"kernel": k, "bias": np.ones(SIZE)} for name, k in pairs},
        **{name: {"kernel": k} for name, k in zip(("hr", "hz"), own[:2], strict=True)},
        "hn": {"kernel": own[2], "bias": bias},
    }
    cell, state, expected = nn.GRUCell(SIZE), hidden, []
    for x in inputs:
        state, _ = cell.apply({"params": params}, state, x)
        expected.append(state)
    got = gru_sequence(weights, bias, inputs @ kernel + 1.0, hidden)
    np.testing.assert_allclose(got, np.stack(expected), rtol=1e-5, atol=1e-6)


def test_one_step_at_a_time_equals_the_whole_sequence():
    weights, bias, gates, hidden = (x.astype(np.float32) for x in arguments())
    whole = gru_sequence(weights, bias, gates, hidden)
    for t in range(STEPS):
        hidden = gru_sequence(weights, bias, gates[t : t + 1], hidden)[0]
        assert float(jnp.abs(hidden - whole[t]).max()) == pytest.approx(0.0, abs=1e-6)
