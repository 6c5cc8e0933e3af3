"""Bandits: a task is one machine with arms of unknown means (Duan et al. 2016, 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.config import check_positive
from adaptax.core.experience import PyTree, Step
from adaptax.core.rng import named_generator
from adaptax.core.spec import Discrete, EnvSpec
from adaptax.envs.suite import Suite
from adaptax.envs.suites.compiled import compiled_suite
from adaptax.envs.task import Params, TaskRange, drawn_list


@dataclass(frozen=True)
class BanditConfig:
    """Arms whose means are drawn uniformly from [0, 1]."""

    num_arms: int = 5
    """Arms of a machine."""
    num_pulls: int = 10
    """Pulls of one machine, which are one episode and one trial."""
    reward: Literal["bernoulli", "gaussian"] = "bernoulli"
    """What an arm pays: 0 or 1, or a normal figure around its mean."""
    reward_std: float = 1.0
    """Standard deviation of what a Gaussian arm pays; 1 is that of tristandeleu/pytorch-maml-rl."""
    num_test_tasks: int = 100
    """Held-out machines."""
    task_seed: int = 0
    """Seed of the held-out machines."""

    def __post_init__(self) -> None:
        check_positive(self, "num_arms", "num_pulls", "reward_std", "num_test_tasks")


@dataclass(frozen=True)
class BanditEnv:
    """No state, and an observation [1] that is always 0; the reward is 1 with the arm's mean.

    With a `reward_std` it is normal around the mean instead. Only an agent that is given its own
    actions and rewards, as RL2 is, can learn the means.
    """

    num_arms: int
    num_pulls: int
    reward_std: float | None = None

    @property
    def spec(self) -> EnvSpec:
        """One choice among the arms a pull; after the last, nothing is left to win."""
        return EnvSpec(1, Discrete(self.num_arms), self.num_pulls, horizon_terminates=True)

    def reset(self, key: jax.Array, task: Any) -> tuple[PyTree, jax.Array]:
        """Nothing to see."""
        return (), jnp.zeros(1)

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array, task: Any
    ) -> tuple[PyTree, Step]:
        """Pull an arm; `task["means"]` is [k]. Nothing ends an episode but its horizon."""
        mean = task["means"][action]
        if self.reward_std is None:
            reward = jax.random.bernoulli(key, mean).astype(jnp.float32)
        else:
            reward = mean + self.reward_std * jax.random.normal(key)
        return (), Step(reward=reward, next_obs=jnp.zeros(1))


def bandit(config: BanditConfig) -> Suite:
    """`bandit`: a new machine every trial."""
    reward_std = config.reward_std if config.reward == "gaussian" else None
    env = BanditEnv(config.num_arms, config.num_pulls, reward_std)

    def draw(rng: np.random.Generator) -> Params:
        return {"means": rng.random(config.num_arms, np.float32)}

    held_out = named_generator(config.task_seed, "bandit", "test")
    test = drawn_list("bandit-test", draw, held_out, config.num_test_tasks)
    return compiled_suite("bandit", env, TaskRange("bandit", draw), test)
