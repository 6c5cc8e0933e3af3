import functools
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from adaptax.algorithms.meta.trials import Trials, trial_batch
from random_end import RandomEndEnv, random_end, recurrent_actor

from adaptax.algorithms.meta.rl2 import RL2Config, trial_advantages
from adaptax.core.experience import Rollout, Step
from adaptax.core.spec import ActionSpace, Continuous, Discrete
from adaptax.functional.distributions import DiagonalGaussian
from adaptax.sampling.actors import RecurrentActor, encode_action, recurrent_inputs
from adaptax.sampling.sampler import Sampler

SPACES = [Continuous(2), Discrete(3)]
TWO = SPACES[0]
KEY = jax.random.key(0)
both_spaces = pytest.mark.parametrize("space", SPACES, ids=["continuous", "discrete"])
both_loops = pytest.mark.parametrize("stepped", [False, True], ids=["compiled", "host"])


@dataclass(frozen=True)
class CountingNetwork:
    """Its hidden state [..., 1] is the number of steps it has run; its actions are near 0."""

    memory_size: int = 1

    def apply(self, params, inputs, hidden):
        mean = jnp.zeros((*inputs.shape[:-1], 2))
        return DiagonalGaussian(mean, mean - 3.0), None, hidden + 1.0


class SpyNetwork(CountingNetwork):
    """The same, and it keeps what it was given."""

    seen: list

    def apply(self, params, inputs, hidden):
        self.seen.append((np.asarray(inputs)[0, 0, 0], float(hidden[0, 0, 0])))
        return super().apply(params, inputs, hidden)


def spy() -> RecurrentActor:
    network = SpyNetwork()
    object.__setattr__(network, "seen", [])
    return RecurrentActor({}, network, TWO)


def walk(actor: RecurrentActor, flags: list[tuple[bool, bool]]) -> tuple[list, list]:
    """What the network was given before each step and after the last, and the actions taken.

    Observations are (t, -t), rewards 10 + t; `flags` are (terminated, truncated) of every step.
    """
    carry, actions = actor.begin(1, 1, KEY), []
    for t in range(len(flags) + 1):
        obs = jnp.array([[[t, -t]]], jnp.float32)
        action, carry, _ = actor.act(carry, obs, jax.random.fold_in(KEY, t))
        actions.append(np.asarray(action)[0, 0])
        if t < len(flags):
            terminated, truncated = (jnp.full((1, 1), flag) for flag in flags[t])
            step = (obs, action, jnp.full((1, 1), 10.0 + t), obs, terminated, truncated)
            carry = actor.observe(carry, Step(*step), KEY)
    return actor.network.seen, actions


learner = functools.cache(recurrent_actor)


@functools.cache
def trials(space: ActionSpace) -> Rollout:
    """Two episodes of random length in two lanes of each of three tasks."""
    suite = random_end(RandomEndEnv(space), stepped=True)
    sampler = Sampler(suite, suite.train, 0, "train")
    return sampler.episodes(learner(space), suite.train.tasks, 2, 2)


@functools.cache
def counted(stepped: bool) -> tuple[Rollout, Rollout, Rollout]:
    """Trials of the counting network: two of one episode from zero, then two episodes more."""
    suite = random_end(RandomEndEnv(), stepped=stepped)
    sampler = Sampler(suite, suite.train, 0, "train")
    actor = RecurrentActor({}, CountingNetwork(), TWO)
    first, second = (sampler.episodes(actor, suite.train.tasks, 2, 1) for _ in range(2))
    adapted = actor.adapted(second, deterministic=False)
    return first, second, sampler.episodes(adapted, suite.train.tasks, 2, 2)


def num_steps(rollout: Rollout) -> np.ndarray:
    return np.asarray(rollout.valid).sum(-1)


def hidden(rollout: Rollout) -> np.ndarray:
    return np.asarray(rollout.final_carry["hidden"])[..., 0]


@jax.jit
def log_probs_again(actor: RecurrentActor, rollout: Rollout) -> jax.Array:
    """Log-probabilities [M, N, T] from whole trials run from zero state."""
    inputs = recurrent_inputs(rollout, actor.space)
    start = jnp.zeros((*inputs.shape[:2], actor.network.memory_size))
    distribution, _, _ = actor.network.apply(actor.params, inputs, start)
    return distribution.log_prob(jnp.asarray(rollout.action))


def test_input_is_observation_action_reward_flag():
    seen, actions = walk(spy(), [(False, False)])
    expected = [1.0, -1.0, *actions[0], 10.0, 0.0]
    np.testing.assert_allclose(seen[1][0], expected, rtol=1e-6)


def test_first_input_of_a_trial_is_zero_but_for_the_observation():
    seen, _ = walk(spy(), [])
    np.testing.assert_array_equal(seen[0][0], np.zeros(6))


@pytest.mark.parametrize("flags", [(True, False), (False, True), (True, True)])
def test_inner_reset_carries_action_reward_and_flag(flags):
    seen, actions = walk(spy(), [(False, False), flags])
    expected = [2.0, -2.0, *actions[1], 11.0, 1.0]
    np.testing.assert_allclose(seen[2][0], expected, rtol=1e-6)


def test_flag_is_set_for_one_step_only():
    seen, _ = walk(spy(), [(False, True), (False, False)])
    assert [given[-1] for given, _ in seen] == [0.0, 1.0, 0.0]


def test_hidden_state_runs_across_an_inner_reset():
    seen, _ = walk(spy(), [(False, False), (True, False), (False, False)])
    assert [state for _, state in seen] == [0.0, 1.0, 2.0, 3.0]


def test_discrete_actions_are_seen_one_hot():
    encoded = encode_action(Discrete(3), jnp.array([2, 0]))
    np.testing.assert_array_equal(encoded, [[0, 0, 1], [1, 0, 0]])


@both_spaces
def test_recomputed_inputs_start_from_zero_and_shift_by_one(space):
    rollout = trials(space)
    inputs = np.asarray(recurrent_inputs(rollout, space))
    np.testing.assert_array_equal(inputs[:, :, 0, 2:], np.zeros((3, 2, space.size + 2)))
    ends = np.asarray(rollout.terminated | rollout.truncated)
    np.testing.assert_array_equal(inputs[:, :, 1:, -1], ends[:, :, :-1])
    np.testing.assert_array_equal(inputs[:, :, 1:, -2], np.asarray(rollout.reward)[:, :, :-1])


@both_loops
def test_trial_starts_from_zero_state_whatever_came_before(stepped):
    first, second, _ = counted(stepped)
    np.testing.assert_array_equal(hidden(first), num_steps(first))
    np.testing.assert_array_equal(hidden(second), num_steps(second))
    assert len(set(num_steps(second).ravel())) > 1


@both_loops
def test_adapted_actor_goes_on_from_its_memory(stepped):
    _, second, third = counted(stepped)
    np.testing.assert_array_equal(hidden(third), num_steps(second) + num_steps(third))


def test_adapted_actor_owns_its_memory():
    rollout, actor = trials(TWO), learner(TWO)
    carry = {name: np.array(x) for name, x in rollout.final_carry.items()}
    adapted = actor.adapted(replace(rollout, final_carry=carry), deterministic=True)
    before = np.array(adapted.memory["hidden"])
    carry["hidden"][:] = 7.0
    np.testing.assert_array_equal(adapted.memory["hidden"], before)
    assert actor.memory is None and adapted.deterministic


@both_spaces
def test_log_probs_recomputed_over_the_trial_equal_the_sampled(space):
    rollout = trials(space)
    valid = np.asarray(rollout.valid)
    again = np.asarray(log_probs_again(learner(space), rollout))
    np.testing.assert_allclose(again[valid], rollout.extras["log_prob"][valid], atol=1e-5)


@both_spaces
def test_lanes_of_one_task_are_sequences_of_their_own(space):
    rollout = trials(space)
    lengths = num_steps(rollout)
    assert (lengths[:, 0] != lengths[:, 1]).any()
    for lane in (slice(0, 1), slice(1, 2)):
        alone = jax.tree.map(lambda x, lane=lane: x[:, lane], rollout)
        valid = np.asarray(alone.valid)
        again = np.asarray(log_probs_again(learner(space), alone))
        np.testing.assert_allclose(again[valid], alone.extras["log_prob"][valid], atol=1e-5)


def test_trial_batch_has_one_row_a_lane():
    rollout = trials(TWO)
    batch = trial_batch(rollout, learner(TWO).network)
    assert batch.inputs.shape == (6, 10, 6)
    np.testing.assert_array_equal(batch.valid.sum(-1), num_steps(rollout).reshape(-1))
    np.testing.assert_array_equal(batch.reward[3], rollout.reward[1, 1])


def test_padding_changes_nothing_in_a_trial_batch():
    rollout = trials(TWO)
    shape = np.shape(rollout.valid)

    def garbage(x: jax.Array) -> np.ndarray:
        if np.shape(x)[:3] != shape:
            return np.asarray(x)
        value = True if x.dtype == bool else np.nan
        padded = ~np.asarray(rollout.valid).reshape(shape + (1,) * (x.ndim - 3))
        return np.where(padded, value, x).astype(x.dtype)

    noisy = replace(jax.tree.map(garbage, rollout), valid=rollout.valid)
    network = learner(TWO).network
    got, expected = (jax.tree.leaves(trial_batch(r, network)) for r in (noisy, rollout))
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)


CONFIG = RL2Config(discount=0.97, gae_lambda=0.9, reward_scale=1.0)


def advantages(reward, valid, value, value_after, config, terminated=None) -> np.ndarray:
    """`trial_advantages` of trials [B, T] of which only rewards and ends matter."""
    ends = np.zeros_like(valid) if terminated is None else terminated
    nothing = np.zeros_like(reward)
    batch = Trials(nothing, nothing, nothing, reward, nothing, ends, valid)
    return np.asarray(trial_advantages(batch, value, value_after, config))


def naive_advantages(reward: np.ndarray, value: np.ndarray, discount: float, lam: float) -> list:
    """The double sum over one long episode that terminates at its last step."""
    following = np.append(value[1:], 0.0)
    delta = reward + discount * following - value
    decay = discount * lam
    return [
        sum(decay ** (k - t) * delta[k] for k in range(t, len(delta))) for t in range(len(delta))
    ]


def test_advantages_of_a_trial_are_those_of_one_long_episode():
    rollout = trials(TWO)
    reward, valid = (np.asarray(x).reshape(6, -1) for x in (rollout.reward, rollout.valid))
    value = np.random.default_rng(0).normal(size=reward.shape).astype(np.float32)
    got = np.asarray(advantages(reward, valid, value, np.zeros(6), CONFIG))
    for row, steps in enumerate(valid.sum(-1)):
        expected = naive_advantages(reward[row, :steps], value[row, :steps], 0.97, 0.9)
        np.testing.assert_allclose(got[row, :steps], expected, rtol=1e-5, atol=1e-5)
        assert np.abs(got[row, steps:]).sum() == 0.0


def test_reward_after_an_inner_boundary_counts_before_it():
    valid = np.ones((1, 6), bool)
    late = np.array([[0.0, 0, 0, 0, 0, 1]], np.float32)
    config = RL2Config(discount=0.9, gae_lambda=1.0, reward_scale=1.0)
    advantage = advantages(late, valid, np.zeros_like(late), np.zeros(1), config)
    np.testing.assert_allclose(advantage[0], 0.9 ** np.arange(5, -1, -1), rtol=1e-6)


def test_what_follows_a_cut_trial_counts_unless_its_last_step_terminated():
    valid = np.array([[True, True, False], [True, True, False]])
    terminated = np.array([[False, False, False], [False, True, False]])
    zeros = np.zeros((2, 3), np.float32)
    config = RL2Config(discount=0.9, gae_lambda=1.0, reward_scale=1.0)
    got = advantages(zeros, valid, zeros, np.full(2, 10.0), config, terminated)
    np.testing.assert_allclose(got, [[8.1, 9.0, 0.0], [0.0, 0.0, 0.0]], rtol=1e-6)


def test_reward_scale_scales_advantages():
    reward, valid = np.ones((1, 4), np.float32), np.ones((1, 4), bool)
    config = RL2Config(discount=1.0, gae_lambda=1.0, reward_scale=0.1)
    got = advantages(reward, valid, np.zeros_like(reward), np.zeros(1), config)
    np.testing.assert_allclose(got[0], [0.4, 0.3, 0.2, 0.1], rtol=1e-6)
