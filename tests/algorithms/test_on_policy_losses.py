"""Losses of A2C, PPO, PPO2 and TRPO: golden values, and gradients against finite differences."""

from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.algorithms.on_policy import a2c, ppo, ppo2, trpo
from adaptax.core.spec import Continuous, Discrete, EnvSpec
from adaptax.functional.policy_losses import policy_gradient_loss
from adaptax.functional.trust_region import TrustRegion, trust_region_step
from adaptax.learning.sequences import Batch
from adaptax.networks.actor_critic import actor_critic

NUM, SIZE, MEMORY = 6, 2, 3
KEY = jax.random.key(0)
spaces = pytest.mark.parametrize("space", [Continuous(3), Discrete(3)], ids=["gauss", "choice"])


@dataclass(frozen=True)
class Says:
    """A stub of a distribution: its log-probabilities and entropy are given."""

    log_probs: np.ndarray
    bits: float

    def log_prob(self, action):
        return jnp.asarray(self.log_probs)

    def entropy(self):
        return jnp.full(len(self.log_probs), self.bits)


@dataclass(frozen=True, eq=False)
class Stub:
    """A stub of an actor-critic that says what it is given."""

    says: Says
    values: np.ndarray

    def distribution(self, params, obs, memory, reset):
        return self.says

    @property
    def value(self):
        return self

    def apply(self, params, obs, memory, reset):
        return jnp.asarray(self.values), None


def batch_of(num: int, **fields) -> Batch:
    blank = np.zeros(num, np.float32)
    names = ("obs", "action", "log_prob", "advantage", "value", "target")
    given = dict.fromkeys(names, blank) | {"valid": np.ones(num, bool)} | fields
    return Batch(**jax.tree.map(jnp.asarray, given), reset=None, memory={})


def test_a2c_loss_golden():
    stub = Stub(Says(np.array([-1.0, -2.0]), 1.5), np.array([0.0, 1.0]))
    part = batch_of(2, advantage=np.array([1.0, -1.0]), target=np.ones(2))
    loss, figures = a2c.loss(a2c.A2CConfig(), stub, {"value": None}, part)
    assert float(loss) == pytest.approx(-0.3765, abs=1e-6)
    assert float(figures["policy_loss"]) == pytest.approx(-0.5, abs=1e-6)
    assert float(figures["value_loss"]) == pytest.approx(0.25, abs=1e-6)


def test_ppo_loss_golden():
    ratio = np.array([0.5, 0.9, 1.3, 1.3])
    stub = Stub(Says(np.log(ratio), 0.0), np.zeros(4))
    part = batch_of(4, advantage=np.array([1.0, -1.0, 2.0, -2.0]))
    loss, figures = ppo.loss(0.2, stub, {}, part)
    assert float(loss) == pytest.approx(0.15, abs=1e-6)
    assert float(figures["clip_fraction"]) == 0.75
    assert float(figures["approx_kl"]) == pytest.approx(
        np.mean(ratio - 1 - np.log(ratio)), abs=1e-6
    )


@pytest.mark.parametrize(("clip_value", "value_term"), [(True, 0.41), (False, 0.3125)])
def test_ppo2_loss_golden(clip_value, value_term):
    stub = Stub(Says(np.zeros(2), 1.5), np.array([1.5, 0.0]))
    given = {"value": np.array([1.0, 0.1]), "target": np.array([2.0, -1.0])}
    part = batch_of(2, advantage=np.array([3.0, 1.0]), **given)
    config = ppo2.PPO2Config(clip_range=0.2, clip_value=clip_value)
    loss, figures = ppo2.loss(config, stub, {"value": None}, part)
    assert float(figures["value_loss"]) == pytest.approx(value_term, abs=1e-6)
    assert float(loss) == pytest.approx(-2.0 + 0.5 * value_term - 1e-3 * 1.5, abs=1e-6)


def real(space, memory_size=None, dtype=np.float32, **sizes):
    """A network, parameters, and six steps (or two sequences of three) that it acted in."""
    network = actor_critic(EnvSpec(SIZE, space, 5), sizes.get("hidden", (4,)), memory_size, 0.7)
    shapes = jax.eval_shape(lambda: network.init(KEY, SIZE))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: jnp.asarray(0.5 * rng.normal(size=x.shape), dtype), shapes)
    lead = (NUM,) if memory_size is None else (2, 3)
    numbers = [jnp.asarray(rng.normal(size=lead), dtype) for _ in range(3)]
    obs = jnp.asarray(rng.normal(size=(*lead, SIZE)), dtype)
    memory, reset = {}, None
    if memory_size is not None:
        start = jnp.asarray(rng.normal(size=(2, memory_size)), dtype)
        memory, reset = {"policy": start, "value": start}, jnp.array([[0, 0, 1], [0, 1, 0]], bool)
    old = network.distribution(params, obs, memory, reset)
    action = old.sample(KEY)
    valid = jnp.ones(lead, bool).at[-1].set(memory_size is not None)
    fields = (obs, action, old.log_prob(action), *numbers, valid)
    return network, params, Batch(*fields, reset=reset, memory=memory)


def finite_differences(f, params, eps: float = 1e-5):
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    steps = eps * jnp.eye(len(flat))
    rise = jax.lax.map(lambda d: f(unravel(flat + d)) - f(unravel(flat - d)), steps)
    return rise / (2 * eps)


@pytest.mark.parametrize(
    ("space", "memory_size"), [(Continuous(3), None), (Discrete(3), None), (Continuous(3), MEMORY)]
)
def test_a2c_gradient_equals_finite_differences(space, memory_size):
    """Policy, exploration and value, with and without memory."""
    with jax.enable_x64(True):
        network, params, part = real(space, memory_size, np.float64)

        def loss(p):
            return a2c.loss(a2c.A2CConfig(entropy_coeff=0.1), network, p, part)[0]

        flat, _ = jax.flatten_util.ravel_pytree(jax.jit(jax.grad(loss))(params))
        expected = jax.jit(lambda p: finite_differences(loss, p))(params)
        np.testing.assert_allclose(flat, expected, rtol=1e-6, atol=1e-9)
        moved = jax.tree.map(lambda x: float(jnp.abs(x).max()), jax.grad(loss)(params))
        if isinstance(space, Continuous):
            assert moved["policy"]["params"]["ActionHead_0"]["log_std"] > 1e-3
        assert min(max(jax.tree.leaves(moved[name])) for name in ("policy", "value")) > 1e-3


@spaces
def test_ppo_at_the_old_policy_is_the_policy_gradient(space):
    network, params, part = real(space)

    def plain(p):
        log_prob = network.distribution(p, part.obs, {}, None).log_prob(part.action)
        return jnp.sum(policy_gradient_loss(log_prob, part.advantage) * part.valid) / (NUM - 1)

    loss, grads = jax.value_and_grad(lambda p: ppo.loss(0.2, network, p, part)[0])(params)
    assert float(loss) == pytest.approx(-float(part.advantage[:-1].mean()), abs=1e-6)
    for a, b in zip(*map(jax.tree.leaves, (grads, jax.grad(plain)(params))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_the_ratio_of_an_update_is_joint_over_action_dimensions():
    """sigma 1, a mean shifted by (.3, -.2, .1), the action (.5, .4, -.3): 0.970446."""
    network, params, part = real(Continuous(3))
    shifted = jax.tree.map(jnp.zeros_like, params)
    old_bias = shifted["policy"]["params"]["ActionHead_0"]["Dense_0"]["bias"]
    assert old_bias.shape == (3,)
    action = jnp.tile(jnp.array([0.5, 0.4, -0.3]), (NUM, 1))
    old_log_prob = network.distribution(shifted, part.obs, {}, None).log_prob(action)
    shifted["policy"]["params"]["ActionHead_0"]["Dense_0"]["bias"] = jnp.array([0.3, -0.2, 0.1])
    given = {"action": action, "log_prob": old_log_prob, "advantage": jnp.ones(NUM)}
    loss, _ = ppo.loss(0.2, network, shifted, replace(part, **given))
    assert -float(loss) == pytest.approx(0.970446, abs=1e-6)


@spaces
def test_steps_that_are_not_valid_reach_no_gradient(space):
    network, params, part = real(space)
    assert not bool(part.valid[-1])
    noisy = replace(
        part,
        advantage=part.advantage.at[-1].set(1e6),
        target=part.target.at[-1].set(1e6),
        obs=part.obs.at[-1].set(50.0),
    )
    config = ppo2.PPO2Config()
    one, other = (
        jax.grad(lambda p, b=b: ppo2.loss(config, network, p, b)[0])(params) for b in (part, noisy)
    )
    for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


@spaces
@pytest.mark.parametrize("memory_size", [None, MEMORY])
def test_trpo_objective_at_the_old_policy(space, memory_size):
    network, params, part = real(space, memory_size)
    loss, kl = trpo.objective(network, params, part, params)
    advantage = np.asarray(part.advantage)[np.asarray(part.valid)]
    assert float(loss) == pytest.approx(-advantage.mean(), abs=1e-6)
    assert float(kl) == pytest.approx(0.0, abs=1e-6)


def test_a_trpo_step_with_linear_mean_and_fixed_std_is_at_the_bound():
    """The mean KL is exactly quadratic: the first trial step has it, and is taken (R8)."""
    with jax.enable_x64(True):
        network, params, part = real(Continuous(3), hidden=(), dtype=np.float64)
        head = params["policy"]["params"]["ActionHead_0"]
        log_std = head["log_std"]

        def objective(dense):
            fixed = {"params": {"ActionHead_0": {"Dense_0": dense, "log_std": log_std}}}
            return trpo.objective(network, params, part, {"policy": fixed})

        region = TrustRegion(max_kl_step=0.01, reg_coeff=0.0, cg_iters=30)
        close = replace(region, max_kl_step=0.01 * (1 + 1e-5))
        step = jax.jit(partial(trust_region_step, objective, settings=close))
        after, figures = step(head["Dense_0"])
        assert float(figures["line_search_tries"]) == 1.0
        assert float(objective(after)[1]) == pytest.approx(0.01, abs=1e-6)
        assert float(objective(after)[1]) <= close.max_kl_step
