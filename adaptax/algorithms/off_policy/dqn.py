"""DQN: action values learned from replay, acted on greedily but for a share of chance.

Mnih et al. 2015, "Human-level control through deep reinforcement learning"; `double` is van
Hasselt et al. 2016 (arXiv 1509.06461).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import optax

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
from adaptax.core.config import check_unit
from adaptax.core.errors import ConfigError
from adaptax.core.experience import PyTree, Transitions
from adaptax.core.spec import Discrete, EnvSpec
from adaptax.functional.q_learning import huber, of_action, td_target
from adaptax.learning.minibatches import Figures
from adaptax.networks.critics import ActionValues
from adaptax.sampling.actors import Actor
from adaptax.sampling.exploration import EpsilonGreedyActor
from adaptax.sampling.sampler import Sampler

OPTIMIZERS = {"rmsprop": partial(optax.rmsprop, decay=0.99, eps=1e-8), "adam": optax.adam}


@dataclass(frozen=True)
class DQNConfig(OffPolicyConfig):
    """DQN; defaults are Pyrado's (conformance 4.6) where no other source is named."""

    num_steps: int = 200
    """Environment steps of a cycle in all lanes, equally many in each; they go on where the last
    cycle stopped."""
    num_updates: int | Literal["auto"] = 50
    """Gradient steps of a cycle, one to four environment steps (Mnih et al. 2015); `auto`: as many
    as its environment steps."""
    num_initial_steps: int | None = 1_000
    """Environment steps, by uniform actions, before the first gradient step: at least
    `batch_size` and at most `memory_size`, which is what None means."""
    n_step: int = 3
    """Rewards summed up before a value is asked for, fewer at an episode's end (Hessel et al.
    2018, arXiv 1710.02298)."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Hidden layers of the network (Stable-Baselines3)."""
    double: bool = False
    """Whether the next action is the best by the network, rather than by its target."""
    init_epsilon: float = 1.0
    """Probability of a uniform action in the first iteration."""
    final_epsilon: float = 0.05
    """What it falls to."""
    epsilon_decay: float = 0.8
    """Factor on what of it is above `final_epsilon`, from iteration to iteration."""
    optimizer: Literal["rmsprop", "adam"] = "rmsprop"
    """What descends the loss."""
    target_update_interval: int = 250
    """Gradient steps from one update of the target to the next; at Pyrado's 5 the values grow
    without bound on CartPole."""
    polyak: float = 0.0
    """Weight of the old target in its update, Pyrado's `tau`; 0 copies."""
    lr: float = 5e-4
    """Step size of the optimizer."""
    max_grad_norm: float | None = 0.5
    """Bound on the norm of the gradient."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_unit(self, "init_epsilon", "final_epsilon", "epsilon_decay")


class DQN(Algorithm):
    """Deep Q-learning."""

    name = "dqn"
    config: DQNConfig

    def __init__(self, config: DQNConfig, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        if not isinstance(spec.action, Discrete):
            raise ConfigError("dqn takes one discrete action; for continuous ones take sac or td3")
        self.network = ActionValues(config.hidden_sizes, spec.action.size)
        self._loop = Loop(config, self.network, update, self.explorer)

    def init(self, key: jax.Array) -> State:
        """Fresh parameters, the target equal to them, an empty memory."""
        key, learner_key, params_key = jax.random.split(key, 3)
        params = {"q": self.network.init(params_key, jnp.zeros(self.spec.observation_size))}
        learner = fresh_learner(params, params["q"], self._optimizers(params), learner_key)
        return fresh_state(self.config, self.spec, learner, key)

    def reset(self, state: State) -> State:
        """What was learned, with a fresh optimizer, the first epsilon and an empty memory."""
        return reset_state(state, self._optimizers(state.learner.params))

    def iteration(self, state: State, sampler: Sampler) -> tuple[State, Metrics]:
        """Collect and learn, cycle by cycle."""
        state, metrics = self._loop.iterate(state, sampler)
        return state, {**metrics, "epsilon": epsilon(self.config, int(state.num_iterations) - 1)}

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The greedy policy, always."""
        return EpsilonGreedyActor(state.learner.params["q"], self.network, jnp.float32(0.0))

    def explorer(self, state: State) -> Actor:
        """What acts while training: the greedy policy, and epsilon of chance."""
        eps = jnp.float32(epsilon(self.config, int(state.num_iterations)))
        return EpsilonGreedyActor(state.learner.params["q"], self.network, eps)

    def _optimizers(self, params: PyTree) -> PyTree:
        return {"q": _optimizer(self.config).init(params["q"])}


def epsilon(config: DQNConfig, num_iterations: int) -> float:
    """Probability of a uniform action after k iterations, f + (eps_0 - f) gamma^k, f the final."""
    above = (config.init_epsilon - config.final_epsilon) * config.epsilon_decay**num_iterations
    return config.final_epsilon + above


def update(
    config: DQNConfig, network: ActionValues, learner: Learner, batch: Transitions, key: jax.Array
) -> tuple[Learner, Figures]:
    """One gradient step on the value of the action that was taken."""
    next_q = network.apply(learner.target, batch.next_obs)
    judge = network.apply(learner.params["q"], batch.next_obs) if config.double else next_q
    next_value = of_action(next_q, jnp.argmax(judge, axis=-1))
    target = td_target(batch.reward, batch.discount, batch.terminated, next_value)

    def loss(params: PyTree) -> tuple[jax.Array, Figures]:
        q = of_action(network.apply(params, batch.obs), batch.action)
        value = jnp.mean(huber(q - target))
        return value, {"critic_loss": value, "q": jnp.mean(q)}

    params, opt_state, figures = descended(_optimizer(config), learner, "q", loss)
    return replace(
        learner,
        params={"q": params},
        target=updated_target(config, learner.num_updates + 1, learner.target, params),
        opt_state={"q": opt_state},
    ), figures


def _optimizer(config: DQNConfig) -> optax.GradientTransformation:
    return optimizer(config, make=OPTIMIZERS[config.optimizer])
