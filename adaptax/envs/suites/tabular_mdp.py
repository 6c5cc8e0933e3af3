"""Random tabular MDPs: a task is one table of transitions and rewards (Duan et al. 2016, 3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

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

_PRIOR_MEAN, _PRIOR_STD = 1.0, 1.0
"""Mean and deviation of the mean reward of a state and an action, which is normal."""
_REWARD_STD = 1.0
"""Standard deviation of a reward around its mean, normal too."""


@dataclass(frozen=True)
class TabularMDPConfig:
    """Transitions from a flat Dirichlet prior, mean rewards from N(1, 1), as in the paper."""

    num_states: int = 10
    """States of an MDP."""
    num_actions: int = 5
    """Actions in each of them."""
    horizon: int = 10
    """Steps an episode."""
    num_episodes: int = 10
    """Episodes on one MDP, a trial; the paper has 10, 25, 50, 75 and 100."""
    num_test_tasks: int = 100
    """Held-out MDPs."""
    task_seed: int = 0
    """Seed of the held-out MDPs."""

    def __post_init__(self) -> None:
        check_positive(self, "num_states", "num_actions", "horizon", "num_episodes")
        check_positive(self, "num_test_tasks")


@dataclass(frozen=True)
class TabularMDPEnv:
    """S states, seen one-hot, of which every episode starts in the first.

    The reward of an action is normal around the mean of state and action, with variance 1.
    """

    num_states: int
    num_actions: int
    horizon: int
    trial_episodes: int

    @property
    def spec(self) -> EnvSpec:
        """A state seen, an action chosen; an episode is over at its horizon."""
        return EnvSpec(
            self.num_states,
            Discrete(self.num_actions),
            self.horizon,
            self.trial_episodes,
            horizon_terminates=True,
        )

    def reset(self, key: jax.Array, task: Any) -> tuple[PyTree, jax.Array]:
        """In the first state."""
        state = jnp.array(0)
        return state, self._observation(state)

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array, task: Any
    ) -> tuple[PyTree, Step]:
        """`task` holds `transition` [S, A, S] and `reward_mean` [S, A]."""
        reward_key, state_key = jax.random.split(key)
        noise = _REWARD_STD * jax.random.normal(reward_key)
        reward = task["reward_mean"][state, action] + noise
        cumulative = jnp.cumsum(task["transition"][state, action])
        place = jnp.sum(cumulative <= jax.random.uniform(state_key))
        state = jnp.minimum(place, self.num_states - 1)  # the sum may fall short of 1 by rounding
        return state, Step(reward=reward, next_obs=self._observation(state))

    def _observation(self, state: jax.Array) -> jax.Array:
        return jax.nn.one_hot(state, self.num_states)


def tabular_mdp(config: TabularMDPConfig) -> Suite:
    """`tabular-mdp`: a new table every trial."""
    name, size = "tabular-mdp", (config.num_states, config.num_actions)
    env = TabularMDPEnv(*size, config.horizon, config.num_episodes)

    def draw(rng: np.random.Generator) -> Params:
        transition = rng.dirichlet(np.ones(config.num_states), size)
        reward_mean = rng.normal(_PRIOR_MEAN, _PRIOR_STD, size)
        return {
            "transition": transition.astype(np.float32),
            "reward_mean": reward_mean.astype(np.float32),
        }

    held_out = named_generator(config.task_seed, name, "test")
    test = drawn_list(f"{name}-test", draw, held_out, config.num_test_tasks)
    return compiled_suite(name, env, TaskRange(name, draw), test)
