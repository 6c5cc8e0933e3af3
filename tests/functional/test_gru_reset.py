"""The GRU with resets inside a sequence equals one GRU run for each part between resets."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.functional.gru import gru_sequence

STEPS, BATCH, SIZE = 6, 2, 3
RESET = np.zeros((STEPS, BATCH), bool)
RESET[[2, 3], 0] = RESET[4, 1] = True


def arguments(seed: int = 0) -> list[np.ndarray]:
    """weights [H, 3 H], bias [H], gates [T, B, 3 H], hidden [B, H] in float64."""
    rng = np.random.default_rng(seed)
    shapes = ((SIZE, 3 * SIZE), (SIZE,), (STEPS, BATCH, 3 * SIZE), (BATCH, SIZE))
    return [rng.normal(size=shape) for shape in shapes]


def plain(weights, bias, gates, hidden, reset):
    """The recursion one step after another, from zero where `reset` says."""
    w_r, w_u, w_c = jnp.split(weights, 3, axis=-1)
    states = []
    for gate, clear in zip(gates, reset, strict=True):
        hidden = hidden * ~clear[:, None]
        g_r, g_u, g_c = jnp.split(gate, 3, axis=-1)
        r = jax.nn.sigmoid(g_r + hidden @ w_r)
        u = jax.nn.sigmoid(g_u + hidden @ w_u)
        c = jnp.tanh(g_c + r * (hidden @ w_c + bias))
        hidden = u * hidden + (1 - u) * c
        states.append(hidden)
    return jnp.stack(states)


def gradient(function):
    """The gradient of a nonlinear scalar of all states, by all four arguments."""

    def scalar(*args):
        return jnp.sum(jnp.sin(2.0 * function(*args, RESET)))

    return jax.grad(scalar, argnums=(0, 1, 2, 3))


def second_derivative(function):
    """The Hessian times a direction, by reverse mode over reverse mode."""

    def slope(args, direction):
        parts = zip(gradient(function)(*args), direction, strict=True)
        return sum(jnp.sum(a * b) for a, b in parts)

    return jax.grad(slope)


@cache
def both(derive, *seeds: int):
    """The same derivative of ours and of the plain loop."""
    with jax.enable_x64(True):
        given = [arguments(seed) for seed in seeds]
        given = given if len(seeds) > 1 else given[0]
        return tuple(jax.jit(derive(f))(*given) for f in (gru_sequence, plain))


def assert_same(got, expected):
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_states_equal_a_plain_loop():
    with jax.enable_x64(True):
        assert_same([gru_sequence(*arguments(), RESET)], [plain(*arguments(), RESET)])


def test_gradient_equals_that_of_the_plain_loop():
    assert_same(*both(gradient, 0))


def test_second_derivative_equals_that_of_the_plain_loop():
    assert_same(*both(second_derivative, 0, 1))


def test_a_reset_hides_all_that_came_before():
    weights, bias, gates, hidden = arguments()
    whole = gru_sequence(weights, bias, gates, hidden, RESET)
    alone = gru_sequence(weights, bias, gates[4:], np.zeros_like(hidden))
    np.testing.assert_array_equal(whole[4:, 1], alone[:, 1])
    assert np.abs(np.asarray(whole[4:, 0] - alone[:, 0])).max() > 0.01


def test_no_reset_gives_the_bits_of_a_mask_without_true():
    given = arguments()
    never = gru_sequence(*given, np.zeros_like(RESET))
    np.testing.assert_array_equal(gru_sequence(*given), never)
