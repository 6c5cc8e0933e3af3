"""Losses of A2C, PPO, PPO2 and TRPO: golden values, and gradients against finite differences."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.algorithms.on_policy import a2c, ppo, ppo2, trpo
from adaptax.core.spec import Continuous, Discrete
from adaptax.functional.policy_losses import policy_gradient_loss
from adaptax.functional.trust_region import TrustRegion
from adaptax.learning.sequences import Batch
from adaptax.networks.actor_critic import ActorCritic, init_params, part_of
from adaptax.networks.memory import MEMORIES, MemoryConfig

NUM, SIZE, MEMORY = 6, 2, 8
KEY = jax.random.key(0)
OTHER_MEMORIES = tuple(kind for kind in MEMORIES if kind not in ("none", "gru"))
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

    def initial(self, lanes):
        return ()

    def apply(self, params, memory, obs, reset=None):
        return memory, (self.says, jnp.asarray(self.values))


def batch_of(num: int, **fields) -> Batch:
    blank = np.zeros(num, np.float32)
    names = ("obs", "action", "log_prob", "advantage", "value", "target")
    given = dict.fromkeys(names, blank) | {"valid": np.ones(num, bool)} | fields
    return Batch(**jax.tree.map(jnp.asarray, given), reset=None, memory=())


def test_a2c_loss_golden():
    stub = Stub(Says(np.array([-1.0, -2.0]), 1.5), np.array([0.0, 1.0]))
    part = batch_of(2, advantage=np.array([1.0, -1.0]), target=np.ones(2))
    loss, figures = a2c.loss(a2c.A2CConfig(), stub, {}, part)
    assert float(loss) == pytest.approx(-0.3765, abs=1e-6)
    assert float(figures["policy_loss"]) == pytest.approx(-0.5, abs=1e-6)
    assert float(figures["value_loss"]) == pytest.approx(0.25, abs=1e-6)


def test_ppo_loss_golden():
    ratio = np.array([0.5, 0.9, 1.3, 1.3])
    part = batch_of(4, advantage=np.array([1.0, -1.0, 2.0, -2.0]))
    loss, figures = ppo.loss(0.2, Says(np.log(ratio), 0.0), part)
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
    loss, figures = ppo2.loss(config, stub, 1e-3, {}, part)
    assert float(figures["value_loss"]) == pytest.approx(value_term, abs=1e-6)
    assert float(loss) == pytest.approx(-2.0 + 0.5 * value_term - 1e-3 * 1.5, abs=1e-6)


def real(space, kind="none", dtype=np.float32, hidden=(4,)):
    """A network, parameters, and six steps (or two sequences of three) that it acted in."""
    network = ActorCritic(space, hidden, MemoryConfig(kind, MEMORY).make(5), 0.7)
    shapes = jax.eval_shape(lambda: init_params(network, KEY, SIZE))
    rng = np.random.default_rng(0)

    def numbers(*shape):
        return jnp.asarray(rng.normal(size=shape), dtype)

    params = jax.tree.map(lambda x: 0.5 * numbers(*x.shape), shapes)
    lead = (NUM,) if kind == "none" else (2, 3)
    advantage, value, target = (numbers(*lead) for _ in range(3))
    memory, reset = (), None
    if kind != "none":
        start = network.initial((2,))
        memory = jax.tree.map(lambda x: jnp.asarray(abs(numbers(*x.shape)), x.dtype), start)
        reset = jnp.array([[0, 0, 1], [0, 1, 0]], bool)
    valid = jnp.ones(lead, bool).at[-1].set(kind != "none")
    obs, blank = numbers(*lead, SIZE), jnp.zeros(lead, dtype)
    part = Batch(obs, None, blank, advantage, value, target, valid, reset=reset, memory=memory)
    acted, _ = part.outputs(network, params)
    action = acted.sample(KEY)
    return network, params, replace(part, action=action, log_prob=acted.log_prob(action))


def ppo_loss(network, params, part):
    """PPO's on what the network says."""
    return ppo.loss(0.2, part.outputs(network, params)[0], part)[0]


def finite_differences(f, params, eps: float = 1e-5):
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    steps = eps * jnp.eye(len(flat))
    rise = jax.lax.map(lambda d: f(unravel(flat + d)) - f(unravel(flat - d)), steps)
    return rise / (2 * eps)


@pytest.mark.parametrize(
    ("space", "kind"),
    [
        (Continuous(3), "none"),
        (Discrete(3), "none"),
        (Continuous(3), "gru"),
        *(pytest.param(Continuous(3), kind, marks=pytest.mark.slow) for kind in OTHER_MEMORIES),
    ],
)
def test_a2c_gradient_equals_finite_differences(space, kind):
    """Policy, exploration and value, with and without memory."""
    with jax.enable_x64(True):
        network, params, part = real(space, kind, np.float64)

        def loss(p):
            return a2c.loss(a2c.A2CConfig(entropy_coeff=0.1), network, p, part)[0]

        grads = jax.jit(jax.grad(loss))(params)
        flat, _ = jax.flatten_util.ravel_pytree(grads)
        expected = jax.jit(lambda p: finite_differences(loss, p))(params)
        np.testing.assert_allclose(flat, expected, rtol=1e-6, atol=1e-9)
        moved = jax.tree.map(lambda x: float(jnp.abs(x).max()), grads)
        if isinstance(space, Continuous):
            assert moved["params"]["policy"]["head"]["log_std"] > 1e-3
        parts = (part_of(moved, name) for name in ("policy", "value"))
        assert min(max(jax.tree.leaves(own)) for own in parts) > 1e-3


@spaces
def test_ppo_at_the_old_policy_is_the_policy_gradient(space):
    network, params, part = real(space)

    def plain(p):
        log_prob = part.outputs(network, p)[0].log_prob(part.action)
        return jnp.sum(policy_gradient_loss(log_prob, part.advantage) * part.valid) / (NUM - 1)

    loss, grads = jax.value_and_grad(lambda p: ppo_loss(network, p, part))(params)
    assert float(loss) == pytest.approx(-float(part.advantage[:-1].mean()), abs=1e-6)
    for a, b in zip(*map(jax.tree.leaves, (grads, jax.grad(plain)(params))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_the_ratio_of_an_update_is_joint_over_action_dimensions():
    """sigma 1, a mean shifted by (.3, -.2, .1), the action (.5, .4, -.3): 0.970446."""
    network, params, part = real(Continuous(3))
    shifted = jax.tree.map(jnp.zeros_like, params)
    last = shifted["params"]["policy"]["head"]["Dense_0"]
    assert last["bias"].shape == (3,)
    action = jnp.tile(jnp.array([0.5, 0.4, -0.3]), (NUM, 1))
    old_log_prob = part.outputs(network, shifted)[0].log_prob(action)
    last["bias"] = jnp.array([0.3, -0.2, 0.1])
    given = {"action": action, "log_prob": old_log_prob, "advantage": jnp.ones(NUM)}
    loss = ppo_loss(network, shifted, replace(part, **given))
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
        jax.grad(lambda p, b=b: ppo2.loss(config, network, 1e-3, p, b)[0])(params)
        for b in (part, noisy)
    )
    for a, b in zip(*map(jax.tree.leaves, (one, other)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


@spaces
@pytest.mark.parametrize(
    "kind",
    ["none", "gru", *(pytest.param(kind, marks=pytest.mark.slow) for kind in OTHER_MEMORIES)],
)
def test_a_trpo_step_lowers_the_loss_within_the_bound_and_leaves_the_value(space, kind):
    network, params, part = real(space, kind)
    region = TrustRegion(max_kl_step=0.01)
    after, figures = jax.jit(lambda p: trpo.policy_step(region, network, p, part))(params)
    advantage = np.asarray(part.advantage)[np.asarray(part.valid)]
    assert float(figures["loss_before"]) == pytest.approx(-advantage.mean(), abs=1e-6)
    (old, _), (new, _) = (part.outputs(network, p) for p in (params, after))
    kl = np.mean(np.asarray(old.kl(new))[np.asarray(part.valid)])
    ratio = np.exp(new.log_prob(part.action) - part.log_prob)
    loss = -float(np.mean((ratio * part.advantage)[np.asarray(part.valid)]))
    assert float(figures["loss_after"]) == pytest.approx(loss, abs=1e-5)
    assert loss < -advantage.mean() - 1e-3
    # A transformer's KL is far from quadratic here: the eighth trial step is the first within it.
    least = 5e-4 if kind == "transformer" else 1e-3
    assert least < kl <= 0.01 * (1 + 1e-4)
    for a, b in zip(*(jax.tree.leaves(part_of(p, "value")) for p in (params, after)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_trpo_step_without_advantages_raises_the_entropy():
    network, params, part = real(Continuous(3), "none")
    part = replace(part, advantage=jnp.zeros_like(part.advantage))
    region = TrustRegion(max_kl_step=0.01)
    after, _ = jax.jit(lambda p: trpo.policy_step(region, network, p, part, 0.5))(params)
    old, new = (part.outputs(network, p)[0].entropy() for p in (params, after))
    assert np.all(new > old + 0.01)


def test_a_trpo_step_of_one_linear_layer_is_at_the_bound():
    """With the std left as it is the mean KL is quadratic: the first trial step has it."""
    with jax.enable_x64(True):
        network, params, part = real(Continuous(3), hidden=(), dtype=np.float64)
        # At a std below the floor its gradient is zero, and the mean alone can move.
        head = params["params"]["policy"]["head"]
        head["log_std"] = jnp.full(3, -50.0)
        mean = part.outputs(network, params)[0].mean
        part = replace(part, action=mean + 1e-3 * part.action)
        acted, _ = part.outputs(network, params)
        part = replace(part, log_prob=acted.log_prob(part.action))
        region = TrustRegion(max_kl_step=0.01 * (1 + 1e-5), reg_coeff=0.0, cg_iters=30)
        after, figures = jax.jit(lambda p: trpo.policy_step(region, network, p, part))(params)
        assert float(figures["line_search_tries"]) == 1.0
        kl = acted.kl(part.outputs(network, after)[0])
        mean_kl = float(jnp.sum(kl * part.valid) / jnp.sum(part.valid))
        assert mean_kl == pytest.approx(0.01, abs=1e-6)
        assert mean_kl <= region.max_kl_step
