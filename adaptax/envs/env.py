"""Compiled environments: one lane as pure functions, and many of them side by side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from adaptax.core.experience import Array, PyTree, Step
from adaptax.core.spec import Continuous, EnvSpec
from adaptax.core.step import ends

TaskArrays = dict[str, Array]
"""A task's parameters by name, float32 or int32."""


class Env(Protocol):
    """One lane of an environment, pure; hashable (a frozen dataclass), so that it can be static.

    Whoever runs it cuts episodes at `spec.horizon`, clips actions to [-1, 1] and makes many lanes
    with `vmap`. It may also have:

    - `task_arrays(task)`, which gives a task's parameters as arrays, by default float32 and int32
      of `task.params`, and whatever must live as long as a lane of that task;
    - `render(state, params)`, a picture [H, W, 3] uint8 of a lane, for `adaptax video`;
    - `rests_at_nan = True` where a step of NaN as an action costs next to nothing: lanes that wait
      for others are given that.
    """

    @property
    def spec(self) -> EnvSpec:
        """Sizes and horizon."""

    def reset(self, key: jax.Array, task: Any) -> tuple[PyTree, jax.Array]:
        """The first state and observation [O] of an episode."""

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array, task: Any
    ) -> tuple[PyTree, Step]:
        """The state after an action, and of the step `reward`, `next_obs`, `terminated`, `info`.

        `key` is this step's own. Without `terminated` and `truncated` only the horizon ends an
        episode.
        """


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Lanes:
    """The state of P environments in mid-episode."""

    state: PyTree
    obs: jax.Array
    """[P, O], as rollouts hold them."""
    seed: jax.Array
    """[P] uint32: the episode's own seed."""
    steps: jax.Array
    """[P] int32: steps since the reset."""


def as_kept(spec: EnvSpec, obs: jax.Array) -> jax.Array:
    """Observations as rollouts hold them: bools where they are zeros and ones, else float32."""
    return obs.astype(bool if spec.binary else jnp.float32)


def as_numbers(obs: jax.Array) -> jax.Array:
    """Observations as who acts sees them."""
    return obs.astype(jnp.float32) if obs.dtype == bool else obs


def episode_key(seed: jax.Array, t: Any) -> jax.Array:
    """The key of step t of the episode `seed`; of its reset, t = 0."""
    return jax.random.fold_in(jax.random.key(seed), t)


def reset_lanes(env: Env, tasks: TaskArrays, seed: jax.Array) -> Lanes:
    """Start an episode from each seed [P], with task parameters [P, ...]."""

    def start(one_seed: jax.Array, task: TaskArrays) -> tuple[PyTree, jax.Array]:
        state, obs = env.reset(episode_key(one_seed, 0), task)
        return state, jnp.asarray(obs)

    state, obs = jax.vmap(start)(seed, tasks)
    return Lanes(state, as_kept(env.spec, obs), seed, jnp.zeros(seed.shape, jnp.int32))


def step_lanes(
    env: Env, tasks: TaskArrays, lanes: Lanes, action: jax.Array, running: jax.Array | None = None
) -> tuple[Lanes, Step]:
    """All lanes after an action each [P, *A], and the whole of that step [P, ...].

    What comes of lanes that are not `running` [P] means nothing.
    """
    spec, steps = env.spec, lanes.steps + 1
    clipped = action
    if isinstance(spec.action, Continuous):
        clipped = jnp.clip(action, -1.0, 1.0)
        if running is not None and getattr(env, "rests_at_nan", False):
            clipped = jnp.where(running[:, None], clipped, jnp.nan)

    def advance(
        seed: jax.Array, t: jax.Array, state: PyTree, a: jax.Array, task: TaskArrays
    ) -> tuple[PyTree, Step]:
        state, step = env.step(episode_key(seed, t), state, a, task)
        return state, replace(step, next_obs=jnp.asarray(step.next_obs))

    state, step = jax.vmap(advance)(lanes.seed, steps, lanes.state, clipped, tasks)
    over, cut = (x if x is None else x.astype(bool) for x in (step.terminated, step.truncated))
    terminated, truncated = ends(spec, over, cut, steps >= spec.horizon)
    info = dict(step.info)
    if spec.has_success:
        info["success"] = info["success"].astype(bool)
    step = replace(
        step,
        obs=lanes.obs,
        action=action,
        reward=step.reward.astype(jnp.float32),
        next_obs=as_kept(spec, step.next_obs),
        terminated=terminated,
        truncated=truncated,
        info=info,
    )
    return Lanes(state, step.next_obs, lanes.seed, steps), step
