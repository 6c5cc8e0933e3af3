"""Memories whose sequences are scans or attention: against plain loops in NumPy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.core.errors import ConfigError
from adaptax.functional.linear_recurrence import linear_recurrence
from adaptax.networks.memory import LRU, MemoryConfig, MinGRU, Transformer
from adaptax.networks.memory import transformer as module
from adaptax.networks.memory.lru import Recurrence

BATCH, STEPS, INPUTS, SIZE, LAYERS = 3, 7, 5, 8, 2
RESET = np.zeros((BATCH, STEPS), bool)
RESET[0, [2, 3]] = RESET[1, 0] = RESET[2, 6] = True


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def norm(x, p):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]


def linear(x, p):
    return x @ p["kernel"] + p.get("bias", 0.0)


@partial(jax.jit, static_argnums=0)
def sequence(layer, params, memory, x, reset=None):
    return layer.apply(params, memory, x, reset, method="sequence")


def case(layer, seed=0):
    """Random parameters, a memory as it comes of some steps, and inputs, all in float64."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(BATCH, STEPS, INPUTS))
    before = rng.normal(size=(BATCH, 6, INPUTS)).astype(np.float32)
    start = layer.initial((BATCH,))
    shapes = jax.eval_shape(lambda: layer.init(jax.random.key(0), start, x, method="sequence"))
    params = jax.tree.map(lambda p: 0.5 * rng.normal(size=p.shape).astype(np.float32), shapes)
    memory, _ = sequence(layer, params, start, before)
    wide = jax.tree.map(lambda p: np.asarray(p, np.float64), params["params"])
    return params, wide, memory, before, x


@pytest.mark.parametrize("imaginary", [0, 1j])
@pytest.mark.parametrize("resets", [False, True])
def test_a_linear_recurrence_is_its_loop(imaginary, resets):
    real, other = np.random.default_rng(0).normal(size=(2, 2, BATCH, STEPS, 4)).astype(np.float32)
    decay, drive = real + imaginary * other
    start = drive[:, 0] + 1
    state, states = start, []
    for t in range(STEPS):
        state = np.where(RESET[:, t, None] & resets, 0, state)
        state = decay[:, t] * state + drive[:, t]
        states.append(state)
    given = map(jnp.asarray, (decay, drive, start))
    found = jax.jit(linear_recurrence)(*given, RESET if resets else None)
    np.testing.assert_allclose(found, np.stack(states, 1), rtol=1e-4, atol=1e-5)


def glu(x, mixed, p):
    value, gate = np.split(linear(gelu(mixed), p), 2, axis=-1)
    return x + value * sigmoid(gate)


def test_min_gru_is_its_equations():
    layer = MinGRU(SIZE, num_layers=LAYERS)
    params, p, memory, _, x = case(layer)
    hidden, features = np.asarray(memory, np.float64).copy(), []
    for t in range(STEPS):
        hidden[RESET[:, t]] = 0.0
        h = linear(x[:, t], p["Dense_0"])
        for i in range(LAYERS):
            both = linear(norm(h, p[f"LayerNorm_{i}"]), p[f"Dense_{1 + 2 * i}"])
            z, candidate = sigmoid(both[:, :SIZE]), both[:, SIZE:]
            hidden[:, i] = (1 - z) * hidden[:, i] + z * candidate
            h = glu(h, hidden[:, i], p[f"Dense_{2 + 2 * i}"])
        features.append(h)
    after, found = sequence(layer, params, memory, x, RESET)
    np.testing.assert_allclose(found, np.stack(features, 1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(after, hidden, rtol=1e-4, atol=1e-5)


def test_lru_is_its_equations():
    layer = LRU(SIZE, num_layers=LAYERS)
    params, p, memory, _, x = case(layer)
    states = np.asarray(memory["re"], np.complex128) + 1j * np.asarray(memory["im"], np.float64)
    features = []
    for t in range(STEPS):
        states[RESET[:, t]] = 0.0
        h = linear(x[:, t], p["Dense_0"])
        for i in range(LAYERS):
            own, u = p[f"Recurrence_{i}"], norm(h, p[f"LayerNorm_{i}"])
            decay = np.exp(-np.exp(own["nu"]) + 1j * np.exp(own["theta"]))
            into = own["Dense_0"]["kernel"]
            out = own["Dense_1"]["kernel"]
            b, c = into[:, :SIZE] + 1j * into[:, SIZE:], out[:SIZE] - 1j * out[SIZE:]
            states[:, i] = decay * states[:, i] + np.exp(own["log_gamma"]) * (u @ b)
            y = (states[:, i] @ c).real + own["direct"] * u
            h = glu(h, y, p[f"Dense_{1 + i}"])
        features.append(h)
    after, found = sequence(layer, params, memory, x, RESET)
    np.testing.assert_allclose(found, np.stack(features, 1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(after["re"], states.real, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(after["im"], states.imag, rtol=1e-4, atol=1e-5)


def test_first_eigenvalues_lie_on_their_ring_and_states_are_as_large_as_inputs():
    layer, start = Recurrence(64), jnp.zeros((1, 64), jnp.complex64)
    params = jax.jit(layer.init)(jax.random.key(0), jnp.zeros((1, 1, 64)), start)["params"]
    radius, phase = np.exp(-np.exp(params["nu"])), np.exp(params["theta"])
    assert 0.9 <= radius.min() < 0.92
    assert 0.99 < radius.max() <= 0.999
    assert 0 < phase.min() < phase.max() <= np.pi / 10
    np.testing.assert_allclose(np.exp(params["log_gamma"]) ** 2, 1 - radius**2, rtol=1e-3)


def gate(x, y, p):
    by_y, by_x = linear(y, p["Dense_0"]), linear(x, p["Dense_1"])
    r, z = (
        sigmoid(a + b) for a, b in ((by_y[:SIZE], by_x[:SIZE]), (by_y[SIZE:-SIZE] - 2, by_x[SIZE:]))
    )
    candidate = np.tanh(by_y[-SIZE:] + linear(r * x, p["Dense_2"]))
    return (1 - z) * x + z * candidate


def turned(x, position):
    """Pairs of a head's numbers as complex ones, turned."""
    half = len(x) // 2
    z = (x[:half] + 1j * x[half:]) * np.exp(1j * position * 10_000.0 ** (-np.arange(half) / half))
    return np.concatenate([z.real, z.imag])


def attended(xs, p, context):
    """Features of the last of inputs [n, F] since the start, by attention to all in sight."""
    hs = [linear(x, p["Dense_0"]) for x in xs]
    for i in range(LAYERS):
        dense = [p[f"Dense_{1 + 4 * i + j}"] for j in range(4)]
        qkv = [np.split(linear(norm(h, p[f"LayerNorm_{2 * i}"]), dense[0]), 3) for h in hs]
        new = []
        for n, h in enumerate(hs):
            heads = []
            for head in range(4):
                part = slice(head * SIZE // 4, (head + 1) * SIZE // 4)
                near = range(max(0, n - context + 1), n + 1)
                q = turned(qkv[n][0][part], n)
                logits = [q @ turned(qkv[m][1][part], m) / np.sqrt(SIZE / 4) for m in near]
                weights = np.exp(logits) / np.sum(np.exp(logits))
                heads.append(sum(w * qkv[m][2][part] for w, m in zip(weights, near, strict=True)))
            h = gate(h, gelu(linear(np.concatenate(heads), dense[1])), p[f"Gate_{2 * i}"])
            hidden = gelu(linear(norm(h, p[f"LayerNorm_{2 * i + 1}"]), dense[2]))
            new.append(gate(h, gelu(linear(hidden, dense[3])), p[f"Gate_{2 * i + 1}"]))
        hs = new
    return hs[-1]


@pytest.mark.parametrize("context", [4, 20])
def test_a_transformer_is_attention_to_the_steps_in_sight(monkeypatch, context):
    monkeypatch.setattr(module, "CHUNK", 3)  # three chunks, the last one padded
    layer = Transformer(SIZE, num_layers=LAYERS, context=context)
    params, p, memory, before, x = case(layer)
    found = sequence(layer, params, memory, x, RESET)[1]
    for b in range(BATCH):
        since = list(before[b].astype(np.float64))
        for t in range(STEPS):
            since = [] if RESET[b, t] else since
            since.append(x[b, t])
            expected = attended(since, p, context)
            np.testing.assert_allclose(found[b, t], expected, rtol=1e-3, atol=1e-4)


def test_a_transformers_context_is_no_longer_than_what_it_is_run_for():
    assert MemoryConfig("transformer", context=50).make(20).context == 20
    assert MemoryConfig("transformer", context=50).make(80).context == 50
    assert MemoryConfig("transformer", context=50).make().context == 50
    assert MemoryConfig("lru", num_layers=3).make(20) == LRU(64, num_layers=3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "transformer", "size": 12}, "memory size 12 must be a multiple of 8"),
        ({"kind": "lru", "num_layers": 0}, "num_layers must be greater than 0"),
        ({"kind": "transformer", "context": 0}, "context must be greater than 0"),
        ({"kind": "gru", "num_layers": 3}, "num_layers is of min-gru, lru, .*: kind gru has none"),
        ({"kind": "lru", "context": 50}, "context is of transformer: kind lru has none"),
    ],
)
def test_impossible_memories_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        MemoryConfig(**settings)
