"""What the MAML family shares: settings, episodes before and after inner steps, and these steps.

Finn et al. 2017, "Model-agnostic meta-learning" (arXiv 1703.03400), algorithm 3; settings and
defaults are those of ProMP (Rothfuss et al. 2019, repository jonasrothfuss/ProMP), but for the
tasks and episodes of an iteration, `init_std`, `min_std` and `normalize_obs`, which are measured
(docs/defaults.md, docs/maml-measured.md).

`networks` of these algorithms is a Flax module, observations [..., O] -> Distribution, whose
arrays have the batch axes first.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from adaptax.algorithms.base import Metrics
from adaptax.core.config import check_not_negative, check_positive
from adaptax.core.experience import Array, PyTree, Rollout
from adaptax.core.spec import EnvSpec
from adaptax.functional.distributions import Distribution
from adaptax.functional.inner import dice_mean, inner_step
from adaptax.functional.masking import masked_mean
from adaptax.functional.policy_losses import likelihood_ratio_loss, policy_gradient_loss
from adaptax.learning.credited import Samples, credited
from adaptax.learning.minibatches import ADAM
from adaptax.learning.processors import ProcessorConfig, check_room
from adaptax.networks.heads import MLPPolicy, check_deviations
from adaptax.networks.normalizer import Moments, fresh_moments, normalized, observed
from adaptax.networks.own import own_policy
from adaptax.sampling.actors import Actor, PerMember, PolicyActor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class MAMLConfig(ProcessorConfig):
    """How tasks are sampled and how the policy adapts to them."""

    network_settings: ClassVar[tuple[str, ...]] = ("hidden_sizes", "init_std", "min_std")

    normalize_advantage: bool = True
    """Standardise each task's advantages."""
    meta_batch_size: int = 10
    """Tasks an iteration."""
    num_episodes: int = 10
    """Episodes on each task before every inner step and after the last, side by side."""
    num_inner_steps: int = 1
    """Inner steps, each on episodes of its own."""
    inner_lr: float = 0.1
    """Step size of the inner steps, at first if it is learned."""
    learn_inner_lr: bool = False
    """Whether every array of parameters learns an inner step size of its own."""
    inner_objective: Literal["likelihood_ratio", "log_likelihood", "dice"] = "likelihood_ratio"
    """Loss that an inner step minimises. Expected gradients of the three point the same way; their
    second derivatives differ."""
    first_order: bool = False
    """Whether the meta-gradient leaves out the derivative of the inner gradient."""
    exploration: Literal["off", "means", "trajectories"] = "off"
    """E-MAML's term (Stadie et al. 2018): credits the actions before the first inner step with the
    rewards after the last, by the product of task means (`means`, as ProMP) or of lane means
    (`trajectories`), which has the same expectation and more noise: lanes of a task are
    independent of each other."""
    normalize_obs: bool = True
    """Whether the policy sees observations standardised by the moments of all so far; pictures are
    left as they are."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """Hidden layers of the policy."""
    init_std: float = field(default=0.3, metadata={"static": True})
    """Standard deviation of the first policy's actions."""
    min_std: float = field(default=0.2, metadata={"static": True})
    """Least standard deviation of actions; what has fallen below it does not come back. The
    gradient of an inner step is as large as the deviation is small."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "meta_batch_size", "num_episodes", "num_inner_steps")
        check_positive(self, "hidden_sizes", "init_std", "min_std")
        check_not_negative(self, "inner_lr")
        check_deviations(self.init_std, self.min_std)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything learned."""

    params: PyTree
    """What the meta-gradient changes: `policy`, and `inner_lr` if that is learned."""
    opt_state: PyTree
    moments: dict[str, Moments]
    """`obs`, of observations, where they are normalised."""


Stages = tuple[Samples, ...]
"""Episodes before each of K inner steps, and those after the last: K + 1 stages."""
Distributions = tuple[Distribution, ...]
"""The policy's distributions over the actions of each stage, [M, N, T]."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Data:
    """What an iteration learns from; all leaves are [M, ...]."""

    stages: Stages
    returns: Array
    """[M, K + 1]: mean undiscounted return of a task's episodes in each stage."""


def policy_for(config: MAMLConfig, spec: EnvSpec, networks: nn.Module | None) -> nn.Module:
    """The given policy, or the one that the config describes."""
    default = MLPPolicy(config.hidden_sizes, spec.action, config.init_std, config.min_std)
    return own_policy(default, networks, spec, needs=("kl",))


def init_params(config: MAMLConfig, policy: nn.Module, spec: EnvSpec, key: jax.Array) -> PyTree:
    """Fresh parameters."""
    params = policy.init(key, jnp.zeros((1, spec.observation_size)))
    if not config.learn_inner_lr:
        return {"policy": params}
    return {
        "policy": params,
        "inner_lr": jax.tree.map(lambda _: jnp.float32(config.inner_lr), params),
    }


def init_moments(config: MAMLConfig, spec: EnvSpec) -> dict[str, Moments]:
    """Moments of no observations; none where they are not normalised."""
    has_some = config.normalize_obs and spec.picture is None
    return {"obs": fresh_moments(spec.observation_size)} if has_some else {}


def actor_of(policy: nn.Module, state: State, deterministic: bool = False) -> PolicyActor:
    """The policy before adaptation."""
    moments = state.moments.get("obs")
    return PolicyActor(state.params["policy"], policy, deterministic, moments)


def actor_with(
    own: PyTree, policy: nn.Module, state: State, deterministic: bool = False
) -> PerMember:
    """Actors of all tasks, each with parameters of its own [M, ...]."""
    num_tasks = len(jax.tree.leaves(own)[0])
    moments = for_each_task(state.moments.get("obs"), num_tasks)
    return PerMember(PolicyActor(own, policy, deterministic, moments))


def seen(stages: Stages, moments: dict[str, Moments]) -> Stages:
    """Stages with observations as the policy sees them."""
    return tuple(replace(s, obs=normalized(s.obs, moments.get("obs"))) for s in stages)


def with_experience(moments: dict[str, Moments], stages: Stages) -> dict[str, Moments]:
    """Moments brought up to date, for the next iteration."""
    for samples in stages:
        moments = {k: observed(m, samples.obs, samples.valid) for k, m in moments.items()}
    return moments


def collect(
    config: MAMLConfig, policy: nn.Module, state: State, sampler: Sampler, *, dice: bool = False
) -> Data:
    """Episodes on new tasks before every inner step and after the last.

    `dice`: whether the last ones are credited with adjusted rewards instead of advantages.
    """
    tasks = sampler.sample_tasks(config.meta_batch_size)
    actor: Actor = actor_of(policy, state)
    own = for_each_task(state.params["policy"], len(tasks))
    history, stages = list[Rollout](), list[Samples]()
    horizon = sampler.spec.horizon
    for _ in range(config.num_inner_steps):
        history.append(sampler.episodes(actor, tasks, config.num_episodes, 1))
        stages.append(credited(config, horizon, history, dice=config.inner_objective == "dice"))
        own = stepped(config, policy, state, own, stages[-1])
        actor = actor_with(own, policy, state)
    history.append(sampler.episodes(actor, tasks, config.num_episodes, 1))
    stages.append(credited(config, horizon, history, dice=dice))
    return Data(tuple(stages), jnp.stack([mean_returns(rollout) for rollout in history], axis=1))


def adapted_actor(
    config: MAMLConfig,
    policy: nn.Module,
    horizon: int,
    state: State,
    actor: Actor,
    history: Sequence[Rollout],
    deterministic: bool,
) -> PerMember:
    """The actor after an inner step on the last rollout, each member with its own parameters.

    A rollout of modes has no gradient: it leaves parameters as they are, with a warning.
    """
    if isinstance(actor, PerMember):
        own = actor.actor.params  # type: ignore[attr-defined]
    else:
        own = for_each_task(state.params["policy"], len(history[-1].valid))
    if "log_prob" in history[-1].extras:
        dice = config.inner_objective == "dice"
        if dice:
            for rollout in history:
                check_room(rollout, horizon)
        samples = credited(config, horizon, history, dice=dice)
        own = stepped(config, policy, state, own, samples)
    else:
        warnings.warn(
            "nothing was adapted: a policy gradient needs actions that were drawn, and these "
            "were the policy's mode; evaluate without `deterministic`",
            stacklevel=3,
        )
    return actor_with(own, policy, state, deterministic)


def unroll(config: MAMLConfig, policy: nn.Module, params: PyTree, stages: Stages) -> Distributions:
    """What the policy after 0, 1, ... inner steps says of each stage, every task by itself."""

    def one_task(own: PyTree, *stages: Samples) -> Distributions:
        distributions = []
        for samples in stages[:-1]:
            own, distribution = task_step(config, policy, params, own, samples)
            distributions.append(distribution)
        return (*distributions, distribution_at(policy, own, stages[-1].obs))

    # A copy for each: gradients take less time than with one that all tasks share.
    own = for_each_task(params["policy"], len(stages[0].valid))
    distributions: Distributions = jax.vmap(one_task)(own, *stages)
    return distributions


def task_step(
    config: MAMLConfig, policy: nn.Module, params: PyTree, own: PyTree, samples: Samples
) -> tuple[PyTree, Distribution]:
    """One task's parameters after an inner step on its samples [N, T]; its policy before."""

    def objective(own: PyTree) -> tuple[jax.Array, Distribution]:
        distribution = distribution_at(policy, own, samples.obs)
        log_prob = distribution.log_prob(samples.action)
        if config.inner_objective == "dice":
            return dice_mean(log_prob, samples.credit, samples.valid), distribution
        if config.inner_objective == "log_likelihood":
            terms = policy_gradient_loss(log_prob, samples.credit)
        else:
            terms = likelihood_ratio_loss(log_prob, samples.log_prob, samples.credit, samples.valid)
        return masked_mean(terms.reshape(-1), samples.valid.reshape(-1)), distribution

    step_sizes = params.get("inner_lr")
    if step_sizes is None:
        step_sizes = jax.tree.map(lambda _: config.inner_lr, own)
    return inner_step(objective, own, step_sizes, first_order=config.first_order)


@partial(jax.jit, static_argnums=1)
def stepped(
    config: MAMLConfig, policy: nn.Module, state: State, own: PyTree, samples: Samples
) -> PyTree:
    """The parameters [M, ...] of all tasks after an inner step."""
    (samples,) = seen((samples,), state.moments)

    def one_task(own: PyTree, samples: Samples) -> PyTree:
        return task_step(config, policy, state.params, own, samples)[0]

    return jax.vmap(one_task)(own, samples)


def distribution_at(policy: nn.Module, own: PyTree, obs: jax.Array) -> Distribution:
    """Over actions at observations [N, T, O] of one task.

    The network sees them as one axis: with two, an outer gradient takes longer.
    """
    flat = policy.apply(own, obs.reshape(-1, obs.shape[-1]))
    distribution: Distribution = jax.tree.map(
        lambda x: x.reshape(*obs.shape[:-1], *x.shape[1:]), flat
    )
    return distribution


def for_each_task(params: PyTree, num_tasks: int) -> PyTree:
    """The same parameters for every task [M, ...]."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_tasks, *x.shape)), params)


def exploration_loss(
    config: MAMLConfig, stages: Stages, distributions: Distributions
) -> jax.Array | float:
    """E-MAML's term: minus the log-probability of the first stage times rewards in the last.

    Both are means over a task, or over a lane, since lanes of both hold one episode.
    """
    if config.exploration == "off":
        return 0.0
    first, last = stages[0], stages[-1]
    mean = jax.vmap(masked_mean)
    if config.exploration == "trajectories":
        mean = jax.vmap(mean)
    log_prob = mean(distributions[0].log_prob(first.action), first.valid)
    return -jnp.mean(log_prob * mean(last.adj_avg_rewards, last.valid))


def task_mean(x: jax.Array, valid: jax.Array) -> jax.Array:
    """Mean over tasks of each one's mean over what is valid; both [M, ...].

    A task's steps are one axis, so that it does not matter, to the last bit, how lanes hold them.
    """
    flat, flat_valid = (y.reshape(len(y), -1) for y in (x, valid))
    return jnp.mean(jax.vmap(masked_mean)(flat, flat_valid))


def mean_kls(before: Distributions, after: Distributions, stages: Stages) -> jax.Array:
    """KL(before || after) in each stage, mean over tasks of each one's mean."""
    triples = zip(before, after, stages, strict=True)
    return jnp.stack([task_mean(old.kl(new), samples.valid) for old, new, samples in triples])


def mean_returns(rollout: Rollout) -> jax.Array:
    """[M]: mean undiscounted return of a task's episodes."""
    totals = jnp.sum(rollout.reward, axis=(1, 2), where=rollout.valid)
    return totals / jnp.sum(rollout.ended, axis=(1, 2))


def return_metrics(data: Data) -> Metrics:
    """`return` after the last inner step, and `return/episode_K` after K - 1."""
    returns = jnp.mean(data.returns, axis=0)
    stages = {f"return/episode_{k}": value for k, value in enumerate(returns, 1)}
    return {"return": returns[-1], **stages}


OuterLoss = Callable[[Distribution, Samples], jax.Array]
"""(the policy's distributions after adaptation, its episodes) -> loss."""


def adam_step(
    config: MAMLConfig,
    policy: nn.Module,
    lr: float,
    outer_loss: OuterLoss,
    state: State,
    data: Data,
) -> tuple[State, Metrics]:
    """One step of Adam on an outer loss and E-MAML's term."""
    stages = seen(data.stages, state.moments)

    def loss(params: PyTree) -> tuple[jax.Array, tuple[jax.Array, Distributions]]:
        distributions = unroll(config, policy, params, stages)
        policy_loss = outer_loss(distributions[-1], stages[-1])
        total = policy_loss + exploration_loss(config, stages, distributions)
        return total, (policy_loss, distributions)

    grads, (policy_loss, before) = jax.grad(loss, has_aux=True)(state.params)
    updates, opt_state = ADAM(lr).update(grads, state.opt_state)
    params = optax.apply_updates(state.params, updates)
    kl = mean_kls(before, unroll(config, policy, params, stages), stages)[-1]
    metrics = {"policy_loss": policy_loss, "grad_norm": optax.tree.norm(grads), "kl": kl}
    moments = with_experience(state.moments, data.stages)
    return State(params, opt_state, moments), {**return_metrics(data), **metrics}
