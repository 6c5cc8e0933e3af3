"""CMA-ES: pycma's ask and tell, with all that the strategy remembers as arrays in the state.

Hansen 2016, "The CMA evolution strategy: a tutorial" (arXiv 1604.00772). Each generation makes
pycma's object anew from these arrays, so that a resumed run has nothing that another has not.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, replace

import cma
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from cma.sigma_adaptation import CMAAdaptSigmaCSA
from cma.transformations import DiagonalDecoding

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
from adaptax.core.config import check_positive
from adaptax.core.errors import check
from adaptax.core.spec import EnvSpec
from adaptax.networks.flat import Flat
from adaptax.sampling.actors import Actor
from adaptax.sampling.sampler import Sampler

Strategy = dict[str, np.ndarray]
"""What a strategy remembers from one generation to the next, float64."""

MAX_FULL = 2000
"""Parameters above which a full covariance, of their number squared, is no longer sensible."""

STOPS = (
    "noeffectaxis",
    "noeffectcoord",
    "tolconditioncov",
    "tolfacupx",
    "tolflatfitness",
    "tolfun",
    "tolfunhist",
    "tolupsigma",
    "tolx",
    "tolxstagnation",
)
"""pycma's stop conditions that can hold. Not among them: limits, which are the trainer's, and
`tolstagnation`, which would have the state grow with every generation."""


@dataclass(frozen=True)
class CMAESConfig(SearchConfig):
    """Covariance matrix adaptation; settings of the strategy itself are pycma's defaults."""

    init_std: float = 1.0
    """Standard deviation of every parameter at the start."""
    max_full_covariance: int = MAX_FULL
    """Parameters up to which a full covariance is learned; with more, only its diagonal."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "init_std", "max_full_covariance")
        check(
            self.population_size >= 4,
            f"population_size must be at least 4, not {self.population_size}",
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything learned."""

    strategy: Strategy
    """`mean` [D] is the policy that is evaluated."""
    best: Best
    stopped: np.ndarray
    """[len(STOPS)] bool: which stop conditions hold."""
    key: jax.Array


class CMAES(Algorithm[State, Data]):
    """Covariance matrix adaptation evolution strategy; `networks` as in family.py."""

    name = "cma-es"
    traceable = False
    config: CMAESConfig
    may_be_infinite = (".best.score", "['recent_costs']")
    learned = (".strategy['mean']",)

    def __init__(
        self, config: CMAESConfig, spec: EnvSpec, networks: nn.Module | None = None
    ) -> None:
        super().__init__(config, spec, policy_for(config, spec, networks))
        self.policy = Flat(self.networks, spec.observation_size)
        self._blank = blank(self.policy.size, config)

    def init(self, key: jax.Array) -> State:
        """A fresh policy as the mean."""
        key, init_key = jax.random.split(key)
        mean = self.policy.init(init_key)
        strategy = fresh(self._blank, np.asarray(mean))
        return State(strategy, Best.so_far(mean), np.zeros(len(STOPS), bool), key)

    def collect(self, state: State, sampler: Sampler) -> Data:
        """A generation of candidates, rolled out."""
        key = jax.random.fold_in(state.key, int(state.strategy["generation"]))
        shape = (self.config.population_size, len(state.strategy["mean"]))
        candidates = draw(state.strategy, np.asarray(jax.random.normal(key, shape)))
        return evaluated(self.config, self.policy, candidates, sampler)

    def update(self, state: State, data: Data) -> tuple[State, Metrics]:
        """The strategy told of the scores, and the stop conditions that hold after it."""
        scores = np.asarray(data.scores)
        strategy, stopped = tell(self._blank, state.strategy, np.asarray(data.candidates), scores)
        _warn_of_stop(int(strategy["generation"]), stopped & ~state.stopped)
        best = better(state.best, data)
        metrics = {**score_metrics(data, best), "sigma": strategy["sigma"]}
        metrics |= {"stop": int(stopped.sum())}
        metrics |= {f"stop/{name}": 1 for name, holds in zip(STOPS, stopped, strict=True) if holds}
        return replace(state, strategy=strategy, best=best, stopped=stopped), metrics

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy of the mean, never that of a candidate."""
        return mean_actor(self.policy, jnp.asarray(state.strategy["mean"], jnp.float32))


def blank(size: int, config: CMAESConfig) -> cma.CMAEvolutionStrategy:
    """What pycma starts with before the first generation, for `size` parameters."""
    diagonal = size > config.max_full_covariance
    if size > MAX_FULL and not diagonal:
        warnings.warn(
            f"cma-es: a full covariance of {size} parameters has {size**2:,} entries; "
            f"max_full_covariance {MAX_FULL} would learn its diagonal only",
            stacklevel=3,
        )
    options = {
        "popsize": config.population_size,
        "CMA_diagonal": diagonal,
        # From 300 parameters on pycma would adapt sigma by two more candidates that it injects.
        "AdaptSigma": CMAAdaptSigmaCSA,
        # The second remedy moves the covariance into a change of coordinates; `tolconditioncov`.
        "conditioncov_alleviate": [1e8, 0],
        "maxiter": np.inf,
        "tolstagnation": 0,
        "seed": np.nan,  # leaves NumPy's global generator alone
        "verbose": -10,  # at -9 it would still look for a file of commands in the directory
    }
    es = cma.CMAEvolutionStrategy(np.zeros(size), config.init_std, options)
    es.sm.randn = lambda *shape: np.zeros(shape)
    es.ask()  # `tell` refuses a strategy that was never asked
    es.sent_solutions.clear()
    return es


def fresh(blank: cma.CMAEvolutionStrategy, mean: np.ndarray) -> Strategy:
    """The strategy before its first generation, around `mean` [D]."""
    es = _copied(blank)
    es.mean = mean.astype(np.float64)
    es._stoptolxstagnation.x = es.mean
    num_recent = int(10 + 30 * len(mean) / es.popsize)  # pycma's length of `fit.hist`
    return _numbers(es, np.full(num_recent, np.nan))


def draw(strategy: Strategy, noise: np.ndarray) -> np.ndarray:
    """Candidates [P, D] from standard normal `noise` [P, D], as pycma's `ask` makes them."""
    steps = noise.astype(np.float64)
    if "C" in strategy:
        steps = np.dot(strategy["B"], (strategy["D"] * steps).T).T
    candidates: np.ndarray = strategy["mean"] + strategy["sigma"] * (strategy["scaling"] * steps)
    return candidates


def tell(
    blank: cma.CMAEvolutionStrategy, strategy: Strategy, candidates: np.ndarray, scores: np.ndarray
) -> tuple[Strategy, np.ndarray]:
    """The strategy after `candidates` with `scores` [P] (high is good, no NaN); what STOPS hold."""
    es, order = _rebuilt(blank, strategy), np.argsort(-scores, kind="stable")
    # Ranks are all that the update uses of costs, and they leave it no ties and no NaN to order.
    es.tell(list(candidates[order]), list(range(len(order))), check_points=False)
    # Stop conditions do look at the costs themselves.
    costs = (-scores[order].astype(np.float64)).tolist()
    recent = strategy["recent_costs"]
    recent = np.concatenate([costs[:1], recent])[: len(recent)]
    es.fit.fit, es.fit.hist = costs, recent[~np.isnan(recent)].tolist()
    found = es.stop()
    _prepare_to_draw(es)
    return _numbers(es, recent), np.array([name in found for name in STOPS])


def _prepare_to_draw(es: cma.CMAEvolutionStrategy) -> None:
    """What pycma's `ask` does before it draws: axes in scale, and the covariance's eigenvectors."""
    es.alleviate_conditioning_in_coordinates(es.opts["conditioncov_alleviate"][0])
    if isinstance(es.sm, cma.sampler.GaussFullSampler):
        es.sm.update_now()


def _copied(blank: cma.CMAEvolutionStrategy) -> cma.CMAEvolutionStrategy:
    """Another one like it; the options, half of what there is to copy, are read only."""
    return copy.deepcopy(blank, {id(blank.opts): blank.opts})


def _rebuilt(blank: cma.CMAEvolutionStrategy, strategy: Strategy) -> cma.CMAEvolutionStrategy:
    """The inverse of `_numbers`."""
    es = _copied(blank)
    s = {name: np.array(x) for name, x in strategy.items()}
    es.countiter, es.sigma = int(s["generation"]), float(s["sigma"])
    es.mean, es.pc, es.adapt_sigma.ps = s["mean"], s["pc"], s["ps"]
    es.mean_old = es.mean
    es.sigma_vec = DiagonalDecoding(s["scaling"])
    if "C" in s:
        es.sm.C, es.sm.B, es.sm.D = s["C"], s["B"], s["D"]
        es.sm.count_tell, es.sm.last_update = (int(x) for x in s["eigen_updates"])
        es._updateBDfromSM()
    es.fit.flatfit_iterations = int(s["flat_generations"])
    stagnation = es._stoptolxstagnation
    stagnation.x = s["stagnation_mean"]
    stagnation.count, stagnation.count_x = es.countiter, int(s["stagnation_since"])
    return es


def _numbers(es: cma.CMAEvolutionStrategy, recent_costs: np.ndarray) -> Strategy:
    """All of a strategy that the next generation depends on."""
    stagnation = es._stoptolxstagnation
    numbers = {
        "generation": es.countiter,
        "mean": es.mean,
        "sigma": es.sigma,
        "pc": es.pc,
        "ps": es.adapt_sigma.ps,
        "scaling": es.sigma_vec.scaling * np.ones(es.N),
        "recent_costs": recent_costs,
        "flat_generations": es.fit.flatfit_iterations,
        "stagnation_mean": stagnation.x,
        "stagnation_since": stagnation.count_x,
    }
    if isinstance(es.sm, cma.sampler.GaussFullSampler):
        eigen_updates = [es.sm.count_tell, es.sm.last_update]
        numbers |= {"C": es.sm.C, "B": es.sm.B, "D": es.sm.D, "eigen_updates": eigen_updates}
    return {name: np.array(x) for name, x in numbers.items()}


def _warn_of_stop(generation: int, stopped: np.ndarray) -> None:
    """Say which stop conditions hold that did not hold before."""
    names = [name for name, holds in zip(STOPS, stopped, strict=True) if holds]
    if names:
        warnings.warn(
            f"cma-es: pycma would stop after generation {generation}: {', '.join(names)}; "
            "training goes on",
            stacklevel=5,
        )
