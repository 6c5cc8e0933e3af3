"""Heads with generated weights: against NumPy, at their start, and in whole algorithms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from toys import point_suite
from trial_agents import (
    SMALL_TRIALS,
    check_goes_on_as_if_nothing_had_happened,
    check_padding_counts_for_nothing,
)

from adaptax.core.errors import ConfigError
from adaptax.core.spec import Discrete
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.functional.trust_region import gauss_newton_product, hessian_product
from adaptax.networks.actor_critic import ActorCritic, init_params, part_of, with_part
from adaptax.networks.hypernetwork import Behind, Generated, HeadsConfig, WithState, head_inputs
from adaptax.networks.memory import GRU

KEY, BATCH, FEATURES, OBS, HIDDEN, OUT = jax.random.key(0), 5, 6, 3, 4, 2
kinds = pytest.mark.parametrize("kind", ["state", "generated"])


def inputs():
    rng = np.random.default_rng(0)
    return (rng.normal(size=(BATCH, n)).astype(np.float32) for n in (FEATURES, OBS + 2))


def made(init):
    layer = Generated(OBS, (HIDDEN,), OUT, scale=0.01, first_weights=init)
    return layer, jax.jit(layer.init)(KEY, *inputs())


def test_each_row_is_the_network_that_its_features_describe():
    layer, params = made("kaiming")
    features, obs = inputs()
    found = layer.apply(params, features, obs)
    own = jax.tree.map(np.asarray, params["params"])
    for i in range(BATCH):
        x = obs[i, :OBS]
        for number, (fan_in, fan_out) in enumerate([(OBS, HIDDEN), (HIDDEN, OUT)]):
            p = own[f"Dense_{number}"]
            numbers = features[i] @ p["kernel"] + p["bias"]
            weights = numbers[: fan_in * fan_out].reshape(fan_in, fan_out)
            x = x @ weights + numbers[fan_in * fan_out :]
            x = np.tanh(x) if number == 0 else x
        np.testing.assert_allclose(found[i], x, rtol=1e-4, atol=1e-5)


def test_bias_hyperinit_starts_as_one_orthogonal_network_for_all_features():
    layer, params = made("bias")
    features, obs = inputs()
    np.testing.assert_array_equal(
        layer.apply(params, features, obs), layer.apply(params, 0 * features, obs)
    )
    for number, (shape, gain) in enumerate([((OBS, HIDDEN), 2**0.5), ((HIDDEN, OUT), 0.01)]):
        p = params["params"][f"Dense_{number}"]
        assert not np.any(p["kernel"])
        weights, bias = np.split(np.asarray(p["bias"]), [shape[0] * shape[1]])
        singular = np.linalg.svd(weights.reshape(shape), compute_uv=False)
        np.testing.assert_allclose(singular, gain, rtol=1e-5)
        assert not bias.any()


def test_kaiming_makes_weights_whose_size_knows_nothing_of_the_generated_layer():
    layer = Generated(40, (50,), OUT, scale=0.01, first_weights="kaiming")
    features = jax.random.normal(jax.random.key(1), (1, 200))
    params = jax.jit(layer.init)(KEY, features, jnp.zeros((1, 40)))["params"]
    for number in (0, 1):
        kernel = np.asarray(params[f"Dense_{number}"]["kernel"])
        assert kernel.std() == pytest.approx((2 / 200) ** 0.5, rel=0.05)
        assert not np.any(params[f"Dense_{number}"]["bias"])


def test_the_control_sees_features_and_the_observation_alone():
    features, obs = inputs()
    seen = WithState(OBS).apply({}, features, obs)
    np.testing.assert_array_equal(seen, np.concatenate([features, obs[:, :OBS]], -1))


def test_behind_an_observation_nothing_of_it_is_seen():
    layer, (_, x) = Behind(OBS, (4,)), inputs()
    params = layer.init(KEY, x)
    other = x.copy()
    other[:, :OBS] = 9.0
    np.testing.assert_array_equal(layer.apply(params, x), layer.apply(params, other))
    assert np.any(layer.apply(params, x) != layer.apply(params, -x))


@kinds
@pytest.mark.parametrize("shared", [False, True])
def test_a_sequence_equals_its_steps(kind, shared):
    spec = make_suite("gridworld").spec
    heads = head_inputs(HeadsConfig(kind, (4,)), spec)
    network = ActorCritic(Discrete(5), (4,), GRU(4), shared=shared, **heads)
    shapes = jax.eval_shape(lambda: init_params(network, KEY, 9))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), shapes)
    x = jax.random.normal(KEY, (2, 4, 9))
    start = network.initial((2,))
    _, (policy, value) = jax.jit(lambda *a: network.apply(*a, method="sequence"))(params, start, x)
    memory, step = start, jax.jit(network.apply)
    for t in range(4):
        memory, (one, v) = step(params, memory, x[:, t])
        np.testing.assert_allclose(one.logits, policy.logits[:, t], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(v, value[:, t], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_exact_curvature_equals_plain_hessians():
    spec = make_suite("gridworld").spec
    heads = head_inputs(HeadsConfig("generated", (3,)), spec)
    with jax.enable_x64(True):
        network = ActorCritic(Discrete(5), (3,), GRU(3), **heads)
        rng = np.random.default_rng(0)
        shapes = jax.eval_shape(lambda: init_params(network, KEY, 9))
        params = jax.tree.map(lambda p: jnp.asarray(rng.normal(size=p.shape)), shapes)
        x = jnp.asarray(rng.normal(size=(2, 4, 9)))
        flat, unravel = ravel_pytree(part_of(params, "policy"))

        def policy(p):
            given = with_part(params, unravel(p)), network.initial((2,)), x
            return network.apply(*given, method="sequence")[1][0]

        old = jax.jit(policy)(flat)

        def mean_kl(new):
            return jnp.mean(old.kl(new))

        v = jnp.asarray(rng.normal(size=flat.shape))
        close = jax.jit(gauss_newton_product(policy, mean_kl, flat))(v)
        gradient = jax.jit(jax.grad(lambda p: mean_kl(policy(p))))
        differences = (gradient(flat + 1e-6 * v) - gradient(flat - 1e-6 * v)) / 2e-6
        assert np.linalg.norm(close) > 0
        np.testing.assert_allclose(close, differences, rtol=1e-5, atol=1e-7)
        exact = jax.jit(hessian_product(lambda p: mean_kl(policy(p)), flat))(v)
        np.testing.assert_allclose(close, exact, rtol=1e-8, atol=1e-11)


@pytest.mark.slow
@kinds
@pytest.mark.parametrize("name", ["rl2-ppo", "rl2-trpo", "varibad"])
def test_algorithms_take_them_and_padding_changes_nothing(name, kind):
    settings = {**SMALL_TRIALS, "heads": {"kind": kind, "hidden_sizes": (3,)}}
    check_padding_counts_for_nothing(lambda spec: make_algorithm(name, spec, **settings))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rl2-ppo", "varibad"])
def test_a_run_with_generated_weights_goes_on_as_if_nothing_had_happened(name, tmp_path):
    heads = {"kind": "generated", "hidden_sizes": (3,), "init": "kaiming"}
    config = check_goes_on_as_if_nothing_had_happened(
        lambda spec: make_algorithm(name, spec, **SMALL_TRIALS, heads=heads), tmp_path
    )
    assert config.heads == HeadsConfig(**heads)


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="hidden_sizes must be greater than 0"):
        HeadsConfig("generated", (0,))
    with pytest.raises(ConfigError, match="heads of kind 'state' do not take pictures"):
        make_algorithm("rl2-ppo", make_suite("catch").spec, heads={"kind": "state"})
    assert head_inputs(HeadsConfig(), point_suite().spec) == {}
