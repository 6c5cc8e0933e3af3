"""CMA-ES: pycma's ask and tell, with all that the strategy remembers as arrays in the state.

Hansen 2016, "The CMA evolution strategy: a tutorial" (arXiv 1604.00772). Each generation makes
pycma's object anew from these arrays, so that a resumed run has nothing that another has not.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass, replace

import cma
import jax
import jax.numpy as jnp
import numpy as np
from cma.sigma_adaptation import CMAAdaptSigmaCSA
from cma.transformations import DiagonalDecoding
from cma.utilities.utils import ElapsedWCTime

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


class CMAES(Algorithm):
    """Covariance matrix adaptation evolution strategy."""

    name = "cma-es"
    config: CMAESConfig
    may_be_infinite = (".best.score", "['recent_costs']")

    def __init__(self, config: CMAESConfig, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        self.policy = policy_of(config, spec)
        self._blank = blank(self.policy.size, config)

    def init(self, key: jax.Array) -> State:
        """A fresh policy as the mean."""
        key, init_key = jax.random.split(key)
        mean = self.policy.init(init_key)
        strategy = fresh(self._blank, np.asarray(mean))
        return State(strategy, Best.so_far(mean), np.zeros(len(STOPS), bool), key)

    def iteration(self, state: State, sampler: Sampler) -> tuple[State, Metrics]:
        """One generation: ask, roll out, tell."""
        generation = int(state.strategy["generation"])
        noise_key = jax.random.fold_in(state.key, generation)
        shape = (self.config.population_size, len(state.strategy["mean"]))
        asked = ask(self._blank, state.strategy, np.asarray(jax.random.normal(noise_key, shape)))
        candidates = jnp.asarray(asked.candidates, jnp.float32)
        scores, figures = score(self.config, self.policy, candidates, sampler)
        strategy, stopped = tell(asked, np.asarray(scores))
        _warn_of_stop(generation + 1, stopped & ~state.stopped)
        best = better(state.best, candidates, scores)
        figures |= {"return_best_ever": best.score, "sigma": strategy["sigma"]}
        figures |= {"stop": int(stopped.sum())}
        figures |= {f"stop/{name}": 1 for name, holds in zip(STOPS, stopped, strict=True) if holds}
        return replace(state, strategy=strategy, best=best, stopped=stopped), figures

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy of the mean, never that of a candidate."""
        return mean_actor(self.policy, jnp.asarray(state.strategy["mean"], jnp.float32))


@dataclass(frozen=True)
class Asked:
    """A generation that waits for its scores."""

    es: cma.CMAEvolutionStrategy
    before: Strategy
    candidates: np.ndarray
    """[P, D]"""


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
    es.timer = ElapsedWCTime()  # which `ask` makes in the first generation only
    return es


def fresh(blank: cma.CMAEvolutionStrategy, mean: np.ndarray) -> Strategy:
    """The strategy before its first generation, around `mean` [D]."""
    es = _copied(blank)
    es.mean = mean.astype(np.float64)
    es._stoptolxstagnation.x = es.mean
    num_recent = int(10 + 30 * len(mean) / es.popsize)  # pycma's length of `fit.hist`
    return _numbers(es, np.full(num_recent, np.nan))


def ask(blank: cma.CMAEvolutionStrategy, strategy: Strategy, noise: np.ndarray) -> Asked:
    """Candidates made of standard normal `noise` [P, D]."""
    es = _rebuilt(blank, strategy)
    es.sm.randn = lambda *shape: noise.astype(np.float64)
    return Asked(es, strategy, np.stack(es.ask()))


def tell(asked: Asked, scores: np.ndarray) -> tuple[Strategy, np.ndarray]:
    """The strategy after candidates with `scores` [P] (high is good, no NaN); what STOPS hold."""
    es = asked.es
    order = np.argsort(-scores, kind="stable")
    # Ranks are all that the update uses of costs, and they leave it no ties and no NaN to order.
    es.tell([asked.candidates[i] for i in order], list(range(len(order))))
    # Stop conditions do look at the costs themselves.
    costs = (-scores[order].astype(np.float64)).tolist()
    recent = asked.before["recent_costs"]
    recent = np.concatenate([costs[:1], recent])[: len(recent)]
    es.fit.fit, es.fit.hist = costs, recent[~np.isnan(recent)].tolist()
    found = es.stop()
    return _numbers(es, recent), np.array([name in found for name in STOPS])


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
            stacklevel=3,
        )
