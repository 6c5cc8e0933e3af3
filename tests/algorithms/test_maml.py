"""What the MAML family computes: meta-gradients, limits, coefficients, and who acts by what."""

from dataclasses import replace
from itertools import pairwise

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from oracles import gaussian
from oracles.dense import dense_layers
from oracles.mlp import backward, forward
from toys import ChangingSampler, cliff_suite, point_suite, train_sampler, trained

from adaptax.algorithms.meta import dice_maml, vpg_maml
from adaptax.algorithms.meta.dice_maml import DICEMAML, DICEMAMLConfig
from adaptax.algorithms.meta.maml_family import (
    Data,
    MAMLConfig,
    State,
    exploration_loss,
    for_each_task,
    init_params,
    policy_for,
    stepped,
    task_mean,
    unroll,
)
from adaptax.algorithms.meta.promp import ProMP, ProMPConfig
from adaptax.algorithms.meta.trpo_maml import TRPOMAML, TRPOMAMLConfig
from adaptax.algorithms.meta.vpg_maml import VPGMAML, VPGMAMLConfig
from adaptax.algorithms.program import iteration_program, updated
from adaptax.core.errors import ConfigError
from adaptax.core.rng import named_key
from adaptax.core.snapshot import flatten
from adaptax.core.spec import Continuous, EnvSpec
from adaptax.experiment.build import make_suite
from adaptax.functional.distributions import DiagonalGaussian
from adaptax.functional.masking import masked_mean
from adaptax.functional.policy_losses import (
    adapted_kl_coeff,
    clipped_ratio_loss,
    likelihood_ratio_loss,
)
from adaptax.functional.trust_region import trust_region_step
from adaptax.learning.credited import Samples
from adaptax.learning.minibatches import ADAM
from adaptax.learning.processors import process_dice_samples, process_samples
from adaptax.networks.normalizer import Moments, fresh_moments, normalized, updated_moments

SPEC = EnvSpec(2, Continuous(2), 4)
TASKS, LANES, STEPS = 2, 3, 4
SIZE = cliff_suite().spec.observation_size
VALID = np.arange(STEPS) < np.array([4, 2, 3])[:, None]
SMALL = {"hidden_sizes": (4,), "meta_batch_size": TASKS, "num_episodes": LANES}
COEFFS, CLIP = np.array([0.5, 2.0], np.float32), 3.0
NUM_INNER = pytest.mark.parametrize("num_inner", [1, pytest.param(2, marks=pytest.mark.slow)])


def samples(seed: int, dtype=np.float64, log_prob=None) -> Samples:
    """Random data of episodes that differ in length."""
    rng = np.random.default_rng(seed)
    shape = (TASKS, LANES, STEPS)
    valid = np.broadcast_to(VALID, shape)
    random = {name: rng.normal(size=(*shape, 2)) for name in ("obs", "action")}
    random |= {name: rng.normal(size=shape) for name in ("credit", "adj_avg_rewards")}
    random["log_prob"] = rng.normal(-2.5, 0.2, size=shape) if log_prob is None else log_prob
    arrays = {
        k: np.where(valid.reshape(valid.shape + (1,) * (x.ndim - 3)), x, 0.0)
        for k, x in random.items()
    }
    floats = {k: jnp.asarray(x, dtype) for k, x in arrays.items()}
    return Samples(**floats, valid=jnp.asarray(valid))


POLICY = policy_for(MAMLConfig(**SMALL), SPEC, None)


def random_params(config: MAMLConfig, seed: int = 0, dtype=np.float64):
    """Parameters far from a fresh policy's, which ignores its observations."""
    rng = np.random.default_rng(seed)
    params = init_params(config, POLICY, SPEC, jax.random.key(0))
    policy = jax.tree.map(
        lambda x: jnp.asarray(0.5 * rng.normal(size=x.shape), dtype), params["policy"]
    )
    sizes = jax.tree.map(lambda x: jnp.asarray(x, dtype), params.get("inner_lr"))
    return {"policy": policy} | ({} if sizes is None else {"inner_lr": sizes})


def moments_of(rng: np.random.Generator, size: int) -> Moments:
    """Of some experience of observations [size]."""
    seen = jnp.asarray(3.0 + 2.0 * rng.standard_normal((50, size)), jnp.float32)
    return updated_moments(fresh_moments(size), seen, jnp.ones(50, bool))


def two_stages(dtype=np.float32):
    return samples(0, dtype), samples(1, dtype)


def data_of(stages) -> Data:
    stages = tuple(stages)
    return Data(stages, jnp.zeros((TASKS, len(stages))))


def outer_loss(config: ProMPConfig, stages):
    """ProMP's loss at fixed data, anchored at other parameters than it will be taken at."""
    algorithm = ProMP(config, SPEC)
    before = jax.jit(lambda params: unroll(config, POLICY, params, stages))(
        random_params(config, 1)
    )
    fresh = algorithm.init(jax.random.key(0))
    coeff = jnp.asarray(COEFFS[: config.num_inner_steps])
    state = replace(fresh, kl_coeff=coeff, clip_range=jnp.asarray(CLIP))

    def loss(params):
        return algorithm.loss(state, params, (stages, before))[0]

    return loss, random_params(config)


def unroll_in_numpy(params, stages, lr: float = 0.1):
    """For each task and stage: mean, log_std, and data in which padding is left out.

    Inner steps go down the likelihood ratio's loss.
    """
    names = ("obs", "action", "log_prob", "credit", "adj_avg_rewards")
    tasks = []
    for m in range(TASKS):
        mlp = dense_layers(params["policy"], "MLP_0/Dense_0", "ActionHead_0/Dense_0")
        log_std = np.array(params["policy"]["params"]["ActionHead_0"]["log_std"], float)
        tasks.append([])
        for stage in stages:
            valid = np.asarray(stage.valid[m])
            own = {k: np.asarray(getattr(stage, k)[m], float)[valid] for k in names}
            mean, done = forward(mlp, own["obs"], "tanh")
            floored = np.broadcast_to(np.maximum(log_std, np.log(0.2)), mean.shape)
            tasks[-1].append((mean, floored, own))
            ratio = np.exp(gaussian.log_prob(mean, floored, own["action"]) - own["log_prob"])
            weight = -(ratio * own["credit"] / len(ratio))[:, None]
            of_mean, of_log_std = gaussian.log_prob_slopes(mean, floored, own["action"])
            grads, _ = backward(done, weight * of_mean)
            mlp = {k: x - lr * grads[k] for k, x in mlp.items()}
            log_std = log_std - lr * (weight * of_log_std).sum(0)
    return tasks


def kls_in_numpy(before, after):
    """KL(before || after) of each stage, mean over tasks."""
    each = [
        [gaussian.kl(*old[:2], *new[:2]).mean() for old, new in zip(*task, strict=True)]
        for task in zip(before, after, strict=True)
    ]
    return np.mean(each, axis=0)


def exploration_in_numpy(tasks) -> float:
    """Minus the product of a task's means, of log-probabilities at first and rewards at last."""
    means = []
    for (mean, log_std, first), *_, (_, _, last) in tasks:
        log_prob = gaussian.log_prob(mean, log_std, first["action"])
        means.append(-log_prob.mean() * last["adj_avg_rewards"].mean())
    return float(np.mean(means))


def test_promps_loss_is_that_of_numpy():
    """Clipped ratios, the mean of weighted KLs over two inner steps, and E-MAML's term."""
    with jax.enable_x64(True):
        stages = tuple(samples(i) for i in range(3))
        config = ProMPConfig(**SMALL, num_inner_steps=2, exploration="means")
        loss, params = outer_loss(config, stages)
        found = float(jax.jit(loss)(params))
        before, after = (unroll_in_numpy(p, stages) for p in (random_params(config, 1), params))
    terms = []
    for *_, (mean, log_std, own) in after:
        ratio = np.exp(gaussian.log_prob(mean, log_std, own["action"]) - own["log_prob"])
        clipped = np.clip(ratio, 1 - CLIP, 1 + CLIP)
        terms.append(-np.minimum(ratio * own["credit"], clipped * own["credit"]).mean())
    penalty = np.mean(COEFFS * kls_in_numpy(before, after)[:2])
    expected = np.mean(terms) + penalty + exploration_in_numpy(after)
    assert found == pytest.approx(expected, rel=1e-9)


def test_trpo_mamls_loss_and_kl_are_those_of_numpy():
    stages, config = two_stages(), TRPOMAMLConfig(**SMALL, exploration="means")
    params, other = (random_params(config, seed, np.float32) for seed in (0, 1))

    @jax.jit
    def objective(params, other):
        before = unroll(config, POLICY, other, stages)
        return TRPOMAML(config, SPEC).objective(before, stages, params)

    before, after = (unroll_in_numpy(p, stages) for p in (other, params))
    terms = []
    for *_, (mean, log_std, own) in after:
        ratio = np.exp(gaussian.log_prob(mean, log_std, own["action"]) - own["log_prob"])
        terms.append(-(ratio * own["credit"]).mean())
    expected = np.mean(terms) + exploration_in_numpy(after), kls_in_numpy(before, after)[-1]
    np.testing.assert_allclose(objective(params, other), expected, rtol=1e-4)


def test_the_gradient_of_e_mamls_term_reaches_adam():
    """Along one direction, by differences of the loss in NumPy."""
    stages, config = two_stages(), VPGMAMLConfig(**SMALL, exploration="means")
    params = random_params(config, dtype=np.float32)
    state = State(params, ADAM(config.lr).init(params), {})
    after, _ = updated(VPGMAML(config, SPEC), state, data_of(stages))
    gradient = jax.tree.map(lambda m: 10 * np.asarray(m), optax.tree.get(after.opt_state, "mu"))
    direction = random_params(config, 1, np.float32)
    x, v = (jax.tree.map(lambda y: np.asarray(y, float), p) for p in (params, direction))

    def loss(size):
        tasks = unroll_in_numpy(jax.tree.map(lambda a, b: a + size * b, x, v), stages)
        last = [
            -(gaussian.log_prob(mean, log_std, own["action"]) * own["credit"]).mean()
            for *_, (mean, log_std, own) in tasks
        ]
        return np.mean(last) + exploration_in_numpy(tasks)

    slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
    found = ravel_pytree(gradient)[0] @ ravel_pytree(direction)[0]
    assert float(found) == pytest.approx(slope, rel=1e-3)


def test_dice_credits_an_action_with_every_later_reward():
    config, (stage, _) = VPGMAMLConfig(**SMALL, inner_objective="dice"), two_stages()
    params = random_params(config, dtype=np.float32)["policy"]
    found = stepped(
        config, POLICY, State({"policy": params}, {}, {}), for_each_task(params, TASKS), stage
    )

    @jax.jit
    @jax.grad
    def gradient(params, own):
        log_prob = POLICY.apply(params, own.obs).log_prob(own.action)
        later = jnp.stack([own.credit[:, t:].sum(1) for t in range(STEPS)], axis=1)
        return -jnp.sum(log_prob * later, where=own.valid) / own.valid.sum()

    for m in range(TASKS):
        grads = gradient(params, jax.tree.map(lambda x, m=m: x[m], stage))
        for own, x, g in zip(*map(jax.tree.leaves, (found, params, grads)), strict=True):
            np.testing.assert_allclose(own[m], x - 0.1 * g, rtol=1e-5, atol=1e-6)


@NUM_INNER
@pytest.mark.parametrize("objective", ["likelihood_ratio", "log_likelihood"])
def test_the_meta_gradient_is_that_of_finite_differences(num_inner, objective):
    """No difference shows the derivatives of DiCE's surrogate: test_inner has its expectations."""
    with jax.enable_x64(True):
        config = ProMPConfig(
            **SMALL,
            num_inner_steps=num_inner,
            inner_objective=objective,
            learn_inner_lr=True,
            exploration="trajectories",
        )
        loss, params = outer_loss(config, tuple(samples(i) for i in range(num_inner + 1)))
        flat, unravel = ravel_pytree(params)
        value = jax.jit(lambda x: loss(unravel(x)))
        gradient = jax.jit(jax.grad(lambda x: loss(unravel(x))))(flat)
        eps = 1e-5
        close = [
            (value(flat + eps * v) - value(flat - eps * v)) / (2 * eps) for v in np.eye(len(flat))
        ]
        assert np.linalg.norm(gradient) > 0.1
        np.testing.assert_allclose(gradient, close, atol=1e-5 * np.linalg.norm(gradient))


@NUM_INNER
def test_first_order_leaves_out_the_inner_steps_derivative(num_inner):
    with jax.enable_x64(True):
        data = tuple(samples(i) for i in range(num_inner + 1))
        config = ProMPConfig(**SMALL, num_inner_steps=num_inner)
        loss, params = outer_loss(config, data)
        short, _ = outer_loss(replace(config, first_order=True), data)
        assert float(jax.jit(loss)(params)) == float(jax.jit(short)(params))
        full, first = (ravel_pytree(jax.jit(jax.grad(f))(params))[0] for f in (loss, short))
        assert np.linalg.norm(full - first) > 0.05 * np.linalg.norm(full)


@pytest.mark.slow
def test_first_order_is_the_gradient_at_the_adapted_parameters():
    with jax.enable_x64(True):
        config = VPGMAMLConfig(**SMALL, first_order=True)
        stages, params = two_stages(np.float64), random_params(config)
        own = stepped(
            config, POLICY, State(params, {}, {}), for_each_task(params["policy"], TASKS), stages[0]
        )

        def after(x, task):
            log_prob = POLICY.apply(x, task.obs).log_prob(task.action)
            return -jnp.sum(jnp.where(task.valid, log_prob * task.credit, 0)) / task.valid.sum()

        def meta_loss(p):
            return vpg_maml.loss(unroll(config, POLICY, p, stages)[-1], stages[-1])

        tasks = range(TASKS)
        each = [
            jax.grad(after)(*jax.tree.map(lambda x, i=i: x[i], (own, stages[1]))) for i in tasks
        ]
        expected = jax.tree.map(lambda *x: sum(x) / TASKS, *each)
        found = jax.grad(meta_loss)(params)["policy"]
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def on_policy(params):
    """Data of the policy itself."""
    stages = []
    for own in two_stages():
        log_prob = POLICY.apply(params["policy"], own.obs).log_prob(own.action)
        stages.append(replace(own, log_prob=jnp.where(own.valid, log_prob, 0.0)))
    return tuple(stages)


def assert_same_step(ours, start, theirs):
    leaves = list(zip(*map(jax.tree.leaves, (ours, start, theirs)), strict=True))
    assert max(float(jnp.abs(a - b).max()) for a, b, _ in leaves) > 1e-4
    for a, _, c in leaves:
        np.testing.assert_allclose(a, c, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_promp_without_an_inner_step_is_ppo():
    config = ProMPConfig(**SMALL, inner_lr=0.0, init_kl_coeff=0.0, clip_range=0.1, num_epochs=3)
    algorithm, adam = ProMP(config, SPEC), ADAM(config.lr)
    params = random_params(config, dtype=np.float32)
    stages = on_policy(params)
    fresh = algorithm.init(jax.random.key(0))
    state = replace(fresh, params=params, opt_state=adam.init(params))
    ours, _ = updated(algorithm, state, data_of(stages))

    def ppo_loss(own):
        last = stages[-1]
        log_prob = POLICY.apply(own, last.obs).log_prob(last.action)
        terms = clipped_ratio_loss(log_prob, last.log_prob, last.credit, config.clip_range)
        return masked_mean(terms, last.valid)

    theirs = params["policy"]
    opt_state = adam.init(theirs)
    for _ in range(config.num_epochs):
        updates, opt_state = adam.update(jax.grad(ppo_loss)(theirs), opt_state)
        theirs = optax.apply_updates(theirs, updates)
    assert_same_step(ours.params["policy"], params["policy"], theirs)


@pytest.mark.slow
def test_trpo_maml_without_an_inner_step_is_trpo():
    config = TRPOMAMLConfig(**SMALL, inner_lr=0.0)
    config = replace(config, trust_region=replace(config.trust_region, reg_coeff=0.1))
    params = random_params(config, dtype=np.float32)
    stages = on_policy(params)
    ours, metrics = updated(TRPOMAML(config, SPEC), State(params, {}, {}), data_of(stages))
    old, last = params["policy"], stages[-1]
    acted = POLICY.apply(old, last.obs)

    def trpo_objective(own):
        new = POLICY.apply(own, last.obs)
        terms = likelihood_ratio_loss(new.log_prob(last.action), last.log_prob, last.credit)
        return masked_mean(terms, last.valid), masked_mean(acted.kl(new), last.valid)

    theirs, their_metrics = trust_region_step(trpo_objective, old, config.trust_region)
    assert_same_step(ours.params["policy"], old, theirs)
    assert 0.0 < float(metrics["kl"]) <= config.trust_region.max_kl_step
    np.testing.assert_allclose(metrics["kl"], their_metrics["kl"], rtol=1e-3)


def test_trust_region_bounds_the_policies_after_adaptation():
    config, stages = TRPOMAMLConfig(**SMALL), two_stages()
    params = random_params(config, dtype=np.float32)
    state, metrics = updated(TRPOMAML(config, SPEC), State(params, {}, {}), data_of(stages))
    last = jax.jit(lambda params: unroll(config, POLICY, params, stages)[-1])
    kl = task_mean(last(params).kl(last(state.params)), stages[-1].valid)
    assert float(metrics["line_search_accepted"]) == 1.0
    assert 1e-4 < float(kl) <= 0.01
    np.testing.assert_allclose(kl, metrics["kl"], rtol=1e-4)


def test_kl_coefficients_follow_the_kl():
    coeff, trace = jnp.float32(1.0), []
    for kl in (0.001, 0.0066, 0.0067, 0.015, 0.0151, 0.1):
        coeff = adapted_kl_coeff(coeff, jnp.float32(kl), 0.01)
        trace.append(float(coeff))
    assert trace == [0.5, 0.25, 0.25, 0.25, 0.5, 1.0]


def test_every_inner_step_has_a_coefficient_of_its_own():
    np.testing.assert_array_equal(
        adapted_kl_coeff(jnp.ones(3), jnp.array([0.001, 0.01, 0.1]), 0.01), [0.5, 1.0, 2.0]
    )


def promp_states(config: ProMPConfig, num_updates: int):
    """ProMP's states after each of some updates on random data, and the last metrics."""
    algorithm = ProMP(config, SPEC)
    state = algorithm.init(jax.random.key(0))
    data = data_of(samples(i, np.float32) for i in range(config.num_inner_steps + 1))
    states, metrics = [state], {}
    for _ in range(num_updates):
        state, metrics = updated(algorithm, state, data)
        states.append(state)
    return states, metrics


def test_the_clipping_range_anneals():
    states, metrics = promp_states(ProMPConfig(**SMALL, clip_range_decay=0.9, lr=0.1), 3)
    ranges = [float(s.clip_range) for s in states]
    np.testing.assert_allclose(ranges, 0.2 * 0.9 ** np.arange(4), rtol=1e-6)
    np.testing.assert_allclose(metrics["clip_range"], 0.2 * 0.81, rtol=1e-6)
    assert float(states[-1].kl_coeff[0]) != 0.01  # so large a step's KL changes it


def test_coefficients_follow_the_kls_before_each_inner_step():
    """Of three stages the first two have coefficients; the third's KL is the largest here."""
    config = ProMPConfig(
        **SMALL, num_inner_steps=2, lr=0.03, inner_lr=0.5, num_epochs=1, target_kl=0.2
    )
    states, _ = promp_states(config, 1)
    stages = [samples(i, np.float32) for i in range(3)]
    kls = kls_in_numpy(*(unroll_in_numpy(s.params, stages, config.inner_lr) for s in states))
    assert kls[0] < 0.2 / 1.5 < 0.2 * 1.5 < kls[1]
    np.testing.assert_allclose(states[1].kl_coeff, [0.005, 0.02])


@pytest.mark.parametrize("coeff", [0, 1])
def test_a_coefficient_given_as_a_whole_number_can_be_halved(coeff):
    """In a program of iterations, and in a snapshot, a state's types stay as they were."""
    state = ProMP(ProMPConfig(**SMALL, init_kl_coeff=coeff), SPEC).init(jax.random.key(0))
    assert state.kl_coeff.dtype == adapted_kl_coeff(state.kl_coeff, 1.0, 0.01).dtype
    np.testing.assert_array_equal(state.kl_coeff, [coeff])


def test_minibatches_of_tasks_make_more_steps():
    def num_adam_steps(config):
        counts = [
            x for x in jax.tree.leaves(promp_states(config, 1)[0][-1].opt_state) if x.ndim == 0
        ]
        return int(counts[0])

    assert num_adam_steps(ProMPConfig(**SMALL)) == 5
    assert num_adam_steps(ProMPConfig(**SMALL, num_minibatches=2)) == 10


def test_promps_step_size_falls_from_pass_to_pass():
    """Adam's steps are as long as its step size where gradients stay alike: so is each pass's."""
    falling = ProMPConfig(**SMALL, lr_schedule="linear", lr_schedule_steps=10)
    assert falling.passes_per_iteration == 5
    moved = []
    for config in (ProMPConfig(**SMALL), falling):
        states, _ = promp_states(config, 3)
        flat = [ravel_pytree(s.params)[0] for s in states]
        moved.append([float(jnp.linalg.norm(b - a)) for a, b in pairwise(flat)])
    constant, less = np.asarray(moved)
    assert 0.6 < less[0] / constant[0] < 0.95  # passes 0 to 4 of 10: a mean of 0.8 is left
    assert 0.1 < less[1] / constant[1] < 0.6  # of 0.3
    assert less[2] == 0


def test_learned_step_sizes_reach_the_optimizer():
    states, _ = promp_states(ProMPConfig(**SMALL, learn_inner_lr=True), 1)
    sizes = [jax.tree.leaves(s.params["inner_lr"]) for s in states]
    assert len(sizes[0]) == len(jax.tree.leaves(states[0].params["policy"]))
    assert all(float(x) == np.float32(0.1) for x in sizes[0])
    changes = [float(abs(a - b)) for a, b in zip(*sizes, strict=True)]
    assert min(changes) > 1e-4, changes


def test_exploration_terms():
    config, stages = VPGMAMLConfig(**SMALL, exploration="means"), two_stages()
    by_lane = replace(config, exploration="trajectories")
    distributions = unroll(config, POLICY, random_params(config, dtype=np.float32), stages)
    log_prob = np.asarray(distributions[0].log_prob(stages[0].action))
    worth = np.asarray(stages[1].adj_avg_rewards)
    tasks, lanes = range(TASKS), range(LANES)
    means = [-log_prob[m][VALID].mean() * worth[m][VALID].mean() for m in tasks]
    pairs = [
        -log_prob[m, n][VALID[n]].mean() * worth[m, n][VALID[n]].mean()
        for m in tasks
        for n in lanes
    ]
    for settings, expected in ((config, means), (by_lane, pairs)):
        found = float(exploration_loss(settings, stages, distributions))
        assert found == pytest.approx(np.mean(expected), rel=1e-5)


def test_dice_divides_a_tasks_sum_by_its_valid_steps():
    config, stages = DICEMAMLConfig(**SMALL), two_stages()
    after = unroll(config, POLICY, random_params(config, dtype=np.float32), stages)[-1]
    expected = -np.asarray(stages[1].credit).sum((1, 2)).mean() / VALID.sum()  # the box is 1
    assert float(dice_maml.loss(after, stages[1])) == pytest.approx(expected, rel=1e-5)


def test_dice_maml_with_a_plain_outer_objective_takes_the_step_of_vpg_maml():
    shared = {**SMALL, "lr": 0.01, "inner_lr": 0.1, "inner_objective": "dice"}
    dice = DICEMAML(DICEMAMLConfig(**shared, outer_objective="log_likelihood"), SPEC)
    box, vpg = DICEMAML(DICEMAMLConfig(**shared), SPEC), VPGMAML(VPGMAMLConfig(**shared), SPEC)
    state, data = vpg.init(jax.random.key(0)), data_of(two_stages())
    state = replace(state, params=random_params(vpg.config, dtype=np.float32))
    expected, plain, boxed = (updated(a, state, data)[0].params for a in (vpg, dice, box))
    for a, b in zip(*map(jax.tree.leaves, (plain, expected)), strict=True):
        np.testing.assert_array_equal(a, b)
    differences = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), boxed, expected)
    assert max(jax.tree.leaves(differences)) > 1e-3


@pytest.mark.parametrize(
    ("kind", "config", "dice"),
    [
        (VPGMAML, VPGMAMLConfig(**SMALL, inner_objective="dice"), (True, False)),
        (DICEMAML, DICEMAMLConfig(**SMALL, inner_objective="log_likelihood"), (False, True)),
        pytest.param(
            *(DICEMAML, DICEMAMLConfig(**SMALL, outer_objective="log_likelihood"), (True, False)),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_episodes_get_the_credit_of_their_own_stages_objective(kind, config, dice):
    """Adjusted rewards where it is DiCE, else advantages."""
    suite, rollouts = cliff_suite(horizon=SPEC.horizon), []

    def record(rollout, actor):
        rollouts.append(rollout)
        return rollout

    algorithm = kind(config, suite.spec)
    state = algorithm.init(named_key(0, "init"))
    data = algorithm.collect(state, ChangingSampler(suite, record))
    assert len(data.stages) == len(rollouts) == 2
    for stage, rollout, boxed in zip(data.stages, rollouts, dice, strict=True):
        advantage = process_samples(rollout, config).advantage
        adjusted = process_dice_samples(rollout, config, SPEC.horizon).adjusted_reward
        expected, other = (adjusted, advantage) if boxed else (advantage, adjusted)
        np.testing.assert_allclose(stage.credit, expected, rtol=1e-5, atol=1e-5)
        assert np.abs(np.asarray(stage.credit) - other).max() > 0.1


@pytest.mark.slow
def test_returns_are_means_over_the_episodes_of_each_stage():
    suite, rollouts = cliff_suite(), []

    def record(rollout, actor):
        rollouts.append(rollout)
        return rollout

    config = ProMPConfig(meta_batch_size=4, num_episodes=5, num_inner_steps=2)
    algorithm = ProMP(config, suite.spec)
    state = algorithm.init(named_key(0, "init"))
    data = algorithm.collect(state, ChangingSampler(suite, record))
    assert {len(x) for x in jax.tree.leaves(data)} == {4}
    _, metrics = updated(algorithm, state, data)
    each = [np.sum(np.asarray(r.reward), where=np.asarray(r.valid)) / 20 for r in rollouts]
    found = [metrics[f"return/episode_{k}"] for k in (1, 2, 3)]
    np.testing.assert_allclose(found, each, rtol=1e-5)
    assert metrics["return"] == found[-1]
    assert "return/episode_4" not in metrics


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (ProMP, ProMPConfig(**SMALL, baseline_fit="previous")),
        pytest.param(TRPOMAML, TRPOMAMLConfig(**SMALL), marks=pytest.mark.slow),
        pytest.param(VPGMAML, VPGMAMLConfig(**SMALL, normalize_obs=True), marks=pytest.mark.slow),
        pytest.param(DICEMAML, DICEMAMLConfig(**SMALL), marks=pytest.mark.slow),
    ],
)
def test_an_iteration_as_one_program_is_that_of_its_parts(kind, config, monkeypatch):
    suite = cliff_suite(horizon=SPEC.horizon)
    whole, parts = kind(config, suite.spec), kind(config, suite.spec)
    parts.collects_in_program = False
    samplers = [train_sampler(suite) for _ in range(2)]
    states = [x.init(named_key(0, "init")) for x in (whole, parts)]
    assert iteration_program(whole, states[0], samplers[0]) is None  # two devices share the update
    one = jax.local_devices()[:1]
    monkeypatch.setattr(jax, "local_devices", lambda: one)
    assert iteration_program(whole, states[0], samplers[0]) is not None
    assert iteration_program(parts, states[1], samplers[1]) is None
    results = [flatten(trained(a, s, 1)) for a, s in zip((whole, parts), samplers, strict=True)]
    for name, x in results[0].items():
        np.testing.assert_allclose(x, results[1][name], rtol=1e-5, atol=1e-5, err_msg=name)
    assert samplers[0].num_steps == samplers[1].num_steps > 0


class Tilted(nn.Module):
    """A policy of one's own: a mean linear in observations, a deviation for each of them."""

    @nn.compact
    def __call__(self, obs):
        mean = nn.Dense(2, kernel_init=nn.initializers.zeros)(obs)
        return DiagonalGaussian(mean, nn.Dense(2, kernel_init=nn.initializers.zeros)(obs))


@pytest.mark.slow
def test_promp_trains_a_policy_network_of_ones_own():
    suite = make_suite("point-goal")
    config = ProMPConfig(meta_batch_size=8, num_episodes=8, discount=0.9, lr=0.01, inner_lr=0.5)
    algorithm = ProMP(config, suite.spec, Tilted())
    assert algorithm == ProMP(config, suite.spec, Tilted()) != ProMP(config, suite.spec)
    sampler, state, returns = train_sampler(suite), algorithm.init(named_key(0, "init")), []
    assert set(state.params["policy"]["params"]) == {"Dense_0", "Dense_1"}
    for _ in range(20):
        state, metrics = algorithm.iteration(state, sampler)
        returns.append((float(metrics["return/episode_1"]), float(metrics["return"])))
    before, after = np.mean(returns[-5:], axis=0)
    assert after > np.mean(returns[:5], axis=0)[1] + 3.0  # measured: from -16.5 to -10.9
    assert after > before + 4.0  # and from -16.6 by 5.6


@pytest.mark.slow
def test_after_adaptation_every_task_acts_by_its_own_parameters():
    """Data of a task are those that its own policy, adapted alone, would have given."""
    rollouts = []

    def record(rollout, actor):
        rollouts.append((rollout, actor))
        return rollout

    suite = cliff_suite()
    algorithm = ProMP(ProMPConfig(meta_batch_size=4, num_episodes=5, inner_lr=5.0), suite.spec)
    algorithm.iteration(algorithm.init(named_key(0, "init")), ChangingSampler(suite, record))
    (_, prior), (after, adapted) = rollouts
    network = algorithm.networks

    def log_prob(params, i):
        return network.apply(params, after.obs[i]).log_prob(after.action[i])

    own = [jax.tree.map(lambda x, i=i: x[i], adapted.actor.params) for i in range(4)]
    for i in range(4):
        recorded, valid = after.extras["log_prob"][i], after.valid[i]
        np.testing.assert_allclose(
            log_prob(own[i], i)[valid], recorded[valid], rtol=1e-4, atol=1e-5
        )
        for other in (own[i - 1], prior.params):
            assert float(jnp.abs(log_prob(other, i) - recorded)[valid].max()) > 0.01


@pytest.mark.parametrize("normalize_obs", [False, True])
def test_adapting_is_the_step_that_training_takes(normalize_obs):
    suite, rollouts = cliff_suite(), []

    def record(rollout, actor):
        rollouts.append((rollout, actor))
        return rollout

    algorithm = ProMP(
        ProMPConfig(
            meta_batch_size=4,
            num_episodes=5,
            num_inner_steps=2,
            baseline_fit="previous",
            normalize_obs=normalize_obs,
        ),
        suite.spec,
    )
    state = algorithm.init(named_key(0, "init"))
    if normalize_obs:
        state = replace(state, moments={"obs": moments_of(np.random.default_rng(0), SIZE)})
    algorithm.iteration(state, ChangingSampler(suite, record))
    actor, history = algorithm.actor(state), []
    for rollout, acted in rollouts:
        for a, b in zip(*map(jax.tree.leaves, (actor, acted)), strict=True):
            np.testing.assert_array_equal(a, b)
        history.append(rollout)
        actor = algorithm.adapt(state, actor, history)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        (ProMP, ProMPConfig(**SMALL)),
        (TRPOMAML, TRPOMAMLConfig(**SMALL)),
        (VPGMAML, VPGMAMLConfig(**SMALL)),
        pytest.param(DICEMAML, DICEMAMLConfig(**SMALL), marks=pytest.mark.slow),
    ],
)
def test_an_update_sees_observations_by_the_moments_that_acted(kind, config):
    """It is the plain update on standardised ones; what is not valid changes nothing."""
    moments = moments_of(np.random.default_rng(0), 2)
    plain, own = (kind(replace(config, normalize_obs=on), SPEC) for on in (False, True))
    state = replace(plain.init(jax.random.key(0)), params=random_params(config, dtype=np.float32))
    raw = two_stages()
    shown = tuple(replace(x, obs=normalized(x.obs, moments)) for x in raw)
    expected, _ = updated(plain, state, data_of(shown))
    found, _ = updated(own, replace(state, moments={"obs": moments}), data_of(raw))
    for a, b in zip(*(jax.tree.leaves(x.params) for x in (found, expected)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    seen = np.concatenate([np.asarray(x.obs)[np.asarray(x.valid)] for x in raw])
    after = found.moments["obs"]
    count, old = len(seen), moments["count"]
    assert after["count"] == old + count
    mean = (old * moments["mean"] + seen.sum(0)) / (old + count)
    np.testing.assert_allclose(after["mean"], mean, rtol=1e-5)


def test_the_moments_are_those_of_all_observations_so_far():
    """Before and after inner steps alike; actors and update of an iteration have the same ones."""
    suite, rollouts = cliff_suite(), []

    def record(rollout, actor):
        rollouts.append((rollout, actor))
        return rollout

    config = VPGMAMLConfig(**{**SMALL, "meta_batch_size": 4}, normalize_obs=True)
    algorithm = VPGMAML(config, suite.spec)
    states, sampler = [algorithm.init(named_key(0, "init"))], ChangingSampler(suite, record)
    for _ in range(2):
        states.append(algorithm.iteration(states[-1], sampler)[0])
    valid = [np.asarray(r.obs)[np.asarray(r.valid)] for r, _ in rollouts]
    for state, so_far in ((states[1], valid[:2]), (states[2], valid)):
        seen, moments = np.concatenate(so_far), state.moments["obs"]
        assert moments["count"] == len(seen)
        np.testing.assert_allclose(moments["mean"], seen.mean(0), atol=1e-5)
        np.testing.assert_allclose(moments["variance"], seen.var(0), rtol=1e-4)
    for (_, actor), state in zip(rollouts[::2], states[:2], strict=True):
        assert actor.obs_moments is state.moments["obs"]
    adapted, acted = rollouts[3][1].actor.obs_moments, states[1].moments["obs"]
    assert np.array_equal(adapted["mean"], np.broadcast_to(acted["mean"], (4, SIZE)))


def test_a_floor_under_the_deviation_holds_before_and_after_an_inner_step():
    """At the floor of 0.5 an inner step neither lowers the deviation nor brings it back."""
    config = MAMLConfig(**SMALL, min_std=0.5, init_std=0.5, inner_lr=5.0)
    policy, stages = policy_for(config, SPEC, None), two_stages()
    params = init_params(config, policy, SPEC, jax.random.key(0))
    head = params["policy"]["params"]["ActionHead_0"]
    for log_std, held in ((np.log([0.5, 0.5]) - 1.0, True), (np.log([0.7, 0.7]), False)):
        head["log_std"] = jnp.asarray(log_std, jnp.float32)
        own = stepped(
            config, policy, State(params, {}, {}), for_each_task(params["policy"], TASKS), stages[0]
        )
        after = own["params"]["ActionHead_0"]["log_std"]
        assert np.array_equal(after, np.broadcast_to(head["log_std"], after.shape)) == held
        for distribution in unroll(config, policy, params, stages):
            std = np.exp(distribution.log_std)
            assert std.min() >= 0.5 * (1 - 1e-6)
            assert np.allclose(std, 0.5) == held


def test_modes_are_nothing_to_adapt_from():
    suite = point_suite()
    algorithm = ProMP(ProMPConfig(meta_batch_size=4, num_episodes=5), suite.spec)
    state = algorithm.init(named_key(0, "init"))
    actor = algorithm.actor(state, deterministic=True)
    sampler = ChangingSampler(suite, lambda rollout, actor: rollout)
    rollout = sampler.episodes(actor, suite.test.tasks[:4], 5, 1)
    with pytest.warns(UserWarning, match="nothing was adapted"):
        adapted = algorithm.adapt(state, actor, [rollout], deterministic=True)
    assert adapted.actor.deterministic
    for a, b in zip(*map(jax.tree.leaves, (adapted.actor.params, actor.params)), strict=True):
        np.testing.assert_array_equal(a, jnp.broadcast_to(b, a.shape))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"inner_lr": -0.1}, "inner_lr must not be negative, not -0.1"),
        ({"num_inner_steps": 0}, "num_inner_steps must be greater than 0, not 0"),
        ({"num_minibatches": 3}, "meta_batch_size 10 must be a multiple of num_minibatches 3"),
        ({"gae_lambda": 1.5}, r"gae_lambda must lie in \[0, 1\], not 1.5"),
        ({"min_std": 0.5}, "init_std 0.3 must be at least min_std 0.5"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        ProMPConfig(**settings)
