"""Environments of gymnax, and of packages with its interface, as compiled suites of one task.

gymnax: Lange 2022, `RobertTLange/gymnax`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.config import check_positive
from adaptax.core.errors import ConfigError, check, one_line, unknown_name
from adaptax.core.experience import PyTree, Step
from adaptax.core.spec import Continuous, Discrete, EnvSpec
from adaptax.envs.suite import Suite, within_limits
from adaptax.envs.suites.adapters.package import imported
from adaptax.envs.suites.compiled import compiled_suite
from adaptax.envs.task import TaskList

LIMITS = ("max_steps_in_episode", "max_timesteps")
"""What an environment's parameters call its time limit."""
UNLIMITED = 2**31 - 1
PICTURE_NDIM = 3


@dataclass(frozen=True)
class GymnaxConfig:
    """An environment of gymnax with its default parameters."""

    horizon: int | None = None
    """Steps of an episode; None takes the environment's own time limit."""

    def __post_init__(self) -> None:
        check_positive(self, "horizon")


@dataclass(frozen=True, eq=False)
class GymnaxEnv:
    """An environment with gymnax's interface: `reset_env`, `step_env` and spaces.

    Episodes end as they do without a time limit, which is the horizon's.
    """

    env: Any
    params: Any
    horizon: int

    @property
    def spec(self) -> EnvSpec:
        """Observations flat, or a picture where they are [H, W, C]; actions as they are there."""
        shape, size = self._observed
        picture = (shape[0], shape[1], shape[2]) if len(shape) == PICTURE_NDIM else None
        space = self.env.action_space(self.params)
        if hasattr(space, "n"):
            action: Discrete | Continuous = Discrete(int(space.n))
        else:
            low, high = self._bounds
            finite = bool(np.isfinite(low).all() and np.isfinite(high).all())
            check(finite, f"actions of {self.env.name} are unbounded")
            action = Continuous(low.size)
        binary = hasattr(self.env.observation_space(self.params), "n") or self._is_minatar
        return EnvSpec(size, action, self.horizon, picture=picture, binary=binary)

    def reset(self, key: jax.Array, task: Any) -> tuple[PyTree, jax.Array]:
        """An episode's start; the task says nothing."""
        obs, state = self.env.reset_env(key, self.params)
        return state, self._flat(obs)

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array, task: Any
    ) -> tuple[PyTree, Step]:
        """A step; a continuous action in [-1, 1] is brought to the environment's bounds."""
        if jnp.issubdtype(action.dtype, jnp.floating):
            low, high = self._bounds
            centre, half = (low + high) / 2, (high - low) / 2
            action = (centre + half * jnp.clip(action, -1.0, 1.0)).reshape(self._action_shape)
        unlimited = _without_limit(self.params)
        # The same step without a limit: some write into their state that an episode is over, the
        # limit included, so that this state does not tell why.
        *_, over, _ = self.env.step_env(key, state, action, unlimited)
        obs, state, reward, _, _ = self.env.step_env(key, state, action, self.params)
        step = Step(
            reward=jnp.asarray(reward, jnp.float32).reshape(()),
            next_obs=self._flat(obs),
            terminated=jnp.asarray(over, bool).reshape(()),
        )
        return state, step

    @property
    def _is_minatar(self) -> bool:
        """Whether it is one of MinAtar, whose pictures are of zeros and ones."""
        return str(self.env.name).endswith("-MinAtar")

    @property
    def _observed(self) -> tuple[tuple[int, ...], int]:
        """Shape and size of an observation; of a choice, those of its one-hot."""
        space = self.env.observation_space(self.params)
        if hasattr(space, "n"):
            return (int(space.n),), int(space.n)
        check(
            hasattr(space, "shape"), f"observations of {self.env.name} are neither Box nor choice"
        )
        return tuple(space.shape), math.prod(space.shape)

    def _flat(self, obs: Any) -> jax.Array:
        space = self.env.observation_space(self.params)
        if hasattr(space, "n"):
            return jax.nn.one_hot(obs, int(space.n), dtype=bool)
        return jnp.asarray(obs, bool if self._is_minatar else jnp.float32).reshape(-1)

    @property
    def _action_shape(self) -> tuple[int, ...]:
        return tuple(self.env.action_space(self.params).shape)

    @property
    def _bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest action, each [A]."""
        with jax.ensure_compile_time_eval():  # some make their bounds as arrays of JAX
            space = self.env.action_space(self.params)
        low, high = (np.broadcast_to(x, self._action_shape) for x in (space.low, space.high))
        return low.reshape(-1).astype(np.float32), high.reshape(-1).astype(np.float32)


def gymnax_suite(env_id: str, config: GymnaxConfig) -> Suite:
    """The suite `gymnax:ENV_ID` of an environment that gymnax has registered."""
    gymnax = imported("gymnax", "gymnax")
    if env_id not in gymnax.registered_envs:
        raise unknown_name("environment of gymnax", env_id, gymnax.registered_envs)
    try:
        env, params = gymnax.make(env_id)
    except Exception as error:  # some want data that they would download
        raise ConfigError(f"gymnax cannot make {env_id}: {one_line(error)}") from error
    return suite_of(f"gymnax:{env_id}", env, params, config.horizon)


def suite_of(name: str, env: Any, params: Any, horizon: int | None = None) -> Suite:
    """A suite of one environment with gymnax's interface, Craftax's for example."""
    limits = [int(getattr(params, limit)) for limit in LIMITS if hasattr(params, limit)]
    one_env = GymnaxEnv(env, params, within_limits(horizon, limits, name))
    task = TaskList(name, [{}])
    return compiled_suite(name, one_env, task, task)


def _without_limit(params: Any) -> Any:
    return params.replace(**{name: UNLIMITED for name in LIMITS if hasattr(params, name)})
