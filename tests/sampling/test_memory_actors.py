"""Actors that remember: what they are given, and when they forget."""

import functools
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_end import RandomEndEnv, random_end, trial_actor

from adaptax.core.experience import PyTree, Rollout, Step, zero_padding
from adaptax.core.spec import ActionSpace, Continuous, Discrete
from adaptax.functional.distributions import DiagonalGaussian
from adaptax.networks.normalizer import fresh_moments, updated_moments
from adaptax.sampling.actors import encode_action
from adaptax.sampling.memory_actors import (
    MemoryActor,
    TransitionInputs,
    TrialInputs,
    transition_inputs,
    trial_inputs,
)
from adaptax.sampling.sampler import Sampler

SPACES = [Continuous(2), Discrete(3)]
TWO = SPACES[0]
KEY = jax.random.key(0)
both_spaces = pytest.mark.parametrize("space", SPACES, ids=["continuous", "discrete"])
both_loops = pytest.mark.parametrize("stepped", [False, True], ids=["compiled", "host"])


@dataclass(frozen=True)
class CountingNetwork:
    """Its memory [...] is the number of steps since it was cleared; its actions are near 0."""

    def initial(self, lanes):
        return jnp.zeros(lanes)

    def apply(self, params, memory, obs, reset):
        mean = jnp.zeros((*obs.shape[:-1], 2))
        return jnp.where(reset, 0.0, memory) + 1.0, (DiagonalGaussian(mean, mean - 3.0), None)


class SpyNetwork(CountingNetwork):
    """The same, and it keeps what it was given."""

    seen: list

    def apply(self, params, memory, obs, reset):
        before = float(jnp.where(reset, 0.0, memory)[0, 0])
        self.seen.append((np.asarray(obs)[0, 0], before))
        return super().apply(params, memory, obs, reset)


def spy() -> MemoryActor:
    network = SpyNetwork()
    object.__setattr__(network, "seen", [])
    return MemoryActor({}, network)


def walk(actor: MemoryActor | TrialInputs, flags: list[tuple[bool, bool]]) -> list[np.ndarray]:
    """The actions taken. Observations are (t, -t), rewards 10 + t; flags (terminated, truncated).

    One action more than there are flags, after the last step.
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
    return actions


def walk_of_a_trial(flags: list[tuple[bool, bool]]) -> tuple[list, list]:
    """(Inputs, memory before) of every step, and the actions taken."""
    actor = spy()
    actions = walk(TrialInputs(actor, TWO), flags)
    return actor.network.seen, actions


learner = functools.cache(trial_actor)


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
    actor = TrialInputs(MemoryActor({}, CountingNetwork()), TWO)
    first, second = (sampler.episodes(actor, suite.train.tasks, 2, 1) for _ in range(2))
    adapted = actor.adapted(second, deterministic=False)
    return first, second, sampler.episodes(adapted, suite.train.tasks, 2, 2)


def num_steps(rollout: Rollout) -> np.ndarray:
    return np.asarray(rollout.valid).sum(-1)


def memory(rollout: Rollout) -> np.ndarray:
    return np.asarray(rollout.final_carry["actor"]["memory"])


def outputs_again(actor: TrialInputs, rollout: Rollout):
    """The network's outputs [B, T] over whole trials, run from zeros."""
    inputs, _ = trial_inputs(zero_padding(rollout), actor.space)
    inputs = inputs.reshape(-1, *inputs.shape[2:])
    network, params = actor.actor.network, actor.actor.params
    return network.apply(params, network.initial((len(inputs),)), inputs, method="sequence")[1]


@jax.jit
def log_probs_again(actor: TrialInputs, rollout: Rollout) -> jax.Array:
    """Log-probabilities [M, N, T] from whole trials run from zeros."""
    distribution, _ = outputs_again(actor, rollout)
    action = jnp.asarray(rollout.action)
    again = distribution.log_prob(action.reshape(-1, *action.shape[2:]))
    return again.reshape(rollout.valid.shape)


def test_input_is_observation_action_reward_flag():
    seen, actions = walk_of_a_trial([(False, False)])
    expected = [1.0, -1.0, *actions[0], 10.0, 0.0]
    np.testing.assert_allclose(seen[1][0], expected, rtol=1e-6)


def test_first_input_of_a_trial_is_zero_but_for_the_observation():
    seen, _ = walk_of_a_trial([])
    np.testing.assert_array_equal(seen[0][0], np.zeros(6))


@pytest.mark.parametrize("flags", [(True, False), (False, True), (True, True)])
def test_inner_reset_carries_action_reward_and_flag(flags):
    seen, actions = walk_of_a_trial([(False, False), flags])
    expected = [2.0, -2.0, *actions[1], 11.0, 1.0]
    np.testing.assert_allclose(seen[2][0], expected, rtol=1e-6)


def test_flag_is_set_for_one_step_only():
    seen, _ = walk_of_a_trial([(False, True), (False, False)])
    assert [given[-1] for given, _ in seen] == [0.0, 1.0, 0.0]


def test_memory_runs_across_an_inner_reset():
    seen, _ = walk_of_a_trial([(False, False), (True, False), (False, False)])
    assert [state for _, state in seen] == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("flags", [(True, False), (False, True), (True, True)])
def test_without_trials_an_episodes_end_clears_the_memory(flags):
    actor = spy()
    walk(actor, [(False, False), flags, (False, False)])
    assert [state for _, state in actor.network.seen] == [0.0, 1.0, 0.0, 1.0]
    assert [given.tolist() for given, _ in actor.network.seen] == [[t, -t] for t in range(4)]


def test_inputs_are_normalised_as_a_whole():
    sample = jax.random.normal(KEY, (1, 50, 6)) * jnp.arange(1.0, 7.0)
    moments = updated_moments(fresh_moments(6), sample, jnp.ones((1, 50), bool))
    actor = replace(spy(), obs_moments=moments)
    actions = walk(TrialInputs(actor, TWO), [(False, True)])
    raw = np.array([1.0, -1.0, *actions[0], 10.0, 1.0])
    expected = (raw - moments["mean"]) / np.sqrt(moments["variance"])
    np.testing.assert_allclose(actor.network.seen[1][0], expected, rtol=1e-4)


def test_discrete_actions_are_seen_one_hot():
    encoded = encode_action(Discrete(3), jnp.array([2, 0]))
    np.testing.assert_array_equal(encoded, [[0, 0, 1], [1, 0, 0]])


@both_spaces
def test_recomputed_inputs_start_from_zero_and_shift_by_one(space):
    rollout = trials(space)
    inputs, _ = (np.asarray(x) for x in trial_inputs(rollout, space))
    np.testing.assert_array_equal(inputs[:, :, 0, 2:], np.zeros((3, 2, space.size + 2)))
    ends = np.asarray(rollout.terminated | rollout.truncated)
    np.testing.assert_array_equal(inputs[:, :, 1:, -1], ends[:, :, :-1])
    np.testing.assert_array_equal(inputs[:, :, 1:, -2], np.asarray(rollout.reward)[:, :, :-1])


def test_a_whole_transition_is_seen_also_where_the_next_episode_starts_elsewhere():
    rollout = trials(TWO)
    inputs, _ = (np.asarray(x) for x in transition_inputs(rollout, TWO))
    np.testing.assert_array_equal(inputs[:, :, 0, 2:], np.zeros((3, 2, 5)))
    ends = np.asarray(rollout.terminated | rollout.truncated)[:, :, :-1]
    there, shown = inputs[:, :, 1:, -2:], inputs[:, :, 1:, :2]
    valid = np.asarray(rollout.valid)[:, :, 1:]
    np.testing.assert_array_equal(there, np.asarray(rollout.next_obs)[:, :, :-1])
    np.testing.assert_array_equal((there != shown).any(-1)[valid], ends[valid])


@both_spaces
@pytest.mark.parametrize("whole", [False, True], ids=["flag", "transition"])
def test_recomputed_inputs_are_those_that_the_actor_saw(space, whole):
    """And what it would have seen after the trial, had the last episode gone on."""
    rollout, seen = trials(space), spy()
    actor = TransitionInputs(seen, space, None, 2) if whole else TrialInputs(seen, space)
    recomputed = transition_inputs if whole else trial_inputs
    inputs, after = (np.asarray(x) for x in recomputed(rollout, space))
    valid = np.asarray(rollout.valid)
    for lane in np.ndindex(*valid.shape[:2]):
        del seen.network.seen[:]
        length = valid[lane].sum()
        replay(actor, rollout, lane, length)
        expected = np.array([given for given, _ in seen.network.seen])
        np.testing.assert_array_equal(inputs[lane][:length], expected[:-1])
        if not whole:
            expected[-1, -1] = 0.0
        np.testing.assert_array_equal(after[lane][:length], expected[1:])


def replay(actor: TrialInputs, rollout: Rollout, lane: tuple[int, int], length: int) -> None:
    """Show an actor the steps of one lane, and what the last one led to."""
    carry = actor.begin(1, 1, KEY)
    for t in range(length):
        fields = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
        step = Step(*(jnp.asarray(getattr(rollout, name)[lane][t])[None, None] for name in fields))
        _, carry, _ = actor.act(carry, step.obs, KEY)
        carry = actor.observe(carry, step, KEY)
    actor.act(carry, step.next_obs, KEY)


@both_loops
def test_trial_starts_from_zeros_whatever_came_before(stepped):
    first, second, _ = counted(stepped)
    np.testing.assert_array_equal(memory(first), num_steps(first))
    np.testing.assert_array_equal(memory(second), num_steps(second))
    assert len(set(num_steps(second).ravel())) > 1


@both_loops
def test_adapted_actor_goes_on_from_its_memory(stepped):
    _, second, third = counted(stepped)
    np.testing.assert_array_equal(memory(third), num_steps(second) + num_steps(third))


@both_loops
def test_memory_of_an_episode_is_cleared_at_its_end_and_lasts_from_call_to_call(stepped):
    suite = random_end(RandomEndEnv(), stepped=stepped)
    sampler = Sampler(suite, suite.train, 0, "train")
    actor, since, ended = MemoryActor({}, CountingNetwork()), np.zeros((3, 2)), 0
    for _ in range(2):
        rollout = sampler.steps(actor, suite.train.tasks, 2, 7)
        ends = np.asarray(rollout.terminated | rollout.truncated)
        for t in range(7):  # the count of a step that ends an episode is cleared by the next one
            since = np.where(ends[..., t - 1] if t else rollout.initial_carry["reset"], 0, since)
            since, ended = since + 1, ended + ends[..., t].sum()
        np.testing.assert_array_equal(rollout.final_carry["memory"], since)
        np.testing.assert_array_equal(rollout.final_carry["reset"], ends[..., -1])
    assert ended > 6 and since.max() > 1


def test_adapted_actor_owns_its_memory():
    rollout, actor = trials(TWO), learner(TWO)
    carry = jax.tree.map(np.array, rollout.final_carry)
    adapted = actor.adapted(replace(rollout, final_carry=carry), deterministic=True)

    def remembered() -> list[np.ndarray]:
        return [np.array(x) for x in jax.tree.leaves(adapted.begin(3, 2, KEY))]

    before = remembered()
    spoil(carry)
    for now, then in zip(remembered(), before, strict=True):
        np.testing.assert_array_equal(now, then)
    assert actor.start is None and adapted.actor.deterministic


def spoil(tree: PyTree) -> None:
    for x in jax.tree.leaves(tree):
        x[...] = 7


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
