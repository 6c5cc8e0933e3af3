"""Where a suite's environments run: in this process, in worker processes, in Ray actors."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from adaptax.core.errors import check
from adaptax.envs.pools.process_crew import ProcessCrew, check_can_be_sent
from adaptax.envs.pools.ray_crew import RayCrew
from adaptax.envs.pools.workers import Crew, WorkerPool
from adaptax.envs.suite import Suite

PLACES = ("num_workers", "num_ray_actors")
"""Settings of suites that say where their environments run; 0 is in this process."""


def placed(suite: Suite, num_workers: int = 0, num_ray_actors: int = 0) -> Suite:
    """The suite with its environments in worker processes or in Ray actors.

    0 of both leaves them in this process. Wherever they are, the data are the same.
    """
    check(num_workers >= 0, f"num_workers must not be negative, but is {num_workers}")
    check(num_ray_actors >= 0, f"num_ray_actors must not be negative, but is {num_ray_actors}")
    check(
        not (num_workers and num_ray_actors),
        f"num_workers {num_workers} and num_ray_actors {num_ray_actors}: environments run in "
        "worker processes of this machine or in Ray actors; leave one of the two at 0",
    )
    if not (num_workers or num_ray_actors):
        return suite
    if num_workers:
        check_can_be_sent(suite.make_pool)  # with one clear line, before the first rollout
    crew: Crew = ProcessCrew(num_workers) if num_workers else RayCrew(num_ray_actors)
    pool = partial(WorkerPool, suite.make_pool, suite.spec, crew)
    return replace(suite, make_pool=pool, engine="workers")
