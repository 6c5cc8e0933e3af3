"""PEARL: infers what task it is on from a few episodes, and learns to from replay, with SAC.

Rakelly et al. 2019, "Efficient off-policy meta-reinforcement learning via probabilistic context
variables" (arXiv 1903.08254). An encoder turns context, steps of a task in any order, into a
belief about the task's variable z; policy and critics are told z, and the critics' error teaches
the encoder. An episode is played on one draw of z, so that what is uncertain is explored.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.off_policy.family import (
    LearnerState,
    Optimizers,
    check_target_entropy,
    descended,
    init_learner,
    target_entropy,
)
from adaptax.algorithms.off_policy.sac import with_temperature
from adaptax.core.config import check_not_negative, check_positive, check_unit
from adaptax.core.errors import ConfigError, check
from adaptax.core.experience import PyTree, Rollout, Transitions
from adaptax.core.hyperparameters import Hyperparameters
from adaptax.core.spec import Continuous, EnvSpec
from adaptax.functional.belief import Belief, prior
from adaptax.functional.q_learning import ensemble_loss, td_target
from adaptax.learning.context import bare, context_tokens, in_a_row, joined
from adaptax.learning.replay import (
    Replay,
    ReplayConfig,
    add,
    clear,
    draw_rings,
    make_replay,
    sample,
)
from adaptax.learning.schedules import Schedule, falling
from adaptax.networks.critics import ensemble
from adaptax.networks.encoders import (
    LECUN,
    ORIGINAL,
    ORIGINAL_POLICY,
    ContextEncoder,
    LatentPolicy,
    LatentValue,
)
from adaptax.networks.own import check_gives, own_or
from adaptax.sampling.actors import Actor
from adaptax.sampling.latent import LatentActor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class PEARLConfig(Hyperparameters):
    """PEARL; defaults are the authors' for half-cheetah-vel where no other source is named.

    Together they are not the authors': critic, init_weights, adam_epsilon and buffer_size differ.
    """

    network_settings: ClassVar[tuple[str, ...]] = (
        "hidden_sizes",
        "encoder_hidden_sizes",
        "init_weights",
    )

    num_train_tasks: int = 100
    """Tasks trained on, drawn once, each with a replay of its own; all where a suite has fewer."""
    meta_batch_size: int = 5
    """Tasks visited an iteration, to collect steps side by side."""
    num_initial_steps: int = 2000
    """Environment steps on every task in the first iteration, which learns nothing yet. Steps are
    those of whole episodes: these numbers are minima."""
    num_prior_steps: int = 400
    """Environment steps of a visit on a z of the prior, for context and replay."""
    num_posterior_steps: int = 0
    """Environment steps of a visit on a z inferred, for context and replay; the first
    `update_post_train` episodes are on the prior's."""
    num_extra_posterior_steps: int = 600
    """The same for replay only."""
    update_post_train: int = 1
    """Episodes on an inferred z before it is inferred again; the first ones are on the prior's."""
    num_updates: int = 2000
    """Times that a set of tasks is drawn an iteration (the originals' `num_steps_per_epoch`). Each
    gets one gradient step, or several with `context_minibatch_size`."""
    num_update_tasks: int = 16
    """Tasks of a gradient step."""
    batch_size: int = 256
    """Transitions of each task to learn policy and values from."""
    context_size: int = 100
    """Transitions of each task to infer z from."""
    context_minibatch_size: int | None = None
    """Transitions that one gradient step infers z from; must divide `context_size`. Every draw of
    tasks then gets `context_size / context_minibatch_size` gradient steps, each with a newly
    sampled context and minibatch. None: one step, with `context_size` transitions."""
    buffer_size: int = 50_000
    """Transitions kept of each task; the published run ends with half as many."""
    latent_size: int = 5
    """L, the dimensions of z."""
    hidden_sizes: tuple[int, ...] = (300, 300, 300)
    """Hidden layers of policy and values."""
    encoder_hidden_sizes: tuple[int, ...] = (200, 200, 200)
    """Hidden layers of the encoder."""
    init_weights: Literal["lecun", "original"] = "lecun"
    """How networks start: as Flax's do, or as the authors': hidden weights uniform within
    1 / sqrt(outputs) and biases 0.1, last layers within 0.003, the policy's within 0.001."""
    information_bottleneck: bool = True
    """Whether z is drawn from a belief that the KL keeps near the prior; if not, z is the mean of
    the encoder's outputs for the tokens."""
    kl_coeff: float = 0.1
    """Weight of the belief's KL from the prior."""
    kl_reduction: Literal["sum", "mean"] = "sum"
    """How the KL is reduced over the tasks of a gradient step; the critics' loss is a mean, so that
    with `sum` the bottleneck tightens as `num_update_tasks` grows."""
    next_obs_in_context: bool = False
    """Whether z is inferred from (o, a, r, o'), or from (o, a, r)."""
    critic: Literal["twin_target", "value"] = "twin_target"
    """What a target is made of: the lower of two lagging critics and a temperature (as SAC does
    since 2018b), or a lagging value function (the original's)."""
    init_temperature: float = 1.0
    """Temperature at the start, with `twin_target`; with `value` it is 1."""
    learn_temperature: bool = True
    """Whether `twin_target` learns it."""
    target_entropy: float | None = None
    """Entropy in nats that it is learned for; None: minus the number of action dimensions."""
    discount: float = 0.99
    """Weight of a reward against one a step earlier, gamma."""
    reward_scale: float = 5.0
    """Factor on rewards where policy and values learn from them; z is inferred without it."""
    tau: float = 0.005
    """Weight of the new values in what lags behind."""
    policy_lr: float = 3e-4
    """Step size of Adam, for the temperature too."""
    critic_lr: float = 3e-4
    """Step size of Adam for the critics."""
    value_lr: float = 3e-4
    """Step size of Adam for the value function, with `critic` `value`."""
    encoder_lr: float = 3e-4
    """Step size of Adam for the encoder."""
    lr_schedule: Schedule = "constant"
    """How all step sizes fall, from gradient step to gradient step."""
    lr_schedule_steps: int | None = None
    """Gradient steps until a linear or cosine schedule is at 0, an exponential one at a tenth;
    None: the whole run."""
    adam_epsilon: float = 1e-5
    """What Adam adds to the root of a gradient's mean square; the authors' is 1e-8."""
    policy_mean_reg_coeff: float = 1e-3
    """Weight of the mean square of the policy's mean before tanh."""
    policy_std_reg_coeff: float = 1e-3
    """Weight of the mean square of the policy's log standard deviation."""
    policy_pre_activation_coeff: float = 0.0
    """Weight of the squared norm of actions before tanh."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_train_tasks", "meta_batch_size", "num_initial_steps")
        check_positive(self, "update_post_train", "num_updates", "num_update_tasks", "batch_size")
        check_positive(self, "context_size", "context_minibatch_size", "latent_size")
        check_positive(self, "buffer_size", "hidden_sizes", "encoder_hidden_sizes")
        check_positive(
            self, "init_temperature", "reward_scale", "policy_lr", "critic_lr", "value_lr"
        )
        check_positive(self, "encoder_lr", "tau", "adam_epsilon", "lr_schedule_steps")
        check_unit(self, "discount", "tau")
        check_not_negative(self, "num_prior_steps", "num_posterior_steps")
        check_not_negative(self, "num_extra_posterior_steps", "kl_coeff", "policy_mean_reg_coeff")
        check_not_negative(self, "policy_std_reg_coeff", "policy_pre_activation_coeff")
        learned = self.learn_temperature and self.critic == "twin_target"
        needs = "critic 'twin_target' and learn_temperature"
        check_target_entropy(self.target_entropy, is_learned=learned, needs=needs)
        check(
            self.meta_batch_size <= self.num_train_tasks,
            f"meta_batch_size {self.meta_batch_size} must not exceed "
            f"num_train_tasks {self.num_train_tasks}: an iteration visits a task once",
        )
        check(
            self.context_size % self.step_context_size == 0,
            f"context_size {self.context_size} must be a multiple of "
            f"context_minibatch_size {self.step_context_size}",
        )
        for name in ("hidden_sizes", "encoder_hidden_sizes"):
            check(len(getattr(self, name)) > 0, f"{name} must name at least one layer")
        check(
            self.num_prior_steps + self.num_posterior_steps + self.num_extra_posterior_steps > 0,
            "num_prior_steps, num_posterior_steps and num_extra_posterior_steps are all 0: "
            "one must be greater, or nothing is ever collected",
        )

    @property
    def step_context_size(self) -> int:
        """Transitions that a gradient step infers z from."""
        return self.context_minibatch_size or self.context_size

    @property
    def num_context_parts(self) -> int:
        """Gradient steps on one draw of tasks."""
        return self.context_size // self.step_context_size

    @property
    def passes_per_iteration(self) -> int:
        """Gradient steps of an iteration."""
        return self.num_updates * self.num_context_parts


MOST_LANES = 8
"""Most lanes side by side in rounds that make up for episodes that ended early."""


@dataclass(frozen=True)
class Networks:
    """PEARL's networks: four Flax modules, yours or the default ones.

    O numbers of an observation, A of an action, F of a token of context, L of z; C tokens. Inputs'
    batch axes broadcast: all rows of a task come with one z, obs [M, B, O] and z [M, 1, L].
    """

    encoder: nn.Module
    """(tokens [..., C, F], valid [..., C]) -> Belief [..., L] (functional/belief.py). A token is
    (o, a, r), and o' if `next_obs_in_context`."""
    policy: nn.Module
    """(obs [..., O], z [..., L]) -> a TanhGaussian [..., A] (functional/distributions.py)."""
    critics: nn.Module
    """(obs [..., O], action [..., A], z [..., L]) -> values [E, ...] of E critics."""
    value: nn.Module | None = None
    """(obs [..., O], z [..., L]) -> values [...]; only for `critic` "value"."""


def default_networks(config: PEARLConfig, spec: EnvSpec) -> Networks:
    """The networks that the config describes."""
    sizes, bottleneck = config.encoder_hidden_sizes, config.information_bottleneck
    start, policy_start = LECUN, LECUN
    if config.init_weights == "original":
        start, policy_start = ORIGINAL, ORIGINAL_POLICY
    return Networks(
        encoder=ContextEncoder(sizes, config.latent_size, bottleneck, start),
        policy=LatentPolicy(config.hidden_sizes, spec.action.size, policy_start),
        critics=ensemble(LatentValue, 2)(config.hidden_sizes, start),
        value=LatentValue(config.hidden_sizes, start) if config.critic == "value" else None,
    )


def check_own(networks: Networks, config: PEARLConfig, spec: EnvSpec) -> None:
    """Raise a ConfigError unless networks of one's own make of their inputs what is needed."""
    obs, action, z = (spec.observation_size,), spec.action.shape, (config.latent_size,)
    policy, critics = networks.policy, networks.critics
    check_gives("networks.policy", policy, [obs, z], spec.action, ("sample_and_log_prob",))
    check_gives("networks.critics", critics, [obs, action, z], (None, 0))
    if networks.value is not None:
        check_gives("networks.value", networks.value, [obs, z], (0,))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything learned, and what to learn from; both replays have a ring for each task."""

    learner: LearnerState
    replay: Replay
    """What policy and values learn from."""
    context: Replay
    """What z is inferred from: steps of the last visit to each task."""
    key: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Data:
    """What an iteration collects."""

    steps: Rollout
    """[m, 1, T, ...], all steps of m tasks, for the replay."""
    rings: jax.Array
    """[m] int32, the tasks."""
    context: Replay
    """The context after the visit."""
    returns: jax.Array
    """[2], mean return of the visit's first episodes and of its last."""
    learn: bool = field(metadata={"static": True})
    """Whether gradient steps follow: not in the first iteration, which fills the replays."""


class PEARL(Algorithm[State, Data]):
    """Probabilistic embeddings for actor-critic RL; `networks` is a `Networks` of this file."""

    name = "pearl"
    in_place = ("replay",)
    finite_metrics = ("critic_loss", "policy_loss")
    learned = (".learner.params", ".learner.target")
    task_counts = ("num_train_tasks",)
    infers_from_history = True
    config: PEARLConfig
    networks: Networks

    def __init__(
        self, config: PEARLConfig, spec: EnvSpec, networks: Networks | None = None
    ) -> None:
        super().__init__(config, spec)
        if not isinstance(spec.action, Continuous):
            raise ConfigError("pearl takes continuous actions; for choices take rl2-ppo or varibad")
        self.networks = own_or(default_networks(config, spec), networks)
        if networks is not None:
            check_own(networks, config, spec)
        self.with_value = config.critic == "value"
        check(
            not self.with_value or self.networks.value is not None,
            "critic 'value' needs networks with a value",
        )
        _warn_of_priors_alone(config, spec.horizon)

    def init(self, key: jax.Array) -> State:
        """Fresh parameters, targets equal to them, empty replays."""
        config, spec, networks = self.config, self.spec, self.networks
        key, learner_key, *keys = jax.random.split(key, 6)
        obs, action = jnp.zeros(spec.observation_size), jnp.zeros(spec.action.size)
        z, token = jnp.zeros(config.latent_size), jnp.zeros((1, self.token_size))
        params = {
            "encoder": networks.encoder.init(keys[0], token, jnp.ones(1, bool)),
            "policy": networks.policy.init(keys[1], obs, z),
            "critics": networks.critics.init(keys[2], obs, action, z),
        }
        if networks.value is not None and self.with_value:
            params["value"] = networks.value.init(keys[3], obs, z)
        else:
            params["log_temperature"] = jnp.log(jnp.float32(config.init_temperature))
        optimizers = self._optimizers(*params)
        learner = init_learner(params, params[self._lagging], optimizers, learner_key)
        visit = config.num_prior_steps + config.num_posterior_steps
        # Whole episodes, so that a phase may be longer by almost one, or more where short ones grow
        # long meanwhile; on an inferred z by as many as are played before it is inferred again, or
        # they would push out those of the prior.
        more_episodes = 1 + config.update_post_train
        context_size = max(config.num_initial_steps, visit) + more_episodes * spec.horizon
        replay, context = (
            make_replay(ReplayConfig(size, config.num_train_tasks), spec, config.discount)
            for size in (config.buffer_size, context_size)
        )
        return State(learner, replay, context, key)

    def collect(self, state: State, sampler: Sampler) -> Data:
        """A visit to a few tasks (algorithm 1, lines 3 to 8); at first steps on all of them."""
        tasks = sampler.fixed_tasks(self.config.num_train_tasks)
        if not np.asarray(state.replay.sizes).any():
            return self._first_steps(state, sampler, tasks)
        config, context = self.config, state.context
        _, _, order_key, *infer_keys = jax.random.split(state.key, 5)  # the first two: `update`'s
        order = np.asarray(jax.random.permutation(order_key, len(tasks)))
        rings = order[: config.meta_batch_size].astype(np.int32)
        visit = _Visit(self, state, sampler, tasks, rings)
        if config.num_prior_steps + config.num_posterior_steps > 0:
            context = clear(context, jnp.asarray(rings))
        before, context = visit.phase(context, config.num_prior_steps)
        within, context = visit.phase(context, config.num_posterior_steps, infer_keys[0])
        extra = config.num_extra_posterior_steps
        after, _ = visit.phase(context, extra, infer_keys[1], for_context=False)
        rollouts = [*before, *within, *after]
        returns = jnp.array([_mean_return(rollouts[:1]), _mean_return(rollouts)], jnp.float32)
        steps = joined(rollouts, self.spec.horizon)
        return Data(steps, jnp.asarray(rings), context, returns, learn=True)

    def update(self, state: State, data: Data) -> tuple[State, Metrics]:
        """Steps into the replay, then all gradient steps of an iteration (lines 9 to 19)."""
        config, learner, figures = self.config, state.learner, dict[str, jax.Array]()
        replay = add(state.replay, data.steps, data.rings)
        key, rings_key = jax.random.split(state.key)

        def step(learner: LearnerState, rings: jax.Array) -> tuple[LearnerState, Metrics]:
            key, *keys = jax.random.split(learner.key, 4)
            num, rings = len(rings), rings[:, None]
            batch = sample(replay, keys[0], (num, config.batch_size), rings)
            context = sample(data.context, keys[1], (num, config.step_context_size), rings)
            learner, figures = self.gradient_step(learner, batch, context, keys[2])
            return replace(learner, key=key, num_updates=learner.num_updates + 1), figures

        if data.learn:
            rings = draw_rings(replay, rings_key, (config.num_updates, config.num_update_tasks))
            rings = jnp.repeat(rings, config.num_context_parts, axis=0)
            learner, figures = jax.lax.scan(step, learner, rings)
            figures = jax.tree.map(jnp.mean, figures)
            figures |= {"return/prior": data.returns[0], "return": data.returns[1]}
        counters = {"replay_size": jnp.sum(replay.sizes), "num_updates": learner.num_updates}
        return State(learner, replay, data.context, key), {**figures, **counters}

    def gradient_step(
        self, learner: LearnerState, batch: Transitions, context: Transitions, key: jax.Array
    ) -> tuple[LearnerState, Metrics]:
        """One step on M tasks, their minibatches [M, B, ...] and contexts [M, C, ...]."""
        config, critics = self.config, self.networks.critics
        z_key, next_key, action_key = jax.random.split(key, 3)
        temperature = self._temperature(learner)

        def critic_loss(params: PyTree) -> tuple[jax.Array, Any]:
            belief = self.infer(params["encoder"], context)
            z = belief.sample(z_key)[:, None]
            target = self._target(learner, batch, jax.lax.stop_gradient(z), next_key)
            q = critics.apply(params["critics"], batch.obs, batch.action, z)
            # Not halved in the originals, and the KL is weighed against it.
            loss = 2.0 * ensemble_loss(q.reshape(len(q), -1), target.reshape(-1))
            kl = self._kl(belief)
            figures = {"critic_loss": loss, "q": jnp.mean(q), "kl": kl}
            return loss + config.kl_coeff * kl, (jax.lax.stop_gradient(z), figures)

        def policy_loss(params: PyTree) -> tuple[jax.Array, Any]:
            distribution = self.networks.policy.apply(params["policy"], batch.obs, z)
            u = distribution.unbounded.sample(action_key)
            log_prob = distribution.log_prob_of_unbounded(u)
            q = critics.apply(learner.params["critics"], batch.obs, jnp.tanh(u), z).min(0)
            loss = jnp.mean(temperature * log_prob - q)
            figures = {"policy_loss": loss, "entropy": -jnp.mean(log_prob)}
            return loss + self._policy_penalty(distribution, u), (q - log_prob, figures)

        def value_loss(params: PyTree) -> tuple[jax.Array, Metrics]:
            assert self.networks.value is not None
            value = self.networks.value.apply(params["value"], batch.obs, z)
            loss = jnp.mean(jnp.square(value - soft_value))
            return loss, {"value_loss": loss}

        learner, (z, figures) = descended(
            learner, critic_loss, self._optimizers("critics", "encoder")
        )
        learner, (soft_value, more) = descended(learner, policy_loss, self._optimizers("policy"))
        figures |= more
        if self.with_value:
            learner, more = descended(learner, value_loss, self._optimizers("value"))
            figures |= more
        elif config.learn_temperature:
            adams = self._optimizers("log_temperature")
            learner, figures = with_temperature(learner, figures, self.target_entropy, adams)
        target = optax.incremental_update(learner.params[self._lagging], learner.target, config.tau)
        return replace(learner, target=target), figures

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy on a z of the prior, another in every episode."""
        params = state.learner.params["policy"]
        belief = prior(self.config.latent_size, known=not self.config.information_bottleneck)
        return LatentActor(params, self.networks.policy, belief, deterministic)

    def adapt(
        self,
        state: State,
        actor: Actor,
        history: Sequence[Rollout],
        *,
        deterministic: bool = False,
    ) -> Actor:
        """The policy on a z inferred, lane by lane, from all steps so far (algorithm 2)."""
        steps = jax.tree.map(lambda *xs: jnp.concatenate(xs, axis=2), *map(bare, history))
        belief = _infer(self, state.learner.params["encoder"], steps, steps.valid)
        params = state.learner.params["policy"]
        return LatentActor(params, self.networks.policy, belief, deterministic)

    def infer(
        self, encoder: PyTree, steps: Transitions | Rollout, valid: jax.Array | None = None
    ) -> Belief:
        """The belief [..., L] from contexts [..., C], or their steps that are `valid` [..., C]."""
        tokens = context_tokens(steps, next_obs=self.config.next_obs_in_context)
        valid = jnp.ones(tokens.shape[:-1], bool) if valid is None else valid
        belief: Belief = self.networks.encoder.apply(encoder, tokens, valid)
        return belief

    @property
    def token_size(self) -> int:
        """F: numbers of a step in a context."""
        size = self.spec.observation_size + self.spec.action.size + 1
        return size + self.config.next_obs_in_context * self.spec.observation_size

    @property
    def target_entropy(self) -> float:
        """Entropy in nats that the temperature is learned for."""
        return target_entropy(self.config.target_entropy, self.spec.action)

    @property
    def _lagging(self) -> str:
        """The network that has a lagging copy."""
        return "value" if self.with_value else "critics"

    def _optimizers(self, *names: str) -> Optimizers:
        config = self.config
        rates = {
            "critics": config.critic_lr,
            "value": config.value_lr,
            "encoder": config.encoder_lr,
        }
        rates = {name: falling(rates.get(name, config.policy_lr), config) for name in names}
        return {name: optax.adam(rate, eps=config.adam_epsilon) for name, rate in rates.items()}

    def _temperature(self, learner: LearnerState) -> jax.Array:
        if self.with_value:
            return jnp.float32(1.0)
        return jnp.exp(learner.params["log_temperature"])

    def _target(
        self, learner: LearnerState, batch: Transitions, z: jax.Array, key: jax.Array
    ) -> jax.Array:
        """What the critics learn [M, B]: by the lagging value, or SAC's by lagging critics."""
        if self.networks.value is not None and self.with_value:
            next_value = self.networks.value.apply(learner.target, batch.next_obs, z)
        else:
            policy = self.networks.policy.apply(learner.params["policy"], batch.next_obs, z)
            action, log_prob = policy.sample_and_log_prob(key)
            q = self.networks.critics.apply(learner.target, batch.next_obs, action, z)
            next_value = jnp.min(q, axis=0) - self._temperature(learner) * log_prob
        reward = self.config.reward_scale * batch.reward
        return td_target(reward, batch.discount, batch.terminated, next_value)

    def _kl(self, belief: Belief) -> jax.Array:
        """KL of beliefs [M] from the prior, summed or averaged; 0 without the bottleneck."""
        if not self.config.information_bottleneck:
            return jnp.zeros(())
        kl = belief.kl_from_prior()
        return jnp.sum(kl) if self.config.kl_reduction == "sum" else jnp.mean(kl)

    def _policy_penalty(self, distribution: Any, u: jax.Array) -> jax.Array:
        """The regularisers of the policy, all of what comes before tanh."""
        config = self.config
        penalty = config.policy_mean_reg_coeff * jnp.mean(jnp.square(distribution.mean))
        penalty += config.policy_std_reg_coeff * jnp.mean(jnp.square(distribution.log_std))
        return penalty + config.policy_pre_activation_coeff * jnp.mean(jnp.sum(jnp.square(u), -1))

    def _first_steps(self, state: State, sampler: Sampler, tasks: tuple[Any, ...]) -> Data:
        """Steps on every task, on the prior, for replay and context."""
        num, size, parts = len(tasks), self.config.meta_batch_size, []
        context = state.context
        for rings in np.split(np.arange(num, dtype=np.int32), range(size, num, size)):
            visit = _Visit(self, state, sampler, tasks, rings)
            rollouts, context = visit.phase(context, self.config.num_initial_steps)
            parts.append(joined(rollouts, self.spec.horizon))
        longest = max(part.valid.shape[2] for part in parts)
        parts = [joined([part], longest) for part in parts]
        steps = jax.tree.map(lambda *xs: jnp.concatenate(xs), *parts)
        return Data(steps, jnp.arange(num), context, jnp.zeros(2), learn=False)


@dataclass(frozen=True)
class _Visit:
    """Collection on some tasks side by side, in whole episodes."""

    pearl: PEARL
    state: State
    sampler: Sampler
    tasks: tuple[Any, ...]
    """All that are trained on, in the order of their rings."""
    rings: np.ndarray
    """Those visited."""

    def phase(
        self,
        context: Replay,
        num_steps: int,
        infer_key: jax.Array | None = None,
        *,
        for_context: bool = True,
    ) -> tuple[list[Rollout], Replay]:
        """At least `num_steps` steps on each task, in whole episodes, and the context.

        The context gains these steps if `for_context`. Episodes are on a z of the prior; with
        `infer_key` they come in rounds of `update_post_train`, and each round but the first is on a
        z inferred from a random part of the context.
        """
        actor, rollouts = self.pearl.actor(self.state), list[Rollout]()
        lengths = np.full(len(self.rings), self.pearl.spec.horizon)
        missing = np.full(len(self.rings), num_steps)
        while (late := np.flatnonzero(missing > 0)).size:
            rings, lanes = self.rings[late], self.pearl.config.update_post_train
            if infer_key is not None and rollouts:
                key = jax.random.fold_in(infer_key, len(rollouts))
                actor = self._informed(context, rings, key)
            elif infer_key is None:
                # What the one that lacks least needs, or it would have steps that nobody asked for.
                lanes = int(np.min(-(-missing[late] // lengths[late])))
                if rollouts:  # more where episodes ended early, of few sizes to compile
                    lanes = min(1 << (lanes.bit_length() - 1), MOST_LANES)
            tasks = tuple(self.tasks[ring] for ring in rings)
            rollout = bare(self.sampler.episodes(actor, tasks, lanes, 1))
            if for_context:
                context = _add(context, in_a_row(rollout), rings)
            num_steps_each = np.asarray(rollout.valid).sum((1, 2))
            missing[late] -= num_steps_each
            lengths[late] = np.maximum(num_steps_each // lanes, 1)
            rollouts.append(_among(rollout, late, len(missing)))
        return rollouts, context

    def _informed(self, context: Replay, rings: np.ndarray, key: jax.Array) -> Actor:
        """The actor on the own z of each task of `rings`, inferred as in a gradient step."""
        pearl, params = self.pearl, self.state.learner.params
        steps = _sample(context, key, (len(rings), pearl.config.context_size), rings[:, None])
        belief = jax.tree.map(lambda x: x[:, None], _infer(pearl, params["encoder"], steps))
        return LatentActor(params["policy"], pearl.networks.policy, belief)


def _among(rollout: Rollout, members: np.ndarray, num: int) -> Rollout:
    """A rollout of some of `num` tasks as one of all, in which the others took no step."""
    if len(members) == num:
        return rollout
    return jax.tree.map(
        lambda x: jnp.zeros((num, *x.shape[1:]), x.dtype).at[members].set(x), rollout
    )


def _warn_of_priors_alone(config: PEARLConfig, horizon: int) -> None:
    """Where the first round of a phase, which is on the prior, may be all of it."""
    steps = max(config.num_posterior_steps, config.num_extra_posterior_steps)
    if 0 < steps <= (first := config.update_post_train * horizon):
        warnings.warn(
            f"pearl: a first round on the prior, {config.update_post_train} x {horizon} steps, may "
            f"be all of the {steps} num_posterior_steps or num_extra_posterior_steps, so that no "
            f"episode of training is on what was inferred: more than {first} of them help",
            stacklevel=4,
        )


def _mean_return(rollouts: Sequence[Rollout]) -> float:
    """Mean over tasks of each one's last episodes: those of the last rollout that it is in.

    Later rollouts leave out tasks that have steps enough.
    """
    last: dict[int, float] = {}
    for rollout in rollouts:
        returns = np.where(rollout.valid, rollout.reward, 0.0).sum(2)
        for task, lanes in enumerate(np.asarray(rollout.valid[..., 0])):
            if lanes.any():
                last[task] = returns[task, lanes].mean()
    return float(np.mean(list(last.values())))


_add = jax.jit(add)
_sample = jax.jit(sample, static_argnums=2)
_infer = jax.jit(PEARL.infer)
