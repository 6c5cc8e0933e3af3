"""What A2C, PPO, PPO2 and TRPO share: settings, state, collection, and the figures they report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.algorithms.base import Metrics, check_finite
from adaptax.core.config import check_positive, check_unit
from adaptax.core.errors import check
from adaptax.core.experience import PyTree, Rollout
from adaptax.core.spec import EnvSpec
from adaptax.functional.masking import masked_mean
from adaptax.learning.estimator import GAE
from adaptax.learning.minibatches import Figures, Loss, Schedule, Stop
from adaptax.learning.sequences import (
    Batch,
    EpisodicActor,
    Passes,
    Sequences,
    as_sequences,
    episode_metrics,
)
from adaptax.networks.actor_critic import ActorCritic, actor_critic
from adaptax.networks.normalizer import Moments, fresh_moments, updated_moments
from adaptax.sampling.actors import Actor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class OnPolicyConfig:
    """How experience is collected and judged, and what the networks look like."""

    num_lanes: int = 8
    """Environments run side by side."""
    num_tasks: int = 1
    """Tasks drawn an iteration, each with its share of the lanes. On a family of tasks every
    iteration draws new ones and starts their episodes afresh."""
    num_steps: int = 2048
    """Environment steps of an iteration in all lanes, equally many in each; they go on where the
    last iteration stopped (Schulman et al. 2017, table 3)."""
    num_episodes: int | None = None
    """If given, an iteration is whole episodes instead: so many in all lanes, equally many in
    each, whatever `num_steps` says."""
    discount: float = 0.99
    gae_lambda: float = 0.95
    standardizer: Literal["batch", "running", "none"] = "batch"
    """Whose moments give the policy's advantages mean 0 and standard deviation 1: those of the
    iteration, of all seen so far, or none."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Hidden layers of the policy and of the value (Schulman et al. 2017, section 6.1)."""
    shuffle: Literal["auto", "sequences", "steps"] = "auto"
    """What minibatches are made of: single steps or whole lanes, of which each has at least one;
    `auto` takes lanes with memory, which needs them, and steps without."""
    memory_size: int | None = None
    """Units of a GRU behind the hidden layers; None: no memory."""
    init_std: float = 1.0
    """Standard deviation of the first policy's actions."""
    lr: float = 5e-4
    """Step size of the gradient optimizer."""
    lr_schedule: Schedule = "constant"
    """How the step size falls, from pass to pass."""
    lr_schedule_steps: int = 1000
    """Passes until a linear schedule is at 0, an exponential one at a tenth."""
    max_grad_norm: float | None = None
    """Bound on the norm of all gradients that an optimizer owns, taken together."""
    normalize_obs: bool = False
    """Whether networks see observations standardised by the moments of all seen."""
    normalize_returns: bool = False
    """Whether values are learned in units of the returns seen: minus their mean, by their std."""

    def __post_init__(self) -> None:
        check_positive(self, "num_lanes", "num_tasks", "num_steps", "num_episodes", "init_std")
        check_positive(self, "hidden_sizes", "memory_size", "lr", "lr_schedule_steps")
        check_positive(self, "max_grad_norm")
        check_unit(self, "discount", "gae_lambda")
        check(
            self.num_lanes % self.num_tasks == 0,
            f"num_lanes {self.num_lanes} must be a multiple of num_tasks {self.num_tasks}",
        )
        check(
            self.memory_size is None or self.shuffle != "steps",
            "shuffle 'steps' does not go with memory_size: networks with a memory learn from "
            "whole sequences, not from shuffled steps",
        )

    @property
    def whole_sequences(self) -> bool:
        """Whether minibatches are of whole lanes."""
        return self.shuffle == "sequences" or self.memory_size is not None

    @property
    def lane_episodes(self) -> int | None:
        """Whole episodes of an iteration in one lane; None if it is steps."""
        return None if self.num_episodes is None else -(-self.num_episodes // self.num_lanes)

    def lane_steps(self, spec: EnvSpec) -> int:
        """Steps of an iteration in one lane, padding included."""
        if self.lane_episodes is not None:
            return self.lane_episodes * spec.horizon
        return -(-self.num_steps // self.num_lanes)

    def check_batch_size(self, name: str, batch_size: int, spec: EnvSpec) -> None:
        """Raise a ConfigError where a minibatch is larger than the batch."""
        total = self.num_lanes * self.lane_steps(spec)
        check(
            batch_size <= total,
            f"{name} {batch_size} is more than the {total} steps of an iteration",
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything learned."""

    params: PyTree
    """Of the networks, by name."""
    opt_state: PyTree
    """Of one optimizer for all networks, or a dict of one for each."""
    moments: dict[str, Moments]
    """Running moments of `obs`, `return` and `advantage`, as far as they are in use."""
    key: jax.Array


Update = Callable[[Any, ActorCritic, State, Rollout], tuple[State, Figures]]
InitOptimizer = Callable[[PyTree], PyTree]
"""From parameters to the state of what optimizes them."""


def network_of(config: OnPolicyConfig, spec: EnvSpec) -> ActorCritic:
    """The policy and the value."""
    return actor_critic(spec, config.hidden_sizes, config.memory_size, config.init_std)


def critic_of(config: OnPolicyConfig, network: ActorCritic) -> GAE:
    """The estimator."""
    assert network.value is not None
    standardize = config.standardizer != "none"
    return GAE(
        network.value, config.discount, config.gae_lambda, standardize, config.whole_sequences
    )


def fresh_state(
    config: OnPolicyConfig,
    network: ActorCritic,
    spec: EnvSpec,
    key: jax.Array,
    init_optimizer: InitOptimizer,
) -> State:
    """The state before training."""
    key, init_key = jax.random.split(key)
    params = network.init(init_key, spec.observation_size)
    in_use = {
        "obs": config.normalize_obs,
        "return": config.normalize_returns,
        "advantage": config.standardizer == "running",
    }
    sizes = {"obs": spec.observation_size, "return": 1, "advantage": 1}
    moments = {name: fresh_moments(sizes[name]) for name, used in in_use.items() if used}
    return State(params, init_optimizer(params), moments, key)


def reset_state(config: OnPolicyConfig, state: State, init_optimizer: InitOptimizer) -> State:
    """The same networks with all else as before training: optimizers, schedules, exploration.

    Moments of observations and returns stay, since the networks were trained with them.
    """

    def with_first_std(path: Any, x: jax.Array) -> jax.Array:
        exploration = path[-1] == jax.tree_util.DictKey("log_std")
        return jnp.full_like(x, np.log(config.init_std)) if exploration else x

    params = jax.tree_util.tree_map_with_path(with_first_std, state.params)
    moments = {n: fresh_moments(1) if n == "advantage" else m for n, m in state.moments.items()}
    return replace(state, params=params, opt_state=init_optimizer(params), moments=moments)


def episodic_actor(network: ActorCritic, state: State, deterministic: bool) -> Actor:
    """The policy at the start of an episode."""
    return EpisodicActor(state.params, network, state.moments.get("obs"), deterministic)


def iterate(
    config: OnPolicyConfig, network: ActorCritic, state: State, sampler: Sampler, update: Update
) -> tuple[State, Metrics]:
    """Collect, update, and report; raises NotFinite where the update diverged."""
    rollout = collect(config, episodic_actor(network, state, deterministic=False), sampler)
    state, figures = update(config, network, state, rollout)
    metrics = episode_metrics(rollout)  # while the update computes
    check_finite(figures, "loss_before", "kl")
    return state, {**metrics, **figures}


def collect(config: OnPolicyConfig, actor: Actor, sampler: Sampler, num_agents: int = 1) -> Rollout:
    """What an iteration learns from; several agents are one after another on the member axis.

    Each agent has all the lanes and tasks of `config`, one member a task.
    """
    tasks, lanes = sampler.sample_tasks(config.num_tasks), config.num_lanes // config.num_tasks
    if config.lane_episodes is not None:
        return sampler.episodes(actor, tasks * num_agents, lanes, config.lane_episodes)
    return sampler.steps(actor, tasks * num_agents, lanes, config.lane_steps(sampler.spec))


def prepare(state: State, rollout: Rollout) -> tuple[Sequences, dict[str, Moments]]:
    """What was seen, as the actor saw it; and the moments with these observations seen."""
    sequences = as_sequences(rollout, state.moments.get("obs"))
    moments = state.moments
    if "obs" in moments:
        obs, valid = jnp.asarray(rollout.obs), jnp.asarray(rollout.valid)
        seen = updated_moments(moments["obs"], obs, valid)
        moments = {**moments, "obs": seen}
    return sequences, moments


def changes(
    network: ActorCritic, before: PyTree, after: PyTree, batch: Batch, loss: Loss
) -> Figures:
    """What an update did, over all batch: to the loss, the policy and the value."""
    inputs = (batch.obs, batch.memory, batch.reset)
    old, new = network.distribution(before, *inputs), network.distribution(after, *inputs)
    return {
        "loss_before": loss(before, batch)[0],
        "loss_after": loss(after, batch)[0],
        "kl": masked_mean(old.kl(new), batch.valid),
        "entropy": masked_mean(new.entropy(), batch.valid),
    }


def learn_jointly(
    config: OnPolicyConfig,
    network: ActorCritic,
    state: State,
    rollout: Rollout,
    passes: Passes,
    *,
    empirical: bool,
) -> tuple[State, Figures]:
    """Judge by the present value, then teach policy and value together, with one optimizer.

    `empirical`: the value learns Monte-Carlo returns rather than lambda-returns.
    """
    critic = critic_of(config, network)
    sequences, moments = prepare(state, rollout)
    estimate, moments = critic.estimate(
        state.params["value"], moments, sequences, empirical=empirical
    )
    advantage, moments = critic.policy_advantage(estimate.advantage, sequences.valid, moments)
    batch = critic.batch(sequences, estimate, advantage)
    key, shuffle_key = jax.random.split(state.key)
    start = (state.params, state.opt_state)
    (params, opt_state), figures = passes.run(start, batch, shuffle_key)
    figures |= changes(network, state.params, params, batch, passes.loss)
    figures["explained_variance"] = critic.explained_variance(params["value"], batch)
    return State(params, opt_state, moments, key), figures


def check_not_negative(config: Any, *names: str) -> None:
    """Raise a ConfigError unless each named field is at least zero."""
    for name in names:
        value = getattr(config, name)
        check(value >= 0, f"{name} must not be negative, not {value}")


def above(target_kl: float | None) -> Stop | None:
    """Whether a minibatch's `approx_kl` is above one and a half times the target, if there is one.

    The factor is Spinning Up's and Stable-Baselines3's.
    """
    if target_kl is None:
        return None
    return lambda figures: figures["approx_kl"] > 1.5 * target_kl
