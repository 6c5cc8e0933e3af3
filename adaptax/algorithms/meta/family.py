"""What the MAML family shares: an iteration, its means over tasks, and the plain outer step.

Finn et al. 2017, "Model-agnostic meta-learning" (arXiv 1703.03400), algorithm 3.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from adaptax.algorithms.base import Algorithm, Metrics, check_finite
from adaptax.algorithms.meta.meta_policy import Data, Distributions, MAMLConfig, MetaPolicy
from adaptax.core.devices import over_devices
from adaptax.core.experience import PyTree, Rollout
from adaptax.core.spec import EnvSpec
from adaptax.functional.masking import masked_mean
from adaptax.learning.minibatches import ADAM, Figures
from adaptax.sampling.actors import Actor
from adaptax.sampling.sampler import Sampler


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything learned."""

    params: PyTree
    """What the meta-gradient moves: `policy`, and `inner_lr` if that is learned."""
    opt_state: PyTree


def task_mean(x: jax.Array, valid: jax.Array) -> jax.Array:
    """Mean over tasks of each one's mean over what is valid; both [M, ...].

    A task's steps are one axis, so that it does not matter, to the last bit, how lanes hold them.
    """
    flat, flat_valid = (y.reshape(len(y), -1) for y in (x, valid))
    return jnp.mean(jax.vmap(masked_mean)(flat, flat_valid))


def mean_kls(before: Distributions, after: Distributions, data: Data) -> jax.Array:
    """KL(before || after) on every batch [K + 1], mean over tasks of each one's mean."""
    triples = zip(before, after, data, strict=True)
    return jnp.stack([task_mean(old.kl(new), samples.valid) for old, new, samples in triples])


class MAML(Algorithm):
    """An algorithm that adapts by inner steps; its state has `params`, what MetaPolicy adapts."""

    config: MAMLConfig
    dice = False
    """Whether episodes after adaptation are credited with adjusted rewards, not advantages."""

    def __init__(self, config: MAMLConfig, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        self.meta = MetaPolicy(config, spec)
        self.lanes_per_task = config.num_episodes

    @abstractmethod
    def update(self, state: Any, data: Data) -> tuple[Any, Figures]:
        """The outer step; its figures have `kl`, from the policies before it to those after."""

    def iteration(self, state: Any, sampler: Sampler) -> tuple[Any, Metrics]:
        """Episodes before and after adaptation to each task, then the outer step."""
        data, returns = self.meta.collect(state.params, sampler, dice=self.dice)
        state, figures = over_devices(self.update, state, data)
        check_finite(figures, *(name for name in figures if "loss" in name), "kl")
        return state, {**returns, **figures}

    def actor(self, state: Any, *, deterministic: bool = False) -> Actor:
        """The policy before adaptation."""
        return self.meta.actor(state.params, deterministic)

    def adapt(
        self,
        state: Any,
        actor: Actor,
        history: Sequence[Rollout],
        *,
        deterministic: bool = False,
    ) -> Actor:
        """One inner step further, on the last rollout."""
        return self.meta.adapt(state.params, actor, history, deterministic)


OuterLoss = Callable[[Distributions, Data], jax.Array]
"""Of what the policy says of each batch; to be minimised."""


def gradient_step(
    meta: MetaPolicy, lr: float, outer_loss: OuterLoss, state: State, data: Data
) -> tuple[State, Figures]:
    """One step of Adam on an outer loss and E-MAML's term."""

    def loss(params: PyTree) -> tuple[jax.Array, Any]:
        distributions = meta.unroll(params, data)
        policy_loss = outer_loss(distributions, data)
        total = policy_loss + meta.exploration_loss(data, distributions)
        return total, (policy_loss, distributions)

    grads, (policy_loss, before) = jax.grad(loss, has_aux=True)(state.params)
    updates, opt_state = ADAM(lr).update(grads, state.opt_state)
    params = optax.apply_updates(state.params, updates)
    kl = mean_kls(before, meta.unroll(params, data), data)[-1]
    figures = {"policy_loss": policy_loss, "grad_norm": optax.tree.norm(grads), "kl": kl}
    return State(params, opt_state), figures
