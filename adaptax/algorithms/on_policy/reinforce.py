"""REINFORCE (Williams 1992): raise the log-probability of actions by the return that followed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.on_policy import family
from adaptax.core.config import check_multiple, check_positive, check_unit
from adaptax.core.experience import PyTree, Rollout
from adaptax.core.hyperparameters import Hyperparameters, changed
from adaptax.core.spec import EnvSpec
from adaptax.functional.masking import masked_mean, masked_standardize
from adaptax.functional.policy_losses import policy_gradient_loss
from adaptax.functional.returns import discounted_returns
from adaptax.learning.minibatches import optimizer
from adaptax.learning.processors import ProcessorConfig, process_samples
from adaptax.learning.schedules import Schedule
from adaptax.networks.actor_critic import (
    ActorCritic,
    checked_actor_critic,
    init_params,
    part_of,
    with_part,
)
from adaptax.networks.convolutions import torso_for
from adaptax.networks.memory import MemoryConfig
from adaptax.networks.normalizer import Moments, fresh_moments
from adaptax.sampling.actors import Actor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class ReinforceConfig(Hyperparameters):
    """REINFORCE with whole episodes and returns standardised over the batch."""

    network_settings: ClassVar[tuple[str, ...]] = ("hidden_sizes", "memory", "init_std")

    num_lanes: int = 16
    """Environments run side by side."""
    num_tasks: int = 1
    """Tasks drawn an iteration, each with its share of the lanes."""
    num_episodes: int = 1
    """Episodes a lane in each iteration."""
    discount: float = 0.99
    """Weight of a reward against one a step earlier, gamma."""
    baseline: Literal["none", "linear"] = "none"
    """What is subtracted from returns: nothing, or their fit by features of observation and time
    (Duan et al. 2016)."""
    lr: float = 3e-3
    """Adam's step size."""
    lr_schedule: Schedule = "constant"
    """How the step size falls, from iteration to iteration."""
    lr_schedule_steps: int | None = None
    """Iterations until a linear or cosine schedule is at 0, an exponential one at a tenth; None:
    the whole run."""
    max_grad_norm: float | None = None
    """Bound on the norm of the whole gradient."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Hidden layers of the policy."""
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    """What the policy remembers by, behind the hidden layers."""
    init_std: float = field(default=1.0, metadata={"static": True})
    """Standard deviation of the first policy's actions."""
    normalize_obs: bool = False
    """Whether the policy sees observations standardised by the moments of all so far; pictures are
    left as they are."""

    @property
    def passes_per_iteration(self) -> int:
        """A step an iteration."""
        return 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_lanes", "num_tasks", "num_episodes", "lr", "hidden_sizes")
        check_positive(self, "init_std")
        check_positive(self, "lr_schedule_steps", "max_grad_norm")
        check_unit(self, "discount")
        check_multiple(self, "num_lanes", "num_tasks")


Data = tuple[Rollout, jax.Array]
"""Whole episodes, and what is subtracted from their returns [M, N, T]."""


class Reinforce(Algorithm[family.State, Data]):
    """The policy-gradient theorem, and nothing else; the networks' value is not used."""

    name = "reinforce"
    collects_in_program = True
    config: ReinforceConfig
    finite_metrics = ("policy_loss",)

    def __init__(
        self, config: ReinforceConfig, spec: EnvSpec, networks: nn.Module | None = None
    ) -> None:
        super().__init__(config, spec)
        memory, sizes = config.memory.make(spec.horizon), config.hidden_sizes
        torso = torso_for(spec.picture, sizes)
        default = ActorCritic(spec.action, sizes, memory, config.init_std, torso=torso)
        space, size = spec.action, spec.observation_size
        self.networks = default
        if networks is not None:
            self.networks = checked_actor_critic(networks, space, size, needs=())

    def init(self, key: jax.Array) -> family.State:
        """Fresh parameters."""
        size = self.spec.observation_size
        params = init_params(self.networks, key, size)
        moments: dict[str, Moments] = {"obs": fresh_moments(size)}
        if not self.config.normalize_obs or self.spec.picture is not None:
            moments = {}
        opt_state = optimizer(self.config).init(part_of(params, "policy"))
        return family.State(params, opt_state, moments, jnp.array(0), key)

    def collect(self, state: family.State, sampler: Sampler) -> Data:
        """Whole episodes on new tasks."""
        config, tasks = self.config, sampler.sample_tasks(self.config.num_tasks)
        lanes = config.num_lanes // config.num_tasks
        rollout = sampler.episodes(self.actor(state), tasks, lanes, config.num_episodes)
        if config.baseline == "none":
            return rollout, jnp.zeros(rollout.valid.shape)
        fitted = process_samples(rollout, changed(ProcessorConfig(), discount=config.discount))
        return rollout, fitted.value.astype(jnp.float32)

    def update(self, state: family.State, data: Data) -> tuple[family.State, Metrics]:
        """One gradient step down -E[(R - baseline) log pi]."""
        rollout, baseline = data
        s = family.sequences_of(state, rollout)
        # A time limit is not the end of the world, but without a value the rest counts as 0.
        returns = discounted_returns(
            s.reward,
            jnp.zeros_like(s.reward),
            terminated=s.terminated,
            truncated=s.truncated,
            valid=s.valid,
            discount=self.config.discount,
        )
        advantage = masked_standardize(returns - baseline.reshape(s.reward.shape), s.valid)

        def loss(policy_params: PyTree) -> jax.Array:
            params = with_part(state.params, policy_params)
            _, (distribution, _) = self.networks.apply(
                params, s.memory, s.obs, s.reset, method="sequence"
            )
            terms = policy_gradient_loss(distribution.log_prob(s.action), advantage)
            return masked_mean(terms, s.valid)

        policy_params = part_of(state.params, "policy")
        value, grads = jax.value_and_grad(loss)(policy_params)
        updates, opt_state = optimizer(self.config).update(grads, state.opt_state)
        params = with_part(state.params, optax.apply_updates(policy_params, updates))
        after = replace(state, params=params, opt_state=opt_state, num_passes=state.num_passes + 1)
        return family.with_obs_moments(after, s), {"policy_loss": value}

    def actor(self, state: family.State, *, deterministic: bool = False) -> Actor:
        """The policy."""
        return family.policy_actor(self.networks, state, deterministic=deterministic)
