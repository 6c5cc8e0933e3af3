"""CEM: draw candidates around a mean, move the mean to the best of them.

De Boer et al. 2005, "A tutorial on the cross-entropy method" (section 4), for the parameters of a
policy, with the decaying extra variance of Szita and Lorincz 2006, "Learning Tetris using the
noisy cross-entropy method".
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.search.family import (
    Best,
    SearchConfig,
    better,
    mean_actor,
    policy_of,
    score,
)
from adaptax.core.config import check_positive
from adaptax.core.errors import check
from adaptax.core.spec import EnvSpec
from adaptax.functional.search import num_elites, ranking, refit, search_std
from adaptax.sampling.actors import Actor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class CEMConfig(SearchConfig):
    """The cross-entropy method; names and defaults are garage's (conformance 3.3)."""

    init_std: float = 1.0
    """Standard deviation of every parameter at the start."""
    elite_fraction: float = 0.05
    """Share of the candidates that the next mean and deviation are fitted to."""
    extra_std: float = 1.0
    """Deviation added at first, in squares, so that the search does not narrow too soon."""
    extra_std_generations: int = 100
    """Generations until nothing is added."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "init_std", "extra_std_generations")
        check(self.extra_std >= 0, f"extra_std must not be negative, not {self.extra_std}")
        check(
            0.0 < self.elite_fraction <= 1.0 and self.num_best >= 1,
            f"elite_fraction {self.elite_fraction} of population_size {self.population_size} must be at least one "
            "candidate and at most all",
        )

    @property
    def num_best(self) -> int:
        """Elites: candidates that the next mean and deviation are fitted to."""
        return num_elites(self.population_size, self.elite_fraction)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything learned."""

    mean: jax.Array
    """[D]: the policy that is evaluated."""
    std: jax.Array
    """[D], without what is added."""
    best: Best
    generation: jax.Array
    """Generations done."""
    key: jax.Array


class CEM(Algorithm):
    """The cross-entropy method."""

    name = "cem"
    config: CEMConfig
    may_be_infinite = (".best.score",)

    def __init__(self, config: CEMConfig, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        self.policy = policy_of(config, spec)

    def init(self, key: jax.Array) -> State:
        """A fresh policy as the mean."""
        key, init_key = jax.random.split(key)
        mean = self.policy.init(init_key)
        std = jnp.full_like(mean, self.config.init_std)
        return State(mean, std, Best.so_far(mean), jnp.array(0, jnp.int32), key)

    def iteration(self, state: State, sampler: Sampler) -> tuple[State, Metrics]:
        """One generation: draw, roll out, refit."""
        self._warn_of_standstill(int(state.generation))
        candidates = _draw(self.config, state)
        scores, figures = score(self.config, self.policy, candidates, sampler)
        state, more = _update(self.config, state, candidates, scores)
        return state, {**figures, **more}

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy of the mean, never that of a candidate."""
        return mean_actor(self.policy, state.mean)

    def _warn_of_standstill(self, generation: int) -> None:
        """One elite has no deviation: without extra noise all candidates would be the same."""
        config = self.config
        alone = config.extra_std_generations if config.extra_std > 0 else 1
        if config.num_best == 1 and generation == alone:
            warnings.warn(
                f"cem: the single elite has no deviation and from generation {generation} on "
                "there is no extra noise: the mean stays; raise elite_fraction or extra_std_generations",
                stacklevel=2,
            )


@partial(jax.jit, static_argnums=0)
def _draw(config: CEMConfig, state: State) -> jax.Array:
    """Candidates [P, D] around the mean; the very first of all is the mean itself."""
    std = search_std(state.std, state.generation, config.extra_std, config.extra_std_generations)
    key = jax.random.fold_in(state.key, state.generation)
    noise = jax.random.normal(key, (config.population_size, len(state.mean)))
    noise = noise.at[0].multiply(state.generation > 0)
    return state.mean + std * noise


@partial(jax.jit, static_argnums=0)
def _update(
    config: CEMConfig, state: State, candidates: jax.Array, scores: jax.Array
) -> tuple[State, Metrics]:
    """Mean and deviation of the elites."""
    elites = ranking(scores)[: config.num_best]
    mean, std = refit(candidates[elites])
    best = better(state.best, candidates, scores)
    figures = {
        "return_elite": jnp.mean(scores[elites]),
        "return_best_ever": best.score,
        "std_norm": jnp.linalg.norm(std),
    }
    after = replace(state, mean=mean, std=std, best=best, generation=state.generation + 1)
    return after, figures
