"""Where a suite's environments run: in this process, in worker processes, in Ray actors."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from adaptax.core.errors import check
from adaptax.envs.pools.process import ProcessPool, pickled
from adaptax.envs.suite import Suite


def placed(suite: Suite, num_workers: int = 0, num_ray_actors: int = 0) -> Suite:
    """The suite with its environments in worker processes, in Ray actors, or in workers of those.

    0 of both leaves them in this process. Wherever they are, the data are the same.
    """
    check(num_workers >= 0, f"num_workers must not be negative, but is {num_workers}")
    check(num_ray_actors >= 0, f"num_ray_actors must not be negative, but is {num_ray_actors}")
    make_pool, engine = suite.make_pool, suite.engine
    if num_workers:
        pickled(make_pool)  # fails now, with one clear line, rather than in the first rollout
        make_pool = partial(ProcessPool, make_pool, suite.spec, num_workers)
        engine = "host"
    if num_ray_actors:
        from adaptax.envs.pools.ray import RayPool
        from adaptax.envs.pools.ray_crew import RayCrew  # imports JAX, which workers do without

        make_pool = partial(RayPool, make_pool, suite.spec, RayCrew(num_ray_actors))
        engine = "ray"
    return replace(suite, make_pool=make_pool, engine=engine)
