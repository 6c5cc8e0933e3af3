"""Compiled environments, your own for example, as suites."""

from __future__ import annotations

from functools import partial

from adaptax.envs.env import Env
from adaptax.envs.pools.compiled import CompiledPool
from adaptax.envs.suite import Suite
from adaptax.envs.task import TaskDistribution


def compiled_suite(name: str, env: Env, train: TaskDistribution, test: TaskDistribution) -> Suite:
    """A suite of `env` whose rollouts, policy included, are one program each.

    `train` and `test` are what tasks are drawn from, a `TaskList` or a `TaskRange` each.
    """
    return Suite(name, env.spec, train, test, partial(CompiledPool, env), engine="compiled")
