"""SAC (Haarnoja et al. 2018b): twin critics, a squashed Gaussian, a learned temperature.

Parameters: {"policy": mlp, "critics": {"0": mlp, "1": mlp}, "log_alpha": []}, of rectified linear
units; the policy's outputs are mean and log_std side by side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from oracles import gaussian
from oracles.adam import Adam
from oracles.mlp import Pass, backward, forward
from oracles.trees import mapped

Tree = dict[str, Any]
LOWEST, HIGHEST = -20.0, 2.0
"""Bounds on log_std."""


@dataclass
class Learner:
    """Parameters, the critics that lag behind, and an optimizer for each network."""

    params: Tree
    target: Tree
    adams: dict[str, Adam]
    num_updates: int = 0


@dataclass(frozen=True)
class Settings:
    """What a gradient step depends on beside the data."""

    discount: float
    reward_scale: float
    target_entropy: float
    tau: float
    """Weight of the new critics in those that lag behind."""
    target_interval: int


@dataclass(frozen=True)
class Draw:
    """An action of the policy for every row of inputs, as a function of its noise."""

    raw: np.ndarray
    """The network's log_std before its bounds, [B, A]."""
    mean: np.ndarray
    log_std: np.ndarray
    noise: np.ndarray
    u: np.ndarray
    action: np.ndarray
    log_prob: np.ndarray
    done: Pass

    def backward(
        self, grad_log_prob: np.ndarray, grad_action: np.ndarray, grad_u: Any = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Gradients of mean and log_std [B, A] from those of what was drawn."""
        grads = (np.zeros_like(self.u) + grad_u, grad_action, grad_log_prob)
        return gaussian.squashed_draw_backward(self.log_std, self.noise, self.u, grads)

    def params_grads(self, grad_mean: np.ndarray, grad_log_std: np.ndarray) -> Tree:
        """Gradients of parameters; where log_std is at a bound nothing reaches them."""
        inside = (self.raw > LOWEST) & (self.raw < HIGHEST)
        outputs = np.concatenate([grad_mean, grad_log_std * inside], axis=-1)
        return backward(self.done, outputs)[0]


def act(policy: Tree, inputs: np.ndarray, noise: np.ndarray) -> Draw:
    """An action for every row."""
    outputs, done = forward(policy, inputs, "relu")
    mean, raw = np.split(outputs, 2, axis=-1)
    log_std = np.clip(raw, LOWEST, HIGHEST)
    return Draw(raw, mean, log_std, noise, *gaussian.squashed_draw(mean, log_std, noise), done)


def lower_q(critics: Tree, inputs: np.ndarray) -> np.ndarray:
    """The lower of both critics, [B]."""
    return np.minimum(*(forward(critics[k], inputs, "relu")[0][:, 0] for k in ("0", "1")))


def lower_q_backward(critics: Tree, inputs: np.ndarray, grad: np.ndarray) -> np.ndarray:
    """The gradient of inputs from that of the lower critic [B]."""
    (q0, done0), (q1, done1) = (forward(critics[k], inputs, "relu") for k in ("0", "1"))
    first = q0[:, 0] < q1[:, 0]
    return (
        backward(done0, (grad * first)[:, None])[1] + backward(done1, (grad * ~first)[:, None])[1]
    )


def critic_loss(critics: Tree, inputs: np.ndarray, target: np.ndarray) -> tuple[float, Tree]:
    """Half the mean squared error, of both critics together, and its gradient (eq. 5)."""
    loss, grads = 0.0, {}
    for name, critic in critics.items():
        q, done = forward(critic, inputs, "relu")
        error = q[:, 0] - target
        loss += 0.5 * np.mean(error**2)
        grads[name], _ = backward(done, (error / len(error))[:, None])
    return loss, grads


def policy_loss(
    policy: Tree, critics: Tree, obs: np.ndarray, noise: np.ndarray, alpha: float
) -> tuple[float, Tree, Draw]:
    """E[alpha log pi - min Q], its gradient, and the actions drawn (eq. 9)."""
    draw = act(policy, obs, noise)
    inputs = np.concatenate([obs, draw.action], axis=-1)
    loss = np.mean(alpha * draw.log_prob - lower_q(critics, inputs))
    share = np.full(len(obs), 1 / len(obs))
    grad_action = lower_q_backward(critics, inputs, -share)[:, obs.shape[-1] :]
    return loss, draw.params_grads(*draw.backward(alpha * share, grad_action)), draw


def soft_target(
    learner: Learner, batch: dict[str, np.ndarray], settings: Settings, noise: np.ndarray
) -> np.ndarray:
    """R + discount (1 - terminated) (min Q'(s', a') - alpha log pi(a' | s')), [B]."""
    after = act(learner.params["policy"], batch["next_obs"], noise)
    inputs = np.concatenate([batch["next_obs"], after.action], axis=-1)
    value = lower_q(learner.target, inputs) - np.exp(learner.params["log_alpha"]) * after.log_prob
    goes_on = 1.0 - batch["terminated"]
    return settings.reward_scale * batch["reward"] + settings.discount * goes_on * value


def sac_update(
    learner: Learner,
    batch: dict[str, np.ndarray],
    settings: Settings,
    noise: tuple[np.ndarray, np.ndarray],
) -> Draw:
    """Critics, then policy by the new critics, then temperature; its noise for s', then for s."""
    params, adams = dict(learner.params), learner.adams
    alpha = np.exp(params["log_alpha"])
    target = soft_target(learner, batch, settings, noise[0])
    inputs = np.concatenate([batch["obs"], batch["action"]], axis=-1)
    _, grads = critic_loss(params["critics"], inputs, target)
    params["critics"] = adams["critics"].step(params["critics"], grads)
    _, grads, draw = policy_loss(params["policy"], params["critics"], batch["obs"], noise[1], alpha)
    params["policy"] = adams["policy"].step(params["policy"], grads)
    slope = -np.mean(draw.log_prob + settings.target_entropy)
    params["log_alpha"] = adams["log_alpha"].step(params["log_alpha"], slope)
    learner.params, learner.num_updates = params, learner.num_updates + 1
    if learner.num_updates % settings.target_interval == 0:
        learner.target = averaged(learner.target, params["critics"], settings.tau)
    return draw


def averaged(target: Tree, online: Tree, tau: float) -> Tree:
    """(1 - tau) of the old and tau of the new."""
    return mapped(lambda old, new: (1 - tau) * old + tau * new, target, online)
