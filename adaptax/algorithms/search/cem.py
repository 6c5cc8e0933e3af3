"""CEM: draw candidates around a mean, move the mean to the best of them.

De Boer et al. 2005, "A tutorial on the cross-entropy method" (section 4), for the parameters of a
policy, with the decaying extra variance of Szita and Lorincz 2006, "Learning Tetris using the
noisy cross-entropy method".
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.search.family import (
    Best,
    Data,
    SearchConfig,
    better,
    evaluated,
    mean_actor,
    policy_for,
    score_metrics,
)
from adaptax.core.config import check_not_negative, check_positive
from adaptax.core.errors import check
from adaptax.core.spec import EnvSpec
from adaptax.functional.search import num_elites, ranking, refit, search_std
from adaptax.networks.flat import Flat
from adaptax.sampling.actors import Actor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class CEMConfig(SearchConfig):
    """The cross-entropy method; defaults are garage's."""

    init_std: float = 1.0
    """Standard deviation of every parameter at the start."""
    elite_fraction: float = field(default=0.05, metadata={"static": True})
    """Share of the candidates that the next mean and deviation are fitted to."""
    extra_std: float = 1.0
    """Square root of the extra variance at the start, which keeps the search from narrowing too
    soon."""
    extra_std_generations: int = 100
    """Generations over which the extra variance falls to 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "init_std", "extra_std_generations")
        check_not_negative(self, "extra_std")
        check(
            0.0 < self.elite_fraction <= 1.0 and self.num_elites >= 1,
            f"elite_fraction {self.elite_fraction} of population_size {self.population_size} must "
            "be at least one candidate and at most all",
        )

    @property
    def num_elites(self) -> int:
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


class CEM(Algorithm[State, Data]):
    """The cross-entropy method; `networks` as in family.py."""

    name = "cem"
    config: CEMConfig
    collects_in_program = True
    may_be_infinite = (".best.score",)
    learned = (".mean",)

    def __init__(self, config: CEMConfig, spec: EnvSpec, networks: nn.Module | None = None) -> None:
        super().__init__(config, spec, policy_for(config, spec, networks))
        self.policy = Flat(self.networks, spec.observation_size)
        _warn_of_standstill(config)

    def init(self, key: jax.Array) -> State:
        """A fresh policy as the mean."""
        key, init_key = jax.random.split(key)
        mean = self.policy.init(init_key)
        std = jnp.full_like(mean, self.config.init_std)
        return State(mean, std, Best.so_far(mean), jnp.array(0, jnp.int32), key)

    def collect(self, state: State, sampler: Sampler) -> Data:
        """A generation of candidates, rolled out."""
        return evaluated(self.config, self.policy, draw(self.config, state), sampler)

    def update(self, state: State, data: Data) -> tuple[State, Metrics]:
        """Mean and deviation of the elites."""
        elites = ranking(data.scores)[: self.config.num_elites]
        mean, std = refit(data.candidates[elites])
        best = better(state.best, data)
        metrics = {
            **score_metrics(data, best),
            "return_elite": jnp.mean(data.scores[elites]),
            "std_norm": jnp.linalg.norm(std),
        }
        return State(mean, std, best, state.generation + 1, state.key), metrics

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy of the mean, never that of a candidate."""
        return mean_actor(self.policy, state.mean)


@jax.jit
def draw(config: CEMConfig, state: State) -> jax.Array:
    """Candidates [P, D] around the mean; the very first of all is the mean itself."""
    std = search_std(state.std, state.generation, config.extra_std, config.extra_std_generations)
    key = jax.random.fold_in(state.key, state.generation)
    noise = jax.random.normal(key, (config.population_size, len(state.mean)))
    noise = noise.at[0].multiply(state.generation > 0)
    return state.mean + std * noise


def _warn_of_standstill(config: CEMConfig) -> None:
    """One elite has no deviation: without extra noise all candidates would be the same."""
    if config.num_elites == 1:
        end = config.extra_std_generations if config.extra_std > 0 else 1
        warnings.warn(
            f"cem: the single elite has no deviation and from generation {end} on there is no "
            "extra noise: the mean stays; raise elite_fraction or extra_std_generations",
            stacklevel=3,
        )
