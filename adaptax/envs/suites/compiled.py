"""Compiled environments, your own for example, as suites."""

from __future__ import annotations

import reprlib
from functools import partial

from adaptax.core.errors import ConfigError, check, one_line
from adaptax.core.spec import EnvSpec
from adaptax.envs.env import Env
from adaptax.envs.pools.compiled import CompiledPool
from adaptax.envs.suite import Suite
from adaptax.envs.task import Tasks, as_tasks


def compiled_suite(name: str, env: Env, train: Tasks, test: Tasks) -> Suite:
    """A suite of `env` whose rollouts, policy included, are one program each.

    `train` and `test` are what tasks are drawn from: a `TaskList` or a `TaskRange`, or what a list
    is made of, one dict or value a task.
    """
    check(not isinstance(env, type), f"env must be an environment, not the class {env}: call it")
    spec = _spec(env)
    # A program is kept by what its environment is equal to; a frozen one stays what it is.
    kind, parameters = type(env).__name__, getattr(env, "__dataclass_params__", None)
    own = bool(getattr(env, "__dict__", None)) and not (parameters and parameters.frozen)
    by_identity = type(env).__hash__ in (None, object.__hash__)
    check(
        not (own and by_identity),
        f"{kind} has to be a frozen dataclass: a change of it would not be seen",
    )
    try:
        hash(env)
    except TypeError as error:
        raise ConfigError(
            f"{kind} cannot be told from others, {error}: make its fields tuples and numbers, or "
            "write dataclass(frozen=True, eq=False)"
        ) from error
    tasks = as_tasks(f"{name}-train", train), as_tasks(f"{name}-test", test)
    return Suite(name, spec, *tasks, partial(CompiledPool, env), engine="compiled")


def _spec(env: Env) -> EnvSpec:
    """An environment's own; an error where it is none of JAX's."""
    wanted = "env must be an environment in JAX (gym_suite takes Gymnasium's)"
    try:
        spec = env.spec
    except AttributeError as error:
        raise ConfigError(f"{wanted}: {one_line(error)}") from error
    found = f"the spec of {type(env).__name__} is {reprlib.repr(spec)}"
    check(isinstance(spec, EnvSpec), f"{wanted}: {found}, not an EnvSpec")
    return spec
