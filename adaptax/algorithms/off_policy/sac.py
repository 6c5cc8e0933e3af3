"""SAC: a stochastic policy that seeks reward and entropy, taught by the lower of two critics.

Haarnoja et al. 2018, "Soft actor-critic algorithms and applications" (arXiv 1812.05905); for
discrete actions Christodoulou 2019 (arXiv 1910.07207): expectations over actions are then sums.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.off_policy.family import (
    Learner,
    Loop,
    OffPolicyConfig,
    State,
    descended,
    fresh_learner,
    fresh_state,
    optimizer,
    reset_state,
    updated_target,
)
from adaptax.core.config import check_positive
from adaptax.core.errors import ConfigError
from adaptax.core.experience import PyTree, Transitions
from adaptax.core.spec import ActionSpace, Discrete, EnvSpec, MultiDiscrete
from adaptax.functional.q_learning import (
    ensemble_loss,
    of_action,
    soft_value,
    td_target,
    temperature_loss,
)
from adaptax.learning.minibatches import Figures
from adaptax.networks.critics import ActionValues, Critic, StochasticPolicy, ensemble
from adaptax.sampling.actors import Actor, PolicyActor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class SACConfig(OffPolicyConfig):
    """SAC; defaults are Pyrado's (conformance 4.7) where no other source is named."""

    init_temperature: float = 0.2
    """Temperature alpha at the start."""
    learn_temperature: bool = True
    """Whether alpha is learned, or stays."""
    target_entropy: float | None = None
    """Entropy in nats that alpha is learned for; None: minus the number of action dimensions
    (Haarnoja et al. 2018b, appendix D), or half of the highest for discrete actions."""
    max_grad_norm: float | None = 5.0
    """Bound on the norm of the gradients of each optimizer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "init_temperature")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Choices:
    """Actions that an expectation goes over: all of them, or one draw of weight 1; [B, A]."""

    q: jax.Array
    """The lower of both critics'."""
    log_prob: jax.Array
    weight: jax.Array

    @property
    def entropy(self) -> jax.Array:
        """Mean over the batch, of the draws or exact."""
        return -jnp.mean(jnp.sum(self.weight * self.log_prob, axis=-1))


@dataclass(frozen=True)
class Networks:
    """The policy, and two critics as one network whose output has a leading axis [2]."""

    policy: nn.Module
    critics: nn.Module
    discrete: bool
    target_entropy: float

    def choices(self, policy: PyTree, critics: PyTree, obs: jax.Array, key: jax.Array) -> Choices:
        """What the policy may do and what the critics say of it."""
        distribution = self.policy.apply(policy, obs)
        if self.discrete:
            log_prob = jax.nn.log_softmax(distribution.logits)
            q = jnp.min(self.critics.apply(critics, obs), axis=0)
            return Choices(q, log_prob, jnp.exp(log_prob))
        action, log_prob = distribution.sample_and_log_prob(key)
        q = jnp.min(self.critics.apply(critics, obs, action), axis=0)
        return Choices(q[..., None], log_prob[..., None], jnp.ones((*q.shape, 1)))

    def values(self, critics: PyTree, obs: jax.Array, action: jax.Array) -> jax.Array:
        """What each critic says of actions taken, [2, B]."""
        if self.discrete:
            return of_action(self.critics.apply(critics, obs), action[None])
        return self.critics.apply(critics, obs, action)


class SAC(Algorithm):
    """Soft actor-critic."""

    name = "sac"
    config: SACConfig

    def __init__(self, config: SACConfig, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        if isinstance(spec.action, MultiDiscrete):
            raise ConfigError("sac takes continuous actions or one choice, not several choices")
        self.networks = networks_of(config.hidden_sizes, spec.action, config.target_entropy)
        self._loop = Loop(config, self.networks, update, self.actor)

    def init(self, key: jax.Array) -> State:
        """Fresh parameters, targets equal to them, an empty memory."""
        key, learner_key, policy_key, critic_key = jax.random.split(key, 4)
        obs = jnp.zeros(self.spec.observation_size)
        inputs = (obs,) if self.networks.discrete else (obs, jnp.zeros(self.spec.action.size))
        params = {
            "policy": self.networks.policy.init(policy_key, obs),
            "critics": self.networks.critics.init(critic_key, *inputs),
            "log_alpha": jnp.log(jnp.float32(self.config.init_temperature)),
        }
        learner = fresh_learner(params, params["critics"], self._optimizers(params), learner_key)
        return fresh_state(self.config, self.spec, learner, key)

    def reset(self, state: State) -> State:
        """What was learned, with fresh optimizers and an empty memory."""
        return reset_state(state, self._optimizers(state.learner.params))

    def iteration(self, state: State, sampler: Sampler) -> tuple[State, Metrics]:
        """Collect and learn, cycle by cycle."""
        return self._loop.iterate(state, sampler)

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy; deterministic, it acts by the mean of its unsquashed Gaussian."""
        return PolicyActor(state.learner.params["policy"], self.networks.policy, deterministic)

    def _optimizers(self, params: PyTree) -> PyTree:
        return {name: optimizer(self.config).init(params[name]) for name in params}


def networks_of(
    hidden_sizes: tuple[int, ...], space: ActionSpace, target_entropy: float | None
) -> Networks:
    """Networks for an action space."""
    policy = StochasticPolicy(hidden_sizes, space)
    if isinstance(space, Discrete):
        critics = ensemble(ActionValues, 2)(hidden_sizes, space.size)
        target = 0.5 * float(np.log(space.size)) if target_entropy is None else target_entropy
        return Networks(policy, critics, True, target)
    target = -float(space.size) if target_entropy is None else target_entropy
    return Networks(policy, ensemble(Critic, 2)(hidden_sizes), False, target)


def update(
    config: SACConfig, networks: Networks, learner: Learner, batch: Transitions, key: jax.Array
) -> tuple[Learner, Figures]:
    """One gradient step of critics, policy and temperature; alpha is that before the step."""
    params, alpha = learner.params, jnp.exp(learner.params["log_alpha"])
    target_key, policy_key = jax.random.split(key)
    choices = networks.choices(params["policy"], learner.target, batch.next_obs, target_key)
    next_value = soft_value(choices.q, choices.log_prob, alpha, choices.weight)
    target = td_target(batch.reward, batch.discount, batch.terminated, next_value)

    def critic_loss(critics: PyTree) -> tuple[jax.Array, Figures]:
        q = networks.values(critics, batch.obs, batch.action)
        loss = ensemble_loss(q, target)
        return loss, {"critic_loss": loss, "q": jnp.mean(q)}

    def policy_loss(policy: PyTree) -> tuple[jax.Array, Figures]:
        choices = networks.choices(policy, critics, batch.obs, policy_key)
        loss = -jnp.mean(soft_value(choices.q, choices.log_prob, alpha, choices.weight))
        return loss, {"policy_loss": loss, "entropy": choices.entropy}

    def alpha_loss(log_alpha: jax.Array) -> tuple[jax.Array, Figures]:
        loss = temperature_loss(log_alpha, -figures["entropy"], networks.target_entropy)
        return loss, {"temperature": alpha}

    step = partial(descended, optimizer(config), learner)
    critics, critics_opt, figures = step("critics", critic_loss)
    policy, policy_opt, more = step("policy", policy_loss)
    figures |= more
    log_alpha, alpha_opt = params["log_alpha"], learner.opt_state["log_alpha"]
    if config.learn_temperature:
        log_alpha, alpha_opt, more = step("log_alpha", alpha_loss)
        figures |= more
    return replace(
        learner,
        params={"policy": policy, "critics": critics, "log_alpha": log_alpha},
        target=updated_target(config, learner.num_updates + 1, learner.target, critics),
        opt_state={"policy": policy_opt, "critics": critics_opt, "log_alpha": alpha_opt},
    ), figures
