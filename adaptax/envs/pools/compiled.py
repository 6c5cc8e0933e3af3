"""JaxPool: environments written as pure functions, whole rollouts of which compile to one scan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.errors import ConfigError, one_line
from adaptax.core.experience import PyTree, select
from adaptax.core.spec import Continuous, EnvSpec
from adaptax.envs.pools.pool import StepResult, check_actions, check_reset
from adaptax.envs.task import Task


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class JaxStep:
    """What one step of one environment led to."""

    state: PyTree
    obs: jax.Array
    """[O] float32"""
    reward: jax.Array
    terminated: jax.Array
    success: jax.Array


class JaxEnv(Protocol):
    """One environment as pure functions; hashable (a frozen dataclass), so that it can be static.

    The pool cuts episodes at `spec.horizon`, clips actions and runs many copies with `vmap`.
    """

    @property
    def spec(self) -> EnvSpec:
        """Sizes and horizon."""

    def reset(self, key: jax.Array, params: Any) -> tuple[PyTree, jax.Array]:
        """Task parameters -> the first state and observation [O]."""

    def step(self, state: PyTree, action: jax.Array, key: jax.Array, params: Any) -> JaxStep:
        """One step; `key` is this step's own."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Lanes:
    """The state of P environments in mid-episode."""

    state: PyTree
    obs: jax.Array
    """[P, O]"""
    seed: jax.Array
    """[P] uint32: the episode's own seed."""
    steps: jax.Array
    """[P] int32: steps since the reset."""


def reset_lanes(env: JaxEnv, params: PyTree, seed: jax.Array) -> Lanes:
    """Start an episode from each seed [P], with task parameters [P, ...]."""

    def start(one_seed: jax.Array, one_params: Any) -> tuple[PyTree, jax.Array]:
        return env.reset(jax.random.fold_in(jax.random.key(one_seed), 0), one_params)

    state, obs = jax.vmap(start)(seed, params)
    return Lanes(state, obs, seed, jnp.zeros(seed.shape, jnp.int32))


def step_lanes(
    env: JaxEnv, params: PyTree, lanes: Lanes, action: jax.Array
) -> tuple[Lanes, JaxStep, jax.Array]:
    """One step of all lanes -> lanes, outcome, truncated [P]."""
    steps = lanes.steps + 1
    if isinstance(env.spec.action, Continuous):
        action = jnp.clip(action, -1.0, 1.0)

    def advance(state: PyTree, a: jax.Array, seed: jax.Array, t: jax.Array, p: Any) -> JaxStep:
        return env.step(state, a, jax.random.fold_in(jax.random.key(seed), t), p)

    outcome = jax.vmap(advance)(lanes.state, action, lanes.seed, steps, params)
    at_horizon = steps >= env.spec.horizon
    if env.spec.horizon_terminates:
        outcome = replace(outcome, terminated=outcome.terminated | at_horizon)
    truncated = at_horizon & ~outcome.terminated
    return Lanes(outcome.state, outcome.obs, lanes.seed, steps), outcome, truncated


class JaxPool:
    """P copies of a JaxEnv; the sampler's compiled loop works on `env`, `params` and `lanes`."""

    def __init__(self, env: JaxEnv, num_slots: int) -> None:
        self.env, self.spec, self.num_slots = env, env.spec, num_slots
        self.params: PyTree = None
        self.lanes: Lanes | None = None

    def reset(self, slots: np.ndarray, seeds: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
        """Start an episode in each of K slots."""
        check_reset(slots, seeds, tasks)
        self._set_params(slots, tasks)
        every = np.zeros(self.num_slots, np.uint32)
        every[slots] = seeds
        fresh = _reset(self.env, self.params, every)
        if self.lanes is None:
            self.lanes = fresh
        chosen = np.zeros(self.num_slots, bool)
        chosen[slots] = True
        self.lanes = select(chosen, fresh, self.lanes)
        return np.asarray(self.lanes.obs)[slots]

    def step(self, slots: np.ndarray, actions: np.ndarray) -> StepResult:
        """Act in K slots, one call after another: the reference for the compiled loop."""
        check_actions(self.spec, actions, len(slots))
        every = np.zeros((self.num_slots, *actions.shape[1:]), actions.dtype)
        every[slots] = actions
        stepped, outcome, truncated = _step(self.env, self.params, self.lanes, every)
        chosen = np.zeros(self.num_slots, bool)
        chosen[slots] = True
        self.lanes = select(chosen, stepped, self.lanes)
        fields = (outcome.obs, outcome.reward, outcome.terminated, truncated, outcome.success)
        return StepResult(*(np.asarray(x)[slots] for x in fields))

    def save(self) -> PyTree:
        """The lanes' arrays, by position."""
        return {str(i): np.asarray(x) for i, x in enumerate(jax.tree.leaves(self.lanes))}

    def restore(self, saved: PyTree, tasks: Sequence[Task]) -> None:
        """Go on exactly where `save` stood."""
        slots = np.arange(self.num_slots)
        self.reset(slots, np.zeros(self.num_slots, np.uint32), tasks)
        leaves = [jnp.asarray(saved[str(i)]) for i in range(len(saved))]
        self.lanes = jax.tree.unflatten(jax.tree.structure(self.lanes), leaves)

    def close(self) -> None:
        """Nothing to free."""

    def _set_params(self, slots: np.ndarray, tasks: Sequence[Task]) -> None:
        # Lanes on one task share its object; each is looked at once.
        distinct = {id(task): task for task in tasks}
        arrays = [_arrays(task) for task in distinct.values()]
        place = {key: i for i, key in enumerate(distinct)}
        rows = np.array([place[id(task)] for task in tasks])
        if self.params is None:
            _check_fit(self.env, tasks[0], arrays[0])
            self.params = {
                k: np.zeros((self.num_slots, *x.shape), x.dtype) for k, x in arrays[0].items()
            }
        shapes = {name: x.shape[1:] for name, x in self.params.items()}
        for task, own in zip(distinct.values(), arrays, strict=True):
            found = {name: x.shape for name, x in own.items()}
            if found != shapes:
                raise ConfigError(
                    f"task {task.name!r} has parameters of the shapes {found}; "
                    f"the tasks before it have {shapes}"
                )
        for name, old in self.params.items():
            values = np.stack([own[name] for own in arrays])[rows]
            # One task may say 0 where another says 0.5, which must not become 0.
            real = "f" in old.dtype.kind + values.dtype.kind
            self.params[name] = old.astype(np.float32 if real else np.int32)
            self.params[name][slots] = values


def _arrays(task: Task) -> dict[str, np.ndarray]:
    """A task's parameters as float32 or int32."""
    arrays = {name: np.asarray(value) for name, value in task.params.items()}
    return {k: x.astype(np.float32 if x.dtype.kind == "f" else np.int32) for k, x in arrays.items()}


def _check_fit(env: JaxEnv, task: Task, params: dict[str, np.ndarray]) -> None:
    """Raise a one-line error where the environment cannot take a step with a task's parameters."""

    def one_step(params: PyTree) -> JaxStep:
        key = jax.random.key(0)
        state, _ = env.reset(key, params)
        action = jnp.zeros(env.spec.action.shape, env.spec.action.dtype)
        return env.step(state, action, key, params)

    try:
        jax.eval_shape(one_step, params)
    except KeyError as error:
        raise ConfigError(
            f"task {task.name!r} has the parameters {sorted(params)}; the environment takes {error}"
        ) from error
    except (IndexError, TypeError, ValueError) as error:
        shapes = {name: x.shape for name, x in params.items()}
        raise ConfigError(
            f"the environment cannot take a step with task {task.name!r}, whose parameters have "
            f"the shapes {shapes}: {one_line(error)}"
        ) from error


_reset = partial(jax.jit, static_argnums=0)(reset_lanes)
_step = partial(jax.jit, static_argnums=0)(step_lanes)
