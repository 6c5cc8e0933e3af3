"""RL2: a recurrent agent whose learning algorithm is its own hidden state (Duan et al. 2016).

A trial is several episodes on one task. The hidden state is zero at its start only, and the
network sees its last action, reward and an episode-boundary flag, so that whatever it learns
about the task within a trial, it learns by activation. The outer algorithm treats the whole trial
as one episode: returns run across the inner boundaries. Here is what outer algorithms share.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from adaptax.algorithms.base import Algorithm, Metrics, check_finite, return_metrics
from adaptax.algorithms.meta.trials import Trials, evaluate, trial_batch
from adaptax.core.config import check_positive, check_unit
from adaptax.core.errors import check
from adaptax.core.experience import PyTree, Rollout
from adaptax.core.spec import EnvSpec
from adaptax.functional.distributions import Distribution
from adaptax.functional.masking import masked_shift_positive, masked_standardize
from adaptax.functional.returns import gae
from adaptax.learning.minibatches import Schedule, optimizer, share_left, shuffled_rows
from adaptax.networks.memory.recurrent import Cell, RecurrentActorCritic, check_cell
from adaptax.networks.normalizer import updated_moments
from adaptax.sampling.actors import Actor, RecurrentActor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class RL2Config:
    """What every outer algorithm needs."""

    meta_batch_size: int = 32
    """Trials an iteration, each on a task of its own."""
    num_episodes: int | None = None
    """Episodes on one task; by default what the suite's protocol says."""
    discount: float = 0.99
    gae_lambda: float = 0.95
    center_adv: bool = True
    """Whether advantages are standardised."""
    center_adv_over: Literal["all", "trial"] = "all"
    """Over all valid steps, or over each trial's, where small rewards then count as large ones."""
    positive_advantage: bool = False
    """Whether advantages are shifted so that the smallest is just above 0."""
    lr: float = 1e-3
    """Adam's step size."""
    lr_schedule: Schedule = "constant"
    """How the step size falls, from pass to pass."""
    lr_schedule_steps: int = 1000
    """Passes, `num_epochs` of them an iteration, until a linear schedule is at 0, an exponential
    one at a tenth."""
    num_epochs: int = 8
    """Passes over the trials of an iteration."""
    num_minibatches: int = 8
    """Parts, of whole trials, that a pass is made in."""
    max_grad_norm: float = 0.5
    entropy_method: Literal["no_entropy", "regularized", "max"] = "no_entropy"
    """How entropy counts: not, as a term of the objective, or as part of every reward."""
    entropy_coeff: float = 0.0
    """Weight of the entropy, at first if it is scheduled."""
    entropy_schedule: Schedule = "constant"
    """How that weight falls, from iteration to iteration, over as many passes as the step size."""
    use_softplus_entropy: bool = False
    """Whether the softplus of the entropy counts, which is never negative."""
    use_neg_logli_entropy: bool = False
    """Whether -log pi of the action taken stands for the entropy."""
    stop_entropy_gradient: bool = False
    """Whether no gradient flows through the entropy."""
    embedding_size: int = 64
    cell: Cell = "gru"
    """What remembers: a recurrent cell, or matrices that are written to and read by keys."""
    hidden_size: int = 64
    """Units of the recurrent cell, or of all heads of fast weights."""
    normalize_inputs: bool = True
    """Whether observations, actions, rewards and flags are normalised by their running moments."""
    init_std: float = 0.5
    """Standard deviation of the first policy's actions; at 1 a third of them would be clipped."""
    reward_scale: float = 0.1
    """Factor on rewards before returns: keeps value targets near 1. The agent sees raw rewards."""
    bootstrap_trial_end: bool = True
    """Whether what would follow a trial cut by its time limit counts by its value, or as 0."""

    def __post_init__(self) -> None:
        check_positive(self, "meta_batch_size", "num_episodes", "lr", "num_epochs")
        check_positive(self, "num_minibatches", "embedding_size", "hidden_size", "init_std")
        check_positive(self, "lr_schedule_steps", "reward_scale", "max_grad_norm")
        check_cell(self.cell, self.hidden_size)
        check_unit(self, "discount", "gae_lambda")
        check(
            self.meta_batch_size % self.num_minibatches == 0,
            f"meta_batch_size {self.meta_batch_size} must be a multiple of "
            f"num_minibatches {self.num_minibatches}: a minibatch is whole trials",
        )
        self._check_entropy()

    def _check_entropy(self) -> None:
        coeff, method = self.entropy_coeff, self.entropy_method
        check(coeff >= 0, f"entropy_coeff must not be negative, not {coeff}")
        if method == "no_entropy":
            needs = "needs entropy_method 'regularized' or 'max', not 'no_entropy'"
            check(coeff == 0, f"entropy_coeff {coeff} {needs}")
            schedule = self.entropy_schedule
            check(schedule == "constant", f"entropy_schedule {schedule!r} {needs}")
        if method == "max":
            # Centred, what the entropy adds to every advantage would mostly cancel; with a
            # gradient it would count twice, as reward and as a term.
            check(not self.center_adv, "entropy_method 'max' needs center_adv to be off")
            check(self.stop_entropy_gradient, "entropy_method 'max' needs stop_entropy_gradient")


class RL2(Algorithm):
    """An outer algorithm's state has `variables`, those of the network that acts."""

    config: RL2Config
    trained_episodes: int
    """Episodes of a trial."""

    def __init__(self, config: RL2Config, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        self.trained_episodes = config.num_episodes or spec.trial_episodes
        sizes = config.embedding_size, config.hidden_size
        self.network = RecurrentActorCritic(
            spec.action, *sizes, config.init_std, config.normalize_inputs, config.cell
        )

    @abstractmethod
    def update(self, state: Any, rollout: Rollout) -> tuple[Any, Metrics]:
        """Learn from whole trials, one in each of the lanes [M, 1]."""

    def iteration(self, state: Any, sampler: Sampler) -> tuple[Any, Metrics]:
        """One trial on each of `meta_batch_size` tasks, then what the outer algorithm does."""
        tasks = sampler.sample_tasks(self.config.meta_batch_size)
        rollout = sampler.episodes(self.actor(state), tasks, 1, self.trained_episodes)
        state, metrics = self.update(state, rollout)
        check_finite(metrics, "kl", "value_loss")
        return state, {**return_metrics(rollout, self.trained_episodes), **metrics}

    def fresh_variables(self, key: jax.Array) -> PyTree:
        """`params` that an optimizer moves, and `moments` of the inputs if they are normalised."""
        size = self.spec.observation_size + self.spec.action.size + 2
        memory = jnp.zeros((1, self.network.memory_size))
        return self.network.init(key, jnp.zeros((1, 1, size)), memory)

    def actor(self, state: Any, *, deterministic: bool = False) -> Actor:
        """The recurrent policy at the start of a trial."""
        return RecurrentActor(
            state.variables, self.network, self.spec.action, deterministic=deterministic
        )

    def adapt(
        self,
        state: PyTree,
        actor: Actor,
        history: Sequence[Rollout],
        *,
        deterministic: bool = False,
    ) -> Actor:
        """Go on from the memory at the end of the last rollout."""
        assert isinstance(actor, RecurrentActor)
        return actor.adapted(history[-1], deterministic=deterministic)


def judge(
    config: RL2Config, network: RecurrentActorCritic, variables: PyTree, trials: Trials
) -> tuple[jax.Array, jax.Array]:
    """Values [B, T], and what follows each trial's last step [B] unless that step terminated."""
    rows, length = jnp.arange(len(trials.valid)), jnp.sum(trials.valid, axis=1)
    inputs = jnp.pad(trials.inputs, ((0, 0), (0, 1), (0, 0)))
    inputs = inputs.at[rows, length].set(trials.next_input)
    _, value = evaluate(network, variables, inputs)
    after = value[rows, length]
    return value[:, :-1], after if config.bootstrap_trial_end else jnp.zeros_like(after)


def trial_advantages(
    trials: Trials, value: jax.Array, value_after: jax.Array, config: RL2Config
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


def policy_advantage(config: RL2Config, advantage: jax.Array, valid: jax.Array) -> jax.Array:
    """Advantages [B, T] as the policy learns from them."""
    if config.center_adv:
        over_trial = config.center_adv_over == "trial"
        standardize = jax.vmap(masked_standardize) if over_trial else masked_standardize
        advantage = standardize(advantage, valid)
    return masked_shift_positive(advantage, valid) if config.positive_advantage else advantage


def entropy(config: RL2Config, distribution: Distribution, action: jax.Array) -> jax.Array:
    """Entropy [B, T] of the policy, in nats, as the settings want it."""
    by_action = config.use_neg_logli_entropy
    x = -distribution.log_prob(action) if by_action else distribution.entropy()
    x = jax.nn.softplus(x) if config.use_softplus_entropy else x
    return jax.lax.stop_gradient(x) if config.stop_entropy_gradient else x


def entropy_weight(config: RL2Config, num_passes: jax.Array) -> jax.Array:
    """Of the iteration that begins after so many passes."""
    progress = num_passes / config.lr_schedule_steps
    return config.entropy_coeff * share_left(config.entropy_schedule, progress)


def with_entropy_reward(
    config: RL2Config, weight: jax.Array, trials: Trials, distribution: Distribution
) -> Trials:
    """Rewards with the entropy of the policy that acted, weighted, if the method is 'max'."""
    if config.entropy_method != "max":
        return trials
    bonus = weight * entropy(config, distribution, trials.action)
    return replace(trials, reward=jnp.where(trials.valid, trials.reward + bonus, 0.0))


def entropy_term(config: RL2Config, weight: jax.Array, entropies: jax.Array) -> jax.Array:
    """What the loss gains by a mean entropy, if the method is 'regularized'."""
    return -weight * entropies if config.entropy_method == "regularized" else jnp.zeros(())


@dataclass(frozen=True)
class Lesson:
    """What an outer algorithm learns from in an iteration."""

    trials: Trials
    acted: Distribution
    """The policy that acted."""
    advantage: jax.Array
    """[B, T]: what the policy learns from."""
    target: jax.Array
    """[B, T]: what the value learns from."""


def lesson(
    config: RL2Config,
    network: RecurrentActorCritic,
    rollout: Rollout,
    policy: PyTree,
    value: PyTree,
    ent_weight: jax.Array,
) -> Lesson:
    """Whole trials judged by the present value; `policy` and `value` are variables of networks."""
    seen = trial_batch(rollout, network)
    values, after = judge(config, network, value, seen)
    acted, _ = evaluate(network, policy, seen.inputs)
    trials = with_entropy_reward(config, ent_weight, seen, acted)
    raw = trial_advantages(trials, values, after, config)
    return Lesson(trials, acted, policy_advantage(config, raw, trials.valid), raw + values)


def minibatches(config: RL2Config, trials: Trials, key: jax.Array) -> jax.Array:
    """Indices [K, b] of the trials in each minibatch of all passes."""
    part_size = len(trials.valid) // config.num_minibatches
    return shuffled_rows(key, trials.valid.any(-1), config.num_epochs, part_size)


def adam(config: RL2Config) -> optax.GradientTransformation:
    """What descends by gradients, in PPO all and in TRPO the value."""
    return optimizer(config, updates_per_pass=config.num_minibatches)


def moved(config: RL2Config, variables: PyTree, params: PyTree, trials: Trials) -> PyTree:
    """The network after an update, with the moments of what was seen in it.

    Only now: the update saw its inputs as the policy that acted had seen them.
    """
    variables = {**variables, "params": params}
    if config.normalize_inputs:
        moments = variables["moments"]["normalizer"]
        moments = updated_moments(moments, trials.inputs, trials.valid)
        variables["moments"] = {"normalizer": moments}
    return variables
