"""RL2: a recurrent agent whose learning algorithm is its own hidden state (Duan et al. 2016).

A trial is several episodes on one task. The memory is cleared at its start only, and the network
sees its last action, reward and an episode-boundary flag, so that whatever it learns about the task
within a trial, it learns by activation. The outer algorithm is an on-policy one that takes the
whole trial for one episode: returns run across the inner boundaries, but for terminations where
`cut_at_termination` says so. Here is what trials add to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol

import jax
import jax.numpy as jnp

from adaptax.algorithms.base import Metrics
from adaptax.algorithms.on_policy import family
from adaptax.algorithms.on_policy.family import State, policy_actor, scheduled
from adaptax.core.config import check_not_negative, check_positive, check_unit
from adaptax.core.errors import check
from adaptax.core.experience import PyTree, Rollout
from adaptax.core.hyperparameters import Hyperparameters
from adaptax.core.spec import EnvSpec
from adaptax.functional.distributions import Distribution
from adaptax.functional.masking import usable_std
from adaptax.functional.returns import episode_index, time_in_episode
from adaptax.learning.estimator import Normalization
from adaptax.learning.schedules import Schedule
from adaptax.learning.sequences import Sequences, trial_sequences
from adaptax.networks.actor_critic import MIN_STD, ActorCritic
from adaptax.networks.convolutions import torso_for
from adaptax.networks.heads import check_deviations
from adaptax.networks.hypernetwork import HeadsConfig, head_inputs
from adaptax.networks.memory import MemoryConfig
from adaptax.networks.normalizer import fresh_moments, updated_moments
from adaptax.sampling.actors import Actor
from adaptax.sampling.memory_actors import TrialInputs, trial_input_size
from adaptax.sampling.sampler import Sampler
from adaptax.sampling.size import steps_of


@dataclass(frozen=True)
class RL2Config(Hyperparameters):
    """Trials, and the settings of an on-policy algorithm over them."""

    network_settings: ClassVar[tuple[str, ...]] = (
        *("hidden_sizes", "memory", "heads", "init_std", "min_std", "max_std", "tanh_mean"),
        "state_dependent_std",
    )

    meta_batch_size: int = 32
    """Trials an iteration, each on a task of its own."""
    num_episodes: int | None = None
    """Episodes of a trial; by default what the suite's protocol says."""
    num_trial_steps: int | None = None
    """Steps at which a trial ends, in the midst of an episode too; None: its episodes are whole.
    Where they end early, more episodes and a bound on steps leave less of a batch empty. A trial
    that is cut where an episode has just terminated counts as ended: what follows counts 0.
    Figures of training leave out an episode that is cut, so long ones more often than short."""
    discount: float = 0.99
    """Weight of a reward against one a step earlier, gamma."""
    gae_lambda: float = 0.95
    """Lambda of the advantages: 0 trusts the value after one step, 1 only after all of them."""
    normalize_advantage: Normalization = "batch"
    """Whose moments advantages are standardised by: those of the iteration, of each trial (where
    small rewards then count as large ones), of all so far, or none."""
    positive_advantage: bool = False
    """Whether advantages are shifted so that the smallest is just above 0."""
    lr: float = 1e-3
    """Adam's step size."""
    lr_schedule: Schedule = "constant"
    """How the step size falls, from pass to pass."""
    lr_schedule_steps: int | None = None
    """Passes until a linear or cosine schedule is at 0, an exponential one at a tenth; None: the
    whole run."""
    num_epochs: int = 8
    """Passes over the trials of an iteration."""
    num_minibatches: int = 8
    """Parts, of whole trials or pieces of them, that a pass is made in."""
    num_bptt_steps: int | None = None
    """Steps of the pieces that trials are cut into, beyond whose start no gradient flows back.
    None: whole trials."""
    max_grad_norm: float = 0.5
    """Bound on the norm of all gradients together."""
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
    hidden_sizes: tuple[int, ...] = (64,)
    """Hidden layers between the input and the memory."""
    memory: MemoryConfig = field(default_factory=lambda: MemoryConfig("gru", 64))
    """What the agent learns by within a trial."""
    heads: HeadsConfig = field(default_factory=HeadsConfig)
    """What policy and value see behind the memory; of VariBAD, behind the belief."""
    normalize_obs: bool = True
    """Whether observations, actions, rewards and flags are normalised by their running moments;
    where observations are pictures nothing is, since rare pixels would become large."""
    normalize_returns: bool = False
    """Whether values are learned in units of the returns so far: minus their mean, by their std."""
    init_std: float = field(default=0.5, metadata={"static": True})
    """Standard deviation of the first policy's actions; at 1 a third of them would be clipped."""
    min_std: float = field(default=MIN_STD, metadata={"static": True})
    """Least standard deviation of actions; what has fallen below it does not come back."""
    max_std: float | None = field(default=None, metadata={"static": True})
    """Largest standard deviation of actions, likewise; None: there is none."""
    tanh_mean: bool = False
    """Whether the mean of continuous actions is squashed to their bounds -1 and 1 by tanh."""
    state_dependent_std: bool = False
    """Whether the standard deviation of continuous actions follows from what the agent sees and
    remembers, so that it can be sure in one task and explore in another; else one for all."""
    reward_scale: float = 0.1
    """Factor on rewards before returns: keeps value targets near 1. What the agent sees of rewards
    is without it."""
    normalize_rewards: bool = False
    """Whether rewards are also divided by their standard deviation so far, each class of tasks by
    its own, so that no class outweighs the others in what is learned."""
    monte_carlo_returns: bool = False
    """Whether the value learns Monte-Carlo returns rather than lambda-returns."""
    shuffle: ClassVar[Literal["sequences"]] = "sequences"
    bootstrap_trial_end: bool = True
    """Whether what would follow a trial cut by its time limit counts by its value, or as 0."""
    cut_at_termination: bool = False
    """Whether returns end where an episode terminates, though its trial goes on: for agents that
    cannot know how many episodes are left. An end by the horizon cuts nothing."""

    @property
    def passes_per_iteration(self) -> int:
        """Passes over the trials of an iteration."""
        return self.num_epochs

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "meta_batch_size", "num_episodes", "lr", "num_epochs")
        check_positive(self, "num_trial_steps", "num_bptt_steps")
        check_positive(self, "num_minibatches", "hidden_sizes", "init_std", "lr_schedule_steps")
        check_positive(self, "reward_scale", "max_grad_norm", "min_std", "max_std")
        check_unit(self, "discount", "gae_lambda")
        check(
            self.num_bptt_steps is not None or self.meta_batch_size % self.num_minibatches == 0,
            f"meta_batch_size {self.meta_batch_size} must be a multiple of "
            f"num_minibatches {self.num_minibatches}: a minibatch is whole trials",
        )
        self._check_std()
        self._check_entropy()

    def _check_std(self) -> None:
        check_deviations(self.init_std, self.min_std, self.max_std)
        generated = self.heads.kind == "generated"
        check(
            not (self.state_dependent_std and generated),
            "state_dependent_std needs heads of kind 'plain' or 'state': generated ones give means",
        )

    def _check_entropy(self) -> None:
        coeff, method = self.entropy_coeff, self.entropy_method
        check_not_negative(self, "entropy_coeff")
        if method == "no_entropy":
            needs = "needs entropy_method 'regularized' or 'max', not 'no_entropy'"
            check(coeff == 0, f"entropy_coeff {coeff} {needs}")
            schedule = self.entropy_schedule
            check(schedule == "constant", f"entropy_schedule {schedule!r} {needs}")
        if method == "regularized":
            # As a term of the objective it teaches by its gradient alone.
            free = not self.stop_entropy_gradient
            check(free, "entropy_method 'regularized' does nothing with stop_entropy_gradient")
            # The mean of its gradient over actions that the policy draws is 0.
            drawn = self.use_neg_logli_entropy
            check(not drawn, "entropy_method 'regularized' does nothing with use_neg_logli_entropy")
        if method == "max":
            # Centred, what the entropy adds to every advantage would mostly cancel; with a
            # gradient it would count twice, as reward and as a term.
            check(
                self.normalize_advantage == "none",
                "entropy_method 'max' needs normalize_advantage 'none'",
            )
            check(self.stop_entropy_gradient, "entropy_method 'max' needs stop_entropy_gradient")


class TrialSettings(Protocol):
    """Settings of how many trials there are, and of their length."""

    @property
    def meta_batch_size(self) -> int:
        """Trials an iteration, each on a task of its own."""

    @property
    def num_episodes(self) -> int | None:
        """Episodes of a trial; None: what the suite's protocol says."""

    @property
    def num_trial_steps(self) -> int | None:
        """Steps at which a trial ends; None: its episodes are whole."""


def trial_length(config: TrialSettings, spec: EnvSpec) -> int:
    """Episodes of a trial."""
    return config.num_episodes or spec.trial_episodes


def trial_steps(config: TrialSettings, spec: EnvSpec) -> int:
    """Most steps of a trial."""
    return steps_of(spec, trial_length(config, spec), config.num_trial_steps)


def remembered_steps(config: TrialSettings, spec: EnvSpec) -> int:
    """Most inputs that a memory has to hold.

    They are those of a trial of whole episodes, as evaluations run it, and the one after the last
    step, whose value bootstraps the trial's end.
    """
    return steps_of(spec, trial_length(config, spec)) + 1


def input_size(spec: EnvSpec) -> int:
    """Numbers that the network sees of a step."""
    return trial_input_size(spec.observation_size, spec.action)


def policy_settings(config: RL2Config) -> dict[str, Any]:
    """The fields of an `ActorCritic` that say what a Gaussian policy is like."""
    names = "init_std", "min_std", "max_std", "tanh_mean", "state_dependent_std"
    return {name: getattr(config, name) for name in names}


def default_networks(
    config: RL2Config, spec: EnvSpec, *, shared: bool, value_bins: int | None = None
) -> ActorCritic:
    """The network that the config describes; policy and value apart unless `shared`."""
    return ActorCritic(
        spec.action,
        config.hidden_sizes,
        config.memory.make(remembered_steps(config, spec)),
        shared=shared,
        torso=torso_for(spec.picture, config.hidden_sizes),
        value_bins=value_bins,
        **policy_settings(config),
        **head_inputs(config.heads, spec, value_bins),
    )


def init_state(
    config: RL2Config,
    network: Any,
    spec: EnvSpec,
    input_size: int,
    key: jax.Array,
    init_optimizer: Callable[[PyTree], PyTree],
) -> State:
    """The state before training; of rewards the moments of each class, where they are in use."""
    pictures = spec.picture is not None
    state = family.init_state(config, network, input_size, key, init_optimizer, pictures=pictures)
    if not config.normalize_rewards:
        return state
    num = spec.num_classes
    moments = jax.tree.map(lambda x: jnp.broadcast_to(x, (num, *x.shape)), fresh_moments(1))
    return replace(state, moments={**state.moments, "reward": moments})


def trial_actor(network: Any, spec: EnvSpec, state: State, *, deterministic: bool) -> TrialInputs:
    """The policy at the start of a trial."""
    return TrialInputs(policy_actor(network, state, deterministic=deterministic), spec.action)


def adapted(actor: Actor, history: Sequence[Rollout], *, deterministic: bool) -> Actor:
    """The actor that goes on from what it remembers at the end of the last rollout."""
    assert isinstance(actor, TrialInputs)
    return actor.adapted(history[-1], deterministic=deterministic)


def collect(config: TrialSettings, actor: Actor, sampler: Sampler) -> Rollout:
    """One trial on each of `meta_batch_size` tasks."""
    tasks = sampler.sample_tasks(config.meta_batch_size)
    num_episodes = trial_length(config, sampler.spec)
    return sampler.episodes(actor, tasks, 1, num_episodes, config.num_trial_steps)


def with_reward_moments(state: State, rollout: Rollout) -> State:
    """The state with the moments of each class's rewards, where they are in use.

    Member m has a task of class m modulo the number of classes. Called before an update, unlike
    `with_obs_moments`: no policy acted by these moments, and so the first iteration has a scale.
    """
    if "reward" not in state.moments:
        return state
    old = state.moments["reward"]
    shape = (-1, len(old["count"]), *rollout.reward.shape[1:])
    reward, valid = (x.reshape(shape).swapaxes(0, 1) for x in (rollout.reward, rollout.valid))
    new = jax.vmap(updated_moments)(old, reward[..., None], valid)
    return replace(state, moments={**state.moments, "reward": new})


def sequences_of(
    config: RL2Config,
    network: Any,
    spec: EnvSpec,
    state: State,
    rollout: Rollout,
    *,
    transitions: bool = False,
) -> Sequences:
    """Trials as the agent saw them, with rewards as they are learned from.

    `transitions`: it saw all of the last transition, as a TransitionInputs does.
    """
    sequences = trial_sequences(
        rollout,
        spec.action,
        state.moments.get("obs"),
        bootstrap_end=config.bootstrap_trial_end,
        cuts=task_terminations(spec, rollout) if config.cut_at_termination else None,
        transitions=transitions,
    )
    reward = sequences.reward
    if "reward" in state.moments:
        moments = state.moments["reward"]
        std = usable_std(moments["mean"], moments["variance"])
        reward = reward / jnp.tile(std, (len(reward) // len(std), 1))
    if config.entropy_method == "max":
        s = sequences
        _, (acted, _) = network.apply(state.params, s.memory, s.obs, s.reset, method="sequence")
        bonus = entropy_coeff(config, state) * entropy(config, acted, s.action)
        reward = jnp.where(s.valid, reward + bonus, 0.0)
    return replace(sequences, reward=config.reward_scale * reward)


def task_terminations(spec: EnvSpec, rollout: Rollout) -> jax.Array:
    """Where an episode terminated [M, N, T] bool, but not by the horizon where that belongs to it.

    That end comes whatever the agent does, as a time limit's.
    """
    terminated, truncated = jnp.asarray(rollout.terminated), jnp.asarray(rollout.truncated)
    if not spec.horizon_terminates:
        return terminated
    return terminated & (time_in_episode(terminated, truncated) < spec.horizon - 1)


def entropy_coeff(config: RL2Config, state: State) -> jax.Array:
    """The entropy's weight in this iteration."""
    return config.entropy_coeff * scheduled(config, config.entropy_schedule, state)


def loss_entropy_coeff(config: RL2Config, state: State) -> jax.Array:
    """The entropy's weight in the objective: 0 unless the method is 'regularized'."""
    weight = entropy_coeff(config, state)
    return weight if config.entropy_method == "regularized" else jnp.zeros_like(weight)


def entropy(config: RL2Config, distribution: Distribution, action: jax.Array) -> jax.Array:
    """Entropy [B, T] of the policy, in nats, as the settings want it."""
    by_action = config.use_neg_logli_entropy
    x = -distribution.log_prob(action) if by_action else distribution.entropy()
    x = jax.nn.softplus(x) if config.use_softplus_entropy else x
    return jax.lax.stop_gradient(x) if config.stop_entropy_gradient else x


def trial_returns(rollout: Rollout, num_episodes: int) -> Metrics:
    """`return/episode_K`, the mean undiscounted return of the episodes at place K of a trial.

    Of those that came to their end; NaN where none did. Nothing for trials of one episode, whose
    `return` says it.
    """
    if num_episodes == 1:
        return {}
    index = episode_index(rollout.terminated, rollout.truncated)
    metrics = {}
    for k in range(num_episodes):
        whole = rollout.ended & (index == k)
        counted = rollout.valid & (index == k) & jnp.any(whole, axis=-1, keepdims=True)
        total, count = jnp.sum(rollout.reward, where=counted), jnp.sum(whole)
        metrics[f"return/episode_{k + 1}"] = total / count
    return metrics
