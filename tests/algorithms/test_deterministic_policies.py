"""DDPG and TD3."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import fingerprint

from adaptax.algorithms.off_policy.ddpg import DDPG, policy_loss
from adaptax.algorithms.off_policy.td3 import TD3
from adaptax.core.errors import ConfigError
from adaptax.core.experience import Transitions
from adaptax.core.rng import named_key
from adaptax.core.spec import Continuous, Discrete, EnvSpec, MultiDiscrete
from adaptax.experiment.build import make_algorithm
from adaptax.networks.critics import Critic
from adaptax.sampling.exploration import NoisyActor

KEY = jax.random.key(5)
SPEC = EnvSpec(3, Continuous(2), 10)


def normal(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


BATCH = Transitions(
    obs=normal(32, 3),
    action=np.tanh(normal(32, 2)),
    reward=normal(32),
    next_obs=normal(32, 3) + 1,
    terminated=np.arange(32) % 4 == 0,
    discount=np.full(32, 0.9, np.float32),
)


def agent(name: str, **settings):
    algorithm = make_algorithm(name, SPEC, hidden_sizes=(16,), **settings)
    return algorithm, algorithm.init(named_key(0, "init")).learner


def step(name: str, algorithm, learner):
    """One gradient step, compiled, and counted as an update does."""
    gradient_step = {"ddpg": DDPG.gradient_step, "td3": TD3.gradient_step}[name]
    compiled = jax.jit(gradient_step, static_argnums=0)
    after, figures = compiled(algorithm, learner, BATCH, KEY)
    return replace(after, num_updates=learner.num_updates + 1), figures


def test_ddpgs_critic_learns_the_value_of_what_the_target_policy_does():
    algorithm, learner = agent("ddpg")
    nets = algorithm.networks
    _, figures = step("ddpg", algorithm, learner)
    action = nets.policy.apply(learner.target["policy"], BATCH.next_obs)
    after = np.asarray(nets.critics.apply(learner.target["critics"], BATCH.next_obs, action))[0]
    q = np.asarray(nets.critics.apply(learner.params["critics"], BATCH.obs, BATCH.action))[0]
    y = [
        r if t else r + 0.9 * v
        for r, t, v in zip(BATCH.reward, BATCH.terminated, after, strict=True)
    ]
    assert figures["critic_loss"] == pytest.approx(0.5 * np.mean((q - y) ** 2), rel=1e-5)


@pytest.mark.parametrize("name", ["ddpg", "td3"])
def test_the_policy_climbs_its_critic(name):
    """The first critic's value of what the policy does is higher after steps of the policy."""
    algorithm, learner = agent(name)
    nets = algorithm.networks
    after = learner
    for _ in range(2):
        after, _ = step(name, algorithm, after)

    def value(policy):
        action = nets.policy.apply(policy, BATCH.obs)
        return float(jnp.mean(nets.critics.apply(after.params["critics"], BATCH.obs, action)[0]))

    assert value(after.params["policy"]) > value(learner.params["policy"])


def test_td3s_policy_climbs_its_first_critic_alone():
    algorithm, learner = agent("td3")
    nets, policy, critics = algorithm.networks, learner.params["policy"], learner.params["critics"]

    def losses(policy):
        action = nets.policy.apply(policy, BATCH.obs)
        alone = (jax.tree.map(lambda x, i=i: x[i], critics) for i in (0, 1))
        down = [-jnp.mean(Critic((16,)).apply(own, BATCH.obs, action)) for own in alone]
        return jnp.stack([policy_loss(nets, policy, critics, BATCH.obs)[0], *down])

    slopes = jax.tree.leaves(jax.jit(jax.jacobian(losses))(policy))
    found, first, second = np.concatenate([x.reshape(3, -1) for x in slopes], axis=1)
    np.testing.assert_allclose(found, first, rtol=1e-5, atol=1e-7)
    assert np.abs(first - second).max() > 0.1 * np.abs(first).max()


def test_td3s_target_is_smoothed_within_bounds_and_the_lower_of_two():
    """Algorithm 1: noise .2 clipped at .5, actions clipped at 1, all of it written out."""
    algorithm, learner = agent("td3", target_noise_std=2.0)
    nets, old = algorithm.networks, learner.target
    target = algorithm.smoothed_target(old, BATCH, KEY)
    mean = np.asarray(nets.policy.apply(old["policy"], BATCH.next_obs))
    noise = np.clip(2.0 * np.asarray(jax.random.normal(KEY, (32, 2))), -0.5, 0.5)
    assert np.mean(np.abs(noise) == 0.5) > 0.5
    action = np.clip(mean + noise, -1.0, 1.0)
    q = np.asarray(nets.critics.apply(old["critics"], BATCH.next_obs, action))
    expected = BATCH.reward + 0.9 * ~BATCH.terminated * np.minimum(q[0], q[1])
    np.testing.assert_allclose(target, expected, rtol=1e-5)


def test_td3s_policy_and_targets_move_every_second_step():
    algorithm, learner = agent("td3")
    moved = []
    for _ in range(4):
        after, _ = step("td3", algorithm, learner)
        moved.append(
            tuple(
                any(
                    bool(jnp.any(a != b))
                    for a, b in zip(jax.tree.leaves(x), jax.tree.leaves(y), strict=True)
                )
                for x, y in (
                    (learner.params["critics"], after.params["critics"]),
                    (learner.params["policy"], after.params["policy"]),
                    (learner.target, after.target),
                )
            )
        )
        learner = after
    assert moved == [(True, False, False), (True, True, True)] * 2


def test_td3s_targets_move_at_the_interval_of_the_policys_steps():
    """The policy steps every second time, and at every second of its steps the targets move."""
    algorithm, learner = agent("td3", policy_delay=2, target_update_interval=2)
    moved = []
    for _ in range(8):
        after, _ = step("td3", algorithm, learner)
        pairs = (learner.params["policy"], after.params["policy"]), (learner.target, after.target)
        moved.append(tuple(fingerprint(x) != fingerprint(y) for x, y in pairs))
        learner = after
    assert moved == [(False, False), (True, False), (False, False), (True, True)] * 2


def test_td3s_policy_steps_are_as_small_as_its_critics_at_the_end_of_a_schedule():
    settings = {"policy_delay": 3, "lr_schedule": "linear", "lr_schedule_steps": 12}
    algorithm, learner = agent("td3", **settings)
    for _ in range(12):
        learner, _ = step("td3", algorithm, learner)
    after = learner
    for _ in range(6):
        after, _ = step("td3", algorithm, after)
    for one, other in zip(*map(jax.tree.leaves, (learner.params, after.params)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_noise_has_the_deviation_asked_for_and_actions_stay_in_range():
    algorithm, learner = agent("ddpg")
    policy, params = algorithm.networks.policy, learner.params["policy"]
    obs = jnp.zeros((20_000, 1, 3))
    mean = policy.apply(params, obs[0, 0])
    action, _, _ = NoisyActor(params, policy, jnp.float32(0.1)).act({}, obs, KEY)
    np.testing.assert_allclose(np.std(action, (0, 1)), 0.1, rtol=0.03)
    np.testing.assert_allclose(np.mean(action, (0, 1)), mean, atol=0.004)
    wild, _, _ = NoisyActor(params, policy, jnp.float32(9.0)).act({}, obs, KEY)
    assert np.max(np.abs(wild)) == 1.0


@pytest.mark.parametrize("name", ["ddpg", "td3"])
def test_evaluation_is_without_noise(name):
    algorithm, _ = agent(name)
    state = algorithm.init(named_key(0, "init"))
    obs = jax.random.normal(jax.random.key(1), (5, 4, 3))
    action, _, _ = algorithm.actor(state).act({}, obs, KEY)
    np.testing.assert_allclose(
        action, algorithm.networks.policy.apply(state.learner.params["policy"], obs), rtol=1e-6
    )


@pytest.mark.parametrize("name", ["ddpg", "td3"])
@pytest.mark.parametrize(
    ("space", "other"), [(Discrete(2), "discrete ones take dqn"), (MultiDiscrete((2,)), "ppo")]
)
def test_choices_are_refused_with_networks_of_ones_own_too(name, space, other):
    algorithm, _ = agent(name)
    for networks in (None, algorithm.networks):
        with pytest.raises(ConfigError, match=f"{name} takes continuous actions only; .*{other}"):
            type(algorithm)(algorithm.config, EnvSpec(3, space, 10), networks)


def test_wrong_settings_are_refused():
    with pytest.raises(ConfigError, match=r"noise_std must not be negative, not -0\.1"):
        agent("ddpg", noise_std=-0.1)
    with pytest.raises(ConfigError, match="policy_delay must be greater than 0, not 0"):
        agent("td3", policy_delay=0)
    with pytest.raises(ConfigError, match=r"target_noise_std must not be negative, not -0\.1"):
        agent("td3", target_noise_std=-0.1)
