"""Ray actors that host pools: started with the first pool, ended with the last."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Sequence
from typing import Any

from adaptax.core.errors import ConfigError, EnvironmentFault, check, one_line
from adaptax.envs.pools.remote_fault import FaultReport
from adaptax.envs.pools.workers import Host, LostError, SilentError, jax_settings


class RayCrew:
    """`num_workers` Ray actors of one CPU each.

    It is the cluster that this process is connected to; if there is none, the one that `connected`
    finds or starts. Where none of the actors that owe an answer, to a whole rollout for example,
    has given one within `timeout` seconds, that is an EnvironmentFault.
    """

    max_attempts = 3

    def __init__(
        self, num_workers: int, timeout: float = 1800.0, start_timeout: float = 120.0
    ) -> None:
        check(num_workers > 0, f"num_workers must be greater than 0, not {num_workers}")
        self.num_workers, self.timeout, self.start_timeout = num_workers, timeout, start_timeout
        self.ray: Any = None
        self.actors: list[Any] = []
        self._pools: set[int] = set()
        self._next_pool = 0

    def enter(self, num_workers: int) -> int:
        """A number for a new pool, when the first so many actors have started."""
        key, self._next_pool = self._next_pool, self._next_pool + 1
        self._pools.add(key)
        try:
            self.ray = connected()
            new = range(len(self.actors), num_workers)
            self.actors += [self._create() for _ in new]
            for index in new:
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

    def name(self, worker: int) -> str:
        """What people call it."""
        return f"Ray actor {worker}"

    def put(self, args: tuple[Any, ...]) -> Any:
        """Arguments that travel once to every machine."""
        return self.ray.put(args)

    def send(self, worker: int, method: str, key: int, *args: Any) -> Any:
        """Have an actor do something with a pool; gives the reference of its answer."""
        try:
            return getattr(self.actors[worker], method).remote(key, *args)
        except TypeError as error:
            problem = f"the environment cannot be sent to a Ray actor: {one_line(error)}"
            raise ConfigError(problem) from error

    def wait(self, pending: Sequence[Any]) -> Any:
        """The first of these references whose answer is there."""
        ready = self.ray.wait(list(pending), timeout=self.timeout)[0]
        if not ready:
            raise SilentError(pending[0], f"has not answered within {self.timeout:g} s")
        return ready[0]

    def answer(self, ticket: Any) -> Any:
        """What was answered; where it could not even begin, a report."""
        errors = self.ray.exceptions
        try:
            return self.ray.get(ticket)
        except (errors.RayActorError, errors.ObjectLostError) as error:
            raise LostError("it was lost") from error
        except errors.RayError as error:
            cause = getattr(error, "cause", None) or error
            return FaultReport(f"cannot begin: {str(cause).splitlines()[0]}", str(error))

    def replace(self, worker: int) -> None:
        """Put a new actor, without pools, in the place of one that was lost."""
        self.ray.kill(self.actors[worker])  # or it lives on, where no more than an answer was lost
        self.actors[worker] = self._create()
        self._await_start(worker)

    def _create(self) -> Any:
        return self.ray.remote(Host).options(num_cpus=1, scheduling_strategy="SPREAD").remote()

    def _await_start(self, index: int) -> None:
        name = self.name(index)
        try:
            self.ray.get(
                self.actors[index].started.remote(jax_settings()), timeout=self.start_timeout
            )
        except self.ray.exceptions.GetTimeoutError:
            num_cpus = self.ray.cluster_resources().get("CPU", 0)
            raise EnvironmentFault(
                f"{name} has not started within {self.start_timeout:g} s: the cluster has "
                f"{num_cpus:g} CPUs, and each of the {self.num_workers} actors takes one"
            ) from None
        except self.ray.exceptions.RayError as error:
            raise EnvironmentFault(f"{name} could not start: {one_line(error)}") from error


LOOPBACK = "127.0.0.1"


def connected() -> Any:
    """Ray, connected to a cluster: the one there is, or one that listens on this machine only.

    There is one if this process is connected already, RAY_ADDRESS names it, or it runs here.
    """
    try:
        import ray  # imported late: an optional extra
        import ray.exceptions
    except ImportError:
        raise ConfigError("Ray is not installed: pip install 'adaptax[ray]'") from None
    if not ray.is_initialized():
        with warnings.catch_warnings():
            # It forks to start its own programs, which need no thread of JAX's.
            warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
            _connect(ray)
    return ray


def _connect(ray: Any) -> None:
    """Join the cluster that there is, or start one."""
    where = os.environ.get("RAY_ADDRESS") or "auto"
    if where != "local":
        try:
            ray.init(where, logging_level=logging.WARNING)
            return
        except ConnectionError as error:
            if where != "auto":
                problem = f"no Ray cluster answers at RAY_ADDRESS {where!r}: {one_line(error)}"
                raise ConfigError(problem) from error
    # Ray turns a loopback address that it is given into the machine's own. Where it is told that
    # there are no clusters, as on a laptop, it takes the loopback address itself.
    from ray._private import ray_constants

    before = getattr(ray_constants, "ENABLE_RAY_CLUSTER", None)
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        ray.init("local", include_dashboard=False, logging_level=logging.WARNING)
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before
    if (address := ray.util.get_node_ip_address()) != LOOPBACK:
        warnings.warn(
            f"Ray listens on {address}: whoever reaches this machine can run code here",
            stacklevel=4,
        )
