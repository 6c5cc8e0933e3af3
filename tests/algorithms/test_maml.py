"""What the MAML family computes: meta-gradients, limits, coefficients, and who acts by what."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree
from toys import ChangingSampler, cliff_suite, point_suite

from adaptax.algorithms.meta import dice_maml, meta_policy, promp, trpo_maml, vpg_maml
from adaptax.algorithms.meta import family as maml
from adaptax.algorithms.meta.family import task_mean
from adaptax.algorithms.meta.meta_policy import MetaPolicy
from adaptax.algorithms.meta.promp import ProMP, ProMPConfig
from adaptax.algorithms.meta.trpo_maml import TRPOMAMLConfig
from adaptax.algorithms.meta.vpg_maml import VPGMAMLConfig
from adaptax.algorithms.on_policy import ppo, trpo
from adaptax.core.errors import ConfigError
from adaptax.core.rng import named_key
from adaptax.core.spec import Continuous, EnvSpec
from adaptax.functional.policy_losses import adapted_kl_coeff
from adaptax.functional.trust_region import trust_region_step
from adaptax.learning.credited import Samples
from adaptax.learning.minibatches import ADAM
from adaptax.learning.sequences import Batch
from adaptax.networks.actor_critic import ActorCritic, Body, Policy

SPEC = EnvSpec(2, Continuous(2), 4)
TASKS, LANES, STEPS = 2, 3, 4
VALID = np.arange(STEPS) < np.array([4, 2, 3])[:, None]
SMALL = {"hidden_sizes": (4,), "meta_batch_size": TASKS, "num_episodes": LANES}
NUM_INNER = pytest.mark.parametrize("num_inner", [1, 2])


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


def random_params(meta: MetaPolicy, seed: int = 0, dtype=np.float64):
    """Parameters far from a fresh policy's, which ignores what it sees."""
    rng = np.random.default_rng(seed)
    params = meta.init(jax.random.key(0))
    policy = jax.tree.map(
        lambda x: jnp.asarray(0.5 * rng.normal(size=x.shape), dtype), params["policy"]
    )
    sizes = jax.tree.map(lambda x: jnp.asarray(x, dtype), params.get("inner_lr"))
    return {"policy": policy} | ({} if sizes is None else {"inner_lr": sizes})


def outer_loss(config: ProMPConfig, data):
    """ProMP's loss at fixed data, anchored at other parameters than it will be taken at."""
    meta = MetaPolicy(config, SPEC)
    before = meta.unroll(random_params(meta, 1), data)
    coeff = jnp.full(config.num_inner_steps, 0.5)

    def loss(params):
        return promp.loss(meta, coeff, jnp.asarray(3.0), params, (data, before))[0]

    return loss, random_params(meta)


@NUM_INNER
@pytest.mark.parametrize("objective", ["likelihood_ratio", "log_likelihood"])
def test_the_meta_gradient_is_that_of_finite_differences(num_inner, objective):
    """N2; of DiCE's surrogate no difference knows, see the expectations in test_inner."""
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
        assert float(loss(params)) == float(short(params))
        full, first = (ravel_pytree(jax.grad(f)(params))[0] for f in (loss, short))
        assert np.linalg.norm(full - first) > 0.05 * np.linalg.norm(full)


def test_first_order_is_the_gradient_at_the_adapted_parameters():
    with jax.enable_x64(True):
        meta = MetaPolicy(VPGMAMLConfig(**SMALL, first_order=True), SPEC)
        data, params = (samples(0), samples(1)), random_params(meta)
        own = meta_policy._stepped(
            meta, params, meta_policy._for_each(params["policy"], TASKS), data[0]
        )

        def after(x, task):
            log_prob = meta.network.apply(x, task.obs).log_prob(task.action)
            return -jnp.sum(jnp.where(task.valid, log_prob * task.credit, 0)) / task.valid.sum()

        tasks = range(TASKS)
        each = [jax.grad(after)(*jax.tree.map(lambda x, i=i: x[i], (own, data[1]))) for i in tasks]
        expected = jax.tree.map(lambda *x: sum(x) / TASKS, *each)
        found = jax.grad(lambda p: vpg_maml.loss(meta.unroll(p, data), data))(params)["policy"]
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


def as_policy(params):
    """A MetaPolicy's parameters as those of an actor-critic's policy."""
    layers = params["policy"]["params"]
    head, body = layers["ActionHead_0"], {"MLP_0": layers["MLP_0"]}
    return {"policy": {"params": {"ActionHead_0": head, "body": body}}}


NETWORK = ActorCritic(Policy(Body((4,)), Continuous(2)), value=None)


def on_policy(meta: MetaPolicy, params) -> tuple[tuple[Samples, Samples], Batch]:
    """Data of the policy itself, and the last batch as PPO and TRPO take it, a task a row."""
    data = []
    for i in range(2):
        own = samples(i, np.float32)
        log_prob = meta.network.apply(params["policy"], own.obs).log_prob(own.action)
        data.append(replace(own, log_prob=jnp.where(own.valid, log_prob, 0.0)))
    last = data[-1]
    flat = jax.tree.map(lambda x: jnp.asarray(x).reshape(-1, *x.shape[3:]), last)
    nothing = jnp.zeros_like(flat.credit)
    batch = Batch(
        flat.obs, flat.action, flat.log_prob, flat.credit, nothing, nothing, flat.valid, None, {}
    )
    return (data[0], last), batch


def assert_same_step(ours, start, theirs):
    moved = [
        (a, b, c)
        for a, b, c in zip(
            *map(jax.tree.leaves, (as_policy(ours), as_policy(start), theirs)), strict=True
        )
    ]
    assert max(float(jnp.abs(a - b).max()) for a, b, _ in moved) > 1e-4
    for a, _, c in moved:
        np.testing.assert_allclose(a, c, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_promp_without_an_inner_step_is_ppo():
    """N3."""
    config = ProMPConfig(**SMALL, inner_lr=0.0, init_kl_coeff=0.0, clip_range=0.1, num_epochs=3)
    meta = MetaPolicy(config, SPEC)
    params = random_params(meta, dtype=np.float32)
    data, batch = on_policy(meta, params)
    fresh = ProMP(config, SPEC).init(jax.random.key(0))
    state = replace(fresh, params=params, opt_state=ADAM(config.lr).init(params))
    ours, _ = promp._update(meta, state, data)

    def loss(theirs):
        return ppo.loss(config.clip_range, NETWORK, theirs, batch)[0]

    theirs, adam = as_policy(params), ADAM(config.lr)
    opt_state = adam.init(theirs)
    for _ in range(config.num_epochs):
        updates, opt_state = adam.update(jax.grad(loss)(theirs), opt_state)
        theirs = optax.apply_updates(theirs, updates)
    assert_same_step(ours.params, params, theirs)


@pytest.mark.slow
def test_trpo_maml_without_an_inner_step_is_trpo():
    """N3."""
    config = TRPOMAMLConfig(**SMALL, inner_lr=0.0)
    config = replace(config, trust_region=replace(config.trust_region, reg_coeff=0.1))
    meta = MetaPolicy(config, SPEC)
    params = random_params(meta, dtype=np.float32)
    data, batch = on_policy(meta, params)
    ours, figures = trpo_maml._update(meta, maml.State(params, {}), data)
    old = as_policy(params)
    theirs, their_figures = trust_region_step(
        lambda p: trpo.objective(NETWORK, old, batch, p), old, config.trust_region
    )
    assert_same_step(ours.params, params, theirs)
    assert 0.0 < float(figures["kl"]) <= config.trust_region.max_kl_step
    np.testing.assert_allclose(figures["kl"], their_figures["kl"], rtol=1e-3)


def test_trust_region_bounds_the_policies_after_adaptation():
    meta = MetaPolicy(TRPOMAMLConfig(**SMALL), SPEC)
    params = random_params(meta, dtype=np.float32)
    data = (samples(0, np.float32), samples(1, np.float32))
    state, figures = trpo_maml._update(meta, maml.State(params, {}), data)
    after = meta.unroll(state.params, data)[-1]
    kl = task_mean(meta.unroll(params, data)[-1].kl(after), data[-1].valid)
    assert float(figures["line_search_accepted"]) == 1.0
    assert 1e-4 < float(kl) <= 0.01
    np.testing.assert_allclose(kl, figures["kl"], rtol=1e-4)


def test_kl_coefficients_follow_the_kl():
    """N4, the trace."""
    coeff, trace = jnp.float32(1.0), []
    for kl in (0.001, 0.0066, 0.0067, 0.015, 0.0151, 0.1):
        coeff = adapted_kl_coeff(coeff, jnp.float32(kl), 0.01)
        trace.append(float(coeff))
    assert trace == [0.5, 0.25, 0.25, 0.25, 0.5, 1.0]


def test_every_inner_step_has_a_coefficient_of_its_own():
    np.testing.assert_array_equal(
        adapted_kl_coeff(jnp.ones(3), jnp.array([0.001, 0.01, 0.1]), 0.01), [0.5, 1.0, 2.0]
    )


def updated(config: ProMPConfig, num_updates: int):
    """ProMP's states after each of some updates on random data."""
    meta, state = MetaPolicy(config, SPEC), ProMP(config, SPEC).init(jax.random.key(0))
    data = tuple(samples(i, np.float32) for i in range(config.num_inner_steps + 1))
    states, figures = [state], {}
    for _ in range(num_updates):
        state, figures = promp._update(meta, state, data)
        states.append(state)
    return states, figures


def test_the_clipping_range_anneals():
    """N4."""
    states, figures = updated(ProMPConfig(**SMALL, clip_range_decay=0.9, lr=0.1), 3)
    ranges = [float(s.clip_range) for s in states]
    np.testing.assert_allclose(ranges, 0.2 * 0.9 ** np.arange(4), rtol=1e-6)
    np.testing.assert_allclose(figures["clip_range"], 0.2 * 0.81, rtol=1e-6)
    assert float(states[-1].kl_coeff[0]) != 0.01  # moved, by the KL of so large a step


def test_minibatches_of_tasks_make_more_steps():
    def num_adam_steps(config):
        counts = [x for x in jax.tree.leaves(updated(config, 1)[0][-1].opt_state) if x.ndim == 0]
        return int(counts[0])

    assert num_adam_steps(ProMPConfig(**SMALL)) == 5
    assert num_adam_steps(ProMPConfig(**SMALL, num_minibatches=2)) == 10


def test_learned_step_sizes_reach_the_optimizer():
    states, _ = updated(ProMPConfig(**SMALL, learn_inner_lr=True), 1)
    sizes = [jax.tree.leaves(s.params["inner_lr"]) for s in states]
    assert len(sizes[0]) == len(jax.tree.leaves(states[0].params["policy"]))
    assert all(float(x) == np.float32(0.1) for x in sizes[0])
    moved = [float(abs(a - b)) for a, b in zip(*sizes, strict=True)]
    assert min(moved) > 1e-4, moved


def test_exploration_terms():
    meta = MetaPolicy(VPGMAMLConfig(**SMALL, exploration="means"), SPEC)
    by_lane = MetaPolicy(VPGMAMLConfig(**SMALL, exploration="trajectories"), SPEC)
    data = (samples(0, np.float32), samples(1, np.float32))
    seen = meta.unroll(random_params(meta, dtype=np.float32), data)
    log_prob = np.asarray(seen[0].log_prob(data[0].action))
    worth = np.asarray(data[1].adj_avg_rewards)
    tasks, lanes = range(TASKS), range(LANES)
    means = [-log_prob[m][VALID].mean() * worth[m][VALID].mean() for m in tasks]
    pairs = [
        -log_prob[m, n][VALID[n]].mean() * worth[m, n][VALID[n]].mean()
        for m in tasks
        for n in lanes
    ]
    assert float(meta.exploration_loss(data, seen)) == pytest.approx(np.mean(means), rel=1e-5)
    assert float(by_lane.exploration_loss(data, seen)) == pytest.approx(np.mean(pairs), rel=1e-5)


def test_dice_divides_a_tasks_sum_by_its_valid_steps():
    meta = MetaPolicy(dice_maml.DICEMAMLConfig(**SMALL), SPEC)
    data = (samples(0, np.float32), samples(1, np.float32))
    seen = meta.unroll(random_params(meta, dtype=np.float32), data)
    expected = -np.asarray(data[1].credit).sum((1, 2)).mean() / VALID.sum()  # the box is 1
    assert float(dice_maml.loss(seen, data)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_after_adaptation_every_task_acts_by_its_own_parameters():
    """M3: data of a task are those that its own policy, adapted alone, would have given."""
    rollouts = []

    def record(rollout, actor):
        rollouts.append((rollout, actor))
        return rollout

    suite = cliff_suite()
    algorithm = ProMP(ProMPConfig(meta_batch_size=4, num_episodes=5, inner_lr=5.0), suite.spec)
    algorithm.iteration(algorithm.init(named_key(0, "init")), ChangingSampler(suite, record))
    (_, prior), (after, adapted) = rollouts
    network = algorithm.meta.network

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


def test_adapting_is_the_step_that_training_takes():
    suite, rollouts = cliff_suite(), []

    def record(rollout, actor):
        rollouts.append((rollout, actor))
        return rollout

    algorithm = ProMP(
        ProMPConfig(meta_batch_size=4, num_episodes=5, num_inner_steps=2, fit="previous"),
        suite.spec,
    )
    state = algorithm.init(named_key(0, "init"))
    algorithm.iteration(state, ChangingSampler(suite, record))
    actor, history = algorithm.actor(state), []
    for rollout, acted in rollouts:
        for a, b in zip(*map(jax.tree.leaves, (actor, acted)), strict=True):
            np.testing.assert_array_equal(a, b)
        history.append(rollout)
        actor = algorithm.adapt(state, actor, history)


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
        ({"num_minibatches": 3}, "meta_batch_size 40 must be a multiple of num_minibatches 3"),
        ({"gae_lambda": 1.5}, r"gae_lambda must lie in \[0, 1\], not 1.5"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        ProMPConfig(**settings)
