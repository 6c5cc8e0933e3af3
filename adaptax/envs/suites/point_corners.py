"""Points in the plane whose goal is one of four corners, (+-2, +-2), that they are not told.

The worlds and constants are those of ProMP (Rothfuss et al. 2019), repository jonasrothfuss/ProMP,
meta_policy_search/envs/point_envs: point_env_2d_corner, _momentum and _walls. Lengths have no
unit. Nothing ends an episode but its horizon, which ProMP leaves to its sampler (100 steps in its
runs); success, which ProMP does not define, is being within 0.5 of the goal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.config import check_positive
from adaptax.core.errors import check
from adaptax.core.experience import PyTree, Step
from adaptax.core.rng import named_generator
from adaptax.core.spec import Continuous, EnvSpec
from adaptax.envs.env import Env
from adaptax.envs.suite import Suite
from adaptax.envs.suites.compiled import compiled_suite
from adaptax.envs.task import Params, TaskList, TaskRange, drawn_list

CORNERS = np.array([[-2, -2], [2, -2], [-2, 2], [2, 2]], np.float32)
_SUCCESS_DISTANCE = 0.5
_WALL_RADII = (1.0, 2.0)
_GAP_RADIUS = 1.0
"""A wall is open within this distance of its gap's middle."""
_INSIDE = 1 - 1e-5
"""A point stopped by a wall stands at this part of its radius, so that it is still inside."""


@dataclass(frozen=True)
class PointCornersConfig:
    """A point moved by its action; with ProMP's values of 0.2, 0.2, 1 and 100, ProMP's world."""

    sparse: bool = False
    """Reward progress towards the goal, and only where it is the nearest corner."""
    step_size: float = 0.4
    """Distance that an action of 1 moves along an axis."""
    start_range: float = 0.0
    """Every coordinate of the start is uniform within so much of 0."""
    reward_scale: float = 0.5
    """Factor on every reward."""
    horizon: int = 10
    """Steps an episode."""
    sparse_radius: float = 0.5
    """No sparse reward where |x| + |y| is below this."""

    def __post_init__(self) -> None:
        check_positive(self, "step_size", "reward_scale", "horizon", "sparse_radius")
        _check_start(self.start_range)


@dataclass(frozen=True)
class PointMomentumConfig:
    """A point pushed by its action, without friction."""

    sparse: bool = False
    """Reward only within `sparse_radius` of the goal: by how much nearer."""
    push: float = 0.1
    """What an action of 1 adds to the velocity, in distance a step."""
    start_range: float = 0.2
    """Every coordinate of the start is uniform within so much of 0."""
    start_speed: float = 0.1
    """The same for the first velocity."""
    horizon: int = 100
    """Steps an episode."""
    sparse_radius: float = 2.0
    """Distance to the goal."""

    def __post_init__(self) -> None:
        check_positive(self, "push", "horizon", "sparse_radius")
        _check_start(self.start_range)
        _check_start(self.start_speed)


@dataclass(frozen=True)
class PointWallsConfig:
    """A point inside two round walls, each with a gap; where the gaps are is part of the task."""

    sparse: bool = False
    """Reward progress towards the goal, and only within `sparse_radius` of it."""
    step_size: float = 0.2
    """Distance that an action of 1 moves along an axis."""
    start_range: float = 0.2
    """Every coordinate of the start is uniform within so much of 0."""
    horizon: int = 100
    """Steps an episode."""
    sparse_radius: float = 2.0
    """Distance to the goal."""
    num_test_tasks: int = 50
    """Held-out tasks."""
    task_seed: int = 0
    """Seed of the held-out tasks."""

    def __post_init__(self) -> None:
        check_positive(self, "step_size", "horizon", "sparse_radius", "num_test_tasks")
        _check_start(self.start_range)


@dataclass(frozen=True)
class PointCornersEnv:
    """Position [2] as state and observation; reward minus the scaled distance to the goal."""

    config: PointCornersConfig

    @property
    def spec(self) -> EnvSpec:
        """Two numbers seen, two acted."""
        return _spec(2, self.config.horizon)

    def reset(self, key: jax.Array, task: Any) -> tuple[PyTree, jax.Array]:
        """Near the origin."""
        position = _start(key, self.config.start_range)
        return position, position

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array, task: Any
    ) -> tuple[PyTree, Step]:
        """Move; `task["goal"]` is [2]."""
        position, goal = state + self.config.step_size * action, task["goal"]
        distance = jnp.linalg.norm(position - goal)
        away = jnp.sum(jnp.abs(position)) >= self.config.sparse_radius
        nearest = jnp.all(position * goal >= 0)
        progress = jnp.linalg.norm(state - goal) - distance
        sparse = jnp.where(away & nearest, progress, 0.0)
        reward = self.config.reward_scale * (sparse if self.config.sparse else -distance)
        return position, _step(reward, position, distance)


@dataclass(frozen=True)
class PointMomentumEnv:
    """Position and velocity [4] as state and observation; reward minus the distance."""

    config: PointMomentumConfig

    @property
    def spec(self) -> EnvSpec:
        """Four numbers seen, two acted."""
        return _spec(4, self.config.horizon)

    def reset(self, key: jax.Array, task: Any) -> tuple[PyTree, jax.Array]:
        """Near the origin, already moving."""
        position_key, velocity_key = jax.random.split(key)
        position = _start(position_key, self.config.start_range)
        velocity = _start(velocity_key, self.config.start_speed)
        state = jnp.concatenate([position, velocity])
        return state, state

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array, task: Any
    ) -> tuple[PyTree, Step]:
        """Change the velocity, then move by it; `task["goal"]` is [2]."""
        velocity = state[2:] + self.config.push * action
        position = state[:2] + velocity
        distance = jnp.linalg.norm(position - task["goal"])
        sparse = jnp.maximum(self.config.sparse_radius - distance, 0.0)
        state = jnp.concatenate([position, velocity])
        return state, _step(sparse if self.config.sparse else -distance, state, distance)


@dataclass(frozen=True)
class PointWallsEnv:
    """Position [2] as state and observation; reward minus the distance to the goal.

    Walls stop outward moves only. ProMP rewards where the point would be without them; here it
    is rewarded where it is.
    """

    config: PointWallsConfig

    @property
    def spec(self) -> EnvSpec:
        """Two numbers seen, two acted."""
        return _spec(2, self.config.horizon)

    def reset(self, key: jax.Array, task: Any) -> tuple[PyTree, jax.Array]:
        """Near the origin."""
        position = _start(key, self.config.start_range)
        return position, position

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array, task: Any
    ) -> tuple[PyTree, Step]:
        """Move as far as walls allow; `task` holds `goal` [2] and `gaps` [2, 2], one a wall."""
        position, goal = state + self.config.step_size * action, task["goal"]
        for radius, gap in zip(_WALL_RADII, task["gaps"], strict=True):
            position = _stopped(state, position, radius, gap)
        distance = jnp.linalg.norm(position - goal)
        progress = jnp.linalg.norm(state - goal) - distance
        sparse = jnp.where(distance < self.config.sparse_radius, progress, 0.0)
        reward = sparse if self.config.sparse else -distance
        return position, _step(reward, position, distance)


def point_corners(config: PointCornersConfig) -> Suite:
    """`point-corners`: four tasks, trained and tested on."""
    return _corner_suite("point-corners", PointCornersEnv(config))


def point_momentum(config: PointMomentumConfig) -> Suite:
    """`point-momentum`: actions change the velocity."""
    return _corner_suite("point-momentum", PointMomentumEnv(config))


def point_walls(config: PointWallsConfig) -> Suite:
    """`point-walls`: two walls on the way, with gaps to be found."""
    name, env = "point-walls", PointWallsEnv(config)

    def draw(rng: np.random.Generator) -> Params:
        angle = rng.uniform(0.0, 2 * np.pi, size=2)
        gaps = np.array(_WALL_RADII)[:, None] * np.stack([np.cos(angle), np.sin(angle)], axis=1)
        return {"goal": CORNERS[rng.integers(4)], "gaps": gaps.astype(np.float32)}

    held_out = named_generator(config.task_seed, name, "test")
    test = drawn_list(f"{name}-test", draw, held_out, config.num_test_tasks)
    return compiled_suite(name, env, TaskRange(name, draw), test)


def _stopped(before: jax.Array, after: jax.Array, radius: float, gap: jax.Array) -> jax.Array:
    """Where a move from `before` to `after` [2] ends if a wall with a gap [2] is on its way."""
    reach = jnp.linalg.norm(after)
    crosses = (jnp.linalg.norm(before) < radius) & (reach > radius)
    closed = jnp.linalg.norm(after - gap) > _GAP_RADIUS
    return jnp.where(crosses & closed, after * (_INSIDE * radius / reach), after)


def _spec(observation_size: int, horizon: int) -> EnvSpec:
    return EnvSpec(observation_size, Continuous(2), horizon, trial_episodes=3, has_success=True)


def _start(key: jax.Array, bound: float) -> jax.Array:
    return jax.random.uniform(key, (2,), minval=-bound, maxval=bound)


def _step(reward: jax.Array, next_obs: jax.Array, distance: jax.Array) -> Step:
    return Step(reward=reward, next_obs=next_obs, info={"success": distance < _SUCCESS_DISTANCE})


def _check_start(bound: float) -> None:
    check(bound >= 0, f"a start is drawn within a range of 0 or more, not {bound}")


def _corner_suite(name: str, env: Env) -> Suite:
    tasks = TaskList(name, [{"goal": corner} for corner in CORNERS])
    return compiled_suite(name, env, tasks, tasks)
