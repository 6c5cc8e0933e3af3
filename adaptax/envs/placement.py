"""Where a suite's environments run: in this process, in worker processes, in Ray actors."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from adaptax.core.config import is_integer
from adaptax.core.errors import check
from adaptax.envs.pools.process_crew import ProcessCrew, check_can_be_sent
from adaptax.envs.pools.ray_crew import RayCrew
from adaptax.envs.pools.workers import Crew, WorkerPool
from adaptax.envs.suite import Suite

PLACES = ("num_workers", "num_ray_actors")
"""Settings of suites that say where their environments run; 0 is in this process."""
CHANGE_NOTHING = (*PLACES, "num_threads")
"""Settings of suites that change no data."""


def check_places(num_workers: int, num_ray_actors: int) -> None:
    """Raise a ConfigError unless at most one of them is a number of places, and the other 0."""
    for name, number in (("num_workers", num_workers), ("num_ray_actors", num_ray_actors)):
        check(is_integer(number), f"{name} must be a whole number, not {number!r}")
        check(number >= 0, f"{name} must not be negative, but is {number}")
    check(
        not (num_workers and num_ray_actors),
        f"num_workers {num_workers} and num_ray_actors {num_ray_actors}: environments run in "
        "worker processes of this machine or in Ray actors; leave one of the two at 0",
    )


def placed(suite: Suite, num_workers: int = 0, num_ray_actors: int = 0) -> Suite:
    """The suite with its environments in worker processes or in Ray actors.

    0 of both leaves them in this process. Wherever they are, the data are the same.
    """
    check_places(num_workers, num_ray_actors)
    if not (num_workers or num_ray_actors):
        return suite
    if num_workers:
        check_can_be_sent(suite.make_pool)  # with one clear line, before the first rollout
    crew: Crew = ProcessCrew(num_workers) if num_workers else RayCrew(num_ray_actors)
    pool = partial(WorkerPool, suite.make_pool, suite.spec, crew)
    return replace(suite, make_pool=pool, engine="workers")
