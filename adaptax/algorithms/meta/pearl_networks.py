"""PEARL's settings, and the networks that they say: what acts, what judges, what infers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from adaptax.core.config import check_positive, check_unit
from adaptax.core.errors import check
from adaptax.core.experience import PyTree, Rollout, Transitions
from adaptax.core.spec import EnvSpec
from adaptax.functional.belief import Belief, prior
from adaptax.learning.minibatches import ADAM
from adaptax.networks.critics import ensemble
from adaptax.networks.encoders import ContextEncoder, LatentPolicy, LatentValue
from adaptax.sampling.latent import context_tokens


@dataclass(frozen=True)
class PEARLConfig:
    """PEARL; defaults are the authors' for half-cheetah-vel where no other source is named."""

    num_train_tasks: int = 100
    """Tasks trained on, drawn once, each with a replay of its own; all where a suite has fewer."""
    num_tasks_sample: int = 5
    """Tasks visited an iteration, to collect steps side by side."""
    num_initial_steps: int = 2000
    """Environment steps on every task before the first visit. Steps are those of whole episodes:
    these numbers are minima."""
    num_prior_steps: int = 400
    """Environment steps of a visit on a z of the prior, for context and replay."""
    num_posterior_steps: int = 0
    """Environment steps of a visit on a z inferred, for context and replay."""
    num_extra_posterior_steps: int = 600
    """Environment steps of a visit on a z inferred, for replay only."""
    update_post_train: int = 1
    """Episodes on an inferred z before it is inferred again; the first ones are on the prior's."""
    num_updates: int = 2000
    """Gradient steps an iteration (the originals' `num_steps_per_epoch`)."""
    meta_batch_size: int = 16
    """Tasks of a gradient step."""
    batch_size: int = 256
    """Transitions of each task to learn policy and values from."""
    context_size: int = 100
    """Transitions of each task to infer z from."""
    context_minibatch_size: int | None = None
    """Transitions of the parts that these are split into, with a gradient step for each; None:
    they are not."""
    buffer_size: int = 50_000
    """Transitions kept of each task; the published run ends with half as many."""
    latent_size: int = 5
    """L, the dimensions of z."""
    hidden_sizes: tuple[int, ...] = (300, 300, 300)
    """Hidden layers of policy and values."""
    encoder_hidden_sizes: tuple[int, ...] = (200, 200, 200)
    information_bottleneck: bool = True
    """Whether z is drawn from a belief kept near the prior, or is the mean of what tokens say."""
    kl_coeff: float = 0.1
    """Weight of the belief's KL from the prior."""
    kl_reduction: Literal["sum", "mean"] = "sum"
    """Over the tasks of a gradient step; the critics' loss is a mean, so that with `sum` the
    bottleneck tightens as `meta_batch_size` grows."""
    next_obs_in_context: bool = False
    """Whether z is inferred from (o, a, r, o'), or from (o, a, r)."""
    critic: Literal["twin_target", "value"] = "twin_target"
    """What a target is made of: the lower of two lagging critics and a temperature (as SAC does
    since 2018b), or a lagging value function (the original's)."""
    init_temperature: float = 1.0
    """Temperature alpha at the start, with `twin_target`; with `value` it is 1."""
    learn_temperature: bool = True
    """Whether `twin_target` learns alpha."""
    target_entropy: float | None = None
    """Entropy in nats that alpha is learned for; None: minus the number of action dimensions."""
    discount: float = 0.99
    reward_scale: float = 5.0
    """Factor on rewards where policy and values learn from them; z is inferred without it."""
    tau: float = 0.005
    """Weight of the new values in what lags behind."""
    policy_lr: float = 3e-4
    """Step size of Adam, for the temperature too."""
    critic_lr: float = 3e-4
    value_lr: float = 3e-4
    encoder_lr: float = 3e-4
    """Step size of Adam for the encoder."""
    policy_mean_reg_coeff: float = 1e-3
    """Weight of the mean square of the policy's mean before tanh."""
    policy_std_reg_coeff: float = 1e-3
    """Weight of the mean square of the policy's log standard deviation."""
    policy_pre_activation_coeff: float = 0.0
    """Weight of the squared norm of actions before tanh."""

    def __post_init__(self) -> None:
        check_positive(self, "num_train_tasks", "num_tasks_sample", "num_initial_steps")
        check_positive(self, "update_post_train", "num_updates", "meta_batch_size", "batch_size")
        check_positive(self, "context_size", "context_minibatch_size", "latent_size")
        check_positive(self, "buffer_size", "hidden_sizes", "encoder_hidden_sizes")
        check_positive(
            self, "init_temperature", "reward_scale", "policy_lr", "critic_lr", "value_lr"
        )
        check_positive(self, "encoder_lr", "tau")
        check_unit(self, "discount", "tau")
        for name in _NOT_NEGATIVE:
            value = getattr(self, name)
            check(value >= 0, f"{name} must not be negative, not {value}")
        check(
            self.num_tasks_sample <= self.num_train_tasks,
            f"num_tasks_sample {self.num_tasks_sample} must not exceed "
            f"num_train_tasks {self.num_train_tasks}: an iteration visits a task once",
        )
        check(
            self.context_size % self.mini_context == 0,
            f"context_size {self.context_size} must be a multiple of "
            f"context_minibatch_size {self.mini_context}",
        )
        for name in ("hidden_sizes", "encoder_hidden_sizes"):
            check(len(getattr(self, name)) > 0, f"{name} must name at least one layer")
        check(
            self.num_prior_steps + self.num_posterior_steps + self.num_extra_posterior_steps > 0,
            "num_prior_steps, num_posterior_steps and num_extra_posterior_steps are all 0: "
            "one must be greater, or nothing is ever collected",
        )

    @property
    def mini_context(self) -> int:
        """Transitions that a gradient step infers z from."""
        return self.context_minibatch_size or self.context_size


_NOT_NEGATIVE = (
    "num_prior_steps",
    "num_posterior_steps",
    "num_extra_posterior_steps",
    "kl_coeff",
    "policy_mean_reg_coeff",
    "policy_std_reg_coeff",
    "policy_pre_activation_coeff",
)


@dataclass(frozen=True)
class Networks:
    """Of a config and an environment; hashable, so that compiled functions can take it."""

    config: PEARLConfig
    spec: EnvSpec

    @property
    def encoder(self) -> nn.Module:
        """(tokens [..., C, F], valid [..., C]) -> belief [..., L]."""
        config = self.config
        sizes, bottleneck = config.encoder_hidden_sizes, config.information_bottleneck
        return ContextEncoder(sizes, config.latent_size, bottleneck)

    @property
    def policy(self) -> nn.Module:
        """(obs [..., O], z [..., L]) -> squashed Gaussian."""
        return LatentPolicy(self.config.hidden_sizes, self.spec.action.size)

    @property
    def critics(self) -> nn.Module:
        """(obs [..., O], action [..., A], z [..., L]) -> values [2, ...]."""
        return ensemble(LatentValue, 2)(self.config.hidden_sizes)

    @property
    def value(self) -> nn.Module:
        """(obs [..., O], z [..., L]) -> values [...]."""
        return LatentValue(self.config.hidden_sizes)

    @property
    def prior(self) -> Belief:
        """Without context, [L]."""
        return prior(self.config.latent_size, known=not self.config.information_bottleneck)

    @property
    def token_size(self) -> int:
        """F: numbers of a step in a context."""
        size = self.spec.observation_size + self.spec.action.size + 1
        return size + self.config.next_obs_in_context * self.spec.observation_size

    @property
    def target_entropy(self) -> float:
        """What alpha is learned for, in nats."""
        asked = self.config.target_entropy
        return -float(self.spec.action.size) if asked is None else asked

    def init(self, key: jax.Array) -> PyTree:
        """Fresh parameters by name: encoder, policy, critics, and value or log_alpha."""
        keys = jax.random.split(key, 4)
        obs, action = jnp.zeros(self.spec.observation_size), jnp.zeros(self.spec.action.size)
        z, token = jnp.zeros(self.config.latent_size), jnp.zeros((1, self.token_size))
        params = {
            "encoder": self.encoder.init(keys[0], token, jnp.ones(1, bool)),
            "policy": self.policy.init(keys[1], obs, z),
            "critics": self.critics.init(keys[2], obs, action, z),
        }
        if self.config.critic == "value":
            return {**params, "value": self.value.init(keys[3], obs, z)}
        return {**params, "log_alpha": jnp.log(jnp.float32(self.config.init_temperature))}

    def infer(
        self, encoder: PyTree, steps: Transitions | Rollout, valid: jax.Array | None = None
    ) -> Belief:
        """What contexts [..., C] say, or their steps that are `valid` [..., C]; [..., L]."""
        tokens = context_tokens(steps, next_obs=self.config.next_obs_in_context)
        valid = jnp.ones(tokens.shape[:-1], bool) if valid is None else valid
        belief: Belief = self.encoder.apply(encoder, tokens, valid)
        return belief

    def kl(self, belief: Belief) -> jax.Array:
        """Of beliefs [M] from the prior, summed or averaged; 0 without the bottleneck."""
        if not self.config.information_bottleneck:
            return jnp.zeros(())
        kl = belief.kl_from_prior()
        return jnp.sum(kl) if self.config.kl_reduction == "sum" else jnp.mean(kl)

    def optimizer(self, name: str) -> optax.GradientTransformation:
        """Of the parameters of that name."""
        config = self.config
        rates = {
            "critics": config.critic_lr,
            "value": config.value_lr,
            "encoder": config.encoder_lr,
        }
        return ADAM(rates.get(name, config.policy_lr))
