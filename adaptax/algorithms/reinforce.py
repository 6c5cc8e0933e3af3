"""REINFORCE (Williams 1992): raise the log-probability of actions by the return that followed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import optax

from adaptax.algorithms.base import Algorithm, Metrics, return_metrics
from adaptax.core.batch import PyTree, Rollout, zero_padding
from adaptax.core.config import check_positive, check_unit
from adaptax.core.spec import EnvSpec
from adaptax.functional.masking import masked_mean, masked_standardize
from adaptax.functional.policy_losses import policy_gradient_loss
from adaptax.functional.returns import discounted_returns
from adaptax.networks.policies import MLPPolicy
from adaptax.sampling.actor import Actor, PolicyActor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class ReinforceConfig:
    """REINFORCE with whole episodes and returns standardised over the batch."""

    num_lanes: int = 16
    """Environments run side by side."""
    num_episodes: int = 1
    """Episodes a lane in each iteration."""
    discount: float = 0.99
    lr: float = 3e-3
    """Adam's step size."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    init_std: float = 1.0
    """Standard deviation of the first policy's actions."""

    def __post_init__(self) -> None:
        check_positive(self, "num_lanes", "num_episodes", "lr", "init_std")
        check_unit(self, "discount")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything learned."""

    params: PyTree
    opt_state: PyTree


class Reinforce(Algorithm):
    """The policy-gradient theorem, and nothing else."""

    name = "reinforce"
    config: ReinforceConfig

    def __init__(self, config: ReinforceConfig, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        self.policy = MLPPolicy(config.hidden_sizes, spec.action, config.init_std)

    def init(self, key: jax.Array) -> State:
        """Fresh parameters."""
        params = self.policy.init(key, jnp.zeros((1, self.spec.observation_size)))
        return State(params, optax.adam(self.config.lr).init(params))

    def iteration(self, state: State, sampler: Sampler) -> tuple[State, Metrics]:
        """Whole episodes, one gradient step."""
        config = self.config
        tasks = sampler.sample_tasks(1)
        rollout = sampler.episodes(self.actor(state), tasks, config.num_lanes, config.num_episodes)
        state, metrics = _update(config, self.policy, state, rollout)
        return state, {**return_metrics(rollout, config.num_episodes), **metrics}

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy."""
        return PolicyActor(state.params, self.policy, deterministic)


@partial(jax.jit, static_argnums=(0, 1))
def _update(
    config: ReinforceConfig, policy: MLPPolicy, state: State, rollout: Rollout
) -> tuple[State, Metrics]:
    rollout = zero_padding(rollout)
    # A time limit is not the end of the world, but without a value function the rest counts as 0.
    returns = discounted_returns(
        rollout.reward,
        jnp.zeros_like(rollout.reward),
        terminated=rollout.terminated,
        truncated=rollout.truncated,
        valid=rollout.valid,
        discount=config.discount,
    )
    advantage = masked_standardize(returns, rollout.valid)

    def loss(params: PyTree) -> jax.Array:
        log_prob = policy.apply(params, rollout.obs).log_prob(rollout.action)
        return masked_mean(policy_gradient_loss(log_prob, advantage), rollout.valid)

    value, grads = jax.value_and_grad(loss)(state.params)
    updates, opt_state = optax.adam(config.lr).update(grads, state.opt_state)
    return State(optax.apply_updates(state.params, updates), opt_state), {"policy_loss": value}
