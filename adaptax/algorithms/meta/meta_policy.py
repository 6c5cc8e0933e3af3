"""The policy that adapts by gradient steps: its settings, its inner steps, its episodes.

Finn et al. 2017, "Model-agnostic meta-learning" (arXiv 1703.03400), algorithm 3; settings and
defaults are those of ProMP (Rothfuss et al. 2019, repository jonasrothfuss/ProMP).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from adaptax.algorithms.base import Metrics, return_metrics
from adaptax.core.config import check_positive
from adaptax.core.errors import check
from adaptax.core.experience import PyTree, Rollout
from adaptax.core.spec import EnvSpec
from adaptax.functional.distributions import Distribution
from adaptax.functional.inner import dice_loss, inner_step
from adaptax.functional.masking import masked_mean
from adaptax.functional.policy_losses import likelihood_ratio_loss, policy_gradient_loss
from adaptax.learning.baselines import linear_features, linear_time_features, zero_features
from adaptax.learning.credited import Samples, credited
from adaptax.learning.processors import ProcessorConfig
from adaptax.networks.heads import MLPPolicy
from adaptax.sampling.actors import Actor, PerMember, PolicyActor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class MAMLConfig(ProcessorConfig):
    """How tasks are sampled and how the policy adapts to them."""

    normalize_advantage: bool = True
    """Standardise each task's advantages."""
    meta_batch_size: int = 40
    """Tasks an iteration."""
    num_episodes: int = 20
    """Episodes on each task before every inner step and after the last, side by side."""
    num_inner_steps: int = 1
    """Inner steps, each on episodes of its own."""
    inner_lr: float = 0.1
    """Step size of the inner steps, at first if it is learned."""
    learn_inner_lr: bool = False
    """Whether every array of parameters learns an inner step size of its own."""
    inner_objective: Literal["likelihood_ratio", "log_likelihood", "dice"] = "likelihood_ratio"
    """What an inner step descends; equal gradients, different second derivatives."""
    first_order: bool = False
    """Whether the meta-gradient leaves out the derivative of the inner gradient."""
    exploration: Literal["off", "means", "trajectories"] = "off"
    """E-MAML's term (Stadie et al. 2018): what was done before adaptation is worth what came of
    it after, on a task's average as in ProMP, or lane by lane."""
    baseline: Literal["linear", "linear_time", "zero"] = "linear"
    """What advantages are over: a fit to observations and time, to time alone, or nothing."""
    hidden_sizes: tuple[int, ...] = (64, 64)
    init_std: float = 1.0
    """Standard deviation of the first policy's actions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "meta_batch_size", "num_episodes", "num_inner_steps")
        check_positive(self, "hidden_sizes", "init_std")
        check(self.inner_lr >= 0, f"inner_lr must not be negative, not {self.inner_lr}")


Data = tuple[Samples, ...]
"""K batches, each before an inner step, and the one after the last."""
Distributions = tuple[Distribution, ...]
"""Over the actions of each batch of Data, [M, N, T]."""

_FEATURES = {
    "linear": linear_features,
    "linear_time": linear_time_features,
    "zero": zero_features,
}


@dataclass(frozen=True)
class MetaPolicy:
    """A policy that adapts by gradient steps; hashable, so that compiled functions can take it."""

    config: MAMLConfig
    spec: EnvSpec

    @property
    def network(self) -> MLPPolicy:
        """Observations -> distributions over actions."""
        return MLPPolicy(self.config.hidden_sizes, self.spec.action, self.config.init_std)

    def init(self, key: jax.Array) -> PyTree:
        """Fresh parameters."""
        policy = self.network.init(key, jnp.zeros((1, self.spec.observation_size)))
        if not self.config.learn_inner_lr:
            return {"policy": policy}
        sizes = jax.tree.map(lambda _: jnp.float32(self.config.inner_lr), policy)
        return {"policy": policy, "inner_lr": sizes}

    def actor(self, params: PyTree, deterministic: bool) -> PolicyActor:
        """The policy before it knows its task."""
        return PolicyActor(params["policy"], self.network, deterministic)

    def adapt(
        self, params: PyTree, actor: Actor, history: Sequence[Rollout], deterministic: bool
    ) -> Actor:
        """The actor after an inner step on the last rollout, each member with its own parameters.

        A rollout of modes has no gradient: it leaves parameters as they are, with a warning.
        """
        own = _own_params(actor, len(history[-1].valid))
        if "log_prob" in history[-1].extras:
            samples = self._credited(history, dice=self.config.inner_objective == "dice")
            own = _stepped(self, params, own, samples)
        else:
            warnings.warn(
                "nothing was adapted: a policy gradient needs actions that were drawn, and these "
                "were the policy's mode; evaluate without `deterministic`",
                stacklevel=3,
            )
        return PerMember(PolicyActor(own, self.network, deterministic))

    def collect(self, params: PyTree, sampler: Sampler, *, dice: bool) -> tuple[Data, Metrics]:
        """Episodes on new tasks before every inner step and after the last, and their returns.

        `dice`: whether the last ones are credited with adjusted rewards instead of advantages.
        """
        config, data, history = self.config, [], list[Rollout]()
        tasks = sampler.sample_tasks(config.meta_batch_size)
        actor: Actor = self.actor(params, deterministic=False)
        for _ in range(config.num_inner_steps):
            history.append(sampler.episodes(actor, tasks, config.num_episodes, 1))
            data.append(self._credited(history, dice=config.inner_objective == "dice"))
            own = _stepped(self, params, _own_params(actor, len(tasks)), data[-1])
            actor = PerMember(PolicyActor(own, self.network))
        history.append(sampler.episodes(actor, tasks, config.num_episodes, 1))
        data.append(self._credited(history, dice=dice))
        returns = [return_metrics(rollout, 1)["return"] for rollout in history]
        each = {f"return/episode_{k}": value for k, value in enumerate(returns, 1)}
        return tuple(data), {"return": returns[-1], **each}

    def unroll(self, params: PyTree, data: Data) -> Distributions:
        """What the policy after 0, 1, ... inner steps says of each batch, every task by itself."""

        def one_task(own: PyTree, *batches: Samples) -> Distributions:
            seen = []
            for samples in batches[:-1]:
                own, distribution = self.inner_step(params, own, samples)
                seen.append(distribution)
            return (*seen, self._distribution(own, batches[-1].obs))

        # A copy for each: gradients take less time than with one that all tasks share.
        every = _for_each(params["policy"], len(data[0].valid))
        distributions: Distributions = jax.vmap(one_task)(every, *data)
        return distributions

    def inner_step(
        self, params: PyTree, own: PyTree, samples: Samples
    ) -> tuple[PyTree, Distribution]:
        """One task's parameters after a step on its samples [N, T], and what they said before."""
        sizes = params.get("inner_lr")
        if sizes is None:
            sizes = jax.tree.map(lambda _: self.config.inner_lr, own)
        objective = partial(self._inner_objective, samples)
        return inner_step(objective, own, sizes, first_order=self.config.first_order)

    def exploration_loss(self, data: Data, distributions: Distributions) -> jax.Array:
        """E-MAML's term: minus the log-probability of the first batch times rewards in the last.

        Both are means over a task, or over a lane, since lanes of both hold one episode.
        """
        if self.config.exploration == "off":
            return jnp.zeros(())
        first, last = data[0], data[-1]
        mean = jax.vmap(masked_mean)
        if self.config.exploration == "trajectories":
            mean = jax.vmap(mean)
        log_prob = mean(distributions[0].log_prob(first.action), first.valid)
        return -jnp.mean(log_prob * mean(last.adj_avg_rewards, last.valid))

    def _credited(self, history: Sequence[Rollout], *, dice: bool) -> Samples:
        features, horizon = _FEATURES[self.config.baseline], self.spec.horizon
        return credited(self.config, features, horizon, history, dice=dice)

    def _distribution(self, own: PyTree, obs: jax.Array) -> Distribution:
        """Over actions at observations [N, T, O] of one task.

        The network sees them as one axis: with two, an outer gradient takes longer.
        """
        flat = self.network.apply(own, obs.reshape(-1, obs.shape[-1]))
        distribution: Distribution = jax.tree.map(
            lambda x: x.reshape(*obs.shape[:-1], *x.shape[1:]), flat
        )
        return distribution

    def _inner_objective(self, samples: Samples, own: PyTree) -> tuple[jax.Array, Distribution]:
        distribution = self._distribution(own, samples.obs)
        log_prob = distribution.log_prob(samples.action)
        if self.config.inner_objective == "dice":
            terms = dice_loss(log_prob, samples.credit, samples.valid)
        elif self.config.inner_objective == "log_likelihood":
            terms = policy_gradient_loss(log_prob, samples.credit)
        else:
            terms = likelihood_ratio_loss(log_prob, samples.log_prob, samples.credit)
        return masked_mean(terms.reshape(-1), samples.valid.reshape(-1)), distribution


def _own_params(actor: Actor, num_members: int) -> PyTree:
    """The parameters of every member [M, ...]."""
    if isinstance(actor, PerMember):
        return actor.actor.params  # type: ignore[attr-defined]
    assert isinstance(actor, PolicyActor)
    return _for_each(actor.params, num_members)


def _for_each(params: PyTree, num_members: int) -> PyTree:
    """The same parameters for every member [M, ...]."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (num_members, *x.shape)), params)


@partial(jax.jit, static_argnums=0)
def _stepped(meta: MetaPolicy, params: PyTree, own: PyTree, samples: Samples) -> PyTree:
    """The parameters [M, ...] of all members after an inner step."""
    return jax.vmap(lambda one, task: meta.inner_step(params, one, task)[0])(own, samples)
