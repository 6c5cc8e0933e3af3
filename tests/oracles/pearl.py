"""PEARL (Rakelly et al. 2019) with the original's value function that lags behind.

Parameters: {"encoder": mlp, "policy": mlp, "critics": {"0": mlp, "1": mlp}, "value": mlp}, of
rectified linear units. Data are of M tasks: minibatches [M, B, ...] and contexts [M, C, ...].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from oracles.adam import Adam
from oracles.mlp import Pass, backward, forward
from oracles.sac import Draw, act, averaged, lower_q, lower_q_backward

Tree = dict[str, Any]
Data = dict[str, np.ndarray]
LEAST_VARIANCE = 1e-7


@dataclass
class Learner:
    """Parameters, the value that lags behind, and an optimizer for each network."""

    params: Tree
    target: Tree
    adams: dict[str, Adam]


@dataclass(frozen=True)
class Settings:
    """What a gradient step depends on beside the data."""

    discount: float
    reward_scale: float
    kl_weight: float
    tau: float
    mean_weight: float
    std_weight: float
    unsquashed_weight: float


@dataclass(frozen=True)
class Noise:
    """Standard normal numbers: of z [M, L] and of the policy's actions [M, B, A]."""

    z: np.ndarray
    action: np.ndarray


@dataclass(frozen=True)
class Belief:
    """The product of the Gaussian factors of C tokens, for M tasks."""

    mean: np.ndarray
    """[M, L]"""
    variance: np.ndarray
    factor_mean: np.ndarray
    """[M, C, L]"""
    factor_variance: np.ndarray
    raw: np.ndarray
    """What the factors' variances are the softplus of."""
    done: Pass

    @property
    def kl(self) -> float:
        """From N(0, 1), summed over tasks and dimensions."""
        return 0.5 * np.sum(self.variance + self.mean**2 - 1 - np.log(self.variance))

    def draw(self, noise: np.ndarray) -> np.ndarray:
        """Z [M, L]."""
        return self.mean + np.sqrt(self.variance) * noise

    def backward(self, grad_z: np.ndarray, noise: np.ndarray, kl_weight: float) -> Tree:
        """Gradients of the encoder from that of z [M, L] and the weight of the KL."""
        of_mean = grad_z + kl_weight * self.mean
        of_variance = grad_z * noise / (2 * np.sqrt(self.variance))
        of_variance = of_variance + kl_weight * 0.5 * (1 - 1 / self.variance)
        # With p = 1 / variance of a factor: variance = 1 / sum p, mean = variance sum p m.
        variance, off = self.variance[:, None], self.factor_mean - self.mean[:, None]
        of_factor_mean = of_mean[:, None] * variance / self.factor_variance
        of_precision = of_mean[:, None] * variance * off - of_variance[:, None] * variance**2
        of_factor_variance = -of_precision / self.factor_variance**2
        free = self.factor_variance > LEAST_VARIANCE
        of_raw = of_factor_variance * free / (1 + np.exp(-self.raw))
        outputs = np.concatenate([of_factor_mean, of_raw], axis=-1)
        return backward(self.done, outputs.reshape(-1, outputs.shape[-1]))[0]


def infer(encoder: Tree, context: Data) -> Belief:
    """The belief of each task from the tokens (o, a, r) of its context."""
    tokens = np.concatenate(
        [context["obs"], context["action"], context["reward"][..., None]], axis=-1
    )
    outputs, done = forward(encoder, tokens.reshape(-1, tokens.shape[-1]), "relu")
    mean, raw = np.split(outputs.reshape(*tokens.shape[:2], -1), 2, axis=-1)
    factor = np.maximum(np.logaddexp(raw, 0.0), LEAST_VARIANCE)
    variance = 1 / np.sum(1 / factor, axis=1)
    return Belief(variance * np.sum(mean / factor, axis=1), variance, mean, factor, raw, done)


def rows(z: np.ndarray, *parts: np.ndarray) -> np.ndarray:
    """Network inputs [M * B, ...]: parts [M, B, F] and the z [M, L] of each row's task."""
    spread = np.broadcast_to(z[:, None], (*parts[0].shape[:2], z.shape[-1]))
    joined = np.concatenate([*parts, spread], axis=-1)
    return joined.reshape(-1, joined.shape[-1])


def value_target(value: Tree, batch: Data, z: np.ndarray, settings: Settings) -> np.ndarray:
    """R + discount (1 - terminated) V'(s', z), [M * B]; to the critics a number, z too."""
    after = forward(value, rows(z, batch["next_obs"]), "relu")[0][:, 0]
    goes_on = 1.0 - batch["terminated"].reshape(-1)
    return settings.reward_scale * batch["reward"].reshape(-1) + settings.discount * goes_on * after


def critic_loss(
    both: Tree, batch: Data, context: Data, y: np.ndarray, kl_weight: float, noise: np.ndarray
) -> tuple[float, Tree]:
    """The mean squared errors of both critics and the KL; the gradient of critics and encoder."""
    belief = infer(both["encoder"], context)
    z = belief.draw(noise)
    inputs, latent_dim = rows(z, batch["obs"], batch["action"]), z.shape[-1]
    loss, grads, grad_z = kl_weight * belief.kl, {}, np.zeros_like(z)
    for name, critic in both["critics"].items():
        q, done = forward(critic, inputs, "relu")
        error = q[:, 0] - y
        loss += np.mean(error**2)
        grads[name], of_inputs = backward(done, (2 * error / len(error))[:, None])
        grad_z += of_inputs[:, -latent_dim:].reshape(len(z), -1, latent_dim).sum(1)
    of_encoder = belief.backward(grad_z, noise, kl_weight)
    return loss, {"critics": grads, "encoder": of_encoder}


def policy_loss(
    policy: Tree, critics: Tree, batch: Data, z: np.ndarray, settings: Settings, noise: np.ndarray
) -> tuple[float, Tree, np.ndarray]:
    """E[log pi - min Q] with the regularisers, its gradient, and min Q - log pi [M * B]."""
    draw: Draw = act(policy, rows(z, batch["obs"]), noise.reshape(-1, noise.shape[-1]))
    inputs = rows(z, batch["obs"], draw.action.reshape(noise.shape))
    q = lower_q(critics, inputs)
    loss = np.mean(draw.log_prob - q)
    loss += settings.mean_weight * np.mean(draw.mean**2)
    loss += settings.std_weight * np.mean(draw.log_std**2)
    loss += settings.unsquashed_weight * np.mean(np.sum(draw.u**2, axis=-1))
    share, size = np.full(len(q), 1 / len(q)), draw.mean.size
    first = batch["obs"].shape[-1]
    of_inputs = lower_q_backward(critics, inputs, -share)
    of_action = of_inputs[:, first : first + noise.shape[-1]]
    of_u = settings.unsquashed_weight * 2 * draw.u / len(q)
    of_mean, of_log_std = draw.backward(share, of_action, of_u)
    of_mean = of_mean + settings.mean_weight * 2 * draw.mean / size
    of_log_std = of_log_std + settings.std_weight * 2 * draw.log_std / size
    return loss, draw.params_grads(of_mean, of_log_std), q - draw.log_prob


def value_loss(value: Tree, inputs: np.ndarray, target: np.ndarray) -> tuple[float, Tree]:
    """E[(V - target)^2] and its gradient."""
    out, done = forward(value, inputs, "relu")
    error = out[:, 0] - target
    return np.mean(error**2), backward(done, (2 * error / len(error))[:, None])[0]


def pearl_update(
    learner: Learner, batch: Data, context: Data, settings: Settings, noise: Noise
) -> None:
    """Critics and encoder, then policy by the new critics, then value by the old policy's draw."""
    params, adams = dict(learner.params), learner.adams
    both = {name: params[name] for name in ("critics", "encoder")}
    z = infer(params["encoder"], context).draw(noise.z)
    y = value_target(learner.target, batch, z, settings)
    _, grads = critic_loss(both, batch, context, y, settings.kl_weight, noise.z)
    for name in both:
        params[name] = adams[name].step(params[name], grads[name])
    _, of_policy, soft_value = policy_loss(
        params["policy"], params["critics"], batch, z, settings, noise.action
    )
    params["policy"] = adams["policy"].step(params["policy"], of_policy)
    _, grads = value_loss(params["value"], rows(z, batch["obs"]), soft_value)
    params["value"] = adams["value"].step(params["value"], grads)
    learner.params = params
    learner.target = averaged(learner.target, params["value"], settings.tau)
