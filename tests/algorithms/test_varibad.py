"""VariBAD: its ELBO by a slow loop, its trials, and what gradients and beliefs reach."""

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import gaussian
from small import SMALL
from toys import cliff_suite, point_suite, train_sampler

from adaptax.algorithms.meta import rl2
from adaptax.algorithms.meta.varibad import Networks, VariBADConfig, default_networks, encoder_of
from adaptax.algorithms.program import updated
from adaptax.core.errors import ConfigError
from adaptax.core.rng import named_key
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.learning.replay import draw_rings
from adaptax.learning.sequences import trial_sequences
from adaptax.learning.trials import with_trials
from adaptax.networks.actor_critic import ActorCritic
from adaptax.networks.memory import GRU
from adaptax.sampling.memory_actors import transition_inputs

CLIFF = cliff_suite()
"""Trials of up to 40 steps, most of them shorter."""
GRID = make_suite("gridworld", size=3, horizon=3, num_episodes=2)


def made(suite=CLIFF, **settings):
    return make_algorithm("varibad", suite.spec, **{**SMALL["varibad"], **settings})


@cache
def iterated(num: int, **settings):
    """An algorithm after some iterations on cliffs, and the data of the last one."""
    algorithm, sampler = made(**settings), train_sampler(CLIFF)
    algorithm.collects_in_program = False
    state, data = algorithm.init(named_key(0, "init")), None
    for _ in range(num):
        data = algorithm.collect(state, sampler)
        state = updated(algorithm, state, data)[0]
    return algorithm, state, data


def moments(state):
    return state.policy.moments.get("obs")


@pytest.mark.parametrize("decode_next_obs", [False, True])
@pytest.mark.parametrize("num_terms", [3, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("reward_from", ["transition", "next_obs"])
def test_the_loss_is_minus_the_elbos_mean_by_a_slow_loop(reward_from, num_terms, decode_next_obs):
    settings = {"reward_from": reward_from, "decode_next_obs": decode_next_obs}
    algorithm = made(**settings, num_elbo_terms=num_terms, kl_coeff=0.3)
    state = algorithm.init(named_key(0, "init"))
    lengths = (3, 0, 4)
    trials = jax.tree.map(
        lambda x: x[:, :5], algorithm.minibatch(state.trials, jnp.arange(3), None)
    )
    rng = np.random.default_rng(0)
    filled = jax.tree.map(lambda x: jnp.array(rng.normal(size=x.shape), x.dtype), trials)
    valid = jnp.arange(5) < jnp.array(lengths)[:, None]
    tokens = jnp.array(rng.normal(size=(3, 6, 5)), jnp.float32)
    trials = type(trials)(filled.obs, tokens, filled.reward, valid)
    params, key = (encoder_of(state.policy.params), state.decoders), jax.random.key(1)
    loss, figures = algorithm.elbo_loss(params, trials, key)

    times_key, z_key = jax.random.split(key)
    times = np.asarray(jax.random.permutation(times_key, 6))[:num_terms]
    beliefs = algorithm.beliefs(params[0], trials)
    drawn = jax.tree.map(lambda x: x[:, times], beliefs).sample(z_key)
    errors, divergences = [], []
    for b, length in enumerate(lengths):
        if length == 0:
            continue
        mean, log_std = (np.asarray(x, float)[b] for x in (beliefs.mean, beliefs.log_std))
        for t in range(length + 1):
            before = (mean[t - 1], log_std[t - 1]) if t else (np.zeros(2), np.zeros(2))
            now = mean[t][None], log_std[t][None]
            divergences += gaussian.kl(*now, *(x[None] for x in before)).tolist()
        for k, t in enumerate(times):
            if t <= length:
                z = drawn[b, k]
                errors.append(
                    sum(
                        error_of_step(algorithm, params[1], trials, z, (b, s))
                        for s in range(length)
                    )
                )
    assert float(figures["kl"]) == pytest.approx(np.mean(divergences), rel=1e-4)
    assert float(figures["decoding_error"]) == pytest.approx(np.mean(errors), rel=1e-4)
    expected = np.mean(errors) + 0.3 * np.mean(divergences)
    assert float(loss) == pytest.approx(expected, rel=1e-4)


def error_of_step(algorithm, decoders, trials, z, where) -> float:
    """Squared error of the reward of one step, and mean of those of its next observation."""
    b, s = where
    action, next_obs = trials.transitions[b, s + 1, :2], trials.transitions[b, s + 1, 3:]
    obs, networks, config = trials.obs[b, s], algorithm.networks, algorithm.config
    from_what = (obs, action, next_obs) if config.reward_from == "transition" else (next_obs,)
    reward = networks.reward_decoder.apply(decoders["reward"], z, *from_what)[0]
    total = float(reward - trials.reward[b, s]) ** 2
    if config.decode_next_obs:
        there = networks.next_obs_decoder.apply(decoders["next_obs"], z, obs, action)
        total += float(np.mean((np.asarray(there) - np.asarray(next_obs)) ** 2))
    return total


@pytest.mark.slow
def test_the_last_trials_are_kept_as_the_agent_saw_them():
    algorithm, state, data = iterated(2, buffer_size=12)
    assert int(state.num_trials) == 16
    valid = np.asarray(data.valid)[:, 0]
    assert len(set(valid.sum(1).tolist())) > 3
    rings = jnp.arange(8, 16) % 12
    kept = algorithm.minibatch(state.trials, rings, None)
    np.testing.assert_array_equal(kept.valid, valid)
    np.testing.assert_array_equal(kept.reward, np.where(valid, data.reward[:, 0], 0))
    inputs, after = transition_inputs(data, CLIFF.spec.action)
    for ours, theirs in ((kept.obs, inputs[..., :2]), (kept.transitions[:, 1:], after[..., 2:])):
        np.testing.assert_array_equal(ours, np.where(valid[..., None], theirs[:, 0], 0))
    np.testing.assert_array_equal(kept.transitions[:, 0], 0.0)
    assert np.all(np.asarray(state.trials.sizes) > 0)


@pytest.mark.slow
def test_the_policy_acts_on_the_beliefs_that_decoders_learn_from():
    algorithm, state, _ = iterated(1)
    sampler = train_sampler(CLIFF)
    data = algorithm.collect(state, sampler)
    s = trial_sequences(
        data, CLIFF.spec.action, moments(state), bootstrap_end=True, transitions=True
    )
    trials, _ = with_trials(state.trials, state.num_trials, data)
    kept = algorithm.minibatch(trials, jnp.arange(8, 16), moments(state))
    beliefs = algorithm.beliefs(encoder_of(state.policy.params), kept)
    seen = jnp.concatenate([s.obs[..., :2], beliefs.mean[:, :-1], beliefs.log_std[:, :-1]], -1)
    actor_critic = {"params": state.policy.params["params"]["actor_critic"]}
    _, (policy, _) = algorithm.networks.actor_critic.apply(
        actor_critic, {"policy": (), "value": ()}, seen
    )
    found = np.where(s.valid, policy.log_prob(s.action), 0)
    np.testing.assert_allclose(found, s.log_prob, atol=1e-4)


@pytest.mark.parametrize("cut", [True, False])
def test_a_return_ends_with_its_episode_where_it_terminated_and_not_where_time_was_up(cut):
    algorithm, state, data = iterated(1)
    config = algorithm.config if cut else replace(algorithm.config, cut_at_termination=False)
    settings = config, algorithm.network, CLIFF.spec, state.policy, data
    s = rl2.sequences_of(*settings, transitions=True)
    fell = np.asarray(data.terminated & data.valid)[:, 0]
    inside = np.asarray(s.valid)[:, 1:]  # of a trial: a step follows
    assert np.any(fell[:, :-1] & inside)
    assert np.any(np.asarray(data.truncated)[:, 0, :-1] & inside)
    np.testing.assert_array_equal(s.terminated[:, :-1] & inside, fell[:, :-1] & inside & cut)
    assert not np.any(s.truncated[:, :-1] & inside)


def test_a_horizon_that_belongs_to_the_task_ends_no_return_within_a_trial():
    algorithm, sampler = made(GRID), train_sampler(GRID)
    state = algorithm.init(named_key(0, "init"))
    data = algorithm.collect(state, sampler)
    np.testing.assert_array_equal(data.terminated[0, 0], [False, False, True] * 2)
    settings = algorithm.config, algorithm.network, GRID.spec, state.policy, data
    s = rl2.sequences_of(*settings, transitions=True)
    np.testing.assert_array_equal(s.terminated[0], [False] * 5 + [True])
    # What ends an episode before its horizon does.
    early = replace(data, terminated=jnp.asarray(data.terminated).at[:, :, 1].set(True))
    found = rl2.task_terminations(GRID.spec, early)[0, 0]
    np.testing.assert_array_equal(found, [False, True, True, False, False, False])


@pytest.mark.parametrize("reaches", [False, True])
def test_ppo_moves_the_encoder_by_choice_only(reaches):
    settings = {"encoder_gradient": reaches, "elbo_lr": 1e-30}  # what moves zeros by as much
    before, after = (iterated(num, **settings)[1].policy.params["params"] for num in (0, 1))

    def moved(name):
        pairs = zip(*(jax.tree.leaves(x[name]) for x in (before, after)), strict=True)
        return any(np.any(np.abs(a - b) > 1e-20) for a, b in pairs)

    assert (moved("encoder"), moved("actor_critic")) == (reaches, True)


def test_decoders_learn_what_trials_pay():
    algorithm, state, _ = iterated(1)
    figures, improved = [], jax.jit(algorithm._improved_model)
    for _ in range(60):
        state, found = improved(state)
        figures.append(float(found["decoding_error"]))
    assert np.mean(figures[-5:]) < 0.5 * np.mean(figures[:5])


def test_encoder_and_decoders_learn_from_what_the_policy_sees():
    """Two steps' figures are nearly those, before both, of trials standardised by hand."""
    algorithm, state, _ = iterated(1)
    _, figures = jax.jit(algorithm._improved_model)(state)
    params = encoder_of(state.policy.params), state.decoders
    mean, std = moments(state)["mean"], jnp.sqrt(moments(state)["variance"])

    @jax.jit
    def of_a_step(key):
        rings_key, draw_key = jax.random.split(key)
        rings = draw_rings(state.trials, rings_key, (algorithm.config.elbo_batch_size,))
        raw = algorithm.minibatch(state.trials, rings, None)
        transitions = (raw.transitions - mean[2:]) / std[2:]
        seen = replace(raw, obs=(raw.obs - mean[:2]) / std[:2], transitions=transitions)
        return algorithm.elbo_loss(params, seen, draw_key)[1]

    steps = [of_a_step(k) for k in jax.random.split(jax.random.split(state.policy.key)[1])]
    for name in ("decoding_error", "kl"):
        expected = np.mean([float(x[name]) for x in steps])
        assert float(figures[name]) == pytest.approx(expected, rel=0.1), name


def test_a_belief_lasts_through_the_episodes_of_a_trial_and_a_new_task_starts_from_the_prior():
    algorithm = made(GRID)
    state, tasks = algorithm.init(named_key(1, "init")), GRID.test.tasks
    sampler = train_sampler(GRID)
    actor = algorithm.actor(state, deterministic=True)
    whole = sampler.episodes(actor, tasks, 1, 2)
    first = sampler.episodes(actor, tasks, 1, 1)
    second = sampler.episodes(
        algorithm.adapt(state, actor, [first], deterministic=True), tasks, 1, 1
    )
    again = sampler.episodes(actor, tasks, 1, 1)
    for name in ("obs", "action", "reward"):
        parts = np.concatenate([getattr(x, name) for x in (first, second)], axis=2)
        np.testing.assert_array_equal(parts, getattr(whole, name))
        np.testing.assert_array_equal(getattr(again, name), getattr(first, name))
    memories = [x.final_carry["actor"]["memory"]["encoder"] for x in (whole, second, first)]
    np.testing.assert_allclose(memories[0], memories[1], rtol=1e-6)
    assert np.any(np.asarray(memories[0]) != np.asarray(memories[2]))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"buffer_size": 7}, "buffer_size 7 must be at least meta_batch_size 8"),
        ({"decoder_hidden_sizes": ()}, "decoder_hidden_sizes must name at least one layer"),
        ({"kl_coeff": -0.1}, "kl_coeff must not be negative, not -0.1"),
        ({"latent_size": 0}, "latent_size must be greater than 0, not 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        made(**settings)


def test_networks_of_ones_own_need_what_is_decoded_and_no_second_memory():
    spec, config = point_suite().spec, VariBADConfig()
    parts = vars(default_networks(config, spec))
    own = Networks(**{**parts, "actor_critic": ActorCritic(spec.action, (8,), GRU(8))})
    with pytest.raises(ConfigError, match="actor-critic must have no memory: the encoder has it"):
        make_algorithm("varibad", spec, networks=own)
    own = Networks(**parts)
    with pytest.raises(ConfigError, match="decode_next_obs needs networks with a next_obs_decoder"):
        make_algorithm("varibad", spec, networks=own, decode_next_obs=True)
