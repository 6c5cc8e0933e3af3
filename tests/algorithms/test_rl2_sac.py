"""RL2-SAC: losses and targets by slow loops over trials, boundaries, memories, its buffer."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from small import SMALL
from toys import cliff_suite, train_sampler

from adaptax.algorithms.meta.rl2_sac import RL2SAC, Trials
from adaptax.algorithms.program import updated
from adaptax.core.errors import ConfigError
from adaptax.core.experience import Rollout
from adaptax.core.rng import named_key
from adaptax.core.spec import Continuous, Discrete, EnvSpec, MultiDiscrete
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.learning.trials import with_trials

KEY, HORIZON, LENGTHS = jax.random.key(0), 3, (6, 4, 5, 0)
"""Trials of two episodes of up to three steps; of the last one nothing is left."""
CLIFF = cliff_suite()
GRID = make_suite("gridworld", size=3, horizon=3, num_episodes=2)
TINY = {
    "num_episodes": 2,
    "hidden_sizes": (5,),
    "memory": {"kind": "gru", "size": 4},
    "head_hidden_sizes": (6,),
    "num_bins": 7,
    "max_return": 20.0,
    "reward_scale": 0.5,
    "discount": 0.9,
    "lr": 1e-2,
}
CASES = {
    # The first is for `make test`, the others for `make test-slow`.
    "separate": {},
    "choices, two-hot, shared": {"critic": "two_hot", "encoders": "shared"},
    "shared": {"encoders": "shared"},
    "two-hot": {"critic": "two_hot"},
    "choices": {},
    "no bootstrap": {"bootstrap_trial_end": False},
}
every_case = pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=() if i < 1 else pytest.mark.slow) for i, c in enumerate(CASES)],
)


def agent(case: str):
    """An algorithm, and a learner of random parameters whose targets are others."""
    space = Discrete(3) if "choices" in case else Continuous(2)
    settings = {**TINY, **CASES[case]}
    algorithm = make_algorithm("rl2-sac", EnvSpec(2, space, HORIZON), **settings)
    rng, learner = np.random.default_rng(0), algorithm.initial_state(KEY).learner

    def drawn(x):
        return jnp.asarray(0.6 * rng.normal(size=x.shape), x.dtype)

    params = jax.tree.map(drawn, learner.params)
    return algorithm, replace(learner, params=params, target=jax.tree.map(drawn, learner.target))


def random_rollout(space, padding: float = 7.0) -> Rollout:
    """Trials [4, 1, 6] whose episodes end in either way; what is padding has some values too."""
    rng, shape = np.random.default_rng(1), (len(LENGTHS), 1, 2 * HORIZON)
    lengths = np.array(LENGTHS)[:, None, None]
    valid, last = np.arange(2 * HORIZON) < lengths, np.arange(2 * HORIZON) == lengths - 1
    terminated, truncated = np.zeros(shape, bool), np.zeros(shape, bool)
    truncated[0, 0, 2] = terminated[1, 0, 1] = terminated[2, 0, 0] = True
    terminated |= last & (np.arange(4) % 2 == 0)[:, None, None]
    truncated |= last & ~terminated

    def numbers(*more):
        x = rng.normal(size=(*shape, *more)).astype(np.float32)
        return np.where(valid.reshape(*shape, *(1,) * len(more)), x, padding)

    action = np.tanh(numbers(2))
    if isinstance(space, Discrete):
        action = rng.integers(3, size=shape).astype(np.int32)
    return Rollout(numbers(2), action, numbers(), numbers(2), terminated, truncated, valid)


def trials_of(algorithm, rollout) -> Trials:
    """The rollout's trials as they come out of the buffer."""
    return stored(algorithm, algorithm.initial_state(KEY).trials, rollout)


@jax.jit
def stored(algorithm, empty, rollout) -> Trials:
    trials, _ = with_trials(empty, jnp.int32(0), rollout)
    return algorithm.minibatch(trials, jnp.arange(len(LENGTHS)))


def slow_inputs(space, rollout, i: int) -> np.ndarray:
    """What the agent sees in trial i, and what it would see after it: [length + 1, F]."""
    last, rows = np.zeros(space.size + 2), []
    for t in range(LENGTHS[i]):
        rows.append([*rollout.obs[i, 0, t], *last])
        action = rollout.action[i, 0, t]
        taken = np.eye(3)[action] if isinstance(space, Discrete) else action
        ended = rollout.terminated[i, 0, t] | rollout.truncated[i, 0, t]
        last = np.array([*taken, rollout.reward[i, 0, t], ended])
    if rows:
        rows.append([*rollout.next_obs[i, 0, t], *last[:-1], 0.0])
    return np.array(rows, np.float32).reshape(-1, 2 + space.size + 2)


@every_case
def test_trials_come_out_of_the_buffer_as_the_agent_saw_them(case):
    algorithm, _ = agent(case)
    space = algorithm.spec.action
    rollout = random_rollout(space)
    trials = trials_of(algorithm, rollout)
    np.testing.assert_array_equal(trials.valid.sum(-1), LENGTHS)
    for i, length in enumerate(LENGTHS):
        expected = slow_inputs(space, rollout, i)
        np.testing.assert_allclose(trials.inputs[i, : len(expected)], expected, atol=1e-6)
        reward = 0.5 * rollout.reward[i, 0, :length]
        np.testing.assert_allclose(trials.reward[i, :length], reward)
        np.testing.assert_array_equal(trials.action[i, :length], rollout.action[i, 0, :length])
        ended = np.zeros(2 * HORIZON, bool)
        if length:
            ends_for_good = case == "no bootstrap" or rollout.terminated[i, 0, length - 1]
            ended[length - 1] = ends_for_good
        np.testing.assert_array_equal(trials.ended[i], ended)


class Slow:
    """Losses as loops over the steps of each trial, the memory run one step at a time."""

    def __init__(self, algorithm, learner, rollout) -> None:
        self.algorithm, self.config = algorithm, algorithm.config
        self.space, self.nets = algorithm.spec.action, algorithm.networks
        self.learner, self.rollout = learner, rollout
        places = np.linspace(-1, 1, 7) * np.log(21.0)
        self.bins = np.sign(places) * np.expm1(np.abs(places))
        self.temperature = float(jnp.exp(learner.params["log_temperature"]))
        nets = self.nets.encoder, self.nets.policy, self.nets.critics
        self.encode, self.act, self.judge = (jax.jit(net.apply) for net in nets)

    def features(self, encoder) -> np.ndarray:
        """Of every step and of one more, [B, T + 1, H]; zeros behind a trial."""
        rows = np.zeros((len(LENGTHS), 2 * HORIZON + 1, 9), np.float32)
        for i in range(len(LENGTHS)):
            memory = self.nets.encoder.initial(())
            for t, x in enumerate(slow_inputs(self.space, self.rollout, i)):
                memory, rows[i, t] = self.encode(encoder, memory, x)
        return rows

    def value(self, outputs) -> float:
        """What the outputs [K] of one critic for one action say."""
        if self.config.critic == "squared_error":
            return float(outputs[0])
        p = np.exp(outputs - np.max(outputs))
        return float(p @ self.bins / p.sum())

    def outputs(self, critics, features, action) -> list:
        """Of both critics for one action."""
        if isinstance(self.space, Discrete):
            every = np.asarray(self.judge(critics, features)).reshape(2, 3, -1)
            return [one[action] for one in every]
        return list(np.asarray(self.judge(critics, np.concatenate([features, action]))))

    def soft_value(self, policy_features, critics, critic_features, draws, where) -> tuple:
        """E[min Q - alpha log pi] and the entropy at one step; `draws` are actions and log pi."""
        i, t = where
        if isinstance(self.space, Discrete):
            logits = np.asarray(self.act(self.learner.params["policy"], policy_features).logits)
            p = np.exp(logits.astype(float)) / np.exp(logits.astype(float)).sum()
            choices = [(a, np.log(p[a]), p[a]) for a in range(3)]
        else:
            choices = [(draws[0][i, t], float(draws[1][i, t]), 1.0)]
        value = entropy = 0.0
        for action, log_prob, weight in choices:
            both = self.outputs(critics, critic_features, action)
            lowest = min(self.value(x) for x in both)
            value += weight * (lowest - self.temperature * log_prob)
            entropy -= weight * log_prob
        return value, entropy

    def draws(self, features, key):
        """The actions that the algorithm draws by its key, from these features."""
        if isinstance(self.space, Discrete):
            return None
        policy = self.nets.policy.apply(self.learner.params["policy"], features)
        return policy.sample_and_log_prob(key)

    def policy_features(self) -> np.ndarray:
        params = self.learner.params
        return self.features(params.get("policy_encoder", params["critic_encoder"]))

    def targets(self, key) -> np.ndarray:
        """Equation 2 of soft actor-critic along each trial, whose inner ends cut nothing."""
        ahead = self.policy_features()[:, 1:]
        lagging = self.features(self.learner.target["critic_encoder"])[:, 1:]
        draws = jax.device_get(self.draws(ahead, key))
        y = np.zeros(lagging.shape[:2])
        for i, length in enumerate(LENGTHS):
            for t in range(length):
                args = ahead[i, t], self.learner.target["critics"], lagging[i, t], draws, (i, t)
                follows = self.soft_value(*args)[0]
                at_end = t == length - 1
                if at_end and (
                    self.rollout.terminated[i, 0, t] or not self.config.bootstrap_trial_end
                ):
                    follows = 0.0
                y[i, t] = 0.5 * self.rollout.reward[i, 0, t] + 0.9 * follows
        return y

    def critic_loss(self, key) -> float:
        """Summed over both critics, mean over steps."""
        y, own = self.targets(key), self.features(self.learner.params["critic_encoder"])
        terms = []
        for i, length in enumerate(LENGTHS):
            for t in range(length):
                action = self.rollout.action[i, 0, t]
                both = self.outputs(self.learner.params["critics"], own[i, t], action)
                terms.append(sum(self.error(x, y[i, t]) for x in both))
        return float(np.mean(terms))

    def error(self, outputs, y) -> float:
        if self.config.critic == "squared_error":
            return 0.5 * float(outputs[0] - y) ** 2
        above, bins = int(np.clip(np.searchsorted(self.bins, y), 1, 6)), self.bins
        share = np.clip((y - bins[above - 1]) / (bins[above] - bins[above - 1]), 0, 1)
        log_p = np.asarray(outputs, float) - np.log(np.sum(np.exp(np.asarray(outputs, float))))
        return -float((1 - share) * log_p[above - 1] + share * log_p[above])

    def policy_loss(self, after, key) -> tuple[float, float]:
        """By the critics after their step; and the entropy."""
        own = self.policy_features()[:, :-1]
        if self.config.encoders == "shared":
            own = self.features(after.params["critic_encoder"])[:, :-1]
        known = self.features(after.params["critic_encoder"])[:, :-1]
        draws, terms = jax.device_get(self.draws(own, key)), []
        for i, length in enumerate(LENGTHS):
            for t in range(length):
                args = own[i, t], after.params["critics"], known[i, t], draws, (i, t)
                terms.append(self.soft_value(*args))
        value, entropy = np.mean(terms, axis=0)
        return -value, entropy


step, targets = jax.jit(RL2SAC.gradient_step), jax.jit(RL2SAC.targets)


@every_case
def test_losses_are_those_of_a_slow_loop_over_trials(case):
    algorithm, learner = agent(case)
    rollout = random_rollout(algorithm.spec.action)
    after, figures = step(algorithm, learner, trials_of(algorithm, rollout), KEY)
    slow = Slow(algorithm, learner, rollout)
    target_key, policy_key = jax.random.split(KEY)
    assert float(figures["critic_loss"]) == pytest.approx(slow.critic_loss(target_key), rel=1e-4)
    policy_loss, entropy = slow.policy_loss(after, policy_key)
    assert float(figures["policy_loss"]) == pytest.approx(policy_loss, rel=1e-4, abs=1e-5)
    assert float(figures["entropy"]) == pytest.approx(entropy, rel=1e-4, abs=1e-5)
    learned, before = after.params["log_temperature"], learner.params["log_temperature"]
    too_random = entropy > algorithm.target_entropy
    assert float(learned - before) == pytest.approx(-0.01 if too_random else 0.01, rel=1e-3)
    for name, old in learner.target.items():
        expected = jax.tree.map(lambda x, y: 0.995 * x + 0.005 * y, old, after.params[name])
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7),
            after.target[name],
            expected,
        )


def test_an_inner_end_is_followed_by_the_next_episodes_start_and_the_last_one_by_its_own_rule():
    """Targets minus rewards are 0 where nothing follows, and nowhere else."""
    algorithm, learner = agent("separate")
    rollout = random_rollout(algorithm.spec.action)
    for bootstraps in (True, False):
        config = replace(algorithm.config, bootstrap_trial_end=bootstraps)
        other = algorithm.with_config(config)
        trials = trials_of(other, rollout)
        follows = np.asarray(targets(other, learner, trials, KEY) - trials.reward)
        for i, length in enumerate(LENGTHS):
            zero = np.abs(follows[i, :length]) < 1e-6
            last = np.arange(length) == length - 1
            for_good = np.array([i % 2 == 0 or not bootstraps])
            np.testing.assert_array_equal(zero, last & for_good)


@pytest.mark.parametrize("encoders", ["separate", pytest.param("shared", marks=pytest.mark.slow)])
def test_padding_reaches_no_gradient(encoders):
    algorithm, learner = agent("shared" if encoders == "shared" else "separate")
    clean = trials_of(algorithm, random_rollout(algorithm.spec.action))
    rng = np.random.default_rng(2)
    behind = np.arange(2 * HORIZON + 1) > np.array(LENGTHS)[:, None]

    def polluted(x, mask):
        noise = 100 * rng.normal(size=x.shape).astype(np.float32)
        return jnp.where(mask.reshape(*mask.shape, *(1,) * (x.ndim - 2)), noise, x)

    other = replace(
        clean,
        inputs=polluted(clean.inputs, behind),
        action=polluted(clean.action, ~clean.valid),
        reward=polluted(clean.reward, ~clean.valid),
    )
    # First moments of Adam, which are gradients; a step of some size magnifies what is rounded.
    algorithm = algorithm.with_config(replace(algorithm.config, lr=1e-12))
    ends = [
        (figures, [opt_state[1][0].mu for opt_state in after.opt_state.values()])
        for after, figures in (step(algorithm, learner, x, KEY) for x in (clean, other))
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), *ends)


@pytest.mark.slow
def test_the_critics_loss_alone_teaches_a_shared_memory():
    """It moves as the critics' own does beside a policy that has an equal one of its own."""
    algorithm, learner = agent("shared")
    assert "policy_encoder" not in learner.params
    trials = trials_of(algorithm, random_rollout(algorithm.spec.action))
    after, _ = step(algorithm, learner, trials, KEY)
    other, apart = agent("separate")
    same = {**learner.params, "policy_encoder": learner.params["critic_encoder"]}
    apart = replace(apart, params=same, target=learner.target)
    expected, _ = step(other, apart, trials, KEY)
    pairs = after.params["critic_encoder"], expected.params["critic_encoder"]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), *pairs)
    moved = zip(
        *map(jax.tree.leaves, (same["policy_encoder"], expected.params["policy_encoder"])),
        strict=True,
    )
    assert any(np.any(a != b) for a, b in moved)


@cache
def iterated(num: int, **settings):
    """An algorithm after some iterations on cliffs, its figures, and the last data."""
    algorithm = make_algorithm("rl2-sac", CLIFF.spec, **{**SMALL["rl2-sac"], **settings})
    sampler, rows, data = train_sampler(CLIFF), [], None
    state = algorithm.initial_state(named_key(0, "init"))
    for _ in range(num):
        data = algorithm.collect(state, sampler)
        state, metrics = updated(algorithm, state, data)
        rows.append({name: float(x) for name, x in metrics.items()})
    return algorithm, state, rows, data


@pytest.mark.slow
def test_nothing_is_learned_until_there_are_trials_enough_and_actions_are_uniform():
    algorithm, state, rows, data = iterated(2, num_initial_trials=16)
    assert [row["num_updates"] for row in rows] == [0, 0]
    fresh = algorithm.initial_state(named_key(0, "init")).learner.params
    jax.tree.map(np.testing.assert_array_equal, state.learner.params, fresh)
    action = np.asarray(data.action)[np.asarray(data.valid)]
    np.testing.assert_allclose(np.quantile(action, [0.1, 0.5, 0.9]), [-0.8, 0, 0.8], atol=0.15)
    assert int(state.num_trials) == 16
    after, metrics = updated(algorithm, state, algorithm.collect(state, train_sampler(CLIFF)))
    assert int(metrics["num_updates"]) == algorithm.config.num_updates
    assert int(after.num_trials) == 24


@pytest.mark.slow
def test_the_policy_acts_on_what_it_learns_from():
    """Log-probabilities of acting equal those of a sequence over the trials in the buffer."""
    algorithm, state, _, _ = iterated(3)
    sampler = train_sampler(CLIFF)
    data = sampler.episodes(algorithm.actor(state), sampler.sample_tasks(8), 1, 2)
    kept, _ = with_trials(state.trials, jnp.int32(0), data)
    trials, params = algorithm.minibatch(kept, jnp.arange(8)), state.learner.params
    seen = algorithm._features(params["policy_encoder"], trials.inputs[:, :-1])
    policy = algorithm.networks.policy.apply(params["policy"], seen)
    found = np.where(trials.valid, policy.log_prob(trials.action), 0)
    expected = np.where(trials.valid, data.extras["log_prob"][:, 0], 0)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)
    assert len(set(np.asarray(trials.valid).sum(1).tolist())) > 3


@pytest.mark.parametrize("encoders", ["shared", pytest.param("separate", marks=pytest.mark.slow)])
def test_a_memory_lasts_through_the_episodes_of_a_trial_and_a_new_task_starts_afresh(encoders):
    algorithm = make_algorithm("rl2-sac", GRID.spec, **{**TINY, "encoders": encoders})
    state, tasks = algorithm.initial_state(named_key(1, "init")), GRID.test.tasks
    sampler = train_sampler(GRID)
    actor = algorithm.actor(state, deterministic=True)
    whole = sampler.episodes(actor, tasks, 1, 2)
    first = sampler.episodes(actor, tasks, 1, 1)
    second = sampler.episodes(
        algorithm.adapt(state, actor, [first], deterministic=True), tasks, 1, 1
    )
    for name in ("obs", "action", "reward"):
        parts = np.concatenate([getattr(x, name) for x in (first, second)], axis=2)
        np.testing.assert_array_equal(parts, getattr(whole, name))
    memories = [np.asarray(x.final_carry["actor"]["memory"]) for x in (whole, second, first)]
    np.testing.assert_allclose(memories[0], memories[1], rtol=1e-6)
    assert np.any(memories[0] != memories[2])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"buffer_size": 7}, "buffer_size 7 must be at least meta_batch_size 8"),
        ({"num_initial_trials": 500}, "must be at least num_initial_trials 500"),
        ({"num_bins": 1}, "num_bins must be at least 2, not 1"),
        ({"tau": 1.5}, "tau must lie in"),
        ({"max_return": 0.0}, "max_return must be greater than 0"),
        ({"target_entropy": 0.3, "learn_temperature": False}, "needs learn_temperature"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        make_algorithm("rl2-sac", CLIFF.spec, **{**SMALL["rl2-sac"], **settings})


def test_several_choices_at_once_are_refused():
    with pytest.raises(ConfigError, match="rl2-sac takes continuous actions or one choice"):
        make_algorithm("rl2-sac", EnvSpec(2, MultiDiscrete((2, 3)), HORIZON))
