"""NOP: acts at random and learns nothing; a floor for comparisons, and a way to time sampling."""

from __future__ import annotations

from dataclasses import dataclass

import jax

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.core.config import check_positive
from adaptax.core.errors import check
from adaptax.core.experience import PyTree
from adaptax.core.spec import EnvSpec
from adaptax.sampling.actors import Actor, UniformActor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class NOPConfig:
    """How much to sample, if at all."""

    step: bool = True
    """Whether to sample; without, an iteration does nothing at all."""
    num_tasks: int | None = None
    """Tasks drawn an iteration; by default one, or where there are classes one of each."""
    num_lanes: int = 16
    """Environments run side by side on each task."""
    num_episodes: int = 1
    """Episodes a lane in each iteration."""

    def __post_init__(self) -> None:
        check_positive(self, "num_tasks", "num_lanes", "num_episodes")


class NOP(Algorithm[PyTree, PyTree]):
    """Uniform actions; the state is empty and stays so."""

    name = "nop"
    config: NOPConfig
    collects_in_program = True

    def __init__(self, config: NOPConfig, spec: EnvSpec, networks: None = None) -> None:
        super().__init__(config, spec)
        check(networks is None, "nop acts at random and has no networks: leave them out")

    def init(self, key: jax.Array) -> PyTree:
        """Nothing."""
        return {}

    def collect(self, state: PyTree, sampler: Sampler) -> PyTree:
        """Sample if asked to, and keep nothing."""
        config = self.config
        if config.step:
            tasks = sampler.sample_tasks(config.num_tasks or self.spec.num_classes)
            sampler.episodes(self.actor(state), tasks, config.num_lanes, config.num_episodes)
        return {}

    def update(self, state: PyTree, data: PyTree) -> tuple[PyTree, Metrics]:
        """The state as it is."""
        return state, {}

    def actor(self, state: PyTree, *, deterministic: bool = False) -> Actor:
        """Uniform actions."""
        return UniformActor(self.spec.action)
