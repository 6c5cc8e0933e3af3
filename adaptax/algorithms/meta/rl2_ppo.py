"""RL2 with PPO as the outer algorithm (Duan et al. 2016; Schulman et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from adaptax.algorithms.base import Metrics
from adaptax.algorithms.meta.rl2 import (
    RL2,
    RL2Config,
    adam,
    entropy,
    entropy_term,
    entropy_weight,
    lesson,
    minibatches,
    moved,
)
from adaptax.algorithms.meta.trials import Trials, evaluate
from adaptax.core.config import check_positive
from adaptax.core.experience import PyTree, Rollout
from adaptax.functional.masking import masked_mean
from adaptax.functional.policy_losses import clipped_ratio_loss
from adaptax.learning.minibatches import descend
from adaptax.networks.memory.recurrent import RecurrentActorCritic


@dataclass(frozen=True)
class RL2PPOConfig(RL2Config):
    """RL2 with PPO; policy and value share one network."""

    clip_range: float = 0.2
    value_coeff: float = 0.5
    """Weight of the value loss."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "clip_range")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything learned."""

    variables: PyTree
    """`params` that the optimizer moves, and `moments` of the inputs."""
    opt_state: PyTree
    num_passes: jax.Array
    """Over trials, so far."""
    key: jax.Array


class RL2PPO(RL2):
    """RL2 with PPO."""

    name = "rl2-ppo"
    config: RL2PPOConfig

    def init(self, key: jax.Array) -> State:
        """Fresh parameters."""
        key, init_key = jax.random.split(key)
        variables = self.fresh_variables(init_key)
        opt_state = adam(self.config).init(variables["params"])
        return State(variables, opt_state, jnp.int32(0), key)

    def update(self, state: State, rollout: Rollout) -> tuple[State, Metrics]:
        """Epochs of PPO over the trials."""
        return _update(self.config, self.network, state, rollout)


Batch = tuple[Trials, jax.Array, jax.Array]
"""Trials, and for their steps the advantage and what the value should be, each [B, T]."""


def _loss(
    params: PyTree,
    variables: PyTree,
    config: RL2PPOConfig,
    network: RecurrentActorCritic,
    ent_weight: jax.Array,
    batch: Batch,
) -> tuple[jax.Array, Metrics]:
    trials, advantage, target = batch
    distribution, value = evaluate(network, {**variables, "params": params}, trials.inputs)
    log_prob = distribution.log_prob(trials.action)
    policy_terms = clipped_ratio_loss(log_prob, trials.log_prob, advantage, config.clip_range)
    policy_loss = masked_mean(policy_terms, trials.valid)
    value_loss = 0.5 * masked_mean(jnp.square(value - target), trials.valid)
    mean_entropy = masked_mean(entropy(config, distribution, trials.action), trials.valid)
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": mean_entropy,
        "kl": masked_mean(trials.log_prob - log_prob, trials.valid),
    }
    ent_term = entropy_term(config, ent_weight, mean_entropy)
    return policy_loss + config.value_coeff * value_loss + ent_term, metrics


@partial(jax.jit, static_argnums=(0, 1))
def _update(
    config: RL2PPOConfig, network: RecurrentActorCritic, state: State, rollout: Rollout
) -> tuple[State, Metrics]:
    """All epochs over all minibatches as one scan."""
    ent_weight = entropy_weight(config, state.num_passes)
    learned = lesson(
        config,
        network,
        rollout,
        policy=state.variables,
        value=state.variables,
        ent_weight=ent_weight,
    )
    batch = (learned.trials, learned.advantage, learned.target)

    def loss(params: PyTree, part: Batch) -> tuple[jax.Array, Metrics]:
        return _loss(params, state.variables, config, network, ent_weight, part)

    key, shuffle_key = jax.random.split(state.key)
    rows = minibatches(config, learned.trials, shuffle_key)
    start = (state.variables["params"], state.opt_state)
    (params, opt_state), metrics = descend(loss, adam(config), start, batch, rows)
    variables = moved(config, state.variables, params, learned.trials)
    return State(variables, opt_state, state.num_passes + config.num_epochs, key), metrics
