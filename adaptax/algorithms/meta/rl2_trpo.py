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
from adaptax.algorithms.meta.rl2 import (
    RL2,
    Lesson,
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
from adaptax.core.experience import PyTree, Rollout
from adaptax.functional.masking import masked_mean
from adaptax.functional.policy_losses import likelihood_ratio_loss
from adaptax.functional.trust_region import Divergence, TrustRegion, trust_region_step
from adaptax.learning.minibatches import descend
from adaptax.networks.memory.recurrent import RecurrentActorCritic


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
    ent_weight: jax.Array,
    old: PyTree,
    learned: Lesson,
    params: PyTree,
) -> tuple[jax.Array, jax.Array]:
    """-E[rho A], rho the joint ratio, with the entropy's term; and the mean KL(old || new)."""
    trials, kl = learned.trials, divergence(network, old, learned)
    after = kl.policy(params)
    log_prob = after.log_prob(trials.action)
    loss = masked_mean(
        likelihood_ratio_loss(log_prob, trials.log_prob, learned.advantage), trials.valid
    )
    mean_entropy = masked_mean(entropy(config, after, trials.action), trials.valid)
    loss += entropy_term(config, ent_weight, mean_entropy)
    return loss, kl.mean_kl(after)


def divergence(network: RecurrentActorCritic, old: PyTree, learned: Lesson) -> Divergence:
    """The mean KL(old || new) over all steps, for products with its Hessian."""
    trials = learned.trials
    return Divergence(
        policy=lambda params: evaluate(network, {**old, "params": params}, trials.inputs)[0],
        mean_kl=lambda after: masked_mean(learned.acted.kl(after), trials.valid),
    )


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
    old, trials = state.variables, learned.trials

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
    params, figures = trust_region_step(
        partial(objective, config, network, ent_weight, old, learned),
        old["params"],
        config.trust_region,
        divergence(network, old, learned),
    )
    figures["entropy"] = masked_mean(entropy(config, learned.acted, trials.action), trials.valid)
    figures["value_loss"] = value_figures["value_loss"]
    new = State(
        moved(config, old, params, trials),
        moved(config, state.value, value_params, trials),
        opt_state,
        state.num_passes + config.num_epochs,
        key,
    )
    return new, figures
