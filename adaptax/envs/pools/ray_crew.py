"""Ray actors that host pools: started with the first pool, ended with the last."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adaptax.core.errors import ConfigError, EnvironmentFault, check, one_line
from adaptax.core.experience import PyTree
from adaptax.envs.pools.pool import Pool
from adaptax.envs.pools.remote_fault import FaultReport
from adaptax.envs.task import Task

Work = Callable[..., Any]
"""`work(pool, slots, *args)`, a function at the top level of a module."""
MakePool = Callable[[int], Pool]


class RayCrew:
    """`num_actors` Ray actors of one CPU each, shared by all pools of a suite.

    A run's pools, for training and for evaluation, take turns: with actors of their own the
    cluster would need as many CPUs again. It is the cluster that this process is connected to; if
    there is none, the one that `ray.init()` finds or starts.
    """

    def __init__(self, num_actors: int, start_timeout: float = 120.0) -> None:
        check(num_actors > 0, f"num_actors must be greater than 0, not {num_actors}")
        self.num_actors, self.start_timeout = num_actors, start_timeout
        self.ray: Any = None
        self.actors: list[Any] = []
        self._pools: set[int] = set()
        self._next_pool = 0

    def enter(self) -> int:
        """A number for a new pool, when all actors have started."""
        key, self._next_pool = self._next_pool, self._next_pool + 1
        self._pools.add(key)
        try:
            if not self.actors:
                self.ray = _connected()
                self.actors = [self._create() for _ in range(self.num_actors)]
                for index in range(self.num_actors):
                    self._await_start(index)
        except BaseException:
            self.leave(key)
            raise
        return key

    def leave(self, key: int) -> None:
        """Close a pool; the last one ends the actors."""
        self._pools.discard(key)
        if self.ray is not None and self.ray.is_initialized():
            for actor in self.actors:
                if self._pools:
                    actor.drop.remote(key)
                else:
                    self.ray.kill(actor)
        if not self._pools:
            self.actors = []

    def replace(self, index: int) -> None:
        """Put a new actor, without pools, in the place of one that was lost."""
        self.ray.kill(self.actors[index])  # or it lives on, where no more than an answer was lost
        self.actors[index] = self._create()
        self._await_start(index)

    def _create(self) -> Any:
        remote = self.ray.remote(_Host).options(
            num_cpus=1,
            scheduling_strategy="SPREAD",
            # Policies run beside the environments, on the CPU even where there is a GPU.
            runtime_env={"env_vars": {"JAX_PLATFORMS": "cpu"}},
        )
        return remote.remote()

    def _await_start(self, index: int) -> None:
        name = f"Ray actor {index}"
        try:
            self.ray.get(self.actors[index].started.remote(), timeout=self.start_timeout)
        except self.ray.exceptions.GetTimeoutError:
            num_cpus = self.ray.cluster_resources().get("CPU", 0)
            raise EnvironmentFault(
                f"{name} has not started within {self.start_timeout:g} s: the cluster has "
                f"{num_cpus:g} CPUs, and each of the {self.num_actors} actors takes one"
            ) from None
        except self.ray.exceptions.RayError as error:
            raise EnvironmentFault(f"{name} could not start: {one_line(error)}") from error


class _Host:
    """What lives in a Ray actor: pools that do the work they are sent."""

    def __init__(self) -> None:
        self.pools: dict[int, Pool] = {}

    def started(self) -> None:
        """Answered by an actor that runs."""

    def make(
        self, key: int, make_pool: MakePool, num_slots: int, saved: PyTree, tasks: Sequence[Task]
    ) -> FaultReport | None:
        """Make a pool, in a saved state unless that is None; gives what went wrong, if anything."""
        try:
            pool = self.pools[key] = make_pool(num_slots)
            if saved is not None:
                pool.restore(saved, tasks)
        except Exception as error:
            return FaultReport.of(error)
        return None

    def run(self, key: int, work: Work, slots: np.ndarray, args: tuple[Any, ...]) -> Any:
        """What the work gives and the pool's state after it, or what went wrong.

        None if there is no such pool here.
        """
        if key not in self.pools:
            return None
        pool = self.pools[key]
        try:
            return work(pool, slots, *args), pool.save()
        except Exception as error:
            return FaultReport.of(error)

    def drop(self, key: int) -> None:
        """Close a pool."""
        if key in self.pools:
            self.pools.pop(key).close()


def _connected() -> Any:
    """Ray, connected to a cluster."""
    try:
        import ray  # imported late: an optional extra
        import ray.exceptions
    except ImportError:
        raise ConfigError("Ray is not installed: pip install 'adaptax[ray]'") from None
    if not ray.is_initialized():
        with warnings.catch_warnings():
            # It forks to start its own programs, which need no thread of JAX's.
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            ray.init(include_dashboard=False, logging_level=logging.WARNING)
    return ray
