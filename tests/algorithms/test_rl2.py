"""RL2's parts: whole updates over trials, entropy, values after a trial, networks of one's own."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from toys import cliff_suite, train_sampler
from trial_agents import SMALL_TRIALS

from adaptax.algorithms.base import Algorithm
from adaptax.algorithms.meta import rl2
from adaptax.algorithms.meta.rl2 import RL2Config
from adaptax.algorithms.program import updated
from adaptax.core.errors import ConfigError
from adaptax.core.experience import PyTree, Rollout
from adaptax.core.snapshot import flatten
from adaptax.core.spec import Continuous, Discrete, EnvSpec
from adaptax.experiment.build import make_algorithm
from adaptax.experiment.evaluator import Evaluator, EvaluatorConfig
from adaptax.functional.distributions import DiagonalGaussian
from adaptax.functional.masking import masked_mean
from adaptax.functional.trust_region import gauss_newton_product, hessian_product
from adaptax.learning.estimator import network_values, policy_advantage
from adaptax.learning.sequences import as_batch, trial_sequences
from adaptax.networks.actor_critic import part_of, with_part
from adaptax.networks.heads import ActionHead
from adaptax.networks.memory import MEMORIES
from adaptax.networks.normalizer import fresh_moments, normalized, updated_moments

SMALL = {**SMALL_TRIALS, "memory": {"kind": "gru", "size": 4}}
KEY = jax.random.key(0)
OTHER_MEMORIES = tuple(kind for kind in MEMORIES if kind not in ("none", "gru"))
both_algorithms = pytest.mark.parametrize("name", ["rl2-ppo", "rl2-trpo"])
ppo_else_slow = pytest.mark.parametrize(
    "name", ["rl2-ppo", pytest.param("rl2-trpo", marks=pytest.mark.slow)]
)


# ---- Whole updates against a slow loop ----

TRIALS, HORIZON, SPEC = 4, 6, EnvSpec(2, Continuous(2), 6, num_classes=2)
MAX = {"entropy_method": "max", "normalize_advantage": "none", "stop_entropy_gradient": True}
CASES = {
    # Those of FAST are for `make test`, the others for `make test-slow`.
    "plain": {},
    "no bootstrap": {"bootstrap_trial_end": False},
    "cut at termination": {"cut_at_termination": True, "monte_carlo_returns": True},
    "entropy in the objective": {"entropy_method": "regularized", "entropy_coeff": 0.2},
    "entropy in rewards": {**MAX, "entropy_coeff": 0.5},
    "rewards by class": {"normalize_rewards": True},
    "moments of each trial": {"normalize_advantage": "sequence", "clip_value": True},
    "two-hot": {"critic": "two_hot", "num_bins": 7, "max_return": 2.0, "monte_carlo_returns": True},
    "linear": {"critic": "linear"},
    "linear, cut at termination": {"critic": "linear", "cut_at_termination": True},
}
FAST = {"plain", "cut at termination", "two-hot", "linear"}


def in_float64(tree: Any) -> Any:
    def cast(x: Any) -> Any:
        return x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(cast, tree)


def random_state(algorithm: Algorithm) -> Any:
    """Parameters of some size, and moments of some experience."""
    rng = np.random.default_rng(0)
    fresh = algorithm.init(KEY)
    params = jax.tree.map(lambda x: jnp.asarray(0.5 * rng.normal(size=x.shape)), fresh.params)
    inputs = jnp.asarray(1.0 + 2.0 * rng.normal(size=(1, 50, 6)))
    moments = updated_moments(fresh_moments(6), inputs, jnp.ones((1, 50), bool))
    state = replace(fresh, params=params, moments={**fresh.moments, "obs": moments})
    return in_float64(state)


def random_trials(algorithm: Algorithm, padding: float = 7.0) -> Rollout:
    """Trials [4, 1, 6] of episodes that end in either way, the last one too; some are shorter."""
    rng = np.random.default_rng(1)
    shape = (TRIALS, 1, HORIZON)
    lengths = np.array([6, 5, 3, 6])[:, None, None]
    valid, last = np.arange(HORIZON) < lengths, np.arange(HORIZON) == lengths - 1
    terminated, truncated = np.zeros(shape, bool), np.zeros(shape, bool)
    terminated[:2, 0, 1] = truncated[2:, 0, 1] = truncated[0, 0, 3] = True
    terminated |= last & (np.arange(TRIALS) % 2 == 0)[:, None, None]
    truncated |= last & ~terminated

    def numbers(*more: int) -> np.ndarray:
        x = rng.normal(size=(*shape, *more))
        return np.where(valid.reshape(*shape, *(1,) * len(more)), x, padding)

    steps = (numbers(2), numbers(2), numbers(), numbers(2), terminated, truncated, valid)
    carry = algorithm.actor(algorithm.init(KEY)).begin(TRIALS, 1, KEY)
    log_prob = -2.0 + 0.3 * numbers()
    return Rollout(*steps, extras={"log_prob": log_prob}, initial_carry=carry)


def slow_inputs(rollout: Rollout) -> tuple[np.ndarray, np.ndarray]:
    """What the network sees of every step, and after it, [M, T, 6]: trial by trial."""
    inputs, after = np.zeros((2, TRIALS, HORIZON, 6))
    for i in range(TRIALS):
        last = np.zeros(4)
        for t in range(int(rollout.valid[i, 0].sum())):
            inputs[i, t] = [*rollout.obs[i, 0, t], *last]
            if t:
                after[i, t - 1] = inputs[i, t]
            ended = rollout.terminated[i, 0, t] | rollout.truncated[i, 0, t]
            last = np.array([*rollout.action[i, 0, t], rollout.reward[i, 0, t], ended])
        after[i, t] = [*rollout.next_obs[i, 0, t], *last[:3], 0.0]
    return inputs, after


def part_of_value(params: PyTree) -> PyTree:
    return params["params"]["value_head"]


def without_value(params: PyTree) -> PyTree:
    return {name: x for name, x in params["params"].items() if name != "value_head"}


class SlowUpdate:
    """An update of RL2-PPO as a loop over steps, from formulas of PPO2 alone."""

    def __init__(self, algorithm: Algorithm, state: Any, rollout: Rollout) -> None:
        self.config, self.network, self.rollout = algorithm.config, algorithm.networks, rollout
        moments = state.moments["obs"]
        self.inputs, self.after = (normalized(x, moments) for x in slow_inputs(rollout))
        self.start, self.valid = state.params, rollout.valid[:, 0]

    def along(self, params: PyTree) -> tuple[jax.Array, ...]:
        """Log-probabilities, entropies, values and next values [M, T], one step at a time."""
        memory, rows = self.network.initial((TRIALS,)), []
        for t in range(HORIZON):
            memory, (distribution, value) = self.network.apply(params, memory, self.inputs[:, t])
            next_value = self.network.apply(params, memory, self.after[:, t])[1][1]
            log_prob = distribution.log_prob(self.rollout.action[:, 0, t])
            rows.append((log_prob, distribution.entropy(), value, next_value))
        return tuple(jnp.stack(x, axis=1) for x in zip(*rows, strict=True))

    def numbers(self, output: np.ndarray) -> np.ndarray:
        """The values that a network's output stands for."""
        if self.config.critic != "two_hot":
            return output
        shares = np.exp(output) / np.exp(output).sum(-1, keepdims=True)
        return sum(shares[..., k] * b for k, b in enumerate(self.bins()))

    def bins(self) -> np.ndarray:
        """Returns that the bins stand for, equally far apart on the scale of symlog."""
        places = np.array([np.log1p(self.config.max_return) * (2 * k / 6 - 1) for k in range(7)])
        return np.sign(places) * np.expm1(np.abs(places))

    def errors(self, output: jax.Array, target: np.ndarray, old: np.ndarray) -> Any:
        """What the value learns from at each step."""
        config = self.config
        if config.critic == "linear":
            return 0.0
        if config.critic == "two_hot":
            bins = self.bins()
            above = np.clip(np.searchsorted(bins, target), 1, 6)
            share = np.clip((target - bins[above - 1]) / (bins[above] - bins[above - 1]), 0, 1)
            weights = np.eye(7)[above] * share[..., None]
            weights += np.eye(7)[above - 1] * (1 - share[..., None])
            log_p = output - jnp.log(jnp.sum(jnp.exp(output), -1, keepdims=True))
            return -jnp.sum(weights * log_p, -1)
        error = (output - target) ** 2 / 2
        if config.clip_value:
            near = old + jnp.clip(output - old, -config.clip_range, config.clip_range)
            error = jnp.maximum(error, (near - target) ** 2 / 2)
        return error

    def linear_values(self, reward: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values, and those after each step, by least squares over all trials."""

        def features(x: np.ndarray, t: int) -> np.ndarray:
            x, tau = np.clip(x, -10, 10), t / HORIZON
            return np.array([*x, *x**2, tau, tau**2, tau**3, 1])

        inputs, after = np.asarray(self.inputs), np.asarray(self.after)
        rows, returns = [], []
        for i, length in enumerate(self.valid.sum(-1)):
            for t in range(length):
                rows.append(features(inputs[i, t], t))
                later = range(t, self.path_end(i, t) + 1)
                returns.append(sum(self.config.discount ** (k - t) * reward[i, k] for k in later))
        ridge = np.sqrt(1e-5) * np.eye(len(rows[0]))
        targets = np.concatenate([returns, np.zeros(len(ridge))])
        weights = np.linalg.lstsq(np.concatenate([rows, ridge]), targets, rcond=None)[0]
        value, next_value = np.zeros((2, TRIALS, HORIZON))
        for i, length in enumerate(self.valid.sum(-1)):
            for t in range(length):
                value[i, t] = features(inputs[i, t], t) @ weights
                next_value[i, t] = features(after[i, t], t + 1) @ weights
        return value, next_value

    def path_end(self, trial: int, step: int) -> int:
        """The last step that counts for this one."""
        last = int(self.valid[trial].sum()) - 1
        falls = np.flatnonzero(self.rollout.terminated[trial, 0] & self.config.cut_at_termination)
        return min([last, *falls[falls >= step]])

    def advantages(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Standardised advantages, targets and values [M, T]; each trial is one episode."""
        config, decay = self.config, self.config.discount * self.config.gae_lambda
        _, entropy, *outputs = (np.asarray(x) for x in self.along(self.start))
        value, next_value = map(self.numbers, outputs)
        reward = np.array(self.rollout.reward[:, 0])
        if config.normalize_rewards:
            for own in (slice(0, None, 2), slice(1, None, 2)):
                reward[own] /= np.sqrt(reward[own][self.valid[own]].var() + 1e-8)
        if config.entropy_method == "max":
            reward += config.entropy_coeff * entropy
        if config.critic == "linear":
            value, next_value = self.linear_values(config.reward_scale * reward)
        raw, returns = np.zeros((2, TRIALS, HORIZON))
        for i, length in enumerate(self.valid.sum(-1)):
            follows = next_value[i].copy()
            over = self.rollout.terminated[i, 0, length - 1] or not config.bootstrap_trial_end
            follows[length - 1] *= not over
            follows[[t for t in range(length - 1) if self.path_end(i, t) == t]] = 0.0
            paid = config.reward_scale * reward[i]
            delta = paid + config.discount * follows - value[i]
            paid[length - 1] += config.discount * follows[length - 1]
            for t in range(length):
                left = range(t, self.path_end(i, t) + 1)
                raw[i, t] = sum(decay ** (k - t) * delta[k] for k in left)
                returns[i, t] = sum(config.discount ** (k - t) * paid[k] for k in left)
        target = returns if config.monte_carlo_returns else raw + value
        return self.standardised(raw), target, value

    def standardised(self, raw: np.ndarray) -> np.ndarray:
        out, kind = raw.copy(), self.config.normalize_advantage
        trials = range(TRIALS) if kind == "sequence" else [slice(None)]
        for own in trials if kind != "none" else []:
            x = raw[own][self.valid[own]]
            out[own] = (raw[own] - x.mean()) / (x.std() + 1e-8)
        return out

    def params(self) -> PyTree:
        """Those after all passes."""
        config, (advantage, target, old) = self.config, self.advantages()
        old_log_prob = self.rollout.extras["log_prob"][:, 0]
        coeff = config.entropy_coeff if config.entropy_method == "regularized" else 0.0
        low, high = 1 - config.clip_range, 1 + config.clip_range

        def loss(params: PyTree) -> jax.Array:
            log_prob, entropy, output, _ = self.along(params)
            ratio = jnp.exp(log_prob - old_log_prob)
            policy = jnp.minimum(ratio * advantage, jnp.clip(ratio, low, high) * advantage)
            error = self.errors(output, target, old)
            terms = -policy + config.value_coeff * error - coeff * entropy
            return jnp.mean(terms, where=self.valid)

        step = optax.chain(
            optax.clip_by_global_norm(config.max_grad_norm), optax.adam(config.lr, eps=1e-5)
        )
        params, state, gradient = self.start, step.init(self.start), jax.jit(jax.grad(loss))
        for _ in range(config.num_epochs):
            updates, state = step.update(gradient(params), state)
            params = optax.apply_updates(params, updates)
        return params


def assert_moved_alike(before: PyTree, after: PyTree, expected: PyTree, critic: str = "") -> None:
    if critic == "linear":  # a network's value has nothing to learn
        for x, y in zip(*(jax.tree.leaves(part_of_value(p)) for p in (before, after)), strict=True):
            np.testing.assert_array_equal(x, y)
        before, after, expected = (without_value(p) for p in (before, after, expected))
    start, ours, theirs = (np.asarray(ravel_pytree(x)[0]) for x in (before, after, expected))
    assert np.abs(theirs - start).min() > 0
    np.testing.assert_allclose(ours - start, theirs - start, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=() if c in FAST else pytest.mark.slow) for c in CASES]
)
def test_an_update_is_ppo2s_on_trials_built_step_by_step(case):
    """Cut only where the case says so; padding, which is not zero here, counts for nothing."""
    with jax.enable_x64(True):
        algorithm = make_algorithm("rl2-ppo", SPEC, **SMALL, **CASES[case])
        state, rollout = random_state(algorithm), random_trials(algorithm)
        expected = SlowUpdate(algorithm, state, rollout).params()
        after, _ = updated(algorithm, state, rollout)
        assert_moved_alike(state.params, after.params, expected, algorithm.config.critic)


@pytest.mark.slow
def test_rewards_are_in_units_of_their_class_over_all_iterations():
    algorithm = make_algorithm("rl2-ppo", SPEC, **SMALL, normalize_rewards=True)
    state, first = algorithm.init(KEY), random_trials(algorithm)
    second = replace(first, reward=3.0 * first.reward - 1.0)
    for rollout in (first, second):
        state = rl2.with_reward_moments(state, rollout)
    learned = rl2.sequences_of(algorithm.config, algorithm.networks, SPEC, state, second).reward
    for i in range(TRIALS):
        seen = [
            r[m, 0, t]
            for r in (first.reward, second.reward)
            for m in (i % 2, i % 2 + 2)
            for t in range(HORIZON)
            if first.valid[m, 0, t]
        ]
        valid = first.valid[i, 0]
        expected = algorithm.config.reward_scale * second.reward[i, 0] / np.std(seen)
        np.testing.assert_allclose(learned[i][valid], expected[valid], rtol=1e-5)
        assert np.all(learned[i][~valid] == 0)


def test_rewards_that_do_not_vary_have_no_unit():
    algorithm = make_algorithm("rl2-ppo", SPEC, **SMALL, normalize_rewards=True)
    rollout = random_trials(algorithm)
    rollout = replace(rollout, reward=np.where(rollout.valid, 0.3, 0.0).astype(np.float32))
    state = rl2.with_reward_moments(algorithm.init(KEY), rollout)
    learned = rl2.sequences_of(algorithm.config, algorithm.networks, SPEC, state, rollout).reward
    expected = algorithm.config.reward_scale * rollout.reward[:, 0]
    np.testing.assert_allclose(learned, expected, rtol=1e-6)


def test_pictures_are_not_standardised():
    spec = EnvSpec(12, Discrete(2), 4, picture=(2, 2, 3))
    assert "obs" not in make_algorithm("rl2-ppo", spec, **SMALL).init(KEY).moments


@ppo_else_slow
def test_padding_changes_no_parameter(name):
    algorithm = make_algorithm(name, SPEC, **SMALL)
    state = algorithm.init(KEY)
    ends = [
        ravel_pytree(updated(algorithm, state, random_trials(algorithm, padding))[0].params)[0]
        for padding in (0.0, 7.0, np.nan)
    ]
    np.testing.assert_array_equal(ends[0], ends[1])
    np.testing.assert_array_equal(ends[0], ends[2])
    assert np.isfinite(ends[0]).all()


@ppo_else_slow
def test_every_pass_over_the_trials_is_counted(name):
    algorithm = make_algorithm(name, SPEC, **SMALL)
    state = replace(algorithm.init(KEY), num_passes=jnp.int32(3))
    after, _ = updated(algorithm, state, random_trials(algorithm))
    assert after.num_passes == 3 + SMALL["num_epochs"] == 5


# ---- Networks of one's own ----


class Plain(nn.Module):
    """No memory: inputs -> (distribution, value)."""

    @nn.compact
    def __call__(self, obs):
        features = nn.tanh(nn.Dense(5)(obs))
        return ActionHead(Continuous(2))(features), nn.Dense(1)(features)[..., 0]


class Trace(nn.Module):
    """Remembers a running sum of features that fades; every method is written down here."""

    def setup(self):
        self.hidden, self.head, self.value = nn.Dense(5), ActionHead(Continuous(2)), nn.Dense(1)

    def initial(self, lanes):
        return {"trace": jnp.zeros((*lanes, 5))}

    def __call__(self, memory, obs, reset=None):
        before = memory["trace"]
        if reset is not None:
            before = jnp.where(reset[..., None], 0.0, before)
        trace = 0.7 * before + nn.tanh(self.hidden(obs))
        return {"trace": trace}, (self.head(trace), self.value(trace)[..., 0])

    def sequence(self, memory, obs, reset=None):
        rows = []
        for t in range(obs.shape[-2]):
            at = None if reset is None else reset[..., t]
            memory, row = self(memory, obs[..., t, :], at)
            rows.append(row)
        axis = obs.ndim - 2
        return memory, jax.tree.map(lambda *xs: jnp.stack(xs, axis), *rows)


own_networks = pytest.mark.parametrize(
    "network",
    [
        pytest.param(Plain(), id="feed-forward", marks=pytest.mark.slow),
        pytest.param(Trace(), id="memory"),
    ],
)


@pytest.mark.slow
@own_networks
def test_an_update_of_ones_own_network_is_that_of_its_steps(network):
    with jax.enable_x64(True):
        algorithm = make_algorithm("rl2-ppo", SPEC, networks=network, **SMALL)
        state, rollout = random_state(algorithm), random_trials(algorithm)
        expected = SlowUpdate(algorithm, state, rollout).params()
        after, _ = updated(algorithm, state, rollout)
        assert_moved_alike(state.params, after.params, expected)


@ppo_else_slow
@own_networks
@pytest.mark.slow
def test_ones_own_network_acts_learns_and_adapts(name, network):
    suite = cliff_suite(horizon=5)
    algorithm = make_algorithm(name, suite.spec, networks=network, **SMALL)
    state, sampler = algorithm.init(KEY), train_sampler(suite)
    before = ravel_pytree(state.params)[0]
    state, figures = algorithm.iteration(state, sampler)
    assert np.any(np.asarray(ravel_pytree(state.params)[0]) != np.asarray(before))
    assert np.isfinite(figures["value_loss"])
    actor, tasks = algorithm.actor(state), suite.test.tasks[:3]
    rollout = sampler.episodes(actor, tasks, 1, 1)
    adapted = algorithm.adapt(state, actor, [rollout], deterministic=True)
    rest = sampler.episodes(adapted, tasks, 1, 1)
    memory = rest.initial_carry["actor"]["memory"]
    expected = rollout.final_carry["actor"]["memory"]
    assert jax.tree.structure(memory) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, memory, expected)


# ---- Settings and figures ----


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"entropy_coeff": 0.1}, "needs entropy_method 'regularized' or 'max'"),
        ({"entropy_coeff": -1.0, "entropy_method": "regularized"}, "must not be negative"),
        ({"entropy_schedule": "linear"}, "needs entropy_method 'regularized' or 'max'"),
        ({**MAX, "normalize_advantage": "batch"}, "needs normalize_advantage 'none'"),
        ({**MAX, "stop_entropy_gradient": False}, "needs stop_entropy_gradient"),
        (
            {"entropy_method": "regularized", "stop_entropy_gradient": True},
            "does nothing with stop_entropy_gradient",
        ),
        (
            {"entropy_method": "regularized", "use_neg_logli_entropy": True},
            "does nothing with use_neg_logli_entropy",
        ),
        ({"entropy_method": "min"}, "entropy_method"),
        ({"meta_batch_size": 4, "num_minibatches": 3}, "multiple of"),
    ],
)
@both_algorithms
def test_settings_that_contradict_each_other_are_refused(name, settings, words):
    with pytest.raises(ConfigError, match=words):
        make_algorithm(name, SPEC, **settings)


@pytest.mark.parametrize("critic", ["two_hot", "linear"])
def test_a_loss_that_is_not_there_is_not_clipped(critic):
    with pytest.raises(
        ConfigError, match=f"clip_value needs critic 'squared_error', not '{critic}'"
    ):
        make_algorithm("rl2-ppo", SPEC, critic=critic, clip_value=True)


@ppo_else_slow
def test_pieces_as_long_as_trials_are_whole_trials(name):
    whole, pieces = (
        make_algorithm(name, SPEC, **SMALL, num_bptt_steps=steps) for steps in (None, HORIZON)
    )
    state, rollout = whole.init(KEY), random_trials(whole)
    (after, figures), (of_pieces, same) = (
        jax.jit(algorithm.update)(state, rollout) for algorithm in (whole, pieces)
    )
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)
    jax.tree.map(close, (of_pieces.params, same), (after.params, figures))


@pytest.mark.parametrize("name", ["rl2-ppo", "varibad"])
def test_a_transformer_sees_all_of_a_trial_from_beyond_its_end(name):
    """Whose value is what a trial is bootstrapped with."""
    settings = {"memory": {"kind": "transformer", "size": 8, "num_layers": 1}, "num_episodes": 2}
    algorithm = make_algorithm(name, SPEC, **settings)
    networks = algorithm.networks
    memory = networks.memory if name == "rl2-ppo" else networks.encoder.memory
    assert memory.context == 2 * HORIZON + 1
    if name == "varibad":
        return
    params = algorithm.init(KEY).params
    x = jax.random.normal(KEY, (2 * HORIZON + 1, rl2.input_size(SPEC)))

    def last_value(x):
        apply = partial(networks.apply, params, method="sequence")
        return apply(networks.initial(()), x, jnp.zeros(len(x), bool))[1][1][-1]

    assert np.abs(jax.grad(last_value)(x)[0]).max() > 1e-6


def test_an_update_on_pieces_learns_from_every_step():
    """Those of a shorter trial's last piece too; in one minibatch their order does not matter."""
    settings = {**SMALL, "num_minibatches": 1, "num_epochs": 1}
    whole, pieces = (
        make_algorithm("rl2-ppo", SPEC, **settings, num_bptt_steps=steps) for steps in (None, 4)
    )
    state, rollout = whole.init(KEY), random_trials(whole)
    (_, figures), (_, of_pieces) = (
        jax.jit(algorithm.update)(state, rollout) for algorithm in (whole, pieces)
    )
    for metric in ("policy_loss", "value_loss", "entropy"):
        np.testing.assert_allclose(of_pieces[metric], figures[metric], rtol=1e-4, atol=1e-6)


def test_minibatches_of_pieces_need_not_divide_trials():
    settings = {**SMALL, "meta_batch_size": 4, "num_minibatches": 3, "num_bptt_steps": 4}
    algorithm = make_algorithm("rl2-ppo", SPEC, **settings)
    _, figures = jax.jit(algorithm.update)(algorithm.init(KEY), random_trials(algorithm))
    assert np.isfinite(figures["policy_loss"])


@pytest.mark.parametrize(
    ("schedule", "expected"), [("constant", [0.3, 0.3]), ("linear", [0.15, 0.0])]
)
def test_the_weight_of_the_entropy_follows_its_schedule(schedule, expected):
    settings = {"entropy_method": "regularized", "entropy_coeff": 0.3, "lr_schedule_steps": 4}
    config = RL2Config(**settings, entropy_schedule=schedule)
    states = [SimpleNamespace(num_passes=jnp.int32(passes)) for passes in (2, 4)]
    weights = [rl2.entropy_coeff(config, state) for state in states]
    np.testing.assert_allclose(weights, expected, rtol=1e-6)


@ppo_else_slow
def test_an_update_at_the_end_of_the_schedule_is_one_without_entropy(name):
    settings = {"entropy_method": "regularized", "entropy_coeff": 10.0, "lr_schedule_steps": 2}
    plain = make_algorithm(name, SPEC, **SMALL)
    weighed = make_algorithm(name, SPEC, **SMALL, **settings, entropy_schedule="linear")
    first, rollout = plain.init(KEY), random_trials(plain)
    last = replace(first, num_passes=jnp.int32(2))
    params = [
        ravel_pytree(updated(algorithm, state, rollout)[0].params)[0]
        for algorithm, state in ((plain, last), (weighed, last), (weighed, first))
    ]
    np.testing.assert_allclose(params[0], params[1], atol=1e-6)
    assert np.abs(params[0] - params[2]).max() > 1e-4


def first_entropy(std: float = 0.5) -> float:
    """Of a policy of two dimensions with this deviation, that of a fresh one if nobody says."""
    return float(np.log(2 * np.pi * np.e) + 2 * np.log(std))


@pytest.mark.parametrize(("passes", "share"), [(1, 0.75), (4, 0.0)])
def test_the_entropy_in_rewards_follows_its_schedule(passes, share):
    settings = {**MAX, "entropy_coeff": 0.4, "entropy_schedule": "linear", "lr_schedule_steps": 4}
    algorithm = make_algorithm("rl2-ppo", SPEC, **SMALL, **settings)
    state, rollout = algorithm.init(KEY), random_trials(algorithm)
    state, config = replace(state, num_passes=jnp.int32(passes)), algorithm.config
    learned = rl2.sequences_of(config, algorithm.networks, SPEC, state, rollout).reward
    paid = rollout.reward + 0.4 * share * first_entropy()
    expected = np.where(rollout.valid, config.reward_scale * paid, 0.0)[:, 0]
    np.testing.assert_allclose(learned, expected, rtol=1e-5, atol=1e-6)


@ppo_else_slow
def test_an_update_is_told_the_entropy_that_settings_say(name):
    """PPO's figure is of the policy before its only pass, TRPO's of the one after its step."""
    settings = {**SMALL, "num_epochs": 1, "entropy_method": "regularized", "entropy_coeff": 0.1}
    algorithm = make_algorithm(name, SPEC, **settings, use_softplus_entropy=True)
    state = algorithm.init(KEY)
    after, figures = updated(algorithm, state, random_trials(algorithm))
    params = state.params if name == "rl2-ppo" else after.params
    (log_std,) = (x for path, x in flatten(params).items() if "log_std" in path)
    plain = np.log(2 * np.pi * np.e) + float(np.sum(log_std))
    assert name != "rl2-ppo" or plain == pytest.approx(first_entropy(), rel=1e-6)
    assert float(figures["entropy"]) == pytest.approx(np.log1p(np.exp(plain)), rel=1e-5)


def test_entropy_is_the_analytic_one_unless_settings_say_otherwise():
    acted, action = DiagonalGaussian(jnp.zeros((3, 2)), jnp.full((3, 2), -1.0)), jnp.ones((3, 2))
    plain = rl2.entropy(RL2Config(), acted, action)
    np.testing.assert_allclose(plain, np.log(2 * np.pi * np.e) - 2.0, rtol=1e-6)
    soft = rl2.entropy(RL2Config(**MAX, use_softplus_entropy=True), acted, action)
    np.testing.assert_allclose(soft, np.log1p(np.exp(plain)), rtol=1e-6)
    by_action = rl2.entropy(RL2Config(**MAX, use_neg_logli_entropy=True), acted, action)
    np.testing.assert_allclose(by_action, np.log(2 * np.pi) - 2.0 + np.exp(2.0), rtol=1e-6)


@pytest.mark.parametrize("stopped", [False, True])
def test_entropy_has_a_gradient_unless_it_is_stopped(stopped):
    config = RL2Config(**MAX) if stopped else RL2Config()

    def entropy(log_std):
        return rl2.entropy(config, DiagonalGaussian(jnp.zeros(2), log_std), jnp.ones(2))

    np.testing.assert_array_equal(jax.grad(entropy)(jnp.zeros(2)), [1.0 - stopped] * 2)


def advantage_of(raw, valid, **settings) -> np.ndarray:
    """As the policy learns from it."""
    raw, valid = jnp.asarray(raw, jnp.float32), jnp.asarray(valid)
    return np.asarray(policy_advantage(RL2Config(**settings), raw, valid, {})[0])


def test_advantages_are_standardised_or_raw_and_shifted_above_zero():
    raw, valid = [[1.0, 3.0, 0.0]], [[True, True, False]]
    np.testing.assert_allclose(advantage_of(raw, valid), [[-1, 1, 0]], atol=1e-6)
    none = advantage_of(raw, valid, normalize_advantage="none")
    np.testing.assert_array_equal(none, raw)
    positive = advantage_of(raw, valid, normalize_advantage="none", positive_advantage=True)
    np.testing.assert_allclose(positive, [[0, 2, 0]], atol=1e-6)


def test_advantages_standardised_over_each_trial_forget_its_mean_and_scale():
    raw = [[1.0, 3.0, 0.0], [-100.0, 0.0, 100.0]]
    valid = [[True, True, False], [True, True, True]]
    standard = advantage_of(raw, valid, normalize_advantage="sequence")
    end = 100 / np.sqrt(2 * 100**2 / 3)
    np.testing.assert_allclose(standard, [[-1, 1, 0], [-end, 0, end]], atol=1e-6)


@ppo_else_slow
def test_returns_of_each_place_in_a_trial_are_those_of_a_slow_loop(name):
    algorithm = make_algorithm(name, SPEC, **{**SMALL, "num_episodes": 3})
    rollout, totals = random_trials(algorithm), {}
    for i in range(TRIALS):
        episode, total = 1, 0.0
        for t in range(int(rollout.valid[i, 0].sum())):
            total += rollout.reward[i, 0, t]
            if rollout.terminated[i, 0, t] | rollout.truncated[i, 0, t]:
                totals.setdefault(f"return/episode_{episode}", []).append(total)
                episode, total = episode + 1, 0.0
    figures = updated(algorithm, algorithm.init(KEY), rollout)[1]
    for place in range(1, 4):
        key = f"return/episode_{place}"
        np.testing.assert_allclose(figures[key], np.mean(totals[key]), rtol=1e-5)


def test_episodes_of_a_cut_trial_count_once_they_have_ended():
    reward = jnp.array([[[1.0, 2.0, 4.0]], [[8.0, 16.0, 32.0]]])
    ended = jnp.array([[[False, True, False]], [[False, False, False]]])
    nothing, valid = jnp.zeros((2, 1, 3, 1)), jnp.ones_like(ended)
    rollout = Rollout(nothing, nothing, reward, nothing, ended, ended & False, valid)
    figures = rl2.trial_returns(rollout, 2)
    assert float(figures["return/episode_1"]) == 3.0 and np.isnan(figures["return/episode_2"])


def test_a_trial_cut_at_its_most_steps_is_learned_from_like_any_other():
    """Its steps are all there, and what would follow counts by its value."""
    suite, settings = cliff_suite(), {**SMALL, "num_episodes": 40, "num_trial_steps": 7}
    algorithm = make_algorithm("rl2-ppo", suite.spec, **settings)
    state = algorithm.init(KEY)
    rollout = algorithm.collect(state, train_sampler(suite))
    assert rollout.valid.shape == (4, 1, 7) and bool(rollout.valid.all())
    ends = np.asarray(rollout.terminated | rollout.truncated)
    assert ends.any() and not ends[..., -1].all()
    sequences = sequences_of(algorithm, state, rollout)
    np.testing.assert_array_equal(
        sequences.truncated[:, -1], ~np.asarray(rollout.terminated)[:, 0, -1]
    )
    assert not np.any((sequences.terminated | sequences.truncated)[:, :-1])
    after, _ = updated(algorithm, state, rollout)
    assert np.all(np.isfinite(ravel_pytree(after.params)[0]))


# ---- The value after a trial, and TRPO through the recurrent network ----


@cache
def agent(kind: str = "gru") -> tuple[Algorithm, Any, Rollout]:
    """RL2-TRPO on episodes that end early, its first state, and a rollout of four trials."""
    suite = cliff_suite()
    settings = {**SMALL, "memory": {"kind": kind, "size": 8}}
    algorithm = make_algorithm("rl2-trpo", suite.spec, **settings)
    state, sampler = algorithm.init(KEY), train_sampler(suite)
    rollout = algorithm.collect(state, sampler)
    assert len(set(np.asarray(rollout.valid).sum(-1).ravel())) > 1
    return algorithm, state, rollout


def sequences_of(algorithm: Algorithm, state: Any, rollout: Rollout, **settings: Any):
    space, moments = algorithm.spec.action, state.moments["obs"]
    return trial_sequences(rollout, space, moments, **{"bootstrap_end": True, **settings})


def test_value_after_a_trial_is_that_of_one_step_more():
    """Each trial on its own, from the carry at its end."""
    algorithm, state, rollout = agent()
    network, moments = algorithm.networks, state.moments["obs"]
    sequences = sequences_of(algorithm, state, rollout)
    _, after = network_values(network, state.params, sequences)
    for i, length in enumerate(np.asarray(sequences.valid).sum(-1)):
        carry = jax.tree.map(lambda x, i=i: x[i], rollout.final_carry)
        seen = [carry["last_action"], carry["last_reward"][:, None], jnp.zeros((1, 1))]
        obs = jnp.concatenate([jnp.asarray(rollout.next_obs)[i, :, length - 1], *seen], axis=-1)
        memory = carry["actor"]["memory"]
        _, (_, expected) = network.apply(state.params, memory, normalized(obs, moments))
        np.testing.assert_allclose(after[i, length - 1], expected[0], atol=1e-6)


@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.parametrize("bootstrap_end", [False, True])
def test_a_trial_ends_once_and_is_cut_only_where_its_end_is_bootstrapped(bootstrap_end, cut):
    algorithm, state, rollout = agent()
    cuts = {"cuts": jnp.asarray(rollout.terminated)} if cut else {}
    sequences = sequences_of(algorithm, state, rollout, bootstrap_end=bootstrap_end, **cuts)
    last = np.asarray(sequences.valid).sum(-1) - 1
    at_end = np.arange(sequences.valid.shape[1]) == last[:, None]
    fell = np.asarray(rollout.terminated)[:, 0]
    assert np.any(fell & ~at_end)
    np.testing.assert_array_equal(sequences.terminated | sequences.truncated, at_end | (fell & cut))
    np.testing.assert_array_equal(
        sequences.terminated, (fell & (at_end | cut)) | (at_end & (not bootstrap_end))
    )
    assert not np.any(sequences.reset)


@pytest.mark.parametrize(
    "kind", ["gru", *(pytest.param(c, marks=pytest.mark.slow) for c in OTHER_MEMORIES)]
)
@pytest.mark.slow
def test_exact_curvature_through_the_network_equals_differences_of_gradients(kind):
    """In float64, on the KL of whole trials: the products of a step, and plain Hessians."""
    algorithm, state, rollout = agent(kind)
    network = algorithm.networks
    with jax.enable_x64(True):
        state, sequences = in_float64((state, sequences_of(algorithm, state, rollout)))
        zeros = jnp.zeros_like(sequences.reward)
        batch = as_batch(sequences, zeros, zeros, zeros, whole=True)
        flat, unravel = ravel_pytree(part_of(state.params, "policy"))

        def policy(x):
            return batch.outputs(network, with_part(state.params, unravel(x)))[0]

        old = jax.jit(policy)(flat)

        def mean_kl(new):
            return masked_mean(old.kl(new), batch.valid)

        v = jax.random.normal(jax.random.key(1), flat.shape, jnp.float64)
        close = jax.jit(gauss_newton_product(policy, mean_kl, flat))(v)
        exact = jax.jit(hessian_product(lambda x: mean_kl(policy(x)), flat))(v)
        gradient = jax.jit(jax.grad(lambda x: mean_kl(policy(x))))
        differences = (gradient(flat + 1e-7 * v) - gradient(flat - 1e-7 * v)) / 2e-7
        # Gradients of fast weights have kinks, some of them between the two points.
        rtol = 1e-4 if kind == "fast-weights" else 1e-6
        assert np.linalg.norm(exact) > 0
        np.testing.assert_allclose(exact, differences, rtol=rtol, atol=1e-8)
        np.testing.assert_allclose(close, exact, rtol=1e-9, atol=1e-12)


def test_a_step_lowers_the_loss_within_the_bound():
    algorithm, state, rollout = agent()
    new, figures = updated(algorithm, state, rollout)
    assert figures["line_search_accepted"]
    assert 0 < figures["kl"] <= algorithm.config.trust_region.max_kl_step
    assert figures["loss_after"] < figures["loss_before"]
    for part in ("policy", "value"):
        before, after = (ravel_pytree(part_of(s.params, part))[0] for s in (state, new))
        assert np.any(np.asarray(before) != np.asarray(after))


@pytest.mark.parametrize("name", ["rl2-trpo", "trpo"])
def test_pieces_are_of_the_values_fit_alone(name):
    """The bound on the KL is on the policy that acts, which begins where its sequences do."""
    suite, settings = cliff_suite(), {**SMALL}
    if name == "trpo":
        settings = {"memory": SMALL["memory"], "num_lanes": 4, "num_steps": 40, "num_epochs": 1}
    ends = []
    for steps in (None, 3):
        algorithm = make_algorithm(name, suite.spec, **settings, num_bptt_steps=steps)
        state = algorithm.init(KEY)
        after, figures = updated(algorithm, state, algorithm.collect(state, train_sampler(suite)))
        parts = (ravel_pytree(part_of(after.params, part))[0] for part in ("policy", "value"))
        ends.append((*map(np.asarray, parts), float(figures["kl"])))
    (policy, value, kl), (same_policy, other_value, same_kl) = ends
    np.testing.assert_allclose(same_policy, policy, rtol=1e-6, atol=1e-7)
    assert kl == pytest.approx(same_kl, rel=1e-5) and np.any(other_value != value)


@pytest.mark.slow
def test_finite_differences_take_nearly_the_exact_step():
    """In float64, by four conjugate gradients: more of them magnify what little there is between
    the two, and end where a residual is small, the one perhaps an iteration before the other."""
    ends = []
    with jax.enable_x64(True):
        for hvp in ("exact", "finite_difference"):
            region = {"hvp": hvp, "reg_coeff": 1e-2, "cg_iters": 4}
            algorithm = make_algorithm("rl2-trpo", SPEC, **SMALL, trust_region=region)
            state = random_state(algorithm)
            after, _ = jax.jit(algorithm.update)(state, random_trials(algorithm))
            start, end = (ravel_pytree(part_of(s.params, "policy"))[0] for s in (state, after))
            ends.append(end - start)
    assert np.linalg.norm(ends[0]) > 0
    assert np.linalg.norm(ends[1] - ends[0]) < 1e-6 * np.linalg.norm(ends[0])


def test_evaluation_beyond_the_trained_trial_warns():
    algorithm, state, _ = agent()
    evaluator = Evaluator(EvaluatorConfig(num_tasks=2, num_episodes=3), cliff_suite(), seed=0)
    with pytest.warns(UserWarning, match="3 episodes on a task are more than the 2 that rl2-trpo"):
        evaluator.evaluate(algorithm, state)
