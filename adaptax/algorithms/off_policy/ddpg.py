"""DDPG: a deterministic policy that climbs its critic.

Lillicrap et al. 2016, "Continuous control with deep reinforcement learning" (arXiv 1509.02971),
with the settings that Fujimoto et al. 2018 (arXiv 1802.09477) give it.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.off_policy.family import (
    Data,
    LearnerState,
    Networks,
    OffPolicyConfig,
    State,
    collect,
    descended,
    init_state,
    off_policy_optimizer,
    update,
    with_target,
)
from adaptax.core.config import check_not_negative
from adaptax.core.errors import ConfigError
from adaptax.core.experience import PyTree, Transitions
from adaptax.core.products import product_options
from adaptax.core.spec import Continuous, Discrete, EnvSpec
from adaptax.functional.q_learning import ensemble_loss, td_target
from adaptax.networks.critics import Critic, DeterministicPolicy, ensemble
from adaptax.networks.own import check_gives, own_or
from adaptax.sampling.actors import Actor
from adaptax.sampling.exploration import NoisyActor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class DDPGConfig(OffPolicyConfig):
    """DDPG; defaults are those of Fujimoto et al. 2018, section 6.1, appendix C and their code."""

    noise_std: float = 0.1
    """Standard deviation of the Gaussian noise on training actions, which range from -1 to 1."""
    lr: float = 1e-3
    """Step size of both optimizers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self, "noise_std")


class DDPG(Algorithm[State, Data]):
    """Deep deterministic policy gradient; `networks` is the family's `Networks`."""

    name = "ddpg"
    collects_in_program = True
    in_place = ("replay",)
    finite_metrics = ("critic_loss", "policy_loss", "q")
    learned = (".learner.params", ".learner.target")
    config: DDPGConfig
    networks: Networks

    def __init__(self, config: DDPGConfig, spec: EnvSpec, networks: Networks | None = None) -> None:
        super().__init__(config, spec)
        check_space(self.name, spec)
        self.networks = networks_for(config.hidden_sizes, spec, 1, networks)
        self.num_cycles = config.num_cycles

    def init(self, key: jax.Array) -> State:
        """Fresh parameters, targets equal to them, nothing in the replay."""
        return init_networks(self.config, self.spec, self.networks, key)

    def collect(self, state: State, sampler: Sampler) -> Data:
        """Steps of the policy with noise."""
        return collect(
            self.config, state, sampler, acting(self.networks, state, self.config.noise_std)
        )

    def update(self, state: State, data: Data) -> tuple[State, Metrics]:
        """Steps into the replay, and gradient steps on minibatches of it."""
        return update(self.config, state, data, self.gradient_step)

    def gradient_step(
        self, learner: LearnerState, batch: Transitions, key: jax.Array
    ) -> tuple[LearnerState, Metrics]:
        """One step of the critic, then of the policy."""
        networks, adam, lagging = self.networks, off_policy_optimizer(self.config), learner.target
        next_action = networks.policy.apply(lagging["policy"], batch.next_obs)
        next_q = networks.critics.apply(lagging["critics"], batch.next_obs, next_action)
        target = td_target(batch.reward, batch.discount, batch.terminated, jnp.min(next_q, axis=0))

        def critics(params: PyTree) -> tuple[jax.Array, Metrics]:
            return critic_loss(networks, params["critics"], batch, target)

        def policy(params: PyTree) -> tuple[jax.Array, Metrics]:
            return policy_loss(networks, params["policy"], learner.params["critics"], batch.obs)

        learner, figures = descended(learner, critics, {"critics": adam})
        learner, more = descended(learner, policy, {"policy": adam})
        return with_target(self.config, learner, learner.params), figures | more

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy without noise, always."""
        return acting(self.networks, state, 0.0)

    @property
    def compiler_options(self) -> dict[str, str]:
        """Those of products of a minibatch's rows."""
        return product_options(self.config.batch_size)


def check_space(name: str, spec: EnvSpec) -> None:
    """Raise a ConfigError for choices, whosever networks it has."""
    if isinstance(spec.action, Discrete):
        raise ConfigError(f"{name} takes continuous actions only; for discrete ones take dqn")
    if not isinstance(spec.action, Continuous):
        raise ConfigError(f"{name} takes continuous actions only; for several choices take ppo")


def networks_for(
    hidden_sizes: tuple[int, ...], spec: EnvSpec, num_critics: int, networks: Networks | None
) -> Networks:
    """The given policy and critics, or default ones: so many critics."""
    critics = ensemble(Critic, num_critics)(hidden_sizes, spec.picture)
    policy = DeterministicPolicy(hidden_sizes, spec.action.size, spec.picture)
    own = own_or(Networks(policy, critics), networks)
    if networks is not None:
        obs, action = (spec.observation_size,), spec.action.shape
        check_gives("networks.policy", own.policy, [obs], (0, *action))
        check_gives("networks.critics", own.critics, [obs, action], (None, 0))
    return own


def init_networks(config: DDPGConfig, spec: EnvSpec, networks: Networks, key: jax.Array) -> State:
    """The state of DDPG or TD3 before training: policy and critics, and copies of both."""
    key, policy_key, critic_key = jax.random.split(key, 3)
    obs, action = jnp.zeros(spec.observation_size), jnp.zeros(spec.action.size)
    params = {
        "policy": networks.policy.init(policy_key, obs),
        "critics": networks.critics.init(critic_key, obs, action),
    }
    return init_state(
        config, spec, params, params, dict.fromkeys(params, off_policy_optimizer(config)), key
    )


def acting(networks: Networks, state: State, noise_std: float) -> Actor:
    """The policy of DDPG or TD3 with so much noise."""
    return NoisyActor(state.learner.params["policy"], networks.policy, jnp.float32(noise_std))


def critic_loss(
    networks: Networks, critics: PyTree, batch: Transitions, target: jax.Array
) -> tuple[jax.Array, Metrics]:
    """Half the sum over critics of their mean squared errors."""
    q = networks.critics.apply(critics, batch.obs, batch.action)
    loss = ensemble_loss(q, target)
    return loss, {"critic_loss": loss, "q": jnp.mean(q)}


def policy_loss(
    networks: Networks, policy: PyTree, critics: PyTree, obs: jax.Array
) -> tuple[jax.Array, Metrics]:
    """Minus the first critic's value of what the policy does."""
    action = networks.policy.apply(policy, obs)
    loss = -jnp.mean(networks.critics.apply(critics, obs, action)[0])
    return loss, {"policy_loss": loss}
