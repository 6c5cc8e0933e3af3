"""Recall: a task is a cue, shown once at the start and asked for later, ever less often.

As the T-maze of Bakker 2002 ("Reinforcement learning with long short-term memory"), without a maze.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from adaptax.core.config import check_positive
from adaptax.core.errors import check
from adaptax.core.experience import PyTree, Step
from adaptax.core.spec import Discrete, EnvSpec
from adaptax.envs.suite import Suite
from adaptax.envs.suites.compiled import compiled_suite
from adaptax.envs.task import TaskList, check_listable


@dataclass(frozen=True)
class RecallConfig:
    """One episode: the cue, steps that distract, and questions."""

    num_cues: int = 4
    """Symbols that a cue may be; one who guesses is right once in so many times."""
    horizon: int = 250
    """Steps an episode, which is a trial."""
    num_questions: int = 7
    """Steps at which the cue is asked for: the last one, and before each other step that asks one
    half as long after the cue, so that what is learned of the near ones helps with the far ones."""

    def __post_init__(self) -> None:
        check_positive(self, "num_questions")
        check(self.num_cues >= 2, f"num_cues must be at least 2, not {self.num_cues}")
        check_listable("recall", self.num_cues)
        least = 2**self.num_questions
        check(
            self.horizon >= least,
            f"horizon {self.horizon} must be at least {least} for num_questions "
            f"{self.num_questions}: each comes twice as late as the one before it",
        )


@dataclass(frozen=True)
class RecallEnv:
    """The number of the step as state; seen are a symbol, and whether it is the cue or a question.

    At the first step the symbol is the cue, at a question there is none, and at all other steps it
    is any one of them, drawn anew. The reward is 1 for an action that names the cue at a question.
    """

    num_cues: int
    horizon: int
    num_questions: int

    @property
    def spec(self) -> EnvSpec:
        """A one-hot symbol and two flags seen, one of the symbols chosen."""
        return EnvSpec(
            self.num_cues + 2,
            Discrete(self.num_cues),
            self.horizon,
            horizon_terminates=True,
            has_success=True,
        )

    def reset(self, key: jax.Array, task: Any) -> tuple[PyTree, jax.Array]:
        """The cue, `task["cue"]`."""
        symbol = jax.nn.one_hot(task["cue"], self.num_cues)
        return jnp.int32(0), jnp.concatenate([symbol, jnp.array([1.0, 0.0])])

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array, task: Any
    ) -> tuple[PyTree, Step]:
        """What was asked for at this step is paid, and the next one shown."""
        right = self._asks(state) & (action == task["cue"])
        after = state + 1
        asks = self._asks(after)
        drawn = jax.nn.one_hot(jax.random.randint(key, (), 0, self.num_cues), self.num_cues)
        flags = jnp.stack([0.0, asks.astype(jnp.float32)])
        step = Step(
            reward=right.astype(jnp.float32),
            next_obs=jnp.concatenate([jnp.where(asks, 0.0, drawn), flags]),
            info={"success": right},
        )
        return after, step

    def _asks(self, t: jax.Array) -> jax.Array:
        """Whether step t, counted from 0, is a question."""
        asked = [(self.horizon >> k) - 1 for k in range(self.num_questions)]
        return jnp.isin(t, jnp.array(asked))


def recall(config: RecallConfig) -> Suite:
    """`recall`: every cue is trained on, and every one is tested."""
    env = RecallEnv(config.num_cues, config.horizon, config.num_questions)
    cues = TaskList("recall", [{"cue": cue} for cue in range(config.num_cues)])
    return compiled_suite("recall", env, cues, cues)
