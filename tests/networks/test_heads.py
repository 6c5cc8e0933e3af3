"""A Gaussian policy's deviation within a range and its mean within the actions' bounds."""

from __future__ import annotations

import flax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trial_agents import SMALL_TRIALS, check_padding_counts_for_nothing

from adaptax.core.errors import ConfigError
from adaptax.core.spec import Continuous, Discrete, EnvSpec
from adaptax.experiment.build import make_algorithm
from adaptax.networks.actor_critic import ActorCritic, init_params
from adaptax.networks.heads import ActionHead
from adaptax.networks.hypernetwork import HeadsConfig, head_inputs
from adaptax.networks.memory import GRU

KEY, SPACE, LOG_STD = jax.random.key(0), Continuous(4), np.array([-9.0, -0.2, 0.3, 9.0])
SPEC = EnvSpec(3, SPACE, 5)
BOUNDED = {"min_std": 0.5, "max_std": 1.5, "tanh_mean": True}
RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(6, 3)).astype(np.float32)


def with_log_std(params):
    """Random parameters, the deviations' as above: below the range, within it, above it."""

    def drawn(path, x):
        given = LOG_STD if path[-1] == "log_std" else 2.0 * RNG.normal(size=x.shape)
        return jnp.asarray(given, jnp.float32)

    return flax.traverse_util.path_aware_map(drawn, params)


def test_deviations_end_at_the_range_and_means_are_squashed():
    head = ActionHead(SPACE, **BOUNDED)
    params = with_log_std(head.init(KEY, FEATURES))
    own = params["params"]["Dense_0"]
    found = head.apply(params, FEATURES)
    std = np.broadcast_to(np.clip(np.exp(LOG_STD), 0.5, 1.5), (6, 4))
    np.testing.assert_allclose(np.exp(found.log_std), std, rtol=1e-6)
    mean = np.tanh(FEATURES @ np.asarray(own["kernel"]) + np.asarray(own["bias"]))
    assert np.abs(mean).max() > 0.9
    np.testing.assert_allclose(found.mean, mean, rtol=1e-5, atol=1e-6)


def test_no_gradient_leads_back_from_beyond_the_range():
    head = ActionHead(SPACE, **BOUNDED)
    params = with_log_std(head.init(KEY, FEATURES))
    gradient = jax.grad(lambda p: jnp.mean(head.apply(p, FEATURES).entropy()))(params)
    np.testing.assert_allclose(gradient["params"]["log_std"], [0, 1, 1, 0], rtol=1e-6)


@pytest.mark.parametrize("bounds", [{"min_std": 0.3}, {"max_std": 0.3}])
def test_the_gradient_of_a_deviation_at_a_bound_is_whole(bounds):
    head = ActionHead(SPACE, 0.3, **bounds)
    params = head.init(KEY, FEATURES)
    gradient = jax.grad(lambda p: jnp.mean(head.apply(p, FEATURES).entropy()))(params)
    np.testing.assert_allclose(gradient["params"]["log_std"], [1, 1, 1, 1], rtol=1e-6)


def test_deviations_that_follow_from_features_are_a_second_layer_of_them():
    head = ActionHead(SPACE, 0.7, min_std=0.01, max_std=50.0, state_dependent_std=True)
    first = head.init(KEY, FEATURES)
    np.testing.assert_allclose(np.exp(head.apply(first, FEATURES).log_std), 0.7, rtol=0.2)
    params = with_log_std(first)
    own, found = params["params"], head.apply(params, FEATURES)
    log_std = LOG_STD + FEATURES @ np.asarray(own["Dense_1"]["kernel"]) + own["Dense_1"]["bias"]
    within = np.clip(log_std, np.log(0.01), np.log(50.0))
    assert (within == log_std).any() and (within != log_std).any()
    np.testing.assert_allclose(found.log_std, within, rtol=1e-5, atol=1e-6)
    free = head.clone(state_dependent_std=False).apply(params, FEATURES)
    np.testing.assert_array_equal(found.mean, free.mean)


def test_without_a_range_the_floor_is_all_there_is():
    network = ActorCritic(SPACE, (3,))
    params = with_log_std(init_params(network, KEY, 3))
    _, (policy, _) = network.apply(params, network.initial((6,)), FEATURES)
    np.testing.assert_allclose(np.exp(policy.log_std[0]), np.maximum(np.exp(LOG_STD), 1e-3), 1e-6)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", ["plain", "state", "generated"])
def test_whatever_heads_see_their_mean_is_the_other_ones_squashed(kind, shared):
    heads = head_inputs(HeadsConfig(kind, (3,)), SPEC)
    plain = ActorCritic(SPACE, (3,), GRU(3), shared=shared, **heads)
    bounded = plain.clone(**BOUNDED)
    params, start = with_log_std(init_params(plain, KEY, 3)), plain.initial((6,))
    (_, (other, value)), (_, (found, same)) = (
        network.apply(params, start, FEATURES) for network in (plain, bounded)
    )
    np.testing.assert_allclose(found.mean, np.tanh(other.mean), rtol=1e-6)
    np.testing.assert_allclose(np.exp(found.log_std[0]), np.clip(np.exp(LOG_STD), 0.5, 1.5), 1e-6)
    np.testing.assert_array_equal(value, same)


def test_choices_are_as_without_them():
    plain = ActionHead(Discrete(4))
    params = plain.init(KEY, FEATURES)
    same = plain.clone(**BOUNDED).apply(params, FEATURES)
    np.testing.assert_array_equal(plain.apply(params, FEATURES).logits, same.logits)


@pytest.mark.slow
@pytest.mark.parametrize("state_dependent_std", [False, True])
@pytest.mark.parametrize("name", ["rl2-ppo", "rl2-trpo", "varibad"])
def test_agents_act_within_them_and_padding_changes_nothing(name, state_dependent_std):
    settings = {**SMALL_TRIALS, **BOUNDED, "init_std": 0.5}
    settings["state_dependent_std"] = state_dependent_std
    first, *_ = check_padding_counts_for_nothing(
        lambda spec: make_algorithm(name, spec, **settings)
    )
    std = np.asarray(first.action)[np.asarray(first.valid)].std()
    assert std == pytest.approx(0.5, rel=0.2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"min_std": 1.5, "max_std": 0.5}, "max_std 0.5 must be at least min_std 1.5"),
        ({"max_std": 0.25}, "init_std 0.5 must be at least min_std 0.001 and at most max_std 0.25"),
        ({"min_std": 0.6}, "init_std 0.5 must be at least min_std 0.6"),
        ({"min_std": 0.0}, "min_std must be greater than 0, not 0.0"),
        ({"max_std": -1.0}, "max_std must be greater than 0, not -1.0"),
        (
            {"state_dependent_std": True, "heads": HeadsConfig("generated")},
            "state_dependent_std needs heads of kind 'plain' or 'state': generated ones give means",
        ),
    ],
)
def test_ranges_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ConfigError) as refused:
        make_algorithm("rl2-ppo", SPEC, **settings)
    assert str(refused.value) == message


@pytest.mark.parametrize("name", ["a2c", "ppo", "reinforce"])
def test_a_first_deviation_below_what_a_policy_may_have_is_refused(name):
    with pytest.raises(ConfigError, match=r"^init_std 0.0001 must be at least 0.001: "):
        make_algorithm(name, SPEC, init_std=1e-4)
