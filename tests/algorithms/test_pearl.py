"""PEARL; its belief is in tests/functional/test_belief.py, its actor in tests/sampling."""

from __future__ import annotations

import functools
import warnings
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from small import SMALL
from toys import ChangingSampler, cliff_suite, fingerprint, point_suite, train_sampler, trained

from adaptax.algorithms.meta.pearl import PEARL, Data, Networks, PEARLConfig, _mean_return, _Visit
from adaptax.algorithms.program import updated
from adaptax.core.errors import ConfigError
from adaptax.core.experience import Rollout, Transitions
from adaptax.core.rng import named_key
from adaptax.core.snapshot import flatten, unflatten
from adaptax.core.spec import Continuous, Discrete, EnvSpec
from adaptax.experiment.build import make_algorithm
from adaptax.learning.context import context_tokens
from adaptax.learning.replay import read
from adaptax.networks.critics import ensemble
from adaptax.networks.encoders import ContextEncoder, LatentPolicy, LatentValue

KEY = jax.random.key(0)
SPEC = EnvSpec(3, Continuous(2), 10)
TINY = {
    **SMALL["pearl"],
    "hidden_sizes": (16, 16),
    "reward_scale": 2.0,
    "policy_mean_reg_coeff": 0.0,
    "policy_std_reg_coeff": 0.0,
}
M, B, C = 4, 8, 5
ALPHA = 0.3
step = PEARL.gradient_step
"""Not compiled: every test has settings of its own, and they share its single operations."""
both_critics = pytest.mark.parametrize("critic", ["twin_target", "value"])


def steps_of(size: int, seed: int, *, terminal: bool | None = None) -> Transitions:
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.normal(size=(M, size, *shape)).astype(np.float32)

    terminated = rng.random((M, size)) < 0.3
    terminated = terminated if terminal is None else np.full_like(terminated, terminal)
    discount = np.full((M, size), 0.9, np.float32)
    action = np.tanh(normal(2))
    return Transitions(normal(3), action, normal(), normal(3), terminated, discount)


BATCH, CONTEXT = steps_of(B, 0), steps_of(C, 1)


@functools.cache
def agent(**settings):
    algorithm = make_algorithm("pearl", SPEC, **{**TINY, **settings})
    return algorithm, algorithm.init(named_key(0, "init")).learner


def one_step(batch=BATCH, learner=None, **settings):
    algorithm, fresh = agent(**settings)
    return step(algorithm, fresh if learner is None else learner, batch, CONTEXT, KEY)


def drawn(algorithm, learner):
    """The keys of a step and its z [M, 1, L]."""
    z_key, next_key, action_key = jax.random.split(KEY, 3)
    tokens = context_tokens(CONTEXT, next_obs=algorithm.config.next_obs_in_context)
    belief = algorithm.networks.encoder.apply(
        learner.params["encoder"], tokens, jnp.ones((M, C), bool)
    )
    return next_key, action_key, belief.sample(z_key)[:, None], belief


def target_of(algorithm, batch, i: int, j: int, next_value) -> float:
    """y for transition j of task i, from the definition."""
    y = algorithm.config.reward_scale * float(batch.reward[i, j])
    return y if batch.terminated[i, j] else y + 0.9 * float(next_value[i, j])


@pytest.mark.parametrize("critic", ["twin_target", pytest.param("value", marks=pytest.mark.slow)])
def test_the_critics_loss_is_that_of_the_paper(critic):
    """Targets written out for each transition; both critics' means are summed, not halved."""
    settings = {"critic": critic, "init_temperature": ALPHA}
    algorithm, learner = agent(**settings)
    _, figures = one_step(**settings)
    next_key, _, z, belief = drawn(algorithm, learner)
    if critic == "value":
        next_value = algorithm.networks.value.apply(learner.target, BATCH.next_obs, z)
    else:
        policy = algorithm.networks.policy.apply(learner.params["policy"], BATCH.next_obs, z)
        action, log_prob = policy.sample_and_log_prob(next_key)
        q_next = algorithm.networks.critics.apply(learner.target, BATCH.next_obs, action, z)
        next_value = np.minimum(*np.asarray(q_next)) - ALPHA * np.asarray(log_prob)
    q = np.asarray(
        algorithm.networks.critics.apply(learner.params["critics"], BATCH.obs, BATCH.action, z)
    )
    loss = 0.0
    for i, j in np.ndindex(M, B):
        y = target_of(algorithm, BATCH, i, j, next_value)
        loss += ((q[0, i, j] - y) ** 2 + (q[1, i, j] - y) ** 2) / (M * B)
    assert figures["critic_loss"] == pytest.approx(loss, rel=1e-4)
    kl = 0.5 * (belief.variance + belief.mean**2 - 1 - np.log(belief.variance))
    assert figures["kl"] == pytest.approx(float(kl.sum()), rel=1e-4)


@pytest.mark.parametrize("critic", [pytest.param("twin_target", marks=pytest.mark.slow), "value"])
@pytest.mark.slow
def test_only_rewards_count_where_all_is_terminal(critic):
    """Y = scale * r with either critic."""
    batch = steps_of(B, 2, terminal=True)
    algorithm, learner = agent(critic=critic)
    _, figures = one_step(batch, critic=critic)
    z = drawn(algorithm, learner)[2]
    q = np.asarray(
        algorithm.networks.critics.apply(learner.params["critics"], batch.obs, batch.action, z)
    )
    expected = np.square(q - 2.0 * batch.reward).mean((1, 2)).sum()
    assert figures["critic_loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_the_target_with_a_value_function_is_the_golden_one():
    """R = 2, scale 5, discount .9, V = 3, Q = 0: y = 12.7, or 10 at a terminal step."""
    algorithm, learner = agent(critic="value", reward_scale=5.0)
    zeros = jax.tree.map(jnp.zeros_like, learner)
    target = jax.tree.map(jnp.zeros_like, learner.target)
    target["params"]["JointMLP_0"]["Dense_0"]["bias"] = jnp.full(1, 3.0)
    learner = replace(learner, params={**learner.params, "critics": zeros.params["critics"]})
    learner = replace(learner, target=target)
    for terminal, y in ((False, 12.7), (True, 10.0)):
        batch = steps_of(B, 3, terminal=terminal)
        batch = replace(batch, reward=np.full((M, B), 2.0, np.float32))
        _, figures = step(algorithm, learner, batch, CONTEXT, KEY)
        assert figures["critic_loss"] == pytest.approx(2 * y**2, rel=1e-5)


@both_critics
def test_policy_and_value_learn_from_the_critics_after_their_step(critic):
    regular = {"policy_mean_reg_coeff": 0.5, "policy_pre_activation_coeff": 0.25}
    settings = {"critic": critic, "init_temperature": ALPHA, **regular}
    algorithm, learner = agent(**settings)
    after, figures = one_step(**settings)
    _, action_key, z, _ = drawn(algorithm, learner)
    policy = algorithm.networks.policy.apply(learner.params["policy"], BATCH.obs, z)
    u = policy.unbounded.sample(action_key)
    log_prob = np.asarray(policy.log_prob_of_unbounded(u))
    q = algorithm.networks.critics.apply(after.params["critics"], BATCH.obs, jnp.tanh(u), z).min(0)
    q = np.asarray(q)
    alpha = 1.0 if critic == "value" else ALPHA
    assert figures["policy_loss"] == pytest.approx(float((alpha * log_prob - q).mean()), rel=1e-4)
    if critic == "value":
        value = algorithm.networks.value.apply(learner.params["value"], BATCH.obs, z)
        expected = np.square(np.asarray(value) - (q - log_prob)).mean()
        assert figures["value_loss"] == pytest.approx(float(expected), rel=1e-4)


def changed(before, after) -> bool:
    return fingerprint(before) != fingerprint(after)


def silent_to_z(learner, name: str, inputs: int):
    """The learner with one network's weights on z, after so many other inputs, at zero."""
    params = jax.tree.map(lambda x: x, learner.params)
    layer = params[name]["params"]["JointMLP_0"]["JointDense_0"]
    layer["kernel"] = layer["kernel"].at[..., inputs:, :].set(0.0)
    return replace(learner, params=params)


@pytest.mark.parametrize("kl_coeff", [0.0, 0.1])
@both_critics
def test_the_encoder_learns_from_critics_and_kl_only(critic, kl_coeff):
    """Where the critics are silent about z, policy and value teach it nothing."""
    settings = {"critic": critic, "kl_coeff": kl_coeff}
    _, learner = agent(**settings)
    deaf = silent_to_z(learner, "critics", 5)
    after, _ = one_step(learner=deaf, **settings)
    assert changed(deaf.params["encoder"], after.params["encoder"]) == (kl_coeff > 0)
    taught, _ = one_step(**settings)
    assert changed(learner.params["encoder"], taught.params["encoder"])


@both_critics
def test_a_policys_step_leaves_all_else_unchanged(critic):
    one, _ = one_step(critic=critic)
    other, _ = one_step(critic=critic, policy_lr=0.5, policy_mean_reg_coeff=3.0)
    assert changed(one.params["policy"], other.params["policy"])
    for name in set(one.params) - {"policy", "log_temperature"}:
        assert not changed(one.params[name], other.params[name]), name
    assert not changed(one.target, other.target)


def loss_in_64(algorithm, learner, encoder):
    """Critics' loss and KL of an encoder, targets held, in float64."""
    z = drawn(algorithm, learner)[2]
    tokens = context_tokens(CONTEXT, next_obs=False)
    belief = algorithm.networks.encoder.apply(encoder, tokens, jnp.ones((M, C), bool))
    z_live = belief.sample(jax.random.split(KEY, 3)[0])[:, None]
    next_value = algorithm.networks.value.apply(learner.target, BATCH.next_obs, z)
    y = 2.0 * BATCH.reward + 0.9 * jnp.where(BATCH.terminated, 0.0, next_value)
    q = algorithm.networks.critics.apply(learner.params["critics"], BATCH.obs, BATCH.action, z_live)
    return jnp.square(q - y).mean((1, 2)).sum() + 0.1 * belief.kl_from_prior().sum()


@pytest.mark.slow
def test_the_encoders_gradient_is_that_of_finite_differences():
    """Through z, of the critics' loss and the KL, in float64."""
    with jax.enable_x64(True):
        algorithm, learner = agent(critic="value")
        learner = jax.tree.map(
            lambda x: x.astype(jnp.float64) if x.dtype == jnp.float32 else x, learner
        )
        encoder = learner.params["encoder"]
        direction = jax.tree.map(
            lambda x: jax.random.normal(jax.random.key(x.size), x.shape, jnp.float64), encoder
        )

        @jax.jit
        def along(h):
            nudged = jax.tree.map(lambda x, d: x + h * d, encoder, direction)
            return loss_in_64(algorithm, learner, nudged)

        slope = (along(1e-5) - along(-1e-5)) / 2e-5
        compiled = jax.jit(PEARL.gradient_step, static_argnums=0)
        after, _ = compiled(algorithm, learner, BATCH, CONTEXT, KEY)
        # Adam's first moment after a step from zero is a tenth of the gradient.
        moments = jax.tree.leaves(after.opt_state["encoder"][0].mu)
        found = sum(
            10 * jnp.sum(m * d) for m, d in zip(moments, jax.tree.leaves(direction), strict=True)
        )
        assert found == pytest.approx(float(slope), rel=1e-5)


def test_regularisers_carry_a_gradient():
    """All three pull the policy towards 0; the originals' first two did nothing."""
    for name in ("mean_reg_coeff", "std_reg_coeff", "pre_activation_coeff"):
        plain, _ = one_step()
        pulled, _ = one_step(**{f"policy_{name}": 10.0})
        assert changed(plain.params["policy"], pulled.params["policy"]), name


def test_the_mean_is_regularised_before_tanh():
    """Where tanh(8) is 1 to seven digits, and behind it there would be no gradient of it."""
    _, learner = agent()
    saturated = jax.tree.map(jnp.zeros_like, learner.params["policy"])
    saturated["params"]["JointMLP_0"]["Dense_0"]["bias"] = jnp.array([8.0, 8.0, -20.0, -20.0])
    learner = replace(learner, params={**learner.params, "policy": saturated})
    gradients = []
    for coefficient in (0.0, 1.0):
        after, _ = one_step(learner=learner, policy_mean_reg_coeff=coefficient)
        moment = after.opt_state["policy"][0].mu["params"]["JointMLP_0"]["Dense_0"]["bias"]
        gradients.append(10 * moment[:2])
    np.testing.assert_allclose(gradients[1] - gradients[0], 2 * 8.0 / 2, rtol=1e-5)


def test_twins_differ_at_the_start_and_after_training():
    algorithm, learner = agent()
    for _ in range(5):
        kernel = learner.params["critics"]["params"]["JointMLP_0"]["Dense_0"]["kernel"]
        assert jnp.abs(kernel[0] - kernel[1]).max() > 0.1
        learner, _ = step(algorithm, learner, BATCH, CONTEXT, KEY)


@both_critics
def test_targets_start_equal_and_follow_by_tau(critic):
    _, learner = agent(critic=critic)
    name = "value" if critic == "value" else "critics"
    assert not changed(learner.params[name], learner.target)
    after, _ = one_step(critic=critic)
    expected = jax.tree.map(
        lambda old, new: 0.95 * old + 0.05 * new, learner.target, after.params[name]
    )
    for one, other in zip(jax.tree.leaves(after.target), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)


def test_the_temperature_is_learned_by_twin_targets_only():
    _, learner = agent()
    after, figures = one_step()
    assert figures["temperature"] == 1.0
    assert after.params["log_temperature"] != learner.params["log_temperature"]
    fixed, figures = one_step(learn_temperature=False, init_temperature=0.3)
    assert jnp.exp(fixed.params["log_temperature"]) == pytest.approx(0.3)
    assert "temperature" not in figures
    assert "log_temperature" not in agent(critic="value")[1].params


def test_kl_is_summed_over_tasks_or_averaged():
    _, summed = one_step()
    _, averaged = one_step(kl_reduction="mean")
    assert summed["kl"] == pytest.approx(M * float(averaged["kl"]), rel=1e-6)


@pytest.mark.parametrize(
    ("next_obs", "bottleneck"),
    [
        (True, True),
        (False, False),
        *(pytest.param(a, not a, marks=pytest.mark.slow) for a in (True, False)),
    ],
)
def test_networks_have_the_sizes_of_their_inputs_and_train(next_obs, bottleneck):
    """A token has O + A + 1 numbers, + O with what followed; the encoder gives 2 L or L."""
    settings = {"next_obs_in_context": next_obs, "information_bottleneck": bottleneck}
    algorithm, learner = agent(critic="value", **settings)

    def sizes(name):
        axes = 3 if name == "critics" else 2
        leaves = jax.tree.leaves(learner.params[name])
        shapes = [x.shape[-2:] for x in leaves if x.ndim == axes]
        return {shape[0] for shape in shapes}, {shape[1] for shape in shapes}

    assert algorithm.token_size == 3 + 2 + 1 + 3 * next_obs
    assert sizes("encoder") == ({algorithm.token_size, 16}, {16, 2 * 2 if bottleneck else 2})
    assert sizes("policy") == ({3 + 2, 16}, {16, 2 * 2})
    assert sizes("critics") == ({3 + 2 + 2, 16}, {16, 1})
    assert sizes("value") == ({3 + 2, 16}, {16, 1})
    start = learner
    for _ in range(5):
        learner, figures = step(algorithm, learner, BATCH, CONTEXT, KEY)
    assert all(np.isfinite(value) for value in figures.values())
    assert all(changed(start.params[name], learner.params[name]) for name in start.params)
    assert (figures["kl"] > 0) == bottleneck


def test_the_state_holds_every_network_by_name():
    """Encoder, policy, both critics as one, value or temperature, and what lags behind."""
    assert set(agent()[1].params) == {"encoder", "policy", "critics", "log_temperature"}
    assert set(agent(critic="value")[1].params) == {"encoder", "policy", "critics", "value"}
    leaf = jax.tree.leaves(agent()[1].params["critics"])[0]
    assert leaf.shape[0] == 2


@pytest.mark.parametrize("epsilon", [1e-5, 0.1])
def test_adams_epsilon_is_that_of_every_network(epsilon):
    """The first step is lr g / (|g| + epsilon), and a first moment is then a tenth of g."""
    algorithm, learner = agent(adam_epsilon=epsilon)
    after, _ = one_step(adam_epsilon=epsilon)
    rates = {"critics": "critic_lr", "encoder": "encoder_lr"}
    for name in ("policy", "critics", "encoder", "log_temperature"):
        lr = getattr(algorithm.config, rates.get(name, "policy_lr"))
        gradients = jax.tree.map(lambda m: 10 * m, after.opt_state[name][0].mu)
        expected = jax.tree.map(
            lambda x, g, lr=lr: x - lr * g / (jnp.abs(g) + epsilon), learner.params[name], gradients
        )
        found = jax.tree.leaves(after.params[name])
        for one, other in zip(found, jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_all_step_sizes_fall_together():
    """Of a schedule of two gradient steps the second is half as long, and a third is none."""
    falls = {"lr_schedule": "linear", "lr_schedule_steps": 2}
    first, _ = one_step(**falls)
    second, _ = one_step(learner=first, **falls)
    third, _ = one_step(learner=second, **falls)
    whole, _ = one_step(learner=one_step()[0])

    def moved(after, before, name):
        return ravel_pytree(after.params[name])[0] - ravel_pytree(before.params[name])[0]

    for name in ("critics", "encoder"):  # the policy's gradient comes after their step
        half = moved(whole, first, name) / 2
        np.testing.assert_allclose(moved(second, first, name), half, rtol=1e-2, atol=1e-7)
    for name in first.params:
        assert jnp.any(moved(second, first, name))
        assert not jnp.any(moved(third, second, name))


def test_networks_start_as_the_setting_says():
    """Biases of hidden layers are 0.1 with the original's start, and 0 with Flax's."""
    for start, bias in (("lecun", 0.0), ("original", 0.1)):
        for critic in ("value", "twin_target"):
            params = agent(critic=critic, init_weights=start)[1].params
            for name in set(params) - {"log_temperature"}:
                layers = params[name]["params"]["JointMLP_0"]
                np.testing.assert_array_equal(layers["JointDense_0"]["bias"], np.float32(bias))
    policy, critics = (
        jnp.abs(params[name]["params"]["JointMLP_0"]["Dense_0"]["kernel"]).max()
        for name in ("policy", "critics")
    )
    assert policy <= 1e-3 < critics <= 3e-3


# Collection.


def recorded(suite, **settings):
    """What was collected in three iterations without gradient steps, and the state after."""
    played = []

    def record(rollout, actor):
        played.append(SimpleNamespace(rollout=rollout, actor=actor))
        return rollout

    algorithm = make_algorithm("pearl", suite.spec, **{**TINY, **settings})
    sampler, state = ChangingSampler(suite, record), algorithm.init(named_key(0, "init"))
    for i in range(3):
        data = algorithm.collect(state, sampler)
        assert data.learn == (i > 0)
        state, _ = updated(algorithm, state, replace(data, learn=False))
    return played, state


SCHEDULE = {
    "num_train_tasks": 6,
    "meta_batch_size": 2,
    "num_initial_steps": 60,
    "num_prior_steps": 40,
    "num_posterior_steps": 30,
    "num_extra_posterior_steps": 50,
}
"""Episodes of 20 steps: 3 at first; then 2 on the prior, 2 and 3 on what was inferred."""


@functools.cache
def scheduled():
    return recorded(point_suite(), **SCHEDULE)


@pytest.mark.slow
def test_the_schedule_is_prior_posterior_extra_in_whole_episodes():
    seen, _ = scheduled()
    shapes = [entry.rollout.valid.shape for entry in seen]
    initial, visit = [(2, 3, 20)] * 3, [(2, 2, 20), *[(2, 1, 20)] * 5]
    assert shapes == [*initial, *visit, *visit]


def test_an_inferred_phase_starts_from_the_prior():
    """Its first episodes are on the prior's z, later ones on each task's own."""
    seen, _ = scheduled()
    inferred = [entry.actor.belief.mean.ndim > 1 for entry in seen]
    visit = [False, False, True, False, True, True]
    assert inferred == [False] * 3 + visit + visit
    assert {e.actor.belief.mean.shape for e in seen if e.actor.belief.mean.ndim > 1} == {(2, 1, 2)}


def test_an_actor_is_informed_by_the_steps_of_its_own_task():
    """Where a task's steps are all alike, whichever of them are drawn."""
    _, state = scheduled()
    algorithm = make_algorithm("pearl", point_suite().spec, **{**TINY, **SCHEDULE})
    size, rings = state.context.config.size, np.array([4, 1, 3])
    rows = {k: jnp.repeat(x[::size], size, axis=0) for k, x in state.context.rows.items()}
    alike = replace(state.context, rows=rows)
    belief = _Visit(algorithm, state, None, (), rings)._informed(alike, rings, KEY).belief
    assert belief.mean.shape == (3, 1, 2)
    for i, ring in enumerate(rings):
        steps = read(alike, np.full(16, ring), np.arange(16))
        tokens = np.concatenate([steps.obs, steps.action, steps.reward[:, None]], axis=-1)
        encoder, valid = state.learner.params["encoder"], jnp.ones(16, bool)
        own = algorithm.networks.encoder.apply(encoder, tokens, valid)
        np.testing.assert_allclose(belief.mean[i, 0], own.mean, rtol=1e-4)
        np.testing.assert_allclose(belief.variance[i, 0], own.variance, rtol=1e-4)


def test_extra_steps_go_to_the_replay_only_and_a_visit_starts_context_anew():
    seen, state = scheduled()
    per_task, context = (np.asarray(r.sizes) for r in (state.replay, state.context))
    visits = (per_task - 60) // 140  # 40 + 40 + 60 of whole episodes
    assert sorted(set(per_task)) == sorted({60 + 140 * v for v in set(visits)})
    assert visits.sum() == 4
    np.testing.assert_array_equal(context, np.where(visits > 0, 40 + 40, 60))
    extra = np.concatenate([np.asarray(e.rollout.obs)[:, 0] for e in seen[-3:]], axis=1)
    held = np.asarray(read(state.context, *np.indices((6, 60))).obs).reshape(-1, 2)
    moving = extra.reshape(-1, 2)[np.abs(extra.reshape(-1, 2)).sum(-1) > 0]
    assert not any((held == row).all(-1).any() for row in moving)


def test_the_context_of_a_visit_holds_all_of_its_two_phases():
    """Here two episodes of 20 steps on the prior, and seven side by side, of 30 steps asked for."""
    suite = point_suite()
    algorithm = make_algorithm("pearl", suite.spec, **{**TINY, **SCHEDULE, "update_post_train": 7})
    state, sampler = algorithm.init(named_key(0, "init")), train_sampler(suite)
    for _ in range(2):
        data = algorithm.collect(state, sampler)
        state, _ = updated(algorithm, state, replace(data, learn=False))
    visited = np.asarray(data.rings)
    np.testing.assert_array_equal(np.asarray(state.context.sizes)[visited], 2 * 20 + 7 * 20)


def test_a_ring_holds_the_steps_of_its_own_task():
    """Rewards are minus the distance to the task's goal."""
    suite = point_suite()
    sampler = train_sampler(suite)
    goals = np.array([task.params["goal"] for task in sampler.fixed_tasks(6)])
    _, state = scheduled()
    for ring in range(6):
        rows = np.arange(state.replay.sizes[ring])
        held = read(state.replay, np.full_like(rows, ring), rows)
        distance = np.linalg.norm(held.next_obs - goals[ring], axis=-1)
        np.testing.assert_allclose(held.reward, -distance, atol=1e-5)


def test_little_more_is_played_than_what_is_missing():
    """Episodes of 19 of 20 steps: of 200 steps ten episodes lack 10, one more brings them."""
    suite, lengths = point_suite(), []

    def shorter(rollout, actor):
        lengths.append(rollout.valid.shape[1])
        valid = np.asarray(rollout.valid) & (np.arange(20) < 19)
        return replace(rollout, valid=valid)

    algorithm = make_algorithm(
        "pearl", suite.spec, **{**TINY, **SCHEDULE, "num_initial_steps": 200}
    )
    state = algorithm.init(named_key(0, "init"))
    algorithm.collect(state, ChangingSampler(suite, shorter))
    assert lengths == [10, 1] * 3


def test_a_task_whose_episodes_are_short_costs_the_others_nothing():
    """Of 5 and of 20 steps: only the first goes on until it has its 60."""
    suite, played = point_suite(), []

    def short(rollout, actor):
        length = np.where(np.arange(len(rollout.valid)) == 0, 5, 20)
        played.append(np.asarray(rollout.valid) & (np.arange(20) < length[:, None, None]))
        return replace(rollout, valid=played[-1])

    algorithm = make_algorithm("pearl", suite.spec, **{**TINY, **SCHEDULE, "num_train_tasks": 2})
    state = algorithm.init(named_key(0, "init"))
    data = algorithm.collect(state, ChangingSampler(suite, short))
    assert [valid.shape[:2] for valid in played] == [(2, 3), (1, 8), (1, 1)]
    np.testing.assert_array_equal(np.asarray(data.steps.valid).sum((1, 2)), [60, 60])


def test_a_visit_without_an_episode_on_what_was_inferred_is_told_of():
    spec, settings = EnvSpec(3, Continuous(2), 20), {**TINY, "num_extra_posterior_steps": 40}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_algorithm("pearl", spec, **settings)
        make_algorithm("pearl", spec, **settings, update_post_train=2, num_posterior_steps=60)
        make_algorithm("pearl", spec, **{**settings, "num_extra_posterior_steps": 0})
    with pytest.warns(UserWarning, match="2 x 20 steps, may be all of the 40 .* more than 40 of"):
        make_algorithm("pearl", spec, **settings, update_post_train=2)


def test_the_return_that_is_told_is_of_each_tasks_last_episodes():
    """The third task is in no round but the first, the second in no lane but one of the second."""
    reward = jnp.arange(12.0).reshape(3, 2, 2)
    valid = jnp.zeros((3, 2, 2), bool).at[:2].set(True).at[1, 1].set(False).at[1, 0, 1].set(False)
    rounds = [SimpleNamespace(reward=-reward, valid=jnp.ones((3, 2, 2), bool))]
    assert _mean_return(rounds) == pytest.approx(-11.0)
    rounds.append(SimpleNamespace(reward=reward, valid=valid))
    assert _mean_return(rounds) == pytest.approx((3.0 + 4.0 - 19.0) / 3)


def test_a_task_that_lacks_little_gets_no_more_than_it_lacks():
    """Of 5 and of 19 steps, then 20: the second lacks one episode, and its steps all stay."""
    suite, played = point_suite(), []

    def short(rollout, actor):
        long = 20 if played else 19
        length = np.where(np.arange(len(rollout.valid)) == 0, 5, long)
        played.append(np.asarray(rollout.valid) & (np.arange(20) < length[:, None, None]))
        return replace(rollout, valid=played[-1])

    algorithm = make_algorithm("pearl", suite.spec, **{**TINY, **SCHEDULE, "num_train_tasks": 2})
    state = algorithm.init(named_key(0, "init"))
    data = algorithm.collect(state, ChangingSampler(suite, short))
    num_steps = np.asarray(data.steps.valid).sum((1, 2))
    assert [valid.shape[:2] for valid in played] == [(2, 3), (2, 1), (1, 8)]
    np.testing.assert_array_equal(num_steps, [60, 77])
    np.testing.assert_array_equal(data.context.sizes, num_steps)


@pytest.mark.slow
def test_where_episodes_fall_short_more_are_played():
    suite = cliff_suite()
    seen, state = recorded(suite, **SCHEDULE)
    num = [int(e.rollout.valid.sum((1, 2)).min()) for e in seen]
    assert state.replay.sizes.min() >= 60
    assert len(num) > 3 + 12
    in_context = state.context.sizes
    assert in_context.min() >= 60
    assert np.all(state.context.sizes <= state.context.config.size)


@pytest.mark.slow
def test_without_context_steps_the_first_context_stays():
    """The originals crash on an empty encoder buffer."""
    settings = {**SCHEDULE, "num_prior_steps": 0, "num_posterior_steps": 0}
    _, state = recorded(point_suite(), **settings)
    np.testing.assert_array_equal(state.context.sizes, 60)
    assert state.replay.sizes.max() > 60


def test_the_tasks_trained_on_stay_the_same_and_take_no_counter():
    sampler = train_sampler(point_suite())
    one, other = sampler.fixed_tasks(6), sampler.fixed_tasks(6)
    assert [t.plain() for t in one] == [t.plain() for t in other]
    assert len({str(t.plain()) for t in one}) == 6
    assert sampler.save()["counters"].sum() == 0


def test_a_gradient_step_infers_from_a_minibatch_of_the_context(monkeypatch):
    settings = {"num_train_tasks": M, "num_update_tasks": 3, "batch_size": B}
    parts = {"context_size": 16, "context_minibatch_size": 4}
    algorithm = make_algorithm("pearl", SPEC, **{**TINY, **settings, **parts})
    seen = []

    def record(self, learner, batch, context, key):
        seen.append((batch.reward.shape, context.reward.shape))
        return learner, {}

    def update():
        state, no = algorithm.init(KEY), jnp.zeros((M, 1, 10), bool)
        obs, action = jnp.zeros((M, 1, 10, 3)), jnp.zeros((M, 1, 10, 2))
        rollout = Rollout(obs, action, jnp.zeros(no.shape), obs, no, no, ~no)
        data = Data(rollout, jnp.arange(M), state.context, jnp.zeros(2), learn=True)
        return algorithm.update(state, data)

    monkeypatch.setattr(PEARL, "gradient_step", record)
    jax.eval_shape(update)
    assert set(seen) == {((3, B), (3, 4))}


@pytest.mark.slow
def test_parts_of_a_context_have_a_gradient_step_each():
    settings = {"num_updates": 3, "context_size": 16, "context_minibatch_size": 4}
    suite = point_suite()
    algorithm = make_algorithm("pearl", suite.spec, **{**TINY, **SCHEDULE, **settings})
    state, metrics = trained(algorithm, train_sampler(suite), 2)
    assert metrics["num_updates"] == state.learner.num_updates == 3 * 4


def test_the_first_iteration_fills_the_rings_of_all_tasks_and_learns_nothing():
    suite = point_suite()
    algorithm = make_algorithm("pearl", suite.spec, **{**TINY, **SCHEDULE})
    before = algorithm.init(named_key(0, "init"))
    state, metrics = trained(algorithm, train_sampler(suite), 1)
    assert not changed(before.learner, state.learner)
    assert set(metrics) == {"replay_size", "num_updates"}
    np.testing.assert_array_equal(state.replay.sizes, 60)
    np.testing.assert_array_equal(state.context.sizes, 60)


@pytest.mark.slow
def test_a_saved_state_goes_on_bit_for_bit():
    suite = point_suite()
    algorithm, sampler = make_algorithm("pearl", suite.spec, **TINY), train_sampler(suite)
    state, _ = trained(algorithm, sampler, 2)
    saved = {k: np.array(x) for k, x in flatten(state).items()}
    place = sampler.save()
    state, _ = algorithm.iteration(state, sampler)
    sampler.restore(place)
    template = algorithm.init(named_key(0, "init"))
    other, _ = algorithm.iteration(unflatten(template, saved), sampler)
    assert fingerprint(other) == fingerprint(state)


@pytest.mark.slow
def test_networks_of_ones_own_are_used():
    own = Networks(
        ContextEncoder((4,), 2, True), LatentPolicy((4,), 2), ensemble(LatentValue, 3)((4,))
    )
    config = PEARLConfig(**TINY)
    algorithm = PEARL(config, SPEC, own)
    learner = algorithm.init(KEY).learner
    assert jax.tree.leaves(learner.params["critics"])[0].shape[0] == 3
    after, _ = step(algorithm, learner, BATCH, CONTEXT, KEY)
    assert changed(learner.params["critics"], after.params["critics"])
    with pytest.raises(ConfigError, match="critic 'value' needs networks with a value"):
        PEARL(replace(config, critic="value"), SPEC, own)


# Adaptation.


def test_adapting_infers_from_all_steps_of_a_lane():
    """Over two rollouts, lane by lane, as from one batch of all its transitions."""
    suite = cliff_suite()
    algorithm = make_algorithm("pearl", suite.spec, **TINY)
    state = algorithm.init(named_key(0, "init"))
    sampler, actor = train_sampler(suite), algorithm.actor(state)
    tasks = sampler.sample_tasks(3)
    history = [sampler.episodes(actor, tasks, 2, 1) for _ in range(2)]
    belief = algorithm.adapt(state, actor, history).belief
    assert belief.mean.shape == (3, 2, 2)
    for lane in np.ndindex(3, 2):
        tokens = np.concatenate(
            [
                np.asarray(context_tokens(r, next_obs=False))[lane][np.asarray(r.valid)[lane]]
                for r in history
            ]
        )
        assert len(tokens) == sum(int(r.valid[lane].sum()) for r in history)
        encoder, valid = state.learner.params["encoder"], jnp.ones(len(tokens), bool)
        alone = algorithm.networks.encoder.apply(encoder, tokens[::-1], valid)
        np.testing.assert_allclose(belief.mean[lane], alone.mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(belief.variance[lane], alone.variance, rtol=1e-4)


def test_before_it_has_seen_anything_an_actor_believes_the_prior():
    algorithm = make_algorithm("pearl", SPEC, **TINY)
    belief = algorithm.actor(algorithm.init(KEY)).belief
    np.testing.assert_array_equal(belief.mean, 0.0)
    np.testing.assert_array_equal(belief.variance, 1.0)
    known = make_algorithm("pearl", SPEC, **TINY, information_bottleneck=False)
    np.testing.assert_array_equal(known.actor(known.init(KEY)).belief.variance, 0.0)


# Tasks and settings.


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"meta_batch_size": 200}, "meta_batch_size 200 must not exceed num_train_tasks 100"),
        ({"context_minibatch_size": 30}, "must be a multiple of context_minibatch_size 30"),
        ({"kl_coeff": -0.1}, "kl_coeff must not be negative, not -0.1"),
        ({"num_prior_steps": -1}, "num_prior_steps must not be negative, not -1"),
        (
            {"num_prior_steps": 0, "num_extra_posterior_steps": 0},
            "one must be greater, or nothing is ever collected",
        ),
        ({"hidden_sizes": ()}, "hidden_sizes must name at least one layer"),
        ({"latent_size": 0}, "latent_size must be greater than 0, not 0"),
        ({"tau": 1.5}, "tau must lie in"),
        ({"target_entropy": -1.0, "learn_temperature": False}, "needs critic 'twin_target' and"),
        ({"target_entropy": -1.0, "critic": "value"}, "needs critic 'twin_target' and"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_in_one_line(settings, words):
    with pytest.raises(ConfigError, match=words) as error:
        make_algorithm("pearl", SPEC, **settings)
    assert "\n" not in str(error.value)


def test_choices_are_refused():
    with pytest.raises(ConfigError, match="pearl takes continuous actions"):
        make_algorithm("pearl", EnvSpec(3, Discrete(4), 10))


def test_where_fewer_tasks_are_listed_it_trains_on_all():
    suite = point_suite()
    sampler = train_sampler(replace(suite, train=suite.test))
    assert sorted(task.index for task in sampler.fixed_tasks(60)) == list(range(50))
    assert len({task.index for task in sampler.fixed_tasks(7)}) == 7
