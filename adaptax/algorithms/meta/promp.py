"""ProMP: proximal meta-policy search. Clipped ratios after adaptation, a KL penalty before it.

Rothfuss et al. 2019, "ProMP: Proximal meta-policy search" (arXiv 1810.06784), algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp

from adaptax.algorithms.meta.family import MAML, mean_kls, task_mean
from adaptax.algorithms.meta.meta_policy import Data, Distributions, MAMLConfig, MetaPolicy
from adaptax.core.config import check_positive
from adaptax.core.errors import check
from adaptax.core.experience import PyTree
from adaptax.functional.policy_losses import adapted_kl_coeff, clipped_ratio_loss
from adaptax.learning.minibatches import ADAM, Figures, descend, shuffled_rows


@dataclass(frozen=True)
class ProMPConfig(MAMLConfig):
    """ProMP; defaults are those of its class, its published runs' are on the page."""

    lr: float = 1e-3
    """Adam's step size."""
    num_epochs: int = 5
    """Passes over the tasks of an iteration."""
    num_minibatches: int = 1
    """Parts, of whole tasks, that a pass is made in."""
    clip_range: float = 0.2
    """Range of the ratio around 1, of the policy after adaptation."""
    clip_range_decay: float = 1.0
    """Factor on `clip_range` after every iteration."""
    init_kl_coeff: float = 1e-2
    """Weight of the KL from the policies that acted before each inner step."""
    adaptive_kl: bool = True
    """Whether that weight is halved and doubled so that the KL stays near its target."""
    target_kl: float = 0.01
    """Nats, for every inner step."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "lr", "num_epochs", "num_minibatches", "clip_range", "target_kl")
        check_positive(self, "clip_range_decay")
        check(self.init_kl_coeff >= 0, f"init_kl_coeff must not be negative: {self.init_kl_coeff}")
        check(
            self.meta_batch_size % self.num_minibatches == 0,
            f"meta_batch_size {self.meta_batch_size} must be a multiple of "
            f"num_minibatches {self.num_minibatches}: a minibatch is whole tasks",
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything learned."""

    params: PyTree
    """What the meta-gradient moves: `policy`, and `inner_lr` if that is learned."""
    opt_state: PyTree
    kl_coeff: jax.Array
    """[K], one for every inner step."""
    clip_range: jax.Array
    key: jax.Array


class ProMP(MAML):
    """Proximal meta-policy search."""

    name = "promp"
    config: ProMPConfig

    def init(self, key: jax.Array) -> State:
        """Fresh parameters."""
        config, (key, init_key) = self.config, jax.random.split(key)
        params = self.meta.init(init_key)
        kl_coeff = jnp.full(config.num_inner_steps, config.init_kl_coeff)
        clip_range = jnp.float32(config.clip_range)
        return State(params, ADAM(config.lr).init(params), kl_coeff, clip_range, key)

    def update(self, state: State, data: Data) -> tuple[State, Figures]:
        """Passes over the tasks."""
        return _update(self.meta, state, data)


def loss(
    meta: MetaPolicy,
    kl_coeff: jax.Array,
    clip_range: jax.Array,
    params: PyTree,
    batch: tuple[Data, Distributions],
) -> tuple[jax.Array, Figures]:
    """Clipped ratios after the last inner step, and mean_k kl_coeff_k KL_k before each (eq. 14)."""
    data, before = batch
    after, last = meta.unroll(params, data), data[-1]
    log_prob = after[-1].log_prob(last.action)
    terms = clipped_ratio_loss(log_prob, last.log_prob, last.credit, clip_range)
    policy_loss = task_mean(terms, last.valid)
    penalty = jnp.mean(kl_coeff * mean_kls(before[:-1], after[:-1], data[:-1]))
    total = policy_loss + penalty + meta.exploration_loss(data, after)
    return total, {"policy_loss": policy_loss, "kl_penalty": penalty}


@partial(jax.jit, static_argnums=0)
def _update(meta: MetaPolicy, state: State, data: Data) -> tuple[State, Figures]:
    """All passes, with the policies that acted as the anchor; then the coefficients follow."""
    config = meta.config
    assert isinstance(config, ProMPConfig)
    before = meta.unroll(state.params, data)
    key, shuffle_key = jax.random.split(state.key)
    every = jnp.ones(config.meta_batch_size, bool)
    part_size = config.meta_batch_size // config.num_minibatches
    rows = shuffled_rows(shuffle_key, every, config.num_epochs, part_size)
    loss_of = partial(loss, meta, state.kl_coeff, state.clip_range)
    start = (state.params, state.opt_state)
    (params, opt_state), figures = descend(loss_of, ADAM(config.lr), start, (data, before), rows)
    kls = mean_kls(before, meta.unroll(params, data), data)
    kl_coeff = state.kl_coeff
    if config.adaptive_kl:
        kl_coeff = adapted_kl_coeff(kl_coeff, kls[:-1], config.target_kl)
    figures |= {
        "kl": kls[-1],
        "kl_before_adaptation": jnp.mean(kls[:-1]),
        "kl_coeff": jnp.mean(kl_coeff),
        "clip_range": state.clip_range,
    }
    clip_range = state.clip_range * config.clip_range_decay
    return State(params, opt_state, kl_coeff, clip_range, key), figures
