"""RL2 with SAC as the outer algorithm: a recurrent agent that learns from trials in replay.

Ni et al. 2022, "Recurrent model-free RL can be a strong baseline for many POMDPs" (arXiv
2110.05038). A trial, several episodes on one task, is one sequence that the memory runs through
from its start; policy and critics are functions of what is remembered. Every gradient step is on
whole trials of the past, each of which is learned from many times. By choice critics are
distributions over returns, whose errors are alike whatever a task pays (Grigsby et al. 2024,
AMAGO-2, arXiv 2411.11188).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.meta import rl2
from adaptax.algorithms.off_policy.family import (
    LearnerState,
    Optimizers,
    check_reachable,
    check_target_entropy,
    descended,
    gradient_steps,
    init_learner,
    off_policy_optimizer,
    target_entropy,
)
from adaptax.algorithms.off_policy.sac import Choices, with_temperature
from adaptax.core.config import check_positive, check_unit
from adaptax.core.errors import ConfigError, check
from adaptax.core.experience import PyTree, Rollout
from adaptax.core.hyperparameters import Hyperparameters
from adaptax.core.products import product_options
from adaptax.core.spec import Discrete, EnvSpec, MultiDiscrete
from adaptax.functional.distributions import Categorical
from adaptax.functional.masking import masked_mean
from adaptax.functional.q_learning import td_target
from adaptax.functional.returns import last_valid
from adaptax.functional.two_hot import symlog_bins, two_hot_loss, two_hot_value
from adaptax.learning.context import bare
from adaptax.learning.replay import Replay, draw_rings
from adaptax.learning.schedules import Schedule
from adaptax.learning.trials import make_trials, read_trials, with_trials
from adaptax.networks.critics import ActionValues, StochasticPolicy, ensemble
from adaptax.networks.memory import MemoryConfig
from adaptax.networks.own import check_gives, own_or, traced
from adaptax.networks.recurrent import RecurrentFeatures, RecurrentPolicy, ReluTorso
from adaptax.sampling.actors import Actor, UniformActor
from adaptax.sampling.exploration import AfterWarmup
from adaptax.sampling.memory_actors import MemoryActor, TrialInputs, trial_inputs
from adaptax.sampling.sampler import Sampler

NUM_CRITICS = 2


@dataclass(frozen=True)
class RL2SACConfig(Hyperparameters):
    """Trials in replay, and SAC on them."""

    network_settings: ClassVar[tuple[str, ...]] = ("hidden_sizes", "memory", "head_hidden_sizes")

    meta_batch_size: int = 16
    """Trials an iteration, each on a task of its own."""
    num_episodes: int | None = None
    """Episodes of a trial; by default what the suite's protocol says."""
    num_trial_steps: int | None = None
    """Steps at which a trial ends, in the midst of an episode too; None: its episodes are whole.
    Figures of training leave out an episode that is cut, so long ones more often than short."""
    num_initial_trials: int = 64
    """Trials by uniform actions before the first gradient step."""
    buffer_size: int = 1000
    """Trials kept; the oldest make room for new ones."""
    num_updates: int = 64
    """Gradient steps an iteration."""
    batch_size: int = 32
    """Trials of a gradient step."""
    encoders: Literal["separate", "shared"] = "separate"
    """Whether policy and critics have a memory each, or the policy uses that of the critics, which
    only the critics' loss then trains."""
    hidden_sizes: tuple[int, ...] = (64,)
    """Hidden layers between the input and the memory."""
    memory: MemoryConfig = field(default_factory=lambda: MemoryConfig("gru", 64))
    """What the agent learns by within a trial."""
    head_hidden_sizes: tuple[int, ...] = (128, 128)
    """Hidden layers of policy and critics behind the memory."""
    critic: Literal["squared_error", "two_hot"] = "squared_error"
    """What critics learn: the value by its squared error, or a distribution over bins of returns by
    cross-entropy, whose errors are alike whatever a task pays."""
    num_bins: int = 101
    """Bins of a `two_hot` critic."""
    max_return: float = 10_000.0
    """Size of the largest return that these tell apart, after `reward_scale`."""
    init_temperature: float = 0.2
    """Weight of the entropy at the start, the papers' alpha."""
    learn_temperature: bool = True
    """Whether it is learned, or stays."""
    target_entropy: float | None = None
    """Entropy in nats that the temperature is learned for; None: as for sac."""
    discount: float = 0.99
    """Weight of a reward against one a step earlier, gamma."""
    bootstrap_trial_end: bool = True
    """Whether what would follow a trial cut by its time limit counts by its value, or as 0."""
    reward_scale: float = 1.0
    """Factor on rewards where they are learned from; the agent sees them without it."""
    tau: float = 0.005
    """Weight of the new values in an update of the targets; 1 copies."""
    lr: float = 3e-4
    """Adam's step size for every network."""
    lr_schedule: Schedule = "constant"
    """How the step size falls, from gradient step to gradient step."""
    lr_schedule_steps: int | None = None
    """Gradient steps until a linear or cosine schedule is at 0, an exponential one at a tenth;
    None: the whole run."""
    max_grad_norm: float | None = 5.0
    """Bound on the norm of the gradients of each network."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "meta_batch_size", "num_episodes", "num_trial_steps")
        check_positive(self, "num_initial_trials")
        check_positive(self, "buffer_size", "num_updates", "batch_size", "hidden_sizes")
        check_positive(self, "head_hidden_sizes", "max_return", "init_temperature", "tau", "lr")
        check_positive(self, "reward_scale", "lr_schedule_steps", "max_grad_norm")
        check_unit(self, "discount", "tau")
        check_target_entropy(self.target_entropy, is_learned=self.learn_temperature)
        check(self.num_bins >= 2, f"num_bins must be at least 2, not {self.num_bins}")
        kept = f"buffer_size {self.buffer_size} must be at least"
        check(
            self.meta_batch_size <= self.buffer_size,
            f"{kept} meta_batch_size {self.meta_batch_size}: an iteration's trials are kept for "
            "the next",
        )
        check(
            self.num_initial_trials <= self.buffer_size,
            f"{kept} num_initial_trials {self.num_initial_trials}, which are learned from",
        )

    @property
    def passes_per_iteration(self) -> int:
        """Gradient steps of an iteration."""
        return self.num_updates


@dataclass(frozen=True)
class Networks:
    """Flax modules, yours or the default ones.

    F numbers of an input, H of features, A of an action or A choices, E critics; K numbers that a
    critic says of a value: 1, or bins.
    """

    encoder: Any
    """With the call signature of a RecurrentFeatures (networks/recurrent.py): inputs [..., T, F] ->
    features [..., T, H]. Policy and critics have parameters of their own, unless shared."""
    policy: nn.Module
    """Features -> a distribution over actions, as for sac."""
    critics: nn.Module
    """Features and action side by side [..., H + A] -> [E, ..., K]; for one choice features
    [..., H] -> [E, ..., A K]."""


def default_networks(config: RL2SACConfig, spec: EnvSpec) -> Networks:
    """The networks that the config describes."""
    memory = config.memory.make(rl2.remembered_steps(config, spec))
    two_hot = config.critic == "two_hot"  # whose logits stand for 0 where they are alike
    num = config.num_bins if two_hot else 1
    num *= spec.action.size if isinstance(spec.action, Discrete) else 1
    return Networks(
        encoder=RecurrentFeatures(ReluTorso(config.hidden_sizes, spec.picture), memory),
        policy=StochasticPolicy(config.head_hidden_sizes, spec.action),
        critics=ensemble(ActionValues, NUM_CRITICS)(
            config.head_hidden_sizes, num, begins_at_zero=two_hot
        ),
    )


def check_own(networks: Networks, config: RL2SACConfig, spec: EnvSpec) -> None:
    """Raise a ConfigError unless networks of one's own make of their inputs what is needed."""
    encoder, size = networks.encoder, rl2.input_size(spec)

    def features_of(key: jax.Array) -> jax.Array:
        start = encoder.initial((1,)), jnp.zeros((1, size))
        (_, features), _ = encoder.init_with_output(key, *start)
        return features

    said = f"networks.encoder must make features of inputs [1, {size}]"
    num = traced(said, features_of).shape[-1]
    bins = config.num_bins if config.critic == "two_hot" else 1
    if isinstance(spec.action, Discrete):
        inputs, outputs, needs = num, bins * spec.action.size, ("logits",)
    else:
        inputs, outputs, needs = num + spec.action.size, bins, ("sample_and_log_prob",)
    check_gives("networks.policy", networks.policy, [(num,)], spec.action, needs)
    check_gives("networks.critics", networks.critics, [(inputs,)], (None, 0, outputs))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything learned, and the trials to learn from."""

    learner: LearnerState
    trials: Replay
    """A ring for each trial."""
    num_trials: jax.Array
    """[] int32, trials so far."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Trials:
    """B trials to learn from, up to T steps of each."""

    inputs: jax.Array
    """[B, T + 1, F]: what the agent sees at every step, and what it would after the last one."""
    action: jax.Array
    """[B, T, A] or [B, T]"""
    reward: jax.Array
    """[B, T], scaled."""
    ended: jax.Array
    """[B, T] bool: the last step of a trial after which nothing counts."""
    valid: jax.Array
    """[B, T]"""


class RL2SAC(Algorithm[State, Rollout]):
    """SAC over trials in replay; `networks` is a `Networks` of this file."""

    name = "rl2-sac"
    collects_in_program = True
    in_place = ("trials",)
    finite_metrics = ("critic_loss", "policy_loss", "q", "entropy")
    learned = (".learner.params", ".learner.target")
    config: RL2SACConfig
    networks: Networks
    trained_episodes: int

    def __init__(
        self, config: RL2SACConfig, spec: EnvSpec, networks: Networks | None = None
    ) -> None:
        super().__init__(config, spec)
        if isinstance(spec.action, MultiDiscrete):
            raise ConfigError(
                "rl2-sac takes continuous actions or one choice; for several choices take rl2-ppo"
            )
        check_reachable(config.target_entropy, spec.action)
        self.networks = own_or(default_networks(config, spec), networks)
        if networks is not None:
            check_own(networks, config, spec)
        self.network = RecurrentPolicy(self.networks.encoder, self.networks.policy)
        self.trained_episodes = rl2.trial_length(config, spec)

    def init(self, key: jax.Array) -> State:
        """Fresh parameters, targets equal to the critics', no trials."""
        config, spec, networks = self.config, self.spec, self.networks
        key, policy_key, critic_key, *keys = jax.random.split(key, 5)
        start = networks.encoder.initial((1,)), jnp.zeros((1, rl2.input_size(spec)))
        (_, features), encoder = networks.encoder.init_with_output(keys[0], *start)
        params = {
            "policy": networks.policy.init(policy_key, features),
            "critic_encoder": encoder,
            "critics": networks.critics.init(critic_key, self._beside(features, jnp.zeros(1))),
            "log_temperature": jnp.log(jnp.float32(config.init_temperature)),
        }
        if config.encoders == "separate":
            params["policy_encoder"] = networks.encoder.init(keys[1], *start)
        target = {name: params[name] for name in ("critic_encoder", "critics")}
        learner = init_learner(params, target, self._optimizers(*params), key)
        trials = make_trials(
            config.buffer_size, rl2.trial_steps(config, spec), spec, config.discount, truncated=True
        )
        return State(learner, trials, jnp.int32(0))

    def collect(self, state: State, sampler: Sampler) -> Rollout:
        """One trial on each of `meta_batch_size` tasks, by uniform actions at first."""
        uniform = UniformActor(self.spec.action)
        actor = AfterWarmup(self.actor(state), uniform, self._warm(state))
        return bare(rl2.collect(self.config, actor, sampler))

    def update(self, state: State, data: Rollout) -> tuple[State, Metrics]:
        """Trials into the buffer, and gradient steps on trials drawn from all that it holds."""
        trials, num_trials = with_trials(state.trials, state.num_trials, data)

        def step(
            learner: LearnerState, rings_key: jax.Array, key: jax.Array
        ) -> tuple[LearnerState, Metrics]:
            rings = draw_rings(trials, rings_key, (self.config.batch_size,))
            return self.gradient_step(learner, self.minibatch(trials, rings), key)

        learner, figures = gradient_steps(
            step, state.learner, self.config.num_updates, self._warm(state)
        )
        counters = {"replay_size": jnp.sum(trials.sizes), "num_updates": learner.num_updates}
        returns = rl2.trial_returns(data, self.trained_episodes)
        return State(learner, trials, num_trials), {**returns, **figures, **counters}

    def gradient_step(
        self, learner: LearnerState, trials: Trials, key: jax.Array
    ) -> tuple[LearnerState, Metrics]:
        """One gradient step each of critics, policy and, if it is learned, temperature.

        Critics and policy use the temperature from before the step.
        """
        temperature = jnp.exp(learner.params["log_temperature"])
        target_key, policy_key = jax.random.split(key)
        target = self.targets(learner, trials, target_key)

        def critic_loss(params: PyTree) -> tuple[jax.Array, Metrics]:
            features = self._features(params["critic_encoder"], trials.inputs[:, :-1])
            outputs = self._outputs(params["critics"], features, trials.action)
            errors = jnp.sum(self._errors(outputs, target), axis=0)
            loss = masked_mean(errors, trials.valid)
            q = masked_mean(jnp.mean(self._values(outputs), axis=0), trials.valid)
            return loss, {"critic_loss": loss, "q": q}

        learner, figures = descended(
            learner, critic_loss, self._optimizers("critics", "critic_encoder")
        )
        params = learner.params
        critic_features = self._features(params["critic_encoder"], trials.inputs[:, :-1])

        def policy_loss(own: PyTree) -> tuple[jax.Array, Metrics]:
            features = critic_features
            if self.config.encoders == "separate":
                features = self._features(own["policy_encoder"], trials.inputs[:, :-1])
            policy = self.networks.policy.apply(own["policy"], features)
            choices = self._choices(policy, params["critics"], critic_features, policy_key)
            loss = -masked_mean(choices.value(temperature), trials.valid)
            entropy = masked_mean(choices.entropy, trials.valid)
            return loss, {"policy_loss": loss, "entropy": entropy}

        of_policy = {"separate": ("policy", "policy_encoder"), "shared": ("policy",)}
        names = of_policy[self.config.encoders]
        learner, more = descended(learner, policy_loss, self._optimizers(*names))
        figures |= more
        if self.config.learn_temperature:
            adams = self._optimizers("log_temperature")
            learner, figures = with_temperature(learner, figures, self.target_entropy, adams)
        online = {name: learner.params[name] for name in learner.target}
        target = optax.incremental_update(online, learner.target, self.config.tau)
        return replace(learner, target=target), figures

    def targets(self, learner: LearnerState, trials: Trials, key: jax.Array) -> jax.Array:
        """What critics learn at every step [B, T]: r + discount * V of what is seen next.

        An episode's end within a trial cuts nothing: what is seen next is the next episode's start,
        remembering all before it.
        """
        params, target = learner.params, learner.target
        encoder = params.get("policy_encoder", params["critic_encoder"])
        policy = self.networks.policy.apply(
            params["policy"], self._features(encoder, trials.inputs)[:, 1:]
        )
        features = self._features(target["critic_encoder"], trials.inputs)[:, 1:]
        choices = self._choices(policy, target["critics"], features, key)
        temperature = jnp.exp(params["log_temperature"])
        value = choices.value(temperature)
        return td_target(trials.reward, self.config.discount, trials.ended, value)

    def minibatch(self, buffer: Replay, rings: jax.Array) -> Trials:
        """The trials of rings [B] as the agent saw them."""
        steps, valid = read_trials(buffer, rings)
        names = ("obs", "action", "reward", "next_obs", "terminated", "truncated")
        one_lane = {name: getattr(steps, name)[:, None] for name in names}
        rollout = Rollout(**one_lane, valid=valid[:, None])
        inputs, after = trial_inputs(rollout, self.spec.action)
        nothing_follows = steps.terminated | (not self.config.bootstrap_trial_end)
        return Trials(
            inputs=jnp.concatenate([inputs[:, 0, :1], after[:, 0]], axis=1),
            action=steps.action,
            reward=self.config.reward_scale * steps.reward,
            ended=last_valid(valid) & nothing_follows,
            valid=valid,
        )

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy at the start of a trial; deterministic, by its mean or likeliest choice."""
        params = state.learner.params
        encoder = params.get("policy_encoder", params["critic_encoder"])
        both = {"encoder": encoder.get("params", {}), "policy": params["policy"]["params"]}
        inner = MemoryActor({"params": both}, self.network, deterministic=deterministic)
        return TrialInputs(inner, self.spec.action)

    def adapt(
        self,
        state: State,
        actor: Actor,
        history: Sequence[Rollout],
        *,
        deterministic: bool = False,
    ) -> Actor:
        """Go on from the memory at the end of the last rollout."""
        return rl2.adapted(actor, history, deterministic=deterministic)

    @property
    def target_entropy(self) -> float:
        """Entropy in nats that the temperature is learned for."""
        return target_entropy(self.config.target_entropy, self.spec.action)

    @property
    def compiler_options(self) -> dict[str, str]:
        """Those of products of all steps of a minibatch's trials."""
        return product_options(self.config.batch_size * rl2.trial_steps(self.config, self.spec))

    def _warm(self, state: State) -> jax.Array:
        """Whether [] there are trials enough to learn from, and to act by what was learned."""
        return state.num_trials >= self.config.num_initial_trials

    def _optimizers(self, *names: str) -> Optimizers:
        return dict.fromkeys(names, off_policy_optimizer(self.config))

    def _features(self, encoder: PyTree, inputs: jax.Array) -> jax.Array:
        """Features [B, T, H] of inputs [B, T, F], from the start of their trials on."""
        start = self.networks.encoder.initial(inputs.shape[:1])
        features: jax.Array
        _, features = self.networks.encoder.apply(encoder, start, inputs, method="sequence")
        return features

    @property
    def _discrete(self) -> bool:
        return isinstance(self.spec.action, Discrete)

    def _beside(self, features: jax.Array, action: jax.Array) -> jax.Array:
        """What critics take: features and an action, or features alone if they value all."""
        if self._discrete:
            return features
        action = jnp.broadcast_to(action, (*features.shape[:-1], self.spec.action.size))
        return jnp.concatenate([features, action], axis=-1)

    def _outputs(self, critics: PyTree, features: jax.Array, action: jax.Array) -> jax.Array:
        """What critics say [E, B, T, K] of the actions taken."""
        outputs = self.networks.critics.apply(critics, self._beside(features, action))
        if not self._discrete:
            return outputs
        of_all = self._by_choice(outputs)
        return jnp.take_along_axis(of_all, action[None, ..., None, None], axis=-2)[..., 0, :]

    def _by_choice(self, outputs: jax.Array) -> jax.Array:
        """Outputs [E, ..., A K] as [E, ..., A, K]."""
        return outputs.reshape(*outputs.shape[:-1], self.spec.action.size, -1)

    def _choices(
        self, policy: Any, critics: PyTree, features: jax.Array, key: jax.Array
    ) -> Choices:
        """What the policy may do, and the lowest value of each by the critics."""
        if self._discrete:
            outputs = self.networks.critics.apply(critics, features)
            q = jnp.min(self._values(self._by_choice(outputs)), axis=0)
            probability, log_prob = Categorical(policy.logits).probabilities()
            return Choices(q, log_prob, probability)
        action, log_prob = policy.sample_and_log_prob(key)
        outputs = self.networks.critics.apply(critics, self._beside(features, action))
        q = jnp.min(self._values(outputs), axis=0)[..., None]
        return Choices(q, log_prob[..., None], jnp.ones_like(q))

    @property
    def _bins(self) -> jax.Array:
        return symlog_bins(self.config.num_bins, self.config.max_return)

    def _values(self, outputs: jax.Array) -> jax.Array:
        """The values [...] that outputs [..., K] stand for."""
        two_hot = self.config.critic == "two_hot"
        return two_hot_value(outputs, self._bins) if two_hot else outputs[..., 0]

    def _errors(self, outputs: jax.Array, target: jax.Array) -> jax.Array:
        """The loss [E, B, T] of outputs [E, B, T, K] at each step, from targets [B, T]."""
        if self.config.critic == "two_hot":
            return two_hot_loss(outputs, jnp.broadcast_to(target, outputs.shape[:-1]), self._bins)
        return 0.5 * jnp.square(outputs[..., 0] - target)
