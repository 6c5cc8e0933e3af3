"""RL2 with TRPO as the outer algorithm, as in the paper (Duan et al. 2016; Schulman et al. 2015).

The policy's step is the natural gradient through the whole recurrent network; the value, a
recurrent network of its own as in the paper, is fitted by gradient descent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import jax
import jax.numpy as jnp

from adaptax.algorithms.base import Metrics
from adaptax.algorithms.rl2 import (
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
from adaptax.algorithms.trials import Trials, evaluate
from adaptax.core.batch import PyTree, Rollout
from adaptax.functional.masking import masked_mean
from adaptax.functional.minibatches import descend
from adaptax.functional.policy_losses import likelihood_ratio_loss
from adaptax.functional.trust_region import TrustRegion, trust_region_step
from adaptax.networks.recurrent import RecurrentActorCritic


@dataclass(frozen=True)
class RL2TRPOConfig(RL2Config):
    """RL2 with TRPO; `lr`, epochs and minibatches are those of the value's fit."""

    gae_lambda: float = 0.98
    trust_region: TrustRegion = field(default_factory=TrustRegion)
    """The policy's step."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything learned."""

    variables: PyTree
    """The policy's `params`, and `moments` of the inputs."""
    value: PyTree
    """The same of the value's network."""
    opt_state: PyTree
    """Of the value's fit."""
    num_passes: jax.Array
    """Of the value's fit over trials, so far."""
    key: jax.Array


class RL2TRPO(RL2):
    """RL2 with TRPO."""

    name = "rl2-trpo"
    config: RL2TRPOConfig

    def init(self, key: jax.Array) -> State:
        """Fresh parameters."""
        key, *init_keys = jax.random.split(key, 3)
        # Two networks of one shape, of each of which one head is used.
        policy, value = map(self.fresh_variables, init_keys)
        opt_state = adam(self.config).init(value["params"])
        return State(policy, value, opt_state, jnp.int32(0), key)

    def update(self, state: State, rollout: Rollout) -> tuple[State, Metrics]:
        """A fit of the value, and a step of the policy."""
        return _update(self.config, self.network, state, rollout)


def objective(
    config: RL2TRPOConfig,
    network: RecurrentActorCritic,
    old: PyTree,
    ent_weight: jax.Array,
    batch: tuple[Trials, jax.Array],
    params: PyTree,
) -> tuple[jax.Array, jax.Array]:
    """-E[rho A], rho the joint ratio, with the entropy's term; and the mean KL(old || new)."""
    trials, advantage = batch
    before, _ = evaluate(network, jax.lax.stop_gradient(old), trials.inputs)
    after, _ = evaluate(network, {**old, "params": params}, trials.inputs)
    terms = likelihood_ratio_loss(after.log_prob(trials.action), trials.log_prob, advantage)
    loss = masked_mean(terms, trials.valid)
    mean_entropy = masked_mean(entropy(config, after, trials.action), trials.valid)
    loss += entropy_term(config, ent_weight, mean_entropy)
    return loss, masked_mean(before.kl(after), trials.valid)


@partial(jax.jit, static_argnums=(0, 1))
def _update(
    config: RL2TRPOConfig, network: RecurrentActorCritic, state: State, rollout: Rollout
) -> tuple[State, Metrics]:
    """The value's passes over fixed targets, and the policy's step on all trials."""
    ent_weight = entropy_weight(config, state.num_passes)
    learned = lesson(
        config,
        network,
        rollout,
        policy=state.variables,
        value=state.value,
        ent_weight=ent_weight,
    )
    trials = learned.trials

    def value_loss(
        params: PyTree, part: tuple[Trials, jax.Array]
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        some, target = part
        _, now = evaluate(network, {**state.value, "params": params}, some.inputs)
        loss = 0.5 * masked_mean(jnp.square(now - target), some.valid)
        return loss, {"value_loss": loss}

    key, shuffle_key = jax.random.split(state.key)
    rows = minibatches(config, trials, shuffle_key)
    start = (state.value["params"], state.opt_state)
    (value_params, opt_state), value_figures = descend(
        value_loss, adam(config), start, (trials, learned.target), rows
    )
    batch = (trials, learned.advantage)
    params, figures = trust_region_step(
        partial(objective, config, network, state.variables, ent_weight, batch),
        state.variables["params"],
        config.trust_region,
    )
    figures["entropy"] = masked_mean(entropy(config, learned.acted, trials.action), trials.valid)
    figures["value_loss"] = value_figures["value_loss"]
    new = State(
        moved(config, state.variables, params, trials),
        moved(config, state.value, value_params, trials),
        opt_state,
        state.num_passes + config.num_epochs,
        key,
    )
    return new, figures
