"""SVPG; its kernel and direction are in tests/functional/test_stein.py."""

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from oracles.advantages import gae
from oracles.dense import dense_layers
from oracles.on_policy import ratio_slopes, value_loss, values
from oracles.trees import dot, leaves, mapped, plus
from toys import ChangingSampler, CliffEnv, fingerprint, point_suite, train_sampler

from adaptax.algorithms.on_policy.a2c import A2C, A2CConfig
from adaptax.algorithms.on_policy.svpg import SVPG, SVPGConfig, mean_gradient, particle_state
from adaptax.algorithms.program import updated
from adaptax.core.errors import ConfigError
from adaptax.core.snapshot import Snapshots, flatten, unflatten
from adaptax.envs.suites.compiled import compiled_suite
from adaptax.envs.task import TaskList
from adaptax.learning.schedules import is_schedule, iterations_within

SUITE = point_suite()
INNER = {
    "num_lanes": 8,
    "num_tasks": 8,
    "num_steps": 320,
    "hidden_sizes": (16,),
    "lr": 0.01,
    "max_grad_norm": None,
    "monte_carlo_returns": True,
    "normalize_obs": False,
    "normalize_returns": False,
}
CONFIG = SVPGConfig(
    num_particles=2, temperature=5.0, particle=A2CConfig(**INNER, num_minibatches=4)
)
SVPG_2 = SVPG(CONFIG, SUITE.spec)
FRESH = jnp.array(False)
"""Lanes that did not go on where others had stopped."""


@functools.cache
def two_iterations():
    """States before, between and after two iterations, with rollouts and figures of both."""
    rollouts = []

    def record(rollout, actor):
        rollouts.append(rollout)
        return rollout

    sampler = ChangingSampler(SUITE, record)
    states, figures = [SVPG_2.init(jax.random.key(0))], []
    for _ in range(2):
        state, metrics = SVPG_2.iteration(states[-1], sampler)
        states.append(state)
        figures.append(metrics)
    return states, rollouts, figures


def own_rollout(rollout, i: int, num_particles: int = 2):
    """A particle's part of a rollout."""
    own = slice(*(np.array([i, i + 1]) * (len(rollout.valid) // num_particles)))
    return jax.tree.map(lambda x: x[own], rollout)


@functools.cache
def gradient(num_minibatches: int = 4, **settings):
    """The compiled gradient of a particle."""
    config = A2CConfig(**{**INNER, **settings}, num_minibatches=num_minibatches)
    return jax.jit(functools.partial(mean_gradient, config, SVPG_2.networks))


def vectors(trees):
    return jnp.stack([ravel_pytree(tree)[0] for tree in trees])


def test_particles_start_as_different_policies():
    state = two_iterations()[0][0]
    one, other = (particle_state(state, i) for i in range(2))
    assert np.linalg.norm(np.subtract(*vectors([one.params, other.params]))) > 1.0
    assert not np.array_equal(*(jax.random.key_data(p.key) for p in (one, other)))


def test_recorded_gradients_move_nothing():
    states, rollouts, _ = two_iterations()
    particle = particle_state(states[0], 0)
    recorded, after, _ = gradient()(particle, own_rollout(rollouts[0], 0))
    assert fingerprint(after.params) == fingerprint(particle.params)
    assert fingerprint(after.opt_state) == fingerprint(particle.opt_state)
    assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(recorded))


def test_the_recorded_gradient_is_the_mean_over_minibatches():
    states, rollouts, _ = two_iterations()
    particle, own = particle_state(states[0], 0), own_rollout(rollouts[0], 0)
    one, other = (f(particle, own)[0] for f in (gradient(), gradient(1)))
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)


def test_gradients_of_minibatches_are_not_clipped():
    """Their norm would be beyond the bound: it is Stein's direction that must not be."""
    states, rollouts, _ = two_iterations()
    particle, own = particle_state(states[0], 0), own_rollout(rollouts[0], 0)
    found, expected = (f(particle, own)[0] for f in (gradient(max_grad_norm=1e-3), gradient()))
    for x, y in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-7)
    assert np.linalg.norm(vectors([found])) > 0.1


def as_oracle(params):
    """A particle's parameters as the oracle's."""
    mean, value = (
        dense_layers(params, f"{tower}/torso/Dense_0", f"{tower}/head/Dense_0")
        for tower in ("policy", "value")
    )
    log_std = np.asarray(params["params"]["policy"]["head"]["log_std"], np.float64)
    return {"policy": {"mean": mean, "log_std": log_std}, "value": value}


def gradient_by_hand(params, rollout):
    """A2C's: -E[A log pi] + E[(R - V)^2] / 4 - 0.001 H, A standardised, R bootstrapped."""
    lanes = {
        name: np.asarray(x).reshape(-1, *x.shape[2:])
        for name, x in vars(rollout.steps).items()
        if name != "extras" and x is not None
    }
    assert lanes["valid"].all()
    value, after = (values(params["value"], lanes[name]) for name in ("obs", "next_obs"))
    returns = value + gae(lanes, value, after, 0.99, 1.0)
    advantage = gae(lanes, value, after, 0.99, 0.95)
    weight = (advantage - advantage.mean()) / advantage.std() / advantage.size
    steps = {name: x.reshape(-1, *x.shape[2:]) for name, x in lanes.items()}
    of_policy = ratio_slopes(params["policy"], steps, -weight.reshape(-1))
    of_policy["log_std"] = of_policy["log_std"] - 1e-3
    _, of_value = value_loss(params["value"], steps["obs"], returns.reshape(-1))
    return {"policy": of_policy, "value": mapped(lambda g: 0.25 * g, of_value)}


def test_each_particle_sees_observations_by_its_own_moments():
    states, rollouts, _ = two_iterations()
    for i, (mean, std) in enumerate(((0.5, 2.0), (-1.0, 0.5))):
        particle, own = particle_state(states[0], i), own_rollout(rollouts[0], i)
        moments = {"mean": jnp.full(2, mean), "variance": jnp.full(2, std**2), "count": 9.0}
        particle = replace(particle, moments={"obs": jax.tree.map(jnp.float32, moments)})
        found, _, _ = gradient(1, normalize_obs=True)(particle, own)
        shown = {name: (getattr(own, name) - mean) / std for name in ("obs", "next_obs")}
        expected = gradient_by_hand(as_oracle(particle.params), replace(own, **shown))
        ours = dict(leaves(as_oracle(found)))
        for path, x in leaves(expected):
            np.testing.assert_allclose(ours[path], x, rtol=1e-3, atol=1e-5, err_msg=path)


def test_parameters_move_by_the_stein_direction_and_nothing_else():
    """Two particles: the median of their four squared distances is half of the one between."""
    states, rollouts, _ = two_iterations()
    x = [as_oracle(particle_state(states[0], i).params) for i in range(2)]
    grads = [gradient_by_hand(x[i], own_rollout(rollouts[0], i)) for i in range(2)]
    apart = plus(x[0]["policy"], x[1]["policy"], -1.0)
    squared_width = 0.5 * (dot(apart, apart) / 2) / np.log(3)
    kernel = np.exp(-0.5 * dot(apart, apart) / squared_width)
    for i, away in enumerate((1.0, -1.0)):
        climb = [mapped(lambda g: -g / 5.0, own["policy"]) for own in (grads[i], grads[1 - i])]
        drawn = plus(climb[0], climb[1], kernel)
        direction = plus(drawn, apart, away * kernel / squared_width)
        descent = {"policy": mapped(lambda d: -d / 2, direction), "value": grads[i]["value"]}
        moved = mapped(lambda g: -0.01 * g / (0.1 * np.abs(g) + 1e-5), descent)  # RMSprop's first
        after = as_oracle(particle_state(states[1], i).params)
        found = dict(leaves(plus(after, x[i], -1.0)))
        for path, expected in leaves(moved):
            np.testing.assert_allclose(found[path], expected, rtol=1e-3, atol=1e-4, err_msg=path)


@pytest.mark.slow
def test_one_particle_at_temperature_1_steps_as_its_inner_algorithm():
    inner = A2CConfig(**INNER, num_minibatches=1)  # one minibatch, as SVPG makes one step
    algorithm = SVPG(SVPGConfig(1, temperature=1.0, particle=inner), SUITE.spec)
    state, own = algorithm.init(jax.random.key(0)), own_rollout(two_iterations()[1][0], 0)
    after, _ = updated(algorithm, state, (own, FRESH))
    plain, _ = updated(A2C(inner, SUITE.spec), particle_state(state, 0), own)
    found = particle_state(after, 0)
    for x, y in zip(jax.tree.leaves(found.params), jax.tree.leaves(plain.params), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-6)
    assert jax.tree.structure(found.opt_state) == jax.tree.structure(plain.opt_state)


def test_a_snapshot_holds_every_particle_to_the_last_bit(tmp_path):
    states, rollouts, _ = two_iterations()
    snapshots = Snapshots(tmp_path)
    snapshots.save(1, {"state": flatten(states[1])})
    again = unflatten(SVPG_2.init(jax.random.key(9)), snapshots.load(1)["state"])
    for i in (1, 0, 1):
        assert fingerprint(particle_state(again, i)) == fingerprint(particle_state(states[1], i))
    after, _ = updated(SVPG_2, again, (rollouts[1], FRESH))
    assert fingerprint(after) == fingerprint(states[2])


def test_each_particle_is_told_its_return_and_the_best_one_acts():
    states, rollouts, figures = two_iterations()
    episodes = [own_rollout(rollouts[1], i).reward.reshape(-1, 20) for i in range(2)]
    returns = [float(np.mean(np.sum(rewards, axis=-1))) for rewards in episodes]
    told = [figures[1][f"return/particle_{i}"] for i in (1, 2)]
    np.testing.assert_allclose(told, returns, rtol=1e-5)
    best, other = (particle_state(states[2], f(returns)) for f in (np.argmax, np.argmin))
    acting = SVPG_2.actor(states[2]).params
    assert fingerprint(acting) == fingerprint(best.params)
    assert fingerprint(acting) != fingerprint(other.params)


@pytest.mark.slow
def test_a_particle_that_starts_afresh_has_the_steps_of_the_run():
    """Its schedule goes on: steps that have fallen to 0 stay there."""
    falling = replace(CONFIG.particle, lr_schedule="linear", lr_schedule_steps=4)
    algorithm = SVPG(replace(CONFIG, horizon=2, particle=falling), SUITE.spec)
    start = algorithm.init(jax.random.key(0))
    after, _ = updated(algorithm, start, (two_iterations()[1][0], FRESH))
    kept, renewed = (particle_state(after, i) for i in range(2))
    schedules = [
        [x.count for x in jax.tree.leaves(p.opt_state, is_leaf=is_schedule) if is_schedule(x)]
        for p in (kept, renewed)
    ]
    assert schedules[0] == schedules[1] != [0]
    assert renewed.num_passes == kept.num_passes > 0


@pytest.mark.slow
def test_a_particle_starts_afresh_at_the_horizon():
    algorithm = SVPG(replace(CONFIG, horizon=2), SUITE.spec)
    states, rollouts, _ = two_iterations()
    start = algorithm.init(jax.random.key(0))
    np.testing.assert_array_equal(start.age, [0, 1])
    after, _ = updated(algorithm, start, (rollouts[0], FRESH))
    np.testing.assert_array_equal(after.age, [1, 0])
    np.testing.assert_array_equal(np.isfinite(after.returns), [True, False])
    kept, renewed = (particle_state(after, i) for i in range(2))
    unlimited = particle_state(states[1], 0)
    np.testing.assert_allclose(*vectors([kept.params, unlimited.params]), atol=1e-6)
    assert all(np.all(x == 0) for x in jax.tree.leaves(renewed.opt_state))
    assert all(np.any(x != 0) for x in jax.tree.leaves(kept.opt_state))
    distance = np.linalg.norm(np.subtract(*vectors([renewed.params, kept.params])))
    assert distance > 1.0


def own_returns(rollouts, i: int, born: int):
    """Returns of a particle's episodes that ended in the last rollout, but for those begun before
    the rollout that it was `born` to."""
    returns = []
    for lane in range(rollouts[0].reward.shape[1]):
        total, began = 0.0, None
        for k, rollout in enumerate(rollouts):
            own = own_rollout(rollout, i)
            ends = np.asarray(own.terminated | own.truncated)[0, lane]
            for reward, end in zip(np.asarray(own.reward)[0, lane], ends, strict=True):
                total, began = total + reward, k if began is None else began
                if end and began >= born and k == len(rollouts) - 1:
                    returns.append(total)
                if end:
                    total, began = 0.0, None
    return returns


def both_ways(goals: tuple[float, ...], num_iterations: int, num_steps: int, **settings):
    """Iterations with particles that start afresh, outside one program and in one.

    After each the states before it, all rollouts so far, and the figures of both.
    """
    tasks = TaskList("goals", [{"goal": np.full(2, x, np.float32)} for x in goals])
    suite = compiled_suite("cliff", CliffEnv(horizon=7), tasks, tasks)
    inner = A2CConfig(num_lanes=2, num_steps=num_steps, num_minibatches=1, hidden_sizes=(4,))
    algorithm = SVPG(SVPGConfig(2, particle=inner, **settings), suite.spec)
    rollouts = []

    def record(rollout, actor):
        rollouts.append(rollout)
        return rollout

    samplers = ChangingSampler(suite, record), train_sampler(suite)  # the second in one program
    states = (algorithm.init(jax.random.key(0)),) * 2
    for _ in range(num_iterations):
        before, pairs = states, zip(states, samplers, strict=True)
        states, figures = zip(*(algorithm.iteration(*pair) for pair in pairs), strict=True)
        yield before, rollouts, figures


def test_a_fresh_particle_is_told_the_returns_of_its_own_episodes_alone():
    """Lanes go on where it starts afresh: the episodes under way there are its predecessor's."""
    without, differing = 0, 0
    for k, (before, rollouts, figures) in enumerate(both_ways((1.0,), 9, num_steps=8, horizon=3)):
        born = [k - int(age) for age in before[0].age]
        for i in range(2):
            own, every = (own_returns(rollouts, i, since) for since in (born[i], 0))
            told = [each[f"return/particle_{i + 1}"] for each in figures]
            if own:
                np.testing.assert_allclose(told, np.mean(own), rtol=1e-5)
            elif born[i] == k:
                assert np.isnan(told).all()
            without += not own and bool(every)
            differing += bool(own) and own != every
    assert without and differing


def test_on_new_tasks_all_episodes_are_a_fresh_particles_own():
    """Lanes start anew with the tasks there, in the midst of what was under way."""
    inherited = False
    for before, rollouts, figures in both_ways((1.0, 2.0, 3.0), 4, num_steps=20, horizon=1):
        inherited |= bool(before[0].inherited.any())
        for i in range(2):
            own = own_returns(rollouts[-1:], i, 0)
            told = [each[f"return/particle_{i + 1}"] for each in figures]
            np.testing.assert_allclose(told, np.mean(own), rtol=1e-5)
    assert inherited


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.0}, "temperature must be greater than 0"),
        ({"horizon": -1}, "horizon must not be negative"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        SVPGConfig(**settings)


def test_steps_and_tasks_are_those_of_all_particles():
    assert CONFIG.iteration_steps == 2 * 320
    assert iterations_within(CONFIG, None, 1600) == 3
    spec = replace(SUITE.spec, num_classes=3)
    with pytest.raises(ConfigError, match="num_tasks must be a multiple of the suite's 3 classes"):
        SVPG(CONFIG, spec)
