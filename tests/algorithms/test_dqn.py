from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small_worlds import Chain, chain_values, suite_of
from toys import ChangingSampler, point_suite, train_sampler, trained

from adaptax.algorithms.off_policy.dqn import DQN, OPTIMIZERS, DQNConfig, epsilon
from adaptax.algorithms.registry import ALGORITHMS
from adaptax.core.experience import Transitions
from adaptax.core.rng import named_key
from adaptax.core.spec import Discrete, EnvSpec
from adaptax.experiment.build import make_algorithm

CHAIN = {
    "discount": 0.9,
    "n_step": 1,
    "hidden_sizes": (32,),
    "lr": 3e-3,
    "optimizer": "adam",
    "max_grad_norm": 10.0,
    "num_initial_steps": 1000,
    "num_lanes": 4,
    "num_steps": 100,
    "num_updates": 400,
    "num_cycles": 20,
    "final_epsilon": 1.0,
    "tau": 1.0,
    "target_update_interval": 50,
    "batch_size": 64,
    "reward_scale": 1.0,
}


@pytest.mark.parametrize("settings", [{}, pytest.param({"double": True}, marks=pytest.mark.slow)])
def test_the_chain_is_learned_exactly(settings):
    """From uniform data, 4,000 updates; Q of the greedy action in place of the taken: 1.0."""
    suite = suite_of(Chain())
    algorithm = make_algorithm("dqn", suite.spec, **{**CHAIN, **settings})
    state, metrics = trained(algorithm, train_sampler(suite), 1)
    q = algorithm.networks.apply(state.learner.params["q"], jnp.eye(5)[:4])
    assert metrics["num_updates"] == 4000
    assert np.max(np.abs(q - chain_values(0.9))) < 0.02


@pytest.mark.parametrize("double", [False, True])
def test_the_target_takes_the_best_action_of_whom_it_should(double):
    """Huber loss written out; `double` lets the network choose what its target values."""
    rng = np.random.default_rng(0)
    algorithm = make_algorithm("dqn", EnvSpec(3, Discrete(4), 10), double=double, hidden_sizes=(8,))
    first, other = (algorithm.init(named_key(i, "init")).learner for i in range(2))
    learner = replace(first, target=other.target)
    obs, next_obs = rng.normal(size=(2, 16, 3)).astype(np.float32)
    action = rng.integers(0, 4, 16).astype(np.int32)
    reward, terminated = rng.normal(size=16).astype(np.float32), rng.random(16) < 0.3
    batch = Transitions(obs, action, reward, next_obs, terminated, np.full(16, 0.9, np.float32))
    step = jax.jit(DQN.gradient_step, static_argnums=0)
    _, figures = step(algorithm, learner, batch, jax.random.key(0))
    q, online, lagging = (
        np.asarray(algorithm.networks.apply(p, o))
        for p, o in (
            (first.params["q"], obs),
            (first.params["q"], next_obs),
            (other.target, next_obs),
        )
    )
    loss = 0.0
    for i in range(16):
        best = np.argmax((online if double else lagging)[i])
        y = reward[i] + (0.0 if terminated[i] else 0.9 * lagging[i, best])
        error = abs(q[i, action[i]] - y)
        loss += (0.5 * error**2 if error < 1 else error - 0.5) / 16
    assert figures["critic_loss"] == pytest.approx(float(loss), rel=1e-5)


def test_epsilon_falls_by_the_formula():
    """.05 + (eps_0 - .05) gamma^k, k whole iterations of two cycles."""
    config = DQNConfig(init_epsilon=0.8, final_epsilon=0.05, epsilon_decay=0.5, num_cycles=2)
    found = [epsilon(config, jnp.array(k)) for k in (0, 1, 2, 5, 6)]
    np.testing.assert_allclose(found, [0.8, 0.8, 0.425, 0.2375, 0.14375], rtol=1e-6)


def test_the_share_of_chance_in_the_data_is_epsilon():
    """Within 3 standard errors, in the second iteration and in the fourth; the first is uniform."""
    suite = point_suite(ALGORITHMS["dqn"])
    algorithm = make_algorithm(
        "dqn",
        suite.spec,
        num_lanes=20,
        num_steps=2000,
        num_cycles=1,
        num_updates=1,
        num_initial_steps=1,
        batch_size=8,
        hidden_sizes=(8,),
        init_epsilon=0.8,
        final_epsilon=0.1,
        epsilon_decay=0.5,
    )
    collected = []

    def note(rollout, actor):
        collected.append((rollout, actor))
        return rollout

    sampler, state = ChangingSampler(suite, note), algorithm.init(named_key(0, "init"))
    logged = []
    for _ in range(4):
        state, metrics = algorithm.iteration(state, sampler)
        logged.append(float(metrics["epsilon"]))
    np.testing.assert_allclose(logged, [1.0, 0.45, 0.275, 0.1875], rtol=1e-6)
    for k in (1, 3):
        rollout, actor = collected[k]
        explorer = actor.explorer
        greedy = np.argmax(explorer.network.apply(explorer.params, rollout.obs), -1)
        others = np.mean(greedy != np.asarray(rollout.action))
        expected = logged[k] * 7 / 8
        error = np.sqrt(expected * (1 - expected) / greedy.size)
        assert others == pytest.approx(expected, abs=3 * error)


def test_evaluation_is_greedy():
    algorithm = make_algorithm("dqn", EnvSpec(3, Discrete(4), 10), hidden_sizes=(8,))
    state = algorithm.init(named_key(0, "init"))
    obs = jax.random.normal(jax.random.key(1), (50, 4, 3))
    action, _, _ = algorithm.actor(state).act({}, obs, jax.random.key(0))
    greedy = jnp.argmax(algorithm.networks.apply(state.learner.params["q"], obs), -1)
    np.testing.assert_array_equal(action, greedy)


def test_rmsprops_epsilon_is_added_to_the_root():
    """As in PyTorch: a step on a first gradient g is g / (sqrt(0.01 g^2) + 1e-8)."""
    step = OPTIMIZERS["rmsprop"](1.0)
    moved, _ = step.update(np.float32(1e-5), step.init(np.float32(0.0)))
    assert float(moved) == pytest.approx(-1e-5 / (1e-6 + 1e-8), rel=1e-4)
