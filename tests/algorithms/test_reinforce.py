from __future__ import annotations

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from toys import ChangingSampler, cliff_suite, fingerprint, train_sampler

from adaptax.algorithms.on_policy.reinforce import Reinforce, ReinforceConfig
from adaptax.core.errors import AdaptaxError, ConfigError
from adaptax.networks.actor_critic import part_of

CONFIG = ReinforceConfig(num_lanes=6, num_episodes=2, discount=0.9, lr=0.02, hidden_sizes=(16,))


@functools.cache
def one_iteration():
    """The algorithm, its states before and after an iteration, the data and the figures."""
    suite, rollouts = cliff_suite(), []

    def record(rollout, actor):
        rollouts.append(rollout)
        return rollout

    algorithm = Reinforce(CONFIG, suite.spec)
    before = algorithm.init(jax.random.key(0))
    after, metrics = algorithm.iteration(before, ChangingSampler(suite, record))
    return algorithm, before, after, rollouts[0], metrics


def policy(algorithm, params, obs):
    """The distribution over actions."""
    return algorithm.networks.apply(params, algorithm.networks.initial(obs.shape[:-1]), obs)[1][0]


def returns_by_hand(rollout, discount: float) -> list[tuple[int, int, float]]:
    """(lane, step, return) of every real step, episode by episode."""
    found = []
    for n in range(rollout.valid.shape[1]):
        total = 0.0
        for t in reversed(range(int(np.sum(rollout.valid[0, n])))):
            if rollout.terminated[0, n, t] or rollout.truncated[0, n, t]:
                total = 0.0
            total = float(rollout.reward[0, n, t]) + discount * total
            found.append((n, t, total))
    return found


def test_the_update_is_adams_step_along_the_policy_gradient():
    algorithm, before, after, rollout, metrics = one_iteration()
    assert np.any(~np.asarray(rollout.valid))
    found = returns_by_hand(rollout, CONFIG.discount)
    totals = np.array([total for _, _, total in found])
    advantage = (totals - totals.mean()) / (totals.std() + 1e-8)
    lanes, steps = (np.array([row[i] for row in found]) for i in (0, 1))
    obs, action = rollout.obs[0, lanes, steps], rollout.action[0, lanes, steps]

    def loss(params):
        return -jnp.mean(policy(algorithm, params, obs).log_prob(action) * advantage)

    value, grads = jax.value_and_grad(loss)(before.params)
    grads = part_of(grads, "policy")
    updates, _ = optax.adam(CONFIG.lr, eps=1e-5).update(grads, before.opt_state)
    expected = optax.apply_updates(part_of(before.params, "policy"), updates)
    moments = after.opt_state[0].mu
    for one, other in zip(jax.tree.leaves(moments), jax.tree.leaves(grads), strict=True):
        np.testing.assert_allclose(one, 0.1 * other, rtol=1e-4, atol=1e-7)
    for one, other in zip(
        *map(jax.tree.leaves, (part_of(after.params, "policy"), expected)), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-5)
    assert float(metrics["policy_loss"]) == pytest.approx(float(value), abs=1e-6)


def test_every_parameter_of_the_policy_is_trained_and_none_of_the_value():
    _, before, after, _, _ = one_iteration()
    for name, least, most in (("policy", 1e-4, np.inf), ("value", 0.0, 0.0)):
        parts = (jax.tree.leaves(part_of(state.params, name)) for state in (before, after))
        for one, other in zip(*parts, strict=True):
            assert least <= float(jnp.abs(one - other).max()) <= most


def test_an_iteration_is_as_many_whole_episodes_as_the_settings_say():
    *_, rollout, _ = one_iteration()
    num_ends = np.sum(np.asarray(rollout.terminated | rollout.truncated), axis=-1)
    np.testing.assert_array_equal(num_ends, np.full((1, 6), CONFIG.num_episodes))


def test_lanes_are_shared_by_tasks():
    algorithm = Reinforce(replace(CONFIG, num_tasks=2), cliff_suite().spec)
    rollout, _ = algorithm.collect(algorithm.init(jax.random.key(0)), train_sampler(cliff_suite()))
    assert rollout.valid.shape[:2] == (2, 3)


def test_the_deterministic_actor_takes_the_mean_action():
    algorithm, _, after, rollout, _ = one_iteration()
    obs = jnp.asarray(rollout.obs[:, :, 0])
    actor = algorithm.actor(after, deterministic=True)
    carry = actor.begin(*obs.shape[:2], jax.random.key(0))
    action, _, extras = actor.act(carry, obs, jax.random.key(0))
    np.testing.assert_array_equal(action, policy(algorithm, after.params, obs).mean)
    assert "log_prob" not in extras


def test_the_state_before_an_iteration_is_left_as_it_was():
    algorithm, before, *_ = one_iteration()
    expected = fingerprint(algorithm.init(jax.random.key(0)))
    assert fingerprint(before) == expected


def test_a_policy_that_is_no_longer_finite_is_one_clear_error():
    algorithm, before, *_ = one_iteration()
    broken = replace(before, params=jax.tree.map(lambda x: x * np.nan, before.params))
    with pytest.raises(AdaptaxError, match="task 'cliff': the action is not finite"):
        algorithm.iteration(broken, train_sampler(cliff_suite()))


@pytest.mark.parametrize(
    "settings",
    [
        {"num_lanes": 0},
        {"num_episodes": 0},
        {"num_tasks": 4},
        {"lr": 0.0},
        {"init_std": -1.0},
        {"hidden_sizes": (8, 0)},
        {"discount": 1.5},
        {"discount": -0.1},
    ],
)
def test_settings_out_of_range_are_refused(settings):
    with pytest.raises(ConfigError, match="must"):
        replace(CONFIG, **settings)
