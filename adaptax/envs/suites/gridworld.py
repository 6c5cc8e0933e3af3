"""The gridworld of VariBAD: a task is the cell of a goal that is not seen.

Zintgraf et al. 2020, "VariBAD" (arXiv 1910.08348), section 5.1.
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
from adaptax.core.spec import Discrete, EnvSpec
from adaptax.envs.suite import Suite
from adaptax.envs.suites.compiled import compiled_suite
from adaptax.envs.task import TaskList, check_listable

MOVES = np.array([[0, 1], [0, -1], [-1, 0], [1, 0], [0, 0]], np.int32)
"""[A, 2]: what up, down, left, right and stay add to (x, y)."""
ON_GOAL, OFF_GOAL = 1.0, -0.1
"""Rewards of a step, by the cell that it leads to."""


@dataclass(frozen=True)
class GridworldConfig:
    """A square of cells, of which an episode starts in the corner (0, 0)."""

    size: int = 5
    """Cells of a side."""
    horizon: int = 15
    """Steps an episode."""
    num_episodes: int = 4
    """Episodes on one goal, a trial."""

    def __post_init__(self) -> None:
        check_positive(self, "horizon", "num_episodes")
        check(
            self.size >= 3,
            f"size must be at least 3, not {self.size}: on fewer cells none is far from the start",
        )
        check_listable("gridworld", self.size**2)


@dataclass(frozen=True)
class GridworldEnv:
    """A cell [2] as state and observation; moves off the grid change nothing.

    The reward is 1 where a step leads to the goal or stays there, and -0.1 elsewhere.
    """

    size: int
    horizon: int
    trial_episodes: int

    @property
    def spec(self) -> EnvSpec:
        """Two coordinates seen, one of five moves chosen; an episode is over at its horizon."""
        return EnvSpec(
            2,
            Discrete(len(MOVES)),
            self.horizon,
            self.trial_episodes,
            horizon_terminates=True,
            has_success=True,
        )

    def reset(self, key: jax.Array, task: Any) -> tuple[PyTree, jax.Array]:
        """In the corner."""
        return jnp.zeros(2, jnp.int32), jnp.zeros(2)

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array, task: Any
    ) -> tuple[PyTree, Step]:
        """Move; `task["goal"]` is [2]."""
        cell = jnp.clip(state + jnp.asarray(MOVES)[action], 0, self.size - 1)
        on_goal = jnp.all(cell == task["goal"])
        step = Step(
            reward=jnp.where(on_goal, ON_GOAL, OFF_GOAL),
            next_obs=cell.astype(jnp.float32),
            info={"success": on_goal},
        )
        return cell, step


def possible_goals(size: int) -> np.ndarray:
    """The cells [G, 2] that may be the goal: all but the start and the three that touch it."""
    cells = np.stack(np.meshgrid(np.arange(size), np.arange(size), indexing="ij"), -1)
    cells = cells.reshape(-1, 2).astype(np.int32)
    return cells[cells.max(axis=1) > 1]


def gridworld(config: GridworldConfig) -> Suite:
    """`gridworld`: every possible goal is trained on, and every one is tested."""
    env = GridworldEnv(config.size, config.horizon, config.num_episodes)
    goals = TaskList("gridworld", [{"goal": goal} for goal in possible_goals(config.size)])
    return compiled_suite("gridworld", env, goals, goals)
