"""RL2's parts: entropy rules (R7), values after a trial, and TRPO through the recurrent network."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from adaptax.algorithms.meta.trials import evaluate, trial_batch
from jax.flatten_util import ravel_pytree
from toys import cliff_suite, train_sampler

from adaptax.algorithms.meta import rl2_trpo
from adaptax.algorithms.meta.rl2 import (
    Lesson,
    RL2Config,
    entropy,
    entropy_weight,
    judge,
    policy_advantage,
    with_entropy_reward,
)
from adaptax.core.errors import ConfigError
from adaptax.core.experience import select
from adaptax.experiment.build import make_algorithm
from adaptax.experiment.evaluator import Evaluator, EvaluatorConfig
from adaptax.functional.masking import masked_mean
from adaptax.functional.trust_region import (
    Divergence,
    TrustRegion,
    gauss_newton_product,
    hessian_product,
    trust_region_step,
)
from adaptax.sampling.actors import recurrent_input

SMALL = {
    "meta_batch_size": 4,
    "num_episodes": 2,
    "num_epochs": 2,
    "num_minibatches": 1,
    "embedding_size": 4,
    "hidden_size": 4,
}


@pytest.fixture(scope="module")
def agent():
    """RL2-TRPO on episodes that end early, its first state, and a rollout of four trials."""
    suite = cliff_suite()
    algorithm = make_algorithm("rl2-trpo", suite.spec, **SMALL)
    state, sampler = algorithm.init(jax.random.key(0)), train_sampler(suite)
    rollout = sampler.episodes(algorithm.actor(state), sampler.sample_tasks(4), 1, 2)
    assert len(set(np.asarray(rollout.valid).sum(-1).ravel())) > 1
    return algorithm, state, rollout


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"entropy_coeff": 0.1}, "needs entropy_method 'regularized' or 'max'"),
        ({"entropy_coeff": -1.0, "entropy_method": "regularized"}, "must not be negative"),
        ({"entropy_schedule": "linear"}, "needs entropy_method 'regularized' or 'max'"),
        ({"entropy_method": "max", "stop_entropy_gradient": True}, "needs center_adv to be off"),
        ({"entropy_method": "max", "center_adv": False}, "needs stop_entropy_gradient"),
        ({"entropy_method": "min"}, "entropy_method"),
        ({"meta_batch_size": 4, "num_minibatches": 3}, "multiple of"),
    ],
)
@pytest.mark.parametrize("name", ["rl2-ppo", "rl2-trpo"])
def test_settings_that_contradict_each_other_are_refused(name, settings, words):
    with pytest.raises(ConfigError, match=words):
        make_algorithm(name, cliff_suite().spec, **settings)


def test_method_max_adds_the_entropy_of_the_policy_that_acted_to_every_valid_reward(agent):
    algorithm, state, rollout = agent
    trials = trial_batch(rollout, algorithm.network)
    acted, _ = evaluate(algorithm.network, state.variables, trials.inputs)
    config = RL2Config(
        entropy_method="max",
        entropy_coeff=0.3,
        center_adv=False,
        stop_entropy_gradient=True,
    )
    changed = with_entropy_reward(config, jnp.float32(0.2), trials, acted)
    expected = trials.reward + 0.2 * acted.entropy()
    np.testing.assert_array_equal(changed.reward, jnp.where(trials.valid, expected, 0.0))
    assert with_entropy_reward(RL2Config(), jnp.float32(0.2), trials, acted) is trials


@pytest.mark.parametrize(
    ("schedule", "expected"), [("constant", [0.3, 0.3]), ("linear", [0.15, 0.0])]
)
def test_the_weight_of_the_entropy_follows_its_schedule(schedule, expected):
    settings = {"entropy_method": "regularized", "entropy_coeff": 0.3, "lr_schedule_steps": 4}
    config = RL2Config(**settings, entropy_schedule=schedule)
    weights = [entropy_weight(config, jnp.int32(passes)) for passes in (2, 4)]
    np.testing.assert_allclose(weights, expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["rl2-ppo", "rl2-trpo"])
def test_an_update_at_the_end_of_the_schedule_is_one_without_entropy(agent, name):
    settings = {"entropy_method": "regularized", "entropy_coeff": 10.0, "lr_schedule_steps": 2}
    spec, rollout = agent[0].spec, agent[2]
    plain = make_algorithm(name, spec, **SMALL)
    weighed = make_algorithm(name, spec, **SMALL, **settings, entropy_schedule="linear")
    first = plain.init(jax.random.key(0))
    last = replace(first, num_passes=jnp.int32(2))
    params = [
        ravel_pytree(algorithm.update(state, rollout)[0].variables["params"])[0]
        for algorithm, state in ((plain, last), (weighed, last), (weighed, first))
    ]
    np.testing.assert_allclose(params[0], params[1], atol=1e-6)
    assert np.abs(params[0] - params[2]).max() > 1e-4


def test_entropy_is_the_analytic_one_unless_settings_say_otherwise(agent):
    algorithm, state, rollout = agent
    trials = trial_batch(rollout, algorithm.network)
    acted, _ = evaluate(algorithm.network, state.variables, trials.inputs)
    plain = entropy(RL2Config(), acted, trials.action)
    np.testing.assert_array_equal(plain, acted.entropy())
    soft = entropy(RL2Config(use_softplus_entropy=True), acted, trials.action)
    np.testing.assert_allclose(soft, np.log1p(np.exp(plain)), rtol=1e-6)
    by_action = entropy(RL2Config(use_neg_logli_entropy=True), acted, trials.action)
    np.testing.assert_array_equal(by_action, -acted.log_prob(trials.action))


@pytest.mark.parametrize("stopped", [False, True])
def test_entropy_has_a_gradient_unless_it_is_stopped(agent, stopped):
    algorithm, state, rollout = agent
    trials = trial_batch(rollout, algorithm.network)
    config = RL2Config(stop_entropy_gradient=stopped)

    def mean_entropy(params):
        variables = {**state.variables, "params": params}
        acted, _ = evaluate(algorithm.network, variables, trials.inputs)
        return jnp.mean(entropy(config, acted, trials.action))

    gradient, _ = ravel_pytree(jax.grad(mean_entropy)(state.variables["params"]))
    assert np.any(np.asarray(gradient) != 0) != stopped


def test_advantages_are_standardised_or_raw_and_shifted_above_zero(agent):
    valid = jnp.array([[True, True, False]])
    raw = jnp.array([[1.0, 3.0, 0.0]])
    np.testing.assert_allclose(policy_advantage(RL2Config(), raw, valid), [[-1, 1, 0]], atol=1e-6)
    uncentred = RL2Config(center_adv=False)
    np.testing.assert_array_equal(policy_advantage(uncentred, raw, valid), raw)
    positive = RL2Config(center_adv=False, positive_advantage=True)
    np.testing.assert_allclose(policy_advantage(positive, raw, valid), [[0, 2, 0]], atol=1e-6)


def test_advantages_standardised_over_each_trial_forget_its_mean_and_scale():
    valid = jnp.array([[True, True, False], [True, True, True]])
    raw = jnp.array([[1.0, 3.0, 0.0], [-100.0, 0.0, 100.0]])
    standard = policy_advantage(RL2Config(center_adv_over="trial"), raw, valid)
    end = 100 / np.sqrt(2 * 100**2 / 3)
    np.testing.assert_allclose(standard, [[-1, 1, 0], [-end, 0, end]], atol=1e-6)


def test_value_after_a_trial_is_that_of_one_step_more(agent):
    """Each trial on its own, step by step, from the carry at its end."""
    algorithm, state, rollout = agent
    network, trials = algorithm.network, trial_batch(rollout, algorithm.network)
    value, after = judge(algorithm.config, network, state.value, trials)
    for i, length in enumerate(np.asarray(trials.valid).sum(-1)):
        carry = jax.tree.map(lambda x, i=i: x[i], rollout.final_carry)
        obs = jnp.asarray(rollout.next_obs)[i, :, length - 1]
        more = recurrent_input(obs, carry["last_action"], carry["last_reward"], jnp.zeros(1))
        sequence = jnp.concatenate([trials.inputs[i : i + 1, :length], more[None]], axis=1)
        _, expected = evaluate(network, state.value, sequence)
        np.testing.assert_allclose(value[i, :length], expected[0, :-1], atol=1e-6)
        np.testing.assert_allclose(after[i], expected[0, -1], atol=1e-6)


def test_without_bootstrap_nothing_follows_a_trial(agent):
    algorithm, state, rollout = agent
    trials = trial_batch(rollout, algorithm.network)
    _, after = judge(RL2Config(bootstrap_trial_end=False), algorithm.network, state.value, trials)
    np.testing.assert_array_equal(after, np.zeros(4))


def trpo_parts(agent, dtype):
    """The outer objective and its divergence, of flat parameters in a precision, and these."""
    algorithm, state, rollout = agent
    trials = jax.tree.map(
        lambda x: x.astype(dtype) if x.dtype == jnp.float32 else x,
        trial_batch(rollout, algorithm.network),
    )
    variables = jax.tree.map(lambda x: x.astype(dtype), state.variables)
    flat, unravel = ravel_pytree(variables["params"])
    acted, _ = evaluate(algorithm.network, variables, trials.inputs)
    advantage = trials.reward - masked_mean(trials.reward, trials.valid)
    learned = Lesson(trials, acted, advantage, target=trials.reward)
    whole = partial(
        rl2_trpo.objective, algorithm.config, algorithm.network, jnp.zeros(()), variables, learned
    )
    policy, mean_kl = rl2_trpo.divergence(algorithm.network, variables, learned)
    divergence = Divergence(lambda x: policy(unravel(x)), mean_kl)
    return lambda x: whole(unravel(x)), divergence, flat


@pytest.mark.parametrize(
    "cell", ["gru", *(pytest.param(c, marks=pytest.mark.slow) for c in ("lstm", "fast-weights"))]
)
def test_exact_curvature_through_the_network_equals_differences_of_gradients(agent, cell):
    """H1 in float64, on the KL of whole trials: the products of a step, and plain Hessians."""
    algorithm, state, rollout = agent
    if cell != "gru":
        algorithm = make_algorithm("rl2-trpo", cliff_suite().spec, **SMALL, cell=cell)
        state = algorithm.init(jax.random.key(0))
    with jax.enable_x64(True):
        objective, divergence, flat = trpo_parts((algorithm, state, rollout), jnp.float64)
        v = jax.random.normal(jax.random.key(1), flat.shape, jnp.float64)
        close = gauss_newton_product(*divergence, flat)(v)
        exact = hessian_product(lambda x: objective(x)[1], flat)(v)
        gradient = jax.grad(lambda x: objective(x)[1])
        differences = (gradient(flat + 1e-5 * v) - gradient(flat - 1e-5 * v)) / 2e-5
        # Gradients of fast weights have kinks, some of them between the two points.
        rtol = 1e-4 if cell == "fast-weights" else 1e-6
        np.testing.assert_allclose(exact, differences, rtol=rtol, atol=1e-9)
        np.testing.assert_allclose(close, exact, rtol=1e-9, atol=1e-12)


def test_a_step_lowers_the_loss_within_the_bound(agent):
    algorithm, state, rollout = agent
    new, figures = algorithm.update(state, rollout)
    assert figures["line_search_accepted"]
    assert 0 < figures["kl"] <= algorithm.config.trust_region.max_kl_step
    assert figures["loss_after"] < figures["loss_before"]
    before, after = (ravel_pytree(s.variables["params"])[0] for s in (state, new))
    assert np.any(np.asarray(before) != np.asarray(after))


@pytest.mark.slow
def test_finite_differences_take_nearly_the_exact_step(agent):
    """In float64: equal to what conjugate gradients leave of the differences' accuracy."""
    with jax.enable_x64(True):
        objective, _, flat = trpo_parts(agent, jnp.float64)
        steps = [
            trust_region_step(objective, flat, TrustRegion(hvp=hvp, reg_coeff=1e-2))[0] - flat
            for hvp in ("exact", "finite_difference")
        ]
    assert np.linalg.norm(steps[0]) > 0
    assert np.linalg.norm(steps[1] - steps[0]) < 1e-3 * np.linalg.norm(steps[0])


def test_padding_reaches_neither_objective_nor_gradient(agent):
    algorithm, state, rollout = agent
    rubbish = jax.tree.map(lambda x: jnp.full_like(x, 7), (rollout.obs, rollout.reward))
    obs, reward = select(rollout.valid, (rollout.obs, rollout.reward), rubbish)
    spoiled = (algorithm, state, replace(rollout, obs=obs, reward=reward))
    results = []
    for case in (agent, spoiled):
        objective, _, flat = trpo_parts(case, jnp.float32)
        results.append(jax.value_and_grad(lambda x, f=objective: f(x)[0])(flat))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(results[0][1], results[1][1])


def test_evaluation_beyond_the_trained_trial_warns(agent):
    algorithm, state, _ = agent
    evaluator = Evaluator(EvaluatorConfig(num_tasks=2, num_episodes=3), cliff_suite(), seed=0)
    with pytest.warns(UserWarning, match="3 episodes on a task are more than the 2 that rl2-trpo"):
        evaluator.evaluate(algorithm, state)
