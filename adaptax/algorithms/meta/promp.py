"""ProMP: proximal meta-policy search. Clipped ratios after adaptation, a KL penalty before it.

Rothfuss et al. 2019, "ProMP: Proximal meta-policy search" (arXiv 1810.06784), algorithm 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.meta import maml_family
from adaptax.algorithms.meta.maml_family import (
    Data,
    Distributions,
    MAMLConfig,
    Stages,
    actor_of,
    adapted_actor,
    collect,
    exploration_loss,
    init_moments,
    init_params,
    mean_kls,
    policy_for,
    return_metrics,
    seen,
    task_mean,
    unroll,
    with_experience,
)
from adaptax.core.config import check_not_negative, check_positive
from adaptax.core.errors import check
from adaptax.core.experience import PyTree, Rollout
from adaptax.core.spec import EnvSpec
from adaptax.functional.policy_losses import adapted_kl_coeff, clipped_ratio_loss
from adaptax.learning.minibatches import ADAM, descend, shuffled_rows
from adaptax.learning.schedules import Schedule, falling
from adaptax.sampling.actors import Actor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class ProMPConfig(MAMLConfig):
    """ProMP; defaults of its own are those of its authors' class.

    Those of their published runs are in docs/algorithms/promp.md.
    """

    lr: float = 1e-3
    """Adam's step size."""
    lr_schedule: Schedule = "constant"
    """How the step size falls, from pass to pass."""
    lr_schedule_steps: int | None = None
    """Passes until a linear or cosine schedule is at 0, an exponential one at a tenth; None: the
    whole run."""
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

    @property
    def passes_per_iteration(self) -> int:
        """Passes over the tasks of an iteration."""
        return self.num_epochs

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "lr", "num_epochs", "num_minibatches", "clip_range", "target_kl")
        check_positive(self, "clip_range_decay", "lr_schedule_steps")
        check_not_negative(self, "init_kl_coeff")
        check(
            self.meta_batch_size % self.num_minibatches == 0,
            f"meta_batch_size {self.meta_batch_size} must be a multiple of "
            f"num_minibatches {self.num_minibatches}: a minibatch is whole tasks",
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State(maml_family.State):
    """Everything learned, and what changes from iteration to iteration."""

    kl_coeff: jax.Array
    """[K], one for every inner step."""
    clip_range: jax.Array
    key: jax.Array


def adam(config: ProMPConfig) -> optax.GradientTransformation:
    """The outer optimizer."""
    return ADAM(falling(config.lr, config, config.num_minibatches))


class ProMP(Algorithm[State, Data]):
    """Proximal meta-policy search; `networks` as in maml_family.py."""

    name = "promp"
    collects_in_program = True
    data_by_task = True
    finite_metrics = ("policy_loss", "kl_penalty", "kl")
    config: ProMPConfig

    def __init__(
        self, config: ProMPConfig, spec: EnvSpec, networks: nn.Module | None = None
    ) -> None:
        super().__init__(config, spec, policy_for(config, spec, networks))
        self.lanes_per_task = config.num_episodes
        self.trained_episodes = config.num_inner_steps + 1

    def init(self, key: jax.Array) -> State:
        """Fresh parameters."""
        config, (key, init_key) = self.config, jax.random.split(key)
        params = init_params(config, self.networks, self.spec, init_key)
        kl_coeff = jnp.full(config.num_inner_steps, config.init_kl_coeff, jnp.float32)
        clip_range = jnp.float32(config.clip_range)
        moments = init_moments(config, self.spec)
        return State(params, adam(config).init(params), moments, kl_coeff, clip_range, key)

    def collect(self, state: State, sampler: Sampler) -> Data:
        """Episodes on new tasks before every inner step and after the last."""
        return collect(self.config, self.networks, state, sampler)

    def loss(
        self, state: State, params: PyTree, batch: tuple[Stages, Distributions]
    ) -> tuple[jax.Array, Metrics]:
        """Section 6: clipped ratios after adaptation, and mean_k kl_coeff_k KL_k before steps."""
        stages, before = batch
        after, last = unroll(self.config, self.networks, params, stages), stages[-1]
        log_prob = after[-1].log_prob(last.action)
        terms = clipped_ratio_loss(
            log_prob, last.log_prob, last.credit, state.clip_range, last.valid
        )
        policy_loss = task_mean(terms, last.valid)
        penalty = jnp.mean(state.kl_coeff * mean_kls(before[:-1], after[:-1], stages[:-1]))
        total = policy_loss + penalty + exploration_loss(self.config, stages, after)
        return total, {"policy_loss": policy_loss, "kl_penalty": penalty}

    def update(self, state: State, data: Data) -> tuple[State, Metrics]:
        """Passes over the tasks, anchored at the policies that acted; then coefficients follow."""
        config, policy = self.config, self.networks
        stages = seen(data.stages, state.moments)
        before = unroll(config, policy, state.params, stages)
        key, shuffle_key = jax.random.split(state.key)
        every = jnp.ones(config.meta_batch_size, bool)
        rows = shuffled_rows(shuffle_key, every, config.num_epochs, config.num_minibatches)
        start = (state.params, state.opt_state)
        (params, opt_state), metrics = descend(
            partial(self.loss, state), adam(config), start, (stages, before), rows
        )
        kls = mean_kls(before, unroll(config, policy, params, stages), stages)
        kl_coeff = state.kl_coeff
        if config.adaptive_kl:
            kl_coeff = adapted_kl_coeff(kl_coeff, kls[:-1], config.target_kl)
        metrics |= {
            "kl": kls[-1],
            "kl_before_adaptation": jnp.mean(kls[:-1]),
            "kl_coeff": jnp.mean(kl_coeff),
            "clip_range": state.clip_range,
        }
        clip_range = state.clip_range * config.clip_range_decay
        moments = with_experience(state.moments, data.stages)
        new = State(params, opt_state, moments, kl_coeff, clip_range, key)
        return new, return_metrics(data) | metrics

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy before adaptation."""
        return actor_of(self.networks, state, deterministic)

    def adapt(
        self, state: State, actor: Actor, history: Sequence[Rollout], *, deterministic: bool = False
    ) -> Actor:
        """One inner step further, on the last rollout."""
        config, policy, horizon = self.config, self.networks, self.spec.horizon
        return adapted_actor(config, policy, horizon, state, actor, history, deterministic)
