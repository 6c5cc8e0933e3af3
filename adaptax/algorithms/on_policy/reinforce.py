"""REINFORCE (Williams 1992): raise the log-probability of actions by the return that followed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from adaptax.algorithms.base import Algorithm, Metrics, check_finite
from adaptax.algorithms.on_policy.family import State, episodic_actor, prepare
from adaptax.core.config import check_positive, check_unit
from adaptax.core.experience import PyTree, Rollout
from adaptax.core.spec import EnvSpec
from adaptax.functional.masking import masked_mean, masked_standardize
from adaptax.functional.policy_losses import policy_gradient_loss
from adaptax.functional.returns import discounted_returns
from adaptax.learning.minibatches import Figures, Schedule, optimizer
from adaptax.learning.processors import ProcessorConfig, process_samples
from adaptax.learning.sequences import episode_metrics
from adaptax.networks.actor_critic import ActorCritic, Body, Policy
from adaptax.networks.normalizer import fresh_moments
from adaptax.sampling.actors import Actor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class ReinforceConfig:
    """REINFORCE with whole episodes and returns standardised over the batch."""

    num_lanes: int = 16
    """Environments run side by side."""
    num_episodes: int = 1
    """Episodes a lane in each iteration."""
    discount: float = 0.99
    baseline: Literal["none", "linear"] = "none"
    """What is subtracted from returns: nothing, or their fit by features of observation and time
    (Duan et al. 2016)."""
    lr: float = 3e-3
    """Adam's step size."""
    lr_schedule: Schedule = "constant"
    """How the step size falls, from iteration to iteration."""
    lr_schedule_steps: int = 1000
    """Iterations until a linear schedule is at 0, an exponential one at a tenth."""
    max_grad_norm: float | None = None
    """Bound on the norm of the whole gradient."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    memory_size: int | None = None
    """Units of a GRU behind the hidden layers; None: no memory."""
    init_std: float = 1.0
    """Standard deviation of the first policy's actions."""
    normalize_obs: bool = False
    """Whether the policy sees observations standardised by the moments of all seen."""

    def __post_init__(self) -> None:
        check_positive(self, "num_lanes", "num_episodes", "lr", "hidden_sizes", "init_std")
        check_positive(self, "lr_schedule_steps", "max_grad_norm", "memory_size")
        check_unit(self, "discount")


class Reinforce(Algorithm):
    """The policy-gradient theorem, and nothing else."""

    name = "reinforce"
    config: ReinforceConfig

    def __init__(self, config: ReinforceConfig, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        body = Body(config.hidden_sizes, config.memory_size)
        self.network = ActorCritic(Policy(body, spec.action, config.init_std), value=None)

    def init(self, key: jax.Array) -> State:
        """Fresh parameters."""
        size = self.spec.observation_size
        params = self.network.init(key, size)
        moments = {"obs": fresh_moments(size)} if self.config.normalize_obs else {}
        return State(params, optimizer(self.config).init(params), moments, key)

    def iteration(self, state: State, sampler: Sampler) -> tuple[State, Metrics]:
        """Whole episodes, one gradient step; raises NotFinite where it diverged."""
        config, tasks = self.config, sampler.sample_tasks(1)
        rollout = sampler.episodes(self.actor(state), tasks, config.num_lanes, config.num_episodes)
        baseline = _baseline(config, rollout)
        state, figures = _update(config, self.network, state, rollout, baseline)
        check_finite(figures, "policy_loss")
        return state, {**episode_metrics(rollout), **figures}

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy."""
        return episodic_actor(self.network, state, deterministic)


def _baseline(config: ReinforceConfig, rollout: Rollout) -> np.ndarray:
    """What is subtracted from returns [M, N, T]."""
    if config.baseline == "none":
        return np.zeros(rollout.valid.shape, np.float32)
    fitted = process_samples(rollout, ProcessorConfig(config.discount))
    return np.asarray(fitted.value, np.float32)


@partial(jax.jit, static_argnums=(0, 1))
def _update(
    config: ReinforceConfig,
    network: ActorCritic,
    state: State,
    rollout: Rollout,
    baseline: jax.Array,
) -> tuple[State, Figures]:
    s, moments = prepare(state, rollout)
    # A time limit is not the end of the world, but without a value function the rest counts as 0.
    returns = discounted_returns(
        s.reward,
        jnp.zeros_like(s.reward),
        terminated=s.terminated,
        truncated=s.truncated,
        valid=s.valid,
        discount=config.discount,
    )
    advantage = masked_standardize(returns - baseline.reshape(s.reward.shape), s.valid)

    def loss(params: PyTree) -> jax.Array:
        distribution = network.distribution(params, s.obs, s.memory, s.reset)
        terms = policy_gradient_loss(distribution.log_prob(s.action), advantage)
        return masked_mean(terms, s.valid)

    value, grads = jax.value_and_grad(loss)(state.params)
    updates, opt_state = optimizer(config).update(grads, state.opt_state)
    params = optax.apply_updates(state.params, updates)
    return State(params, opt_state, moments, state.key), {"policy_loss": value}
