"""Suites of bodies: their environments compiled where the native call works, else on the host."""

from __future__ import annotations

from functools import partial

from adaptax.envs.physics import native
from adaptax.envs.physics.body import Body
from adaptax.envs.physics.env import MujocoEnv
from adaptax.envs.pools.compiled import CompiledPool
from adaptax.envs.pools.mujoco import MujocoPool
from adaptax.envs.suite import Suite
from adaptax.envs.task import TaskDistribution


def mujoco_suite(
    name: str, body: Body, train: TaskDistribution, test: TaskDistribution, num_threads: int
) -> Suite:
    """The suite `name` of a body; its physics on `num_threads` threads, 0 for one a core."""
    problem = native.problem()
    if problem is not None:
        on_host = partial(MujocoPool, body, num_threads=num_threads)
        note = f"MuJoCo runs outside the compiled program, which is slower: {problem}"
        return Suite(name, body.spec, train, test, on_host, note=note)
    compiled = partial(CompiledPool, MujocoEnv(body), num_threads=num_threads)
    return Suite(name, body.spec, train, test, compiled, engine="compiled")
