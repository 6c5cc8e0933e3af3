"""PPO and TRPO: a value fitted by itself, then a Gaussian policy of tanh units.

Parameters: {"value": mlp, "policy": {"mean": mlp, "log_std": [A]}}. Data are lanes [L, T] with
obs, next_obs, action, reward, log_prob, terminated, truncated and valid.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from oracles import gaussian
from oracles.adam import Adam
from oracles.advantages import gae, minibatches
from oracles.mlp import backward, forward, tangent
from oracles.trees import dot, mapped, plus

Tree = dict[str, Any]


@dataclass
class Learner:
    """Parameters, and the optimizers that move them (TRPO's policy has none)."""

    params: Tree
    value_adam: Adam
    policy_adam: Adam | None = None
    seen: dict[str, Any] = field(default_factory=dict)
    """What happened in the last update, for tests that ask whether a case occurred."""


@dataclass(frozen=True)
class ValueFit:
    """How advantages are estimated and the value is fitted."""

    discount: float
    gae_lambda: float
    num_minibatches: int


def fit_value(
    learner: Learner, lanes: dict[str, np.ndarray], settings: ValueFit, orders: np.ndarray
) -> dict[str, np.ndarray]:
    """Fit the value to lambda-returns of the value before; the valid steps with advantages.

    The advantages are those before the fit, with mean 0 and standard deviation 1.
    """
    lanes = without_padding(lanes)
    value, next_value = (
        values(learner.params["value"], lanes[name]) for name in ("obs", "next_obs")
    )
    advantage = gae(lanes, value, next_value, settings.discount, settings.gae_lambda)
    flat = {name: x.reshape(-1, *x.shape[2:]) for name, x in lanes.items()}
    target, valid = (advantage + value).reshape(-1), flat["valid"]
    parts = minibatches(orders, valid, settings.num_minibatches)
    for rows in parts:
        _, grads = value_loss(learner.params["value"], flat["obs"][rows], target[rows])
        moved = learner.value_adam.step(learner.params["value"], grads)
        learner.params = {**learner.params, "value": moved}
    learner.seen = {"value_steps": len(parts)}
    own = advantage.reshape(-1)[valid]
    steps = {name: x[valid] for name, x in flat.items()}
    return {**steps, "advantage": (own - own.mean()) / (own.std() + 1e-8)}


def without_padding(lanes: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The lanes with 0 wherever they are not valid."""
    valid = lanes["valid"]
    return {
        name: np.where(valid.reshape(valid.shape + (1,) * (x.ndim - 2)), x, np.zeros_like(x))
        for name, x in lanes.items()
    }


def values(params: Tree, obs: np.ndarray) -> np.ndarray:
    """V(s) [...] of observations [..., O]."""
    return forward(params, obs.reshape(-1, obs.shape[-1]), "tanh")[0].reshape(obs.shape[:-1])


def value_loss(params: Tree, obs: np.ndarray, target: np.ndarray) -> tuple[float, Tree]:
    """E[(V - y)^2] and its gradient."""
    out, done = forward(params, obs, "tanh")
    error = out[:, 0] - target
    return np.mean(error**2), backward(done, (2 * error / len(error))[:, None])[0]


def ratio_slopes(params: Tree, part: dict[str, np.ndarray], weight: np.ndarray) -> Tree:
    """The gradient of sum_i weight_i log pi(a_i | s_i)."""
    mean, done = forward(params["mean"], part["obs"], "tanh")
    of_mean, of_log_std = gaussian.log_prob_slopes(mean, params["log_std"], part["action"])
    grads, _ = backward(done, weight[:, None] * of_mean)
    return {"mean": grads, "log_std": np.sum(weight[:, None] * of_log_std, axis=0)}


def ratio(params: Tree, part: dict[str, np.ndarray]) -> np.ndarray:
    """Pi(a | s) over what it was when the action was taken, [B]."""
    mean, _ = forward(params["mean"], part["obs"], "tanh")
    now = gaussian.log_prob(mean, params["log_std"], part["action"])
    return np.exp(now - part["log_prob"])


def clipped_loss(
    params: Tree, part: dict[str, np.ndarray], clip_range: float
) -> tuple[float, Tree]:
    """-E[min(rho A, clip(rho, 1 - c, 1 + c) A)] (Schulman et al. 2017, eq. 7), its gradient."""
    rho, advantage = ratio(params, part), part["advantage"]
    terms = np.minimum(rho * advantage, np.clip(rho, 1 - clip_range, 1 + clip_range) * advantage)
    free = np.where(advantage >= 0, rho < 1 + clip_range, rho > 1 - clip_range)
    return -terms.mean(), ratio_slopes(params, part, -(rho * advantage) * free / len(rho))


def ppo_update(
    learner: Learner,
    lanes: dict[str, np.ndarray],
    settings: ValueFit,
    clip_range: float,
    num_minibatches: int,
    orders: tuple[np.ndarray, np.ndarray],
) -> None:
    """The value's passes, then the policy's; `orders` [P, n] are those of each."""
    steps = fit_value(learner, lanes, settings, orders[0])
    valid = lanes["valid"].reshape(-1)
    place = np.cumsum(valid) - 1  # of an entry among the valid ones
    parts, clipped = minibatches(orders[1], valid, num_minibatches), []
    for rows in parts:
        part = {name: x[place[rows]] for name, x in steps.items()}
        clipped.append(np.abs(ratio(learner.params["policy"], part) - 1) > clip_range)
        _, grads = clipped_loss(learner.params["policy"], part, clip_range)
        moved = learner.policy_adam.step(learner.params["policy"], grads)
        learner.params = {**learner.params, "policy": moved}
    learner.seen |= {"policy_steps": len(parts), "clipped": np.concatenate(clipped).mean()}


@dataclass(frozen=True)
class TrustRegion:
    """How far TRPO's policy may go, and how its step is found."""

    max_kl: float
    cg_iterations: int
    damping: float
    backtrack_ratio: float
    max_backtracks: int


def surrogate_loss(params: Tree, steps: dict[str, np.ndarray]) -> tuple[float, Tree]:
    """-E[rho A] and its gradient (Schulman et al. 2015, eq. 14)."""
    rho, advantage = ratio(params, steps), steps["advantage"]
    return -np.mean(rho * advantage), ratio_slopes(params, steps, -rho * advantage / len(rho))


def mean_kl(old: Tree, new: Tree, obs: np.ndarray) -> float:
    """E_s[KL(old || new)]."""
    before, after = (forward(p["mean"], obs, "tanh")[0] for p in (old, new))
    return gaussian.kl(before, old["log_std"], after, new["log_std"]).mean()


def fisher_product(params: Tree, obs: np.ndarray, v: Tree) -> Tree:
    """F v with F = E[J^T M J]: J of (mean, log_std), M = diag(1 / std^2, 2) (appendix C)."""
    mean, done = forward(params["mean"], obs, "tanh")
    curved = tangent(done, v["mean"]) * np.exp(-2 * params["log_std"]) / len(mean)
    return {"mean": backward(done, curved)[0], "log_std": 2.0 * v["log_std"]}


def conjugate_gradients(product: Any, b: Tree, iterations: int) -> Tree:
    """The x with A x = b, after so many iterations (Hestenes and Stiefel 1952)."""
    x, residual, direction = mapped(np.zeros_like, b), b, b
    square = dot(residual, residual)
    for _ in range(iterations):
        if square < 1e-10:
            break
        image = product(direction)
        step = square / dot(direction, image)
        x, residual = plus(x, direction, step), plus(residual, image, -step)
        previous, square = square, dot(residual, residual)
        direction = plus(residual, direction, square / previous)
    return x


def trpo_update(
    learner: Learner,
    lanes: dict[str, np.ndarray],
    settings: ValueFit,
    region: TrustRegion,
    orders: np.ndarray,
) -> None:
    """The value's passes, then one step of the policy on all steps."""
    steps = fit_value(learner, lanes, settings, orders)
    old = learner.params["policy"]
    before, gradient = surrogate_loss(old, steps)

    def product(v: Tree) -> Tree:
        return plus(fisher_product(old, steps["obs"], v), v, region.damping)

    x = conjugate_gradients(product, gradient, region.cg_iterations)
    full = np.sqrt(2 * region.max_kl / dot(x, product(x)))
    for k in range(region.max_backtracks):
        new = plus(old, x, -full * region.backtrack_ratio**k)
        lower = surrogate_loss(new, steps)[0] < before
        if lower and mean_kl(old, new, steps["obs"]) <= region.max_kl:
            learner.params = {**learner.params, "policy": new}
            learner.seen["tries"] = k + 1
            return
    learner.seen["tries"] = None
