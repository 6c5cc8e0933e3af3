"""What CEM and CMA-ES share: settings, the policy searched for, and how candidates score.

`networks` of these algorithms is a Flax module, observations [..., O] -> Distribution; all of its
parameters together are the vector [D] that is searched for.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.algorithms.base import Metrics
from adaptax.core.config import check_positive, check_unit
from adaptax.core.experience import Array
from adaptax.core.hyperparameters import Hyperparameters
from adaptax.core.spec import EnvSpec
from adaptax.functional.masking import masked_mean
from adaptax.functional.returns import discounted_returns
from adaptax.functional.search import nan_as_worst, ranking
from adaptax.networks.flat import Flat
from adaptax.networks.heads import MLPPolicy
from adaptax.networks.own import own_policy
from adaptax.sampling.actors import PerMember, PolicyActor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class SearchConfig(Hyperparameters):
    """How many candidates a generation has, how they are scored, and what they are."""

    network_settings: ClassVar[tuple[str, ...]] = ("hidden_sizes",)

    population_size: int = 64
    """Candidates a generation."""
    num_tasks: int = 1
    """Tasks drawn a generation; every candidate is scored on all of them."""
    num_episodes: int = 1
    """Episodes of every candidate on each of these tasks."""
    discount: float = 0.99
    """Only for the log: candidates are scored by undiscounted returns."""
    hidden_sizes: tuple[int, ...] = ()
    """Hidden layers of the policy; none: it is linear."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "population_size", "num_tasks", "num_episodes", "hidden_sizes")
        check_unit(self, "discount")


def policy_for(config: SearchConfig, spec: EnvSpec, networks: nn.Module | None) -> nn.Module:
    """The given policy, or one without a deviation to search for, since it acts by its mode."""
    return own_policy(MLPPolicy(config.hidden_sizes, spec.action, learn_std=False), networks, spec)


def mean_actor(policy: Flat, params: jax.Array) -> PolicyActor:
    """The policy with one vector of parameters [D]."""
    return PolicyActor(params, policy, deterministic=True)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Data:
    """A generation and how it did."""

    candidates: Array
    """[P, D]"""
    scores: jax.Array
    """[P]: mean undiscounted returns, minus infinity where that is not a number."""
    discounted_return: jax.Array
    """Mean over all episodes."""


def evaluated(config: SearchConfig, policy: Flat, candidates: Array, sampler: Sampler) -> Data:
    """All candidates [P, D] rolled out as one batch, a member for each on each task."""
    tasks = sampler.sample_tasks(config.num_tasks)
    params = jnp.repeat(jnp.asarray(candidates, jnp.float32), len(tasks), axis=0)
    actor = PerMember(mean_actor(policy, params))
    rollout = sampler.episodes(actor, tasks * len(candidates), config.num_episodes, 1)
    ends = {name: getattr(rollout, name) for name in ("terminated", "truncated", "valid")}
    return Data(candidates, *_scores(config, rollout.reward, ends))


@jax.jit
def _scores(
    config: SearchConfig, reward: jax.Array, ends: dict[str, jax.Array]
) -> tuple[jax.Array, jax.Array]:
    """Scores [P] and the mean discounted return from rewards [P * tasks, N, T]."""
    valid = ends["valid"]
    ended = valid & (ends["terminated"] | ends["truncated"])
    totals, counts = (
        jnp.sum(x.reshape(config.population_size, -1), axis=-1)
        for x in (jnp.where(valid, reward, 0.0), ended)
    )
    discounted = discounted_returns(
        reward, jnp.zeros_like(reward), **ends, discount=config.discount
    )
    starts = jnp.pad(ended[..., :-1], ((0, 0), (0, 0), (1, 0)), constant_values=True) & valid
    return nan_as_worst(totals / counts), masked_mean(discounted, starts)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Best:
    """The best candidate that there ever was: lucky, where returns are noisy."""

    params: jax.Array
    """[D]"""
    score: jax.Array

    @classmethod
    def so_far(cls, params: jax.Array) -> Best:
        """Before any candidate was scored."""
        return cls(params, jnp.float32(-jnp.inf))


@jax.jit
def better(best: Best, data: Data) -> Best:
    """The best of it and of a generation."""
    first = ranking(data.scores)[0]
    new = Best(jnp.asarray(data.candidates[first], jnp.float32), data.scores[first])
    kept: Best = jax.tree.map(partial(jnp.where, new.score > best.score), new, best)
    return kept


@jax.jit
def score_metrics(data: Data, best: Best) -> Metrics:
    """Figures of a generation, and the best score ever."""
    scores = data.scores
    return {
        "return": jnp.mean(scores, where=jnp.isfinite(scores)),
        "return_max": jnp.max(scores),
        "return_min": jnp.min(scores),
        "discounted_return": data.discounted_return,
        "return_best_ever": best.score,
    }
