"""What algorithms start with: initial weights, and a floor under the exploration's deviation.

Layers are told apart by their shapes, so that nothing here depends on what they are called.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from factorized import factorized

from adaptax.core.spec import Continuous, Discrete, EnvSpec
from adaptax.experiment.build import make_algorithm

OBS, ACTIONS, HIDDEN = 7, 5, (24, 16)
SPEC, CHOICES = (EnvSpec(OBS, space(ACTIONS), 10) for space in (Continuous, Discrete))
ON_POLICY = ["reinforce", "a2c", "ppo", "ppo2", "trpo"]


def parameters(state) -> list[tuple[str, np.ndarray]]:
    """Every array of a state that a network consists of."""
    paths, _ = jax.tree_util.tree_flatten_with_path(state)
    named = [(jax.tree_util.keystr(path), leaf) for path, leaf in paths]
    return [(n, np.asarray(x)) for n, x in named if "['params']" in n and "opt_state" not in n]


def start(name: str, spec: EnvSpec = SPEC, **settings) -> list[tuple[str, np.ndarray]]:
    """The first parameters of an algorithm."""
    return parameters(make_algorithm(name, spec, **settings).init(jax.random.key(0)))


def gain(kernel: np.ndarray) -> float:
    """The factor on an orthogonal matrix that a kernel is; fails if it is none."""
    small = kernel @ kernel.T if len(kernel) < len(kernel.T) else kernel.T @ kernel
    square = small[0, 0]
    np.testing.assert_allclose(small, square * np.eye(len(small)), atol=1e-5 * square)
    return float(np.sqrt(square))


@pytest.mark.parametrize("name", [*ON_POLICY, "vpg-maml", "promp"])
def test_on_policy_networks_start_orthogonal(name):
    """Gain sqrt 2 in hidden layers, 0.01 where actions come from, 1 where values do."""
    gains = {(OBS, 24): np.sqrt(2), (24, 16): np.sqrt(2), (16, ACTIONS): 0.01, (16, 1): 1.0}
    seen = set()
    for path, x in start(name, hidden_sizes=HIDDEN, init_std=1.0):
        if "kernel" in path:
            assert gain(x) == pytest.approx(gains[x.shape], rel=1e-5), path
            seen.add(x.shape)
        else:
            assert np.all(x == 0), path  # biases, and the logarithm of a deviation of 1
    assert {(OBS, 24), (24, 16), (16, ACTIONS)} <= seen


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("name", ["ppo", "reinforce", "rl2-ppo", "rl2-trpo"])
def test_networks_start_orthogonal_around_their_memory(name, kind):
    inputs = OBS + ACTIONS + 2 if "rl2" in name else OBS
    gains = {(inputs, 24): np.sqrt(2), (16, ACTIONS): 0.01, (16, 1): 1.0}
    memory = {"kind": kind, "size": 16}
    kernels = start(name, hidden_sizes=(24,), memory=memory)
    found = {x.shape: gain(x) for n, x in kernels if "kernel" in n and x.shape in gains}
    assert found == pytest.approx(gains, rel=1e-5)
    blocks = [x for n, x in kernels if "recurrent" in n]
    assert blocks
    for block in blocks:
        for gate in np.split(block, {"gru": 3, "lstm": 4}[kind], axis=-1):
            assert gain(gate) == pytest.approx(1.0, rel=1e-5)


@pytest.mark.parametrize(
    ("name", "spec"),
    [("dqn", CHOICES), ("ddpg", SPEC), ("td3", SPEC), ("sac", SPEC), ("sac", CHOICES)],
)
def test_networks_that_learn_from_replay_start_uniform(name, spec):
    """Within 1 / sqrt(inputs), which every layer nearly reaches; biases 0."""
    kernels = 0
    for path, x in start(name, spec, hidden_sizes=(256, 64), buffer_size=1000):
        if "kernel" not in path:
            assert np.all(x == 0), path
            continue
        twins = x if x.ndim == 3 else x[None]
        for kernel in twins:
            bound = 1 / np.sqrt(len(kernel))
            assert 0.9 * bound < np.abs(kernel).max() <= bound, path
            if kernel.size > 1000:
                assert np.std(kernel) == pytest.approx(bound / np.sqrt(3), rel=0.05), path
        assert len(twins) == 1 or np.all(twins[0] != twins[1]), path
        kernels += len(twins)
    assert kernels >= 6  # three layers, and those of what lags behind


FLOORS = [(name, 1e-3) for name in ON_POLICY] + [("vpg-maml", 0.2), ("rl2-ppo", 1e-3)]


@pytest.mark.parametrize("log_std", [-50.0, -1.0])
@pytest.mark.parametrize(("name", "floor"), FLOORS)
def test_exploration_never_ends(name, floor, log_std):
    """Actions on one observation deviate by what is learned, or by the floor where it is less."""
    algorithm = make_algorithm(name, SPEC)
    state = jax.tree_util.tree_map_with_path(
        lambda path, x: jnp.full_like(x, log_std) if "log_std" in str(path[-1]) else x,
        algorithm.init(jax.random.key(0)),
    )
    actor = algorithm.actor(state)
    key, obs = jax.random.key(1), jnp.zeros((1, 4000, OBS))
    action, _, _ = actor.act(actor.begin(1, 4000, key), obs, key)
    expected = max(np.exp(log_std), floor)
    np.testing.assert_allclose(np.std(action, axis=(0, 1)), expected, rtol=0.05)


def test_several_networks_at_once_take_their_orthogonal_weights_one_after_another():
    """A batch of factorizations in one operation may wait for good: see `one_by_one`."""
    memory = {"kind": "gru", "size": 4}
    init = make_algorithm("ppo", SPEC, hidden_sizes=(8, 8), memory=memory).init
    keys = jax.random.split(jax.random.key(0), 3)
    together = jax.jit(jax.vmap(lambda key: init(key).params))(keys)
    for i, key in enumerate(keys):
        alone = init(key).params
        jax.tree.map(lambda x, y, i=i: np.testing.assert_array_equal(x[i], y), together, alone)
    shapes = factorized(jax.vmap(init), keys)
    assert shapes
    assert all(len(shape) == 2 for shape in shapes), shapes
