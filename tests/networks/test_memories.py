"""Memories: a sequence equals its steps, and a reset equals a fresh start, whatever remembers."""

from functools import cache

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.core.errors import ConfigError
from adaptax.core.spec import Continuous
from adaptax.networks.actor_critic import ActorCritic, has_memory, init_params
from adaptax.networks.memory import LOOKING_BACK, LSTM, MEMORIES, FastWeights, MemoryConfig
from adaptax.networks.memory import fast_weights as module
from adaptax.networks.memory.fast_weights import fast_weights

SIZE, LANES, STEPS, INPUTS, CONTEXT = 8, (2, 3), 6, 5, 4
RESET = np.zeros((*LANES, STEPS), bool)
RESET[0, 0, [2, 3]] = RESET[1, 1, 4] = RESET[1, 2, 0] = RESET[0, 2, 5] = True
every_memory = pytest.mark.parametrize("kind", MEMORIES)
BEHIND_HEADS = [
    pytest.param(kind, shared, marks=() if kind == "gru" else pytest.mark.slow)
    for kind in MEMORIES
    for shared in (False, True)
]
every_network = pytest.mark.parametrize(
    ("kind", "shared"), [*((kind, None) for kind in MEMORIES), *BEHIND_HEADS]
)


@cache
def case(kind: str, shared: bool | None):
    """A network, random parameters and memory, and inputs [2, 3, 6, 5].

    The memory itself where `shared` is None, else policy and value behind one or two of them.
    """
    own = {"context": CONTEXT} if kind in LOOKING_BACK else {}
    network = MemoryConfig(kind, SIZE, **own).make()
    x, key = jax.random.normal(jax.random.key(0), (*LANES, STEPS, INPUTS)), jax.random.key(1)
    if shared is None:
        shapes = jax.eval_shape(network.init, key, network.initial((1,)), x[0, :1, 0])
    else:
        network = ActorCritic(Continuous(2), (7,), network, shared=shared)
        shapes = jax.eval_shape(lambda: init_params(network, key, INPUTS))
    rng = np.random.default_rng(0)
    params, memory = (drawn(rng, tree) for tree in (shapes, network.initial(LANES)))
    return network, params, memory, x


def drawn(rng, tree):
    """Random numbers in the place of leaves; for counts of steps 0 to 9."""

    def one(x):
        if jnp.issubdtype(x.dtype, jnp.integer):
            return rng.integers(10, size=x.shape).astype(x.dtype)
        return 0.5 * rng.normal(size=x.shape).astype(np.float32)

    return jax.tree.map(one, tree)


@cache
def compiled(network):
    """A step and a sequence."""
    return jax.jit(network.apply), jax.jit(lambda *given: network.apply(*given, method="sequence"))


def counting(memory):
    """A memory with zeros in the slots of caches that nothing was written to since the start."""

    def one(x):
        if not isinstance(x, dict) or "cache" not in x:
            return x
        written = jnp.arange(CONTEXT) < x["count"][..., None]
        cache = jax.tree.map(
            lambda y: jnp.where(written[..., None, None, :, None], y, 0.0), x["cache"].arrays
        )
        return x | {"cache": cache}

    return jax.tree.map(one, memory, is_leaf=lambda x: isinstance(x, dict) and "cache" in x)


def assert_close(one, other):
    for a, b in zip(*map(jax.tree.leaves, map(counting, (one, other))), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5, rtol=1e-5)


@every_network
@pytest.mark.parametrize("reset", [None, RESET], ids=["whole", "resets"])
def test_a_sequence_equals_its_steps(kind, shared, reset):
    network, params, memory, x = case(kind, shared)
    step, sequence = compiled(network)
    after, outputs = sequence(params, memory, x, reset)
    for t in range(STEPS):
        now = None if reset is None else reset[..., t]
        memory, output = step(params, memory, x[..., t, :], now)
        assert_close(output, jax.tree.map(lambda y, t=t: y[:, :, t], outputs))
    assert_close(memory, after)


@every_network
def test_after_a_reset_all_is_as_at_a_fresh_start(kind, shared):
    network, params, memory, x = case(kind, shared)
    _, sequence = compiled(network)
    reset = jnp.zeros((*LANES, STEPS), bool).at[..., 2].set(True)
    after, outputs = sequence(params, memory, x, reset)
    fresh, expected = sequence(params, network.initial(LANES), x[..., 2:, :], None)
    assert_close(jax.tree.map(lambda y: y[:, :, 2:], outputs), expected)
    assert_close(after, fresh)


@every_memory
@pytest.mark.parametrize("shared", [False, True], ids=["apart", "shared"])
def test_what_was_remembered_changes_the_outputs_unless_it_is_cleared(kind, shared):
    network, params, memory, x = case(kind, shared)
    _, sequence = compiled(network)

    def difference(reset):
        ends = [sequence(params, m, x, reset)[1] for m in (memory, network.initial(LANES))]
        (one, value), (other, other_value) = ends
        return [np.abs(a - b).max() for a, b in ((one.mean, other.mean), (value, other_value))]

    cleared = jnp.zeros((*LANES, STEPS), bool).at[..., 0].set(True)
    assert max(difference(cleared)) == 0.0
    if has_memory(network):
        assert min(difference(None)) > 1e-3
    assert has_memory(network) == (kind != "none")


@every_network
def test_gradients_are_finite_and_stop_at_a_reset(kind, shared):
    network, params, memory, x = case(kind, shared)

    def total(params, memory, x):
        # From the third step on, before which the memory is cleared.
        _, outputs = network.apply(params, memory, x, reset, method="sequence")
        return sum(jnp.sum(y[:, :, 2:]) for y in jax.tree.leaves(outputs))

    reset = jnp.zeros((*LANES, STEPS), bool).at[..., 2].set(True)
    grads = jax.jit(jax.grad(total, argnums=(0, 1, 2), allow_int=True))(params, memory, x)
    of_params, of_memory, of_x = jax.tree.map(
        lambda g: np.zeros(()) if g.dtype == jax.dtypes.float0 else g, grads
    )
    assert all(np.isfinite(g).all() for g in jax.tree.leaves((of_params, of_memory, of_x)))
    assert all(np.abs(g).max() > 0 for g in jax.tree.leaves(of_params))
    assert all(np.abs(g).max() == 0 for g in jax.tree.leaves(of_memory))
    assert np.abs(of_x[..., :2, :]).max() == 0
    assert np.abs(of_x[..., 2:, :]).max() > 0


@every_memory
def test_the_memory_before_the_first_step_needs_no_parameters(kind):
    memory = MemoryConfig(kind, SIZE).make()
    start = memory.initial(LANES)
    assert all(x.shape[:2] == LANES and not x.any() for x in jax.tree.leaves(start))
    _, params, _, x = case(kind, None)
    after, _ = compiled(memory)[0](params, start, x[..., 0, :], None)
    assert jax.tree.map(jnp.shape, after) == jax.tree.map(jnp.shape, start)


@pytest.mark.parametrize("shared", [False, True])
def test_policy_and_value_share_what_they_are_told_to(shared):
    network, params, memory, x = case("gru", shared)

    def value(params):
        _, (_, value) = network.apply(params, memory, x, None, method="sequence")
        return jnp.sum(value)

    moved = jax.tree.map(lambda g: bool(np.any(g)), jax.jit(jax.grad(value))(params))["params"]
    heads = ("policy_head", "value_head") if shared else ("policy", "value")
    assert [any(jax.tree.leaves(moved[name])) for name in heads] == [False, True]
    assert ("tower" in moved) == shared
    if shared:
        assert any(jax.tree.leaves(moved["tower"]["memory"]))


def test_sizes_that_heads_do_not_divide_are_refused():
    with pytest.raises(ConfigError, match="memory size 6 must be a multiple of 4"):
        MemoryConfig("fast-weights", 6)
    with pytest.raises(ConfigError, match="size must be greater than 0"):
        MemoryConfig("gru", 0)


def test_lstm_equals_a_loop_of_flax_cells():
    layer = LSTM(SIZE)
    _, params, memory, x = case("lstm", None)
    own, cell, expected = params["params"], nn.LSTMCell(SIZE), []
    kernels, biases, weights = (
        np.split(array, 4, axis=-1)
        for array in (own["input"]["kernel"], own["input"]["bias"], own["recurrent"])
    )
    theirs = {}
    for gate, kernel, bias, recurrent in zip("ifgo", kernels, biases, weights, strict=True):
        theirs[f"i{gate}"] = {"kernel": kernel}
        theirs[f"h{gate}"] = {"kernel": recurrent, "bias": bias}
    carry = (memory["cell"], memory["hidden"])
    for t in range(STEPS):
        carry, hidden = cell.apply({"params": theirs}, carry, x[..., t, :])
        expected.append(hidden)
    after, features = layer.apply(params, memory, x, method="sequence")
    np.testing.assert_allclose(features, jnp.stack(expected, axis=-2), atol=1e-6)
    assert_close(after, {"cell": carry[0], "hidden": carry[1]})


@pytest.mark.parametrize("resets", [False, True])
@pytest.mark.parametrize("steps", [1, 3, 4, 9])
def test_chunks_of_fast_weights_equal_the_loop_over_time(monkeypatch, steps, resets):
    monkeypatch.setattr(module, "CHUNK", 4)
    batch, heads, keys, values = 2, 3, 4, 5
    rng = np.random.default_rng(0)
    query, key = rng.normal(size=(2, batch, heads, steps, keys)).astype(np.float32)
    value = rng.normal(size=(batch, heads, steps, values)).astype(np.float32)
    start = rng.normal(size=(batch, heads, keys, values)).astype(np.float32)
    reset = (np.arange(steps) % 3 == [[0], [2]]) & resets

    weights, expected = start.copy(), np.empty_like(value)
    for b, h, t in np.ndindex(batch, heads, steps):
        weights[b, h] *= not reset[b, t]
        weights[b, h] += np.outer(key[b, h, t], value[b, h, t])
        expected[b, h, t] = query[b, h, t] @ weights[b, h]

    read, last = fast_weights(query, key, value, start, jnp.asarray(reset) if resets else None)
    np.testing.assert_allclose(read, expected, atol=1e-5)
    np.testing.assert_allclose(last, weights, atol=1e-5)


def test_what_a_step_stores_is_found_under_the_input_before_it():
    layer = FastWeights(8)
    x, start = jax.random.normal(jax.random.key(0), (1, 5, 3)), layer.initial((1,))
    params = jax.jit(lambda key: layer.init(key, start, x, method="sequence"))(jax.random.key(1))

    @jax.jit
    def features(x, params=params):
        return layer.apply(params, start, x, method="sequence")[1]

    gradient = jax.jit(jax.grad(lambda x: features(x)[0, -1].sum()))(x)[0]
    assert np.all(np.abs(gradient).sum(-1) > 0)
    # At the first step nothing was seen before: no key, nothing stored, whatever its value.
    zeros = jax.tree.map(jnp.zeros_like, params["params"]["Dense_2"])
    no_values = {"params": {**params["params"], "Dense_2": zeros}}
    np.testing.assert_array_equal(features(x)[0, 0], features(x, no_values)[0, 0])
    assert np.abs(features(x, no_values)[0, 1] - features(x)[0, 1]).max() > 1e-3
