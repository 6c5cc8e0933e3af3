import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.core.spec import Discrete
from adaptax.networks.actor_critic import ActorCritic
from adaptax.networks.belief import BeliefActorCritic, RecurrentEncoder
from adaptax.networks.memory import MemoryConfig

KEY, LANES, T = jax.random.key(0), 3, 6
X = jax.random.normal(jax.random.key(1), (LANES, T, 2 + 3 + 1 + 2))
RESET = jnp.zeros((LANES, T), bool).at[1, 3].set(True)


def made(kind: str = "gru", **settings):
    """A network of two numbers of observation and three choices, and its parameters."""
    encoder = RecurrentEncoder(MemoryConfig(kind, 8).make(T), 2, (3, 1, 2), (4, 4, 4))
    network = BeliefActorCritic(encoder, ActorCritic(Discrete(3), (8,)), 2, **settings)
    return network, network.init(KEY, network.initial((LANES,)), X[:, 0])


NETWORK, PARAMS = made()


def beliefs(x=X, reset=None):
    return NETWORK.apply(PARAMS, NETWORK.initial((LANES,)), x[..., 2:], reset, method="beliefs")[1]


@pytest.mark.parametrize(
    "kind",
    [
        *("gru", "transformer"),
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("fast-weights", "min-gru", "lru")),
    ],
)
def test_a_sequence_gives_what_its_steps_would(kind):
    network, params = made(kind)
    start = network.initial((LANES,))
    after, (policy, value) = network.apply(params, start, X, RESET, method="sequence")
    memory = start
    for t in range(T):
        memory, (one, v) = network.apply(params, memory, X[:, t], RESET[:, t])
        np.testing.assert_allclose(one.logits, policy.logits[:, t], atol=1e-5)
        np.testing.assert_allclose(v, value[:, t], atol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), memory, after)


def test_the_first_belief_is_the_prior_whatever_stands_before_it():
    for x in (X, X.at[:, 0].set(7.0)):
        first = jax.tree.map(lambda y: y[:, 0], beliefs(x))
        np.testing.assert_array_equal(first.mean, 0.0)
        np.testing.assert_array_equal(first.log_std, 0.0)
    assert np.all(np.asarray(beliefs().mean[:, 1:]) != 0)


def test_what_comes_later_changes_no_bit_of_a_belief():
    now, other = beliefs(), beliefs(X.at[:, 4:].set(9.0))
    for one, two in zip(jax.tree.leaves(now), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(one[:, :4], two[:, :4])
        assert np.all(np.asarray(one[:, 4:]) != np.asarray(two[:, 4:]))


def test_a_reset_starts_from_the_prior_and_forgets_what_was_before():
    found, other = beliefs(X, RESET), beliefs(X.at[:, :3].set(5.0), RESET)
    np.testing.assert_array_equal(found.mean[1, 3], 0.0)
    np.testing.assert_array_equal(found.mean[1, 3:], other.mean[1, 3:])
    assert np.all(np.asarray(found.mean[0, 3:]) != np.asarray(other.mean[0, 3:]))


@pytest.mark.parametrize("reaches", [False, True])
def test_gradients_of_policy_and_value_reach_the_encoder_by_choice_only(reaches):
    network, params = made(encoder_gradient=reaches)

    def total(params):
        _, (policy, value) = network.apply(params, network.initial((3,)), X, method="sequence")
        return jnp.sum(value) + jnp.sum(policy.log_prob(jnp.ones((LANES, T), int)))

    grads = jax.grad(total)(params)["params"]
    size = {
        name: sum(float(jnp.abs(x).sum()) for x in jax.tree.leaves(g)) for name, g in grads.items()
    }
    assert (size["encoder"] > 0) == reaches
    assert size["actor_critic"] > 0


def test_beliefs_start_about_as_wide_as_the_prior():
    std = np.exp(np.asarray(beliefs().log_std))
    assert std.min() > 0.3
    assert std.max() < 3
