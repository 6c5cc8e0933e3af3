"""The gradients written by hand, against central differences of the losses beside them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from oracles import gaussian, on_policy, pearl, sac
from oracles.adam import Adam
from oracles.advantages import gae, minibatches
from oracles.mlp import backward, forward
from oracles.trees import dot, leaves, mapped, plus

RNG = np.random.default_rng(0)


def network(*sizes: int) -> dict[str, np.ndarray]:
    """An MLP with random weights and biases."""
    params = {}
    for i, (inputs, outputs) in enumerate(pairwise(sizes)):
        params[f"w{i}"] = RNG.normal(size=(inputs, outputs))
        params[f"b{i}"] = RNG.normal(size=outputs)
    return params


def check(f, params, grads, eps: float = 1e-6):
    """Every entry of `grads` against f(params +- eps)."""
    largest = max(np.max(np.abs(g)) for _, g in leaves(grads))
    for path, grad in leaves(grads):
        for index in np.ndindex(grad.shape):
            rise = []
            for sign in (1, -1):
                moved = mapped(np.array, params)
                dict(leaves(moved))[path][index] += sign * eps
                rise.append(f(moved))
            slope = (rise[0] - rise[1]) / (2 * eps)
            assert slope == pytest.approx(grad[index], rel=1e-5, abs=1e-7 * largest), (path, index)


def steps(num: int = 12) -> dict[str, np.ndarray]:
    """Made-up steps of a policy of two dimensions that sees three numbers."""
    return {
        "obs": RNG.normal(size=(num, 3)),
        "action": RNG.normal(size=(num, 2)),
        "advantage": RNG.normal(size=num),
    }


@pytest.mark.parametrize("kind", ["tanh", "relu"])
def test_a_network_with_two_hidden_layers(kind):
    params, x, weight = network(3, 5, 4, 2), RNG.normal(size=(6, 3)), RNG.normal(size=(6, 2))
    grads, of_x = backward(forward(params, x, kind)[1], weight)
    check(lambda p: np.sum(weight * forward(p, x, kind)[0]), params, grads)
    check(lambda t: np.sum(weight * forward(params, t["x"], kind)[0]), {"x": x}, {"x": of_x})


def test_the_value_and_the_surrogates():
    policy, part = {"mean": network(3, 4, 2), "log_std": np.array([-0.3, 0.2])}, steps()
    mean, _ = forward(policy["mean"], part["obs"], "tanh")
    old = gaussian.log_prob(mean, policy["log_std"], part["action"])
    part["log_prob"] = old + 0.3 * RNG.normal(size=12)
    rho, value = on_policy.ratio(policy, part), network(3, 4, 1)
    assert 0 < np.mean(np.abs(rho - 1) > 0.2) < 1
    for loss in (
        lambda p: on_policy.clipped_loss(p, part, 0.2),
        lambda p: on_policy.surrogate_loss(p, part),
    ):
        check(lambda p, loss=loss: loss(p)[0], policy, loss(policy)[1])
    grads = on_policy.value_loss(value, part["obs"], part["advantage"])[1]
    check(lambda p: on_policy.value_loss(p, part["obs"], part["advantage"])[0], value, grads)


def test_the_fisher_product_is_that_of_the_kls_second_derivative():
    policy = {"mean": network(3, 5, 4, 2), "log_std": np.array([-0.3, 0.2])}
    obs = steps()["obs"]
    v = mapped(lambda x: RNG.normal(size=x.shape), policy)
    other = mapped(lambda x: RNG.normal(size=x.shape), policy)
    eps = 1e-4

    def kl(a: float, b: float) -> float:
        return on_policy.mean_kl(policy, plus(plus(policy, v, a * eps), other, b * eps), obs)

    second = (kl(1, 1) - kl(1, -1) - kl(-1, 1) + kl(-1, -1)) / (4 * eps**2)
    product = on_policy.fisher_product(policy, obs, v)
    assert dot(other, product) == pytest.approx(second, rel=1e-5)


def test_conjugate_gradients_solve():
    root = RNG.normal(size=(6, 6))
    matrix, b = root @ root.T + np.eye(6), RNG.normal(size=6)
    x = on_policy.conjugate_gradients(lambda v: {"v": matrix @ v["v"]}, {"v": b}, 20)["v"]
    np.testing.assert_allclose(x, np.linalg.solve(matrix, b), rtol=1e-4)


def test_sacs_losses():
    critics = {"0": network(5, 6, 1), "1": network(5, 6, 1)}
    policy, part, noise = network(3, 6, 4), steps(), RNG.normal(size=(12, 2))
    policy["b1"] += np.array([0, 0, 0, 2.0])
    _, grads, draw = sac.policy_loss(policy, critics, part["obs"], noise, 0.3)
    assert 0 < np.mean(draw.raw > sac.HIGHEST) < 0.5
    check(lambda p: sac.policy_loss(p, critics, part["obs"], noise, 0.3)[0], policy, grads)
    inputs = np.concatenate([part["obs"], part["action"]], -1)
    grads = sac.critic_loss(critics, inputs, part["advantage"])[1]
    check(lambda p: sac.critic_loss(p, inputs, part["advantage"])[0], critics, grads)


def test_the_squashed_density_integrates_to_one():
    mean, log_std = np.full((4001, 1), 0.4), np.full((4001, 1), -0.2)
    noise = np.linspace(-8, 8, 4001)[:, None]
    _, action, log_prob = gaussian.squashed_draw(mean, log_std, noise)
    assert np.trapezoid(np.exp(log_prob), action[:, 0]) == pytest.approx(1.0, rel=1e-4)


def test_pearls_losses():
    def normal(*shape):
        return RNG.normal(size=(2, *shape))

    names = {"obs": 3, "next_obs": 3, "action": 2}
    batch = {name: normal(4, size) for name, size in names.items()}
    context = {name: normal(3, size) for name, size in names.items()} | {"reward": normal(3)}
    critics = {"0": network(7, 5, 1), "1": network(7, 5, 1)}
    both = {"critics": critics, "encoder": network(6, 5, 4)}
    y, z_noise, noise = RNG.normal(size=8), normal(2), normal(4, 2)
    _, grads = pearl.critic_loss(both, batch, context, y, 0.3, z_noise)
    check(lambda p: pearl.critic_loss(p, batch, context, y, 0.3, z_noise)[0], both, grads)

    settings = pearl.Settings(0.9, 1.0, 0.3, 0.1, 0.2, 0.3, 0.1)
    policy, z = network(5, 6, 4), normal(2)
    _, grads, _ = pearl.policy_loss(policy, critics, batch, z, settings, noise)
    check(lambda p: pearl.policy_loss(p, critics, batch, z, settings, noise)[0], policy, grads)
    value, inputs = network(5, 5, 1), pearl.rows(z, batch["obs"])
    grads = pearl.value_loss(value, inputs, y)[1]
    check(lambda p: pearl.value_loss(p, inputs, y)[0], value, grads)


def test_a_belief_is_the_product_of_its_factors():
    """The density at many points, multiplied and normalised numerically."""
    encoder = network(3, 5, 2)
    context = {"obs": RNG.normal(size=(1, 3, 1)), "action": RNG.normal(size=(1, 3, 1))}
    belief = pearl.infer(encoder, context | {"reward": RNG.normal(size=(1, 3))})
    z = np.linspace(-20, 20, 200_001)
    factors = zip(belief.factor_mean[0, :, 0], belief.factor_variance[0, :, 0], strict=True)
    density = np.exp(sum(-0.5 * (z - m) ** 2 / v for m, v in factors))
    density /= density.sum()
    mean = np.sum(density * z)
    assert belief.mean[0, 0] == pytest.approx(mean, rel=1e-5)
    assert belief.variance[0, 0] == pytest.approx(np.sum(density * (z - mean) ** 2), rel=1e-4)


def test_advantages_are_sums_of_later_surprises():
    """An episode that is cut, one that ends, one that goes on; then padding."""
    no = np.zeros((1, 7), bool)
    truncated, terminated, valid = no.copy(), no.copy(), ~no
    truncated[0, 1], terminated[0, 3], valid[0, 6] = True, True, False
    reward, value, after = RNG.normal(size=(3, 1, 7))
    ends = {"terminated": terminated, "truncated": truncated, "valid": valid}
    advantage = gae({"reward": reward, **ends}, value, after, 0.9, 0.8)[0]
    surprise = (reward + 0.9 * np.where(terminated, 0.0, after) - value)[0]
    for first, last in ((0, 1), (2, 3), (4, 5)):
        for t in range(first, last + 1):
            sums = [0.72 ** (k - t) * surprise[k] for k in range(t, last + 1)]
            assert advantage[t] == pytest.approx(sum(sums))
    assert advantage[6] == 0.0


def test_a_pass_takes_every_valid_entry_once():
    valid = np.array([1, 0, 1, 1, 0, 1, 1], bool)
    orders = np.array([[6, 1, 0, 2, 4, 3, 5], [0, 1, 2, 3, 4, 5, 6]])
    parts = [rows.tolist() for rows in minibatches(orders, valid, 4)]
    assert parts == [[6, 0], [2, 3], [5], [0, 2], [3, 5], [6]]


def test_adam_by_hand():
    """Two steps of a bounded gradient of norm 5, then one within the bound."""
    adam, x = Adam(0.1, 1e-5, max_norm=1.0), {"x": np.zeros(2)}
    for _ in range(2):
        x = adam.step(x, {"x": np.array([3.0, -4.0])})
    moved = [-0.2 * 0.6 / (0.6 + 1e-5), 0.2 * 0.8 / (0.8 + 1e-5)]
    np.testing.assert_allclose(x["x"], moved, rtol=1e-12)
    adam.step(x, {"x": np.array([0.1, 0.0])})
    np.testing.assert_allclose(adam.first["x"][0], 0.9 * 0.6 * (1 - 0.81) + 0.01, rtol=1e-12)
    assert adam.num_clipped == 2
