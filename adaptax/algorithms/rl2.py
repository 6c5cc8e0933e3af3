"""RL2: a recurrent agent whose learning algorithm is its own hidden state (Duan et al. 2016).

A trial is several episodes on one task. The hidden state is zero at its start only, and the
network sees its last action, reward and an episode-boundary flag, so that whatever it learns
about the task within a trial, it learns by activation. The outer algorithm, here PPO, treats
the whole trial as one episode: returns run across the inner boundaries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from adaptax.algorithms.base import Algorithm, Metrics, return_metrics
from adaptax.core.batch import PyTree, Rollout, zero_padding
from adaptax.core.config import check_positive, check_unit
from adaptax.core.errors import check
from adaptax.core.spec import EnvSpec
from adaptax.functional.masking import masked_mean, masked_standardize
from adaptax.functional.minibatches import ADAM, clipped, descend, shuffled_rows
from adaptax.functional.policy_losses import clipped_ratio_loss
from adaptax.functional.returns import gae
from adaptax.networks.normalizer import updated_moments
from adaptax.networks.recurrent import RecurrentActorCritic
from adaptax.sampling.actor import Actor, RecurrentActor, recurrent_input, recurrent_inputs
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class RL2PPOConfig:
    """RL2 with PPO as the outer algorithm."""

    meta_batch_size: int = 32
    """Trials an iteration, each on a task of its own."""
    episodes_per_trial: int | None = None
    """Episodes on one task; by default what the suite's protocol says."""
    discount: float = 0.99
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    lr: float = 1e-3
    """Adam's step size."""
    num_epochs: int = 8
    """Passes over the trials of an iteration."""
    num_minibatches: int = 8
    """Parts, of whole trials, that a pass is made in."""
    embedding_size: int = 64
    hidden_size: int = 64
    """Units of the GRU."""
    normalize_inputs: bool = True
    """Whether observations, actions, rewards and flags are normalised by their running moments."""
    init_std: float = 0.5
    """Standard deviation of the first policy's actions; at 1 a third of them would be clipped."""
    reward_scale: float = 0.1
    """Factor on rewards before returns: keeps value targets near 1. The agent sees raw rewards."""
    bootstrap_trial_end: bool = True
    """Whether what would follow a trial cut by its time limit counts by its value, or as 0."""
    value_coeff: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5

    def __post_init__(self) -> None:
        positive = ("meta_batch_size", "episodes_per_trial", "clip_range", "lr", "num_epochs")
        check_positive(self, *positive, "num_minibatches", "embedding_size", "hidden_size")
        check_positive(self, "init_std", "reward_scale", "max_grad_norm")
        check_unit(self, "discount", "gae_lambda")
        check(
            self.meta_batch_size % self.num_minibatches == 0,
            f"meta_batch_size {self.meta_batch_size} must be a multiple of "
            f"num_minibatches {self.num_minibatches}: a minibatch is whole trials",
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything learned."""

    variables: PyTree
    """`params` that the optimizer moves, and `moments` of the inputs."""
    opt_state: PyTree
    key: jax.Array


class RL2PPO(Algorithm):
    """RL2 with PPO."""

    name = "rl2-ppo"
    config: RL2PPOConfig

    def __init__(self, config: RL2PPOConfig, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        self.episodes_per_trial = config.episodes_per_trial or spec.trial_episodes
        self.network = RecurrentActorCritic(
            spec.action,
            config.embedding_size,
            config.hidden_size,
            config.init_std,
            config.normalize_inputs,
        )

    def init(self, key: jax.Array) -> State:
        """Fresh parameters."""
        key, init_key = jax.random.split(key)
        size = self.spec.observation_size + self.spec.action.size + 2
        hidden = jnp.zeros((1, self.config.hidden_size))
        variables = self.network.init(init_key, jnp.zeros((1, 1, size)), hidden)
        return State(variables, _optimizer(self.config).init(variables["params"]), key)

    def iteration(self, state: State, sampler: Sampler) -> tuple[State, Metrics]:
        """One trial on each of `meta_batch_size` tasks, then epochs of PPO over them."""
        tasks = sampler.sample_tasks(self.config.meta_batch_size)
        rollout = sampler.episodes(self.actor(state), tasks, 1, self.episodes_per_trial)
        state, metrics = _update(self.config, self.network, state, rollout)
        return state, {**return_metrics(rollout, self.episodes_per_trial), **metrics}

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The recurrent policy at the start of a trial."""
        return RecurrentActor(
            state.variables, self.network, self.spec.action, deterministic=deterministic
        )

    def adapt(
        self,
        state: State,
        actor: Actor,
        history: Sequence[Rollout],
        *,
        deterministic: bool = False,
    ) -> Actor:
        """Go on from the memory at the end of the last rollout."""
        assert isinstance(actor, RecurrentActor)
        return actor.adapted(history[-1], deterministic=deterministic)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Trials:
    """B whole trials of T steps as sequences, padding last."""

    inputs: jax.Array
    """[B, T, O + A + 2]: what the network saw."""
    action: jax.Array
    reward: jax.Array
    """[B, T]"""
    log_prob: jax.Array
    """[B, T], of the policy that acted."""
    terminated: jax.Array
    """[B, T]"""
    valid: jax.Array
    """[B, T]"""


def trial_batch(rollout: Rollout, network: RecurrentActorCritic) -> Trials:
    """The lanes [M, N, T] of a rollout as B = M * N trials."""
    rollout = zero_padding(rollout)
    trials = Trials(
        inputs=recurrent_inputs(rollout, network.space),
        action=jnp.asarray(rollout.action),
        reward=jnp.asarray(rollout.reward),
        log_prob=jnp.asarray(rollout.extras["log_prob"]),
        terminated=jnp.asarray(rollout.terminated),
        valid=jnp.asarray(rollout.valid),
    )
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), trials)


def trial_advantages(
    trials: Trials, value: jax.Array, value_after: jax.Array, config: RL2PPOConfig
) -> jax.Array:
    """GAE [B, T] of a trial as one episode, inner boundaries included.

    `value` [B, T]; `value_after` [B] is what follows the trial's last step, unless that step
    terminated: 0 for a finite trial.
    """
    following = jnp.pad(trials.valid[:, 1:], ((0, 0), (0, 1)))
    trial_end = trials.valid & ~following
    next_value = jnp.pad(value[:, 1:], ((0, 0), (0, 1)))
    return gae(
        config.reward_scale * trials.reward,
        value,
        jnp.where(trial_end, value_after[:, None], next_value),
        terminated=trial_end & trials.terminated,
        truncated=trial_end & ~trials.terminated,
        valid=trials.valid,
        discount=config.discount,
        gae_lambda=config.gae_lambda,
    )


def _value_after(network: RecurrentActorCritic, variables: PyTree, rollout: Rollout) -> jax.Array:
    """Value [B] of where each trial stopped, as if its last episode went on."""
    carry = rollout.final_carry
    last = jnp.sum(rollout.valid, axis=-1) - 1
    obs = jnp.take_along_axis(rollout.next_obs, last[..., None, None], axis=2)[:, :, 0]
    going_on = jnp.zeros_like(carry["boundary"])
    inputs = recurrent_input(obs, carry["last_action"], carry["last_reward"], going_on)
    return network.apply(variables, inputs[..., None, :], carry["hidden"])[1].reshape(-1)


def _optimizer(config: RL2PPOConfig) -> optax.GradientTransformation:
    return clipped(ADAM(config.lr), config.max_grad_norm)


def _evaluate(
    network: RecurrentActorCritic, variables: PyTree, trials: Trials
) -> tuple[Any, jax.Array]:
    """The policy's distributions and values [B, T], re-run from the zero state."""
    hidden = jnp.zeros((trials.inputs.shape[0], network.hidden_size))
    distribution, value, _ = network.apply(variables, trials.inputs, hidden)
    return distribution, value


def _loss(
    params: PyTree,
    variables: PyTree,
    config: RL2PPOConfig,
    network: RecurrentActorCritic,
    batch: tuple[Trials, jax.Array, jax.Array],
) -> tuple[jax.Array, Metrics]:
    trials, advantage, target = batch
    distribution, value = _evaluate(network, {**variables, "params": params}, trials)
    log_prob = distribution.log_prob(trials.action)
    policy_terms = clipped_ratio_loss(log_prob, trials.log_prob, advantage, config.clip_range)
    policy_loss = masked_mean(policy_terms, trials.valid)
    value_loss = 0.5 * masked_mean(jnp.square(value - target), trials.valid)
    metrics = {
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": masked_mean(distribution.entropy(), trials.valid),
        "kl": masked_mean(trials.log_prob - log_prob, trials.valid),
    }
    return policy_loss + config.value_coeff * value_loss, metrics


@partial(jax.jit, static_argnums=(0, 1))
def _update(
    config: RL2PPOConfig, network: RecurrentActorCritic, state: State, rollout: Rollout
) -> tuple[State, Metrics]:
    """All epochs over all minibatches as one scan."""
    trials = trial_batch(rollout, network)
    _, value = _evaluate(network, state.variables, trials)
    after = jnp.zeros(value.shape[0])
    if config.bootstrap_trial_end:
        after = _value_after(network, state.variables, rollout)
    raw = trial_advantages(trials, value, after, config)
    advantage = masked_standardize(raw, trials.valid)
    batch = (trials, advantage, raw + value)

    def loss(params: PyTree, part: tuple[Trials, jax.Array, jax.Array]) -> tuple[Any, Metrics]:
        return _loss(params, state.variables, config, network, part)

    key, shuffle_key = jax.random.split(state.key)
    part_size = trials.valid.shape[0] // config.num_minibatches
    rows = shuffled_rows(shuffle_key, trials.valid.any(-1), config.num_epochs, part_size)
    start = (state.variables["params"], state.opt_state)
    (params, opt_state), metrics = descend(loss, _optimizer(config), start, batch, rows)
    variables = {**state.variables, "params": params}
    if config.normalize_inputs:
        # Only now: the update sees the inputs as the policy that acted saw them.
        moments = state.variables["moments"]["normalizer"]
        moments = updated_moments(moments, trials.inputs, trials.valid)
        variables["moments"] = {"normalizer": moments}
    return State(variables, opt_state, key), metrics
