"""DDPG: a deterministic policy that climbs its critic.

Lillicrap et al. 2016, "Continuous control with deep reinforcement learning" (arXiv 1509.02971),
with the settings that Fujimoto et al. 2018 (arXiv 1802.09477) give it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.off_policy.family import (
    Learner,
    Loop,
    OffPolicyConfig,
    State,
    Update,
    descended,
    fresh_learner,
    fresh_state,
    optimizer,
    reset_state,
    updated_target,
)
from adaptax.core.errors import ConfigError, check
from adaptax.core.experience import PyTree, Transitions
from adaptax.core.spec import Continuous, EnvSpec
from adaptax.functional.q_learning import ensemble_loss, td_target
from adaptax.learning.minibatches import Figures
from adaptax.networks.critics import Critic, DeterministicPolicy, ensemble
from adaptax.sampling.actors import Actor
from adaptax.sampling.exploration import NoisyActor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class DDPGConfig(OffPolicyConfig):
    """DDPG; defaults are those of Fujimoto et al. 2018, appendix D and their code."""

    noise_std: float = 0.1
    """Standard deviation of the Gaussian noise on actions while training, of a range of 2."""
    lr: float = 1e-3
    """Step size of both optimizers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.noise_std >= 0, f"noise_std must not be negative, not {self.noise_std}")


@dataclass(frozen=True)
class Networks:
    """The policy, and E critics as one network whose output has a leading axis [E]."""

    policy: nn.Module
    critics: nn.Module

    @classmethod
    def make(
        cls, name: str, hidden_sizes: tuple[int, ...], spec: EnvSpec, num_critics: int
    ) -> Networks:
        """For continuous actions; raises a ConfigError for others."""
        if not isinstance(spec.action, Continuous):
            raise ConfigError(f"{name} takes continuous actions only; for discrete ones take dqn")
        critics = ensemble(Critic, num_critics)(hidden_sizes)
        return cls(DeterministicPolicy(hidden_sizes, spec.action.size), critics)

    def init(self, spec: EnvSpec, key: jax.Array) -> PyTree:
        """Parameters of both."""
        policy_key, critic_key = jax.random.split(key)
        obs, action = jnp.zeros(spec.observation_size), jnp.zeros(spec.action.size)
        return {
            "policy": self.policy.init(policy_key, obs),
            "critics": self.critics.init(critic_key, obs, action),
        }

    def climbed(self, critics: PyTree, obs: jax.Array, policy: PyTree) -> tuple[jax.Array, Figures]:
        """What the policy descends: minus the first critic's value of what it does."""
        action = self.policy.apply(policy, obs)
        loss = -jnp.mean(self.critics.apply(critics, obs, action)[0])
        return loss, {"policy_loss": loss}

    def fitted(
        self, batch: Transitions, target: jax.Array, critics: PyTree
    ) -> tuple[jax.Array, Figures]:
        """What the critics descend: their squared errors."""
        q = self.critics.apply(critics, batch.obs, batch.action)
        loss = ensemble_loss(q, target)
        return loss, {"critic_loss": loss, "q": jnp.mean(q)}


class DDPG(Algorithm):
    """Deep deterministic policy gradient; TD3 is one with twin critics and an update of its own."""

    name = "ddpg"
    config: DDPGConfig
    num_critics: ClassVar[int] = 1

    def __init__(self, config: DDPGConfig, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        self.networks = Networks.make(self.name, config.hidden_sizes, spec, self.num_critics)
        self._loop = Loop(config, self.networks, self.update, self._explorer)

    @property
    def update(self) -> Update:
        """One gradient step."""
        return update

    def init(self, key: jax.Array) -> State:
        """Fresh parameters, targets equal to them, an empty memory."""
        key, learner_key, params_key = jax.random.split(key, 3)
        params = self.networks.init(self.spec, params_key)
        learner = fresh_learner(params, params, self._optimizers(params), learner_key)
        return fresh_state(self.config, self.spec, learner, key)

    def reset(self, state: State) -> State:
        """What was learned, with fresh optimizers and an empty memory."""
        return reset_state(state, self._optimizers(state.learner.params))

    def iteration(self, state: State, sampler: Sampler) -> tuple[State, Metrics]:
        """Collect and learn, cycle by cycle."""
        return self._loop.iterate(state, sampler)

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy without noise, always."""
        return NoisyActor(state.learner.params["policy"], self.networks.policy, jnp.float32(0.0))

    def _explorer(self, state: State) -> Actor:
        noise_std = jnp.float32(self.config.noise_std)
        return NoisyActor(state.learner.params["policy"], self.networks.policy, noise_std)

    def _optimizers(self, params: PyTree) -> PyTree:
        return {name: optimizer(self.config).init(params[name]) for name in params}


def update(
    config: DDPGConfig, networks: Networks, learner: Learner, batch: Transitions, key: jax.Array
) -> tuple[Learner, Figures]:
    """One gradient step of the critic, then of the policy."""
    old = learner.target
    next_action = networks.policy.apply(old["policy"], batch.next_obs)
    next_value = networks.critics.apply(old["critics"], batch.next_obs, next_action)[0]
    target = td_target(batch.reward, batch.discount, batch.terminated, next_value)

    step = partial(descended, optimizer(config), learner)
    critics, critics_opt, figures = step("critics", partial(networks.fitted, batch, target))
    policy, policy_opt, more = step("policy", partial(networks.climbed, critics, batch.obs))
    params = {"policy": policy, "critics": critics}
    return replace(
        learner,
        params=params,
        target=updated_target(config, learner.num_updates + 1, old, params),
        opt_state={"policy": policy_opt, "critics": critics_opt},
    ), figures | more
