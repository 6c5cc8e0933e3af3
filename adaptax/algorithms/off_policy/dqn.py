"""DQN: action values learned from replay, acted on greedily but for a share of chance.

Mnih et al. 2015, "Human-level control through deep reinforcement learning"; `double` is van
Hasselt et al. 2016 (arXiv 1509.06461).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.off_policy.family import (
    Data,
    LearnerState,
    OffPolicyConfig,
    Optimizers,
    State,
    collect,
    descended,
    init_state,
    off_policy_optimizer,
    update,
    with_target,
)
from adaptax.core.config import check_unit
from adaptax.core.errors import ConfigError
from adaptax.core.experience import PyTree, Transitions
from adaptax.core.products import product_options
from adaptax.core.spec import Discrete, EnvSpec
from adaptax.functional.q_learning import of_action, td_target
from adaptax.networks.critics import ActionValues
from adaptax.networks.own import check_gives, own_or
from adaptax.sampling.actors import Actor
from adaptax.sampling.exploration import EpsilonGreedyActor
from adaptax.sampling.sampler import Sampler

OPTIMIZERS = {
    "rmsprop": partial(optax.rmsprop, decay=0.99, eps=1e-8, eps_in_sqrt=False),
    "adam": optax.adam,
}
"""By name; RMSprop's epsilon is added where PyTorch does, which Pyrado uses."""


@dataclass(frozen=True)
class DQNConfig(OffPolicyConfig):
    """DQN; where the defaults come from: docs/algorithms/dqn.md."""

    num_updates: int | Literal["auto"] = 12
    """Gradient steps of a cycle; the default is about one for every four environment steps (Mnih et
    al. 2015); `auto`: as many as its environment steps."""
    n_step: int = 3
    """Rewards that a target sums before it bootstraps from a value, fewer at an episode's end
    (Hessel et al. 2018, arXiv 1710.02298)."""
    reward_scale: float = 0.1
    """Factor on rewards where they are learned from; what is logged does not have it. At 1 values
    of `cartpole`, at most 100, rise into the thousands with some seeds."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Hidden layers of the network (Stable-Baselines3)."""
    double: bool = False
    """Whether the online network chooses the next action and the target network values it (double
    DQN); else the target network does both."""
    init_epsilon: float = 1.0
    """Probability of a uniform action in the first iteration."""
    final_epsilon: float = 0.05
    """Probability that it falls towards."""
    epsilon_decay: float = 0.8
    """Factor, every iteration, on the part of the probability above `final_epsilon`."""
    optimizer: Literal["rmsprop", "adam"] = "adam"
    """What descends the loss."""
    tau: float = 0.01
    """Weight of the new values in an update of the target; 1 copies."""
    lr: float = 1e-3
    """Step size of the optimizer."""
    max_grad_norm: float | None = 10.0
    """Bound on the norm of the gradient."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_unit(self, "init_epsilon", "final_epsilon", "epsilon_decay")


class DQN(Algorithm[State, Data]):
    """Deep Q-learning; `networks` is a Flax module, obs [..., O] -> values [..., A]."""

    name = "dqn"
    collects_in_program = True
    in_place = ("replay",)
    finite_metrics = ("critic_loss", "q")
    learned = (".learner.params", ".learner.target")
    config: DQNConfig

    def __init__(self, config: DQNConfig, spec: EnvSpec, networks: nn.Module | None = None) -> None:
        super().__init__(config, spec)
        if not isinstance(spec.action, Discrete):
            raise ConfigError("dqn takes one discrete action; for continuous ones take sac or td3")
        size, choices = spec.observation_size, spec.action.size
        default = ActionValues(config.hidden_sizes, choices, spec.picture)
        self.networks = own_or(default, networks)
        if networks is not None:
            check_gives("networks", networks, [(size,)], (0, choices))
        self.num_cycles = config.num_cycles

    def init(self, key: jax.Array) -> State:
        """Fresh parameters, the target equal to them, nothing in the replay."""
        key, params_key = jax.random.split(key)
        params = {"q": self.networks.init(params_key, jnp.zeros(self.spec.observation_size))}
        return init_state(self.config, self.spec, params, params["q"], self._optimizers, key)

    def collect(self, state: State, sampler: Sampler) -> Data:
        """Steps of the epsilon-greedy policy."""
        eps = epsilon(self.config, state.num_cycles)
        explorer = EpsilonGreedyActor(state.learner.params["q"], self.networks, eps)
        return collect(self.config, state, sampler, explorer)

    def update(self, state: State, data: Data) -> tuple[State, Metrics]:
        """Steps into the replay, and gradient steps on minibatches of it."""
        eps = jnp.where(data.learn, epsilon(self.config, state.num_cycles), 1.0)
        state, metrics = update(self.config, state, data, self.gradient_step)
        return state, {**metrics, "epsilon": eps}

    def gradient_step(
        self, learner: LearnerState, batch: Transitions, key: jax.Array
    ) -> tuple[LearnerState, Metrics]:
        """One step on the value of the action that was taken."""
        values = self.networks.apply
        next_q = values(learner.target, batch.next_obs)
        chooser = values(learner.params["q"], batch.next_obs) if self.config.double else next_q
        next_value = of_action(next_q, jnp.argmax(chooser, axis=-1))
        target = td_target(batch.reward, batch.discount, batch.terminated, next_value)

        def critic_loss(params: PyTree) -> tuple[jax.Array, Metrics]:
            q = of_action(values(params["q"], batch.obs), batch.action)
            loss = jnp.mean(optax.huber_loss(q, target))
            return loss, {"critic_loss": loss, "q": jnp.mean(q)}

        learner, figures = descended(learner, critic_loss, self._optimizers)
        return with_target(self.config, learner, learner.params["q"]), figures

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The greedy policy, always."""
        return EpsilonGreedyActor(state.learner.params["q"], self.networks, jnp.float32(0.0))

    @property
    def compiler_options(self) -> dict[str, str]:
        """Those of products of a minibatch's rows."""
        return product_options(self.config.batch_size)

    @property
    def _optimizers(self) -> Optimizers:
        return {"q": off_policy_optimizer(self.config, make=OPTIMIZERS[self.config.optimizer])}


def epsilon(config: DQNConfig, num_cycles: jax.Array) -> jax.Array:
    """Probability of a uniform action, f + (eps_0 - f) gamma^k in iteration k = 0, 1, ...

    f is the final one, gamma `epsilon_decay`; an iteration has `config.num_cycles` cycles.
    """
    num_iterations = (num_cycles // config.num_cycles).astype(jnp.float32)
    share = jnp.power(config.epsilon_decay, num_iterations)
    return config.final_epsilon + (config.init_epsilon - config.final_epsilon) * share
