"""Worlds whose values are known, for tests of algorithms that learn from replay."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.experience import Step
from adaptax.core.spec import ActionSpace, Continuous, Discrete, EnvSpec
from adaptax.envs.suite import Suite
from adaptax.envs.suites.compiled import compiled_suite
from adaptax.envs.task import TaskList


@dataclass(frozen=True)
class OneState:
    """Nothing changes, reward 1, and only a time limit ends an episode."""

    action: ActionSpace
    horizon: int = 10

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(1, self.action, self.horizon)

    def reset(self, key, task):
        return jnp.ones(1), jnp.ones(1)

    def step(self, key, state, action, task):
        return state, Step(reward=jnp.float32(1.0), next_obs=state)


@dataclass(frozen=True)
class Bandit:
    """One step, reward -5 (a - .3)^2."""

    horizon: int = 1

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(1, Continuous(1), self.horizon, horizon_terminates=True)

    def reset(self, key, task):
        return jnp.ones(1), jnp.ones(1)

    def step(self, key, state, action, task):
        reward = -5.0 * jnp.square(action[0] - 0.3)
        return state, Step(reward=reward, next_obs=state, terminated=jnp.array(True))


@dataclass(frozen=True)
class Faulty(OneState):
    """One step in fifty answers with a reward that is no number."""

    def step(self, key, state, action, task):
        reward = jnp.where(jax.random.bernoulli(key, 0.02), jnp.nan, jax.random.normal(key))
        return state, Step(reward=reward, next_obs=state)


@dataclass(frozen=True)
class Chain:
    """Five states in a row, left and right; reward 1 at the right end and -.01 elsewhere."""

    horizon: int = 30

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(5, Discrete(2), self.horizon)

    def reset(self, key, task):
        state = jax.random.randint(key, (), 0, 4)
        return state, jax.nn.one_hot(state, 5)

    def step(self, key, state, action, task):
        state = jnp.clip(state + 2 * action - 1, 0, 4)
        end = state == 4
        reward = jnp.where(end, 1.0, -0.01)
        return state, Step(reward=reward, next_obs=jax.nn.one_hot(state, 5), terminated=end)


@dataclass(frozen=True)
class Counter:
    """An observation that counts the steps of an episode; action 1 falls, at random 1 in 8."""

    horizon: int = 7

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(1, Discrete(2), self.horizon)

    def reset(self, key, task):
        return jnp.zeros(1), jnp.zeros(1)

    def step(self, key, state, action, task):
        fell = jax.random.bernoulli(key, 0.125)
        return state + 1, Step(reward=jnp.float32(1.0), next_obs=state + 1, terminated=fell)


def suite_of(env) -> Suite:
    """A suite of one task without parameters."""
    tasks = TaskList("only", [{}])
    return compiled_suite("small", env, tasks, tasks)


def chain_values(discount: float) -> np.ndarray:
    """The best values [4, 2] of the chain, by value iteration."""
    q = np.zeros((5, 2))
    for _ in range(200):
        for s in range(4):
            for a, after in enumerate((max(s - 1, 0), s + 1)):
                end = after == 4
                q[s, a] = (1.0 if end else -0.01) + (0.0 if end else discount * q[after].max())
    return q[:4]
