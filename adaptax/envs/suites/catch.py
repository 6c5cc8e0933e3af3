"""Catch: a falling pixel and a paddle below it, seen as a picture.

After Mnih et al. 2014, "Recurrent models of visual attention" (arXiv 1406.6247), section 4.2, and
bsuite (Osband et al. 2020, arXiv 1908.03568).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from adaptax.core.errors import check
from adaptax.core.experience import PyTree, Step
from adaptax.core.spec import Discrete, EnvSpec
from adaptax.envs.suite import Suite
from adaptax.envs.suites.compiled import compiled_suite
from adaptax.envs.task import TaskList

MOVES = 3
"""Left, stay and right: what an action minus 1 adds to the paddle's column."""


@dataclass(frozen=True)
class CatchConfig:
    """A square picture of one channel."""

    size: int = 16
    """Pixels of a side."""

    def __post_init__(self) -> None:
        check(4 <= self.size <= 128, f"size must lie in [4, 128] pixels, not {self.size}")


@dataclass(frozen=True)
class CatchEnv:
    """The state is the ball's row and column and the paddle's column, three integers.

    An episode ends where the ball reaches the lowest row, in which the paddle moves: the reward is
    1 if it is in the ball's column, else -1, and 0 before.
    """

    size: int

    @property
    def spec(self) -> EnvSpec:
        """A picture [size, size, 1] seen, one of three moves chosen."""
        return EnvSpec(
            self.size * self.size,
            Discrete(MOVES),
            self.size - 1,
            horizon_terminates=True,
            has_success=True,
            picture=(self.size, self.size, 1),
            binary=True,
        )

    def reset(self, key: jax.Array, task: Any) -> tuple[PyTree, jax.Array]:
        """The ball anywhere in the highest row, the paddle in the middle."""
        column = jax.random.randint(key, (), 0, self.size)
        state = jnp.stack([jnp.int32(0), column, jnp.int32(self.size // 2)])
        return state, self._seen(state)

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array, task: Any
    ) -> tuple[PyTree, Step]:
        """Move the paddle and let the ball fall by a pixel."""
        row, column, paddle = state[0] + 1, state[1], state[2] + action - 1
        state = jnp.stack([row, column, jnp.clip(paddle, 0, self.size - 1)])
        down, caught = row == self.size - 1, state[2] == column
        reward = jnp.where(down, jnp.where(caught, 1.0, -1.0), 0.0)
        step = Step(reward=reward, next_obs=self._seen(state), info={"success": down & caught})
        return state, step

    def _seen(self, state: jax.Array) -> jax.Array:
        """The picture, flat: ball and paddle are 1, all else 0."""
        picture = jnp.zeros((self.size, self.size), bool)
        picture = picture.at[state[0], state[1]].set(True).at[self.size - 1, state[2]].set(True)
        return picture.reshape(-1)


def catch(config: CatchConfig) -> Suite:
    """`catch`: one task."""
    task = TaskList("catch", [{}])
    return compiled_suite("catch", CatchEnv(config.size), task, task)
