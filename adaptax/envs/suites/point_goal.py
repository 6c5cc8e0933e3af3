"""A point mass in the plane that has to find a goal it is not told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.config import check_positive
from adaptax.core.experience import PyTree, Step
from adaptax.core.rng import named_generator
from adaptax.core.spec import Continuous, Discrete, EnvSpec
from adaptax.envs.suite import Suite
from adaptax.envs.suites.compiled import compiled_suite
from adaptax.envs.task import Params, TaskRange, drawn_list


@dataclass(frozen=True)
class PointGoalConfig:
    """Goals on a half circle around the start."""

    radius: float = 1.0
    """Distance of every goal from the start."""
    horizon: int = 20
    """Steps an episode."""
    step_size: float = 0.1
    """Distance that an action of 1 moves along an axis."""
    num_directions: int | None = None
    """If given, an action is a choice among so many directions, the first along the first axis,
    and moves one step that way; None: two numbers."""
    num_test_tasks: int = 50
    """Held-out goals."""
    task_seed: int = 0
    """Seed of the held-out goals."""

    def __post_init__(self) -> None:
        check_positive(self, "radius", "horizon", "step_size", "num_directions", "num_test_tasks")


@dataclass(frozen=True)
class PointGoalSparseConfig(PointGoalConfig):
    """The same, with a reward only near the goal."""

    tolerance: float = 0.2
    """Distance to the goal below which there is a reward."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "tolerance")


@dataclass(frozen=True)
class PointEnv:
    """Position [2] as state and observation; reward minus the distance to the goal.

    With a tolerance d the reward is 1 - distance / d within d of the goal and 0 elsewhere
    (the sparse points of Rakelly et al. 2019, section 6.2, scaled to start at 0 on the rim).
    """

    horizon: int
    step_size: float
    tolerance: float | None = None
    num_directions: int | None = None

    @property
    def spec(self) -> EnvSpec:
        """Two numbers seen, two acted or one choice."""
        action = Continuous(2) if self.num_directions is None else Discrete(self.num_directions)
        return EnvSpec(2, action, self.horizon, trial_episodes=3, has_success=True)

    def reset(self, key: jax.Array, task: Any) -> tuple[PyTree, jax.Array]:
        """At the origin."""
        return jnp.zeros(2), jnp.zeros(2)

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array, task: Any
    ) -> tuple[PyTree, Step]:
        """Move; nothing ends an episode but its horizon."""
        if self.num_directions is not None:
            angle = 2 * jnp.pi * action / self.num_directions
            action = jnp.stack([jnp.cos(angle), jnp.sin(angle)])
        position = state + self.step_size * action
        distance = jnp.linalg.norm(position - task["goal"])
        near = self.step_size if self.tolerance is None else self.tolerance
        reward = -distance if self.tolerance is None else jnp.maximum(1 - distance / near, 0.0)
        step = Step(reward=reward, next_obs=position, info={"success": distance < near})
        return position, step

    def render(self, state: np.ndarray, params: Params) -> np.ndarray:
        """A picture [240, 240, 3] of the plane, 3 wide: the start grey, goal green, point blue."""
        centres = np.linspace(-1.5, 1.5, 240, dtype=np.float32)
        x, y = np.meshgrid(centres, -centres)
        picture = np.full((240, 240, 3), 255, np.uint8)
        discs = {
            (0.0, 0.0, 0.03): (180, 180, 180),
            (*params["goal"], self.tolerance or 0.1): (120, 200, 120),
            (*state, 0.06): (0, 80, 180),
        }
        for (centre_x, centre_y, radius), colour in discs.items():
            picture[np.hypot(x - centre_x, y - centre_y) < radius] = colour
        return picture


def point_goal(config: PointGoalConfig) -> Suite:
    """`point-goal`: dense reward."""
    return _suite("point-goal", config, _env(config))


def point_goal_sparse(config: PointGoalSparseConfig) -> Suite:
    """`point-goal-sparse`: a reward only near the goal, so that exploration is needed."""
    return _suite("point-goal-sparse", config, _env(config, config.tolerance))


def _env(config: PointGoalConfig, tolerance: float | None = None) -> PointEnv:
    return PointEnv(config.horizon, config.step_size, tolerance, config.num_directions)


def _suite(name: str, config: PointGoalConfig, env: PointEnv) -> Suite:
    def draw(rng: np.random.Generator) -> Params:
        angle = rng.uniform(0.0, np.pi)
        goal = config.radius * np.array([np.cos(angle), np.sin(angle)], np.float32)
        return {"goal": goal}

    held_out = named_generator(config.task_seed, name, "test")
    test = drawn_list(f"{name}-test", draw, held_out, config.num_test_tasks)
    return compiled_suite(name, env, TaskRange(name, draw), test)
