"""CartPole-v1 and Pendulum-v1 as pure functions, equal to Gymnasium's step by step.

Equations and constants are those of gymnasium.envs.classic_control (1.x), in float32 instead of
float64: from one state both give the same step to about 1e-6. Neither knows success.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from adaptax.core.config import check_positive
from adaptax.core.experience import PyTree, Step
from adaptax.core.spec import Continuous, Discrete, EnvSpec
from adaptax.envs.env import Env
from adaptax.envs.suite import Suite
from adaptax.envs.suites.compiled import compiled_suite
from adaptax.envs.task import TaskList

_GRAVITY = 9.8
"""m/s^2, of the cart-pole."""
_CART_MASS, _POLE_MASS = 1.0, 0.1
"""kg"""
_HALF_POLE = 0.5
"""m from the joint to the pole's centre."""
_FORCE = 10.0
"""N, to the left or to the right."""
_CART_POLE_STEP = 0.02
"""s"""
_MAX_POSITION, _MAX_TILT = 2.4, 12 * 2 * jnp.pi / 360
"""m and rad, beyond which an episode terminates."""
_START_RANGE = 0.05
"""Every entry of the cart-pole's first state is uniform within so much of 0."""

_PENDULUM_GRAVITY = 10.0
"""m/s^2; the pendulum's mass is 1 kg, its length 1 m."""
_MAX_TORQUE, _MAX_SPEED = 2.0, 8.0
"""N m and rad/s"""
_PENDULUM_STEP = 0.05
"""s"""


@dataclass(frozen=True)
class CartPoleConfig:
    """Gymnasium's CartPole-v1."""

    horizon: int = 500
    """Steps an episode."""

    def __post_init__(self) -> None:
        check_positive(self, "horizon")


@dataclass(frozen=True)
class PendulumConfig:
    """Gymnasium's Pendulum-v1."""

    horizon: int = 200
    """Steps an episode."""

    def __post_init__(self) -> None:
        check_positive(self, "horizon")


@dataclass(frozen=True)
class CartPoleEnv:
    """A pole on a cart, pushed left (0) or right (1); reward 1 a step (Barto et al. 1983).

    State and observation [4]: the cart's position and velocity, the pole's angle and its rate.
    """

    horizon: int = 500

    @property
    def spec(self) -> EnvSpec:
        """Four numbers seen, two choices."""
        return EnvSpec(4, Discrete(2), self.horizon)

    def reset(self, key: jax.Array, task: Any) -> tuple[PyTree, jax.Array]:
        """Close to upright and to the centre."""
        state = jax.random.uniform(key, (4,), minval=-_START_RANGE, maxval=_START_RANGE)
        return state, state

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array, task: Any
    ) -> tuple[PyTree, Step]:
        """An explicit Euler step; out of bounds the episode terminates."""
        _, speed, angle, rate = state
        total = _CART_MASS + _POLE_MASS
        force = jnp.where(action == 1, _FORCE, -_FORCE)
        sin, cos = jnp.sin(angle), jnp.cos(angle)
        push = (force + _POLE_MASS * _HALF_POLE * jnp.square(rate) * sin) / total
        leverage = _HALF_POLE * (4.0 / 3.0 - _POLE_MASS * jnp.square(cos) / total)
        tilting = (_GRAVITY * sin - cos * push) / leverage
        acceleration = push - _POLE_MASS * _HALF_POLE * tilting * cos / total
        change = jnp.stack([speed, acceleration, rate, tilting])
        state = state + _CART_POLE_STEP * change
        fell = (jnp.abs(state[0]) > _MAX_POSITION) | (jnp.abs(state[2]) > _MAX_TILT)
        return state, Step(reward=jnp.array(1.0), next_obs=state, terminated=fell)


@dataclass(frozen=True)
class PendulumEnv:
    """A pendulum to be swung up and held; the action [1] is the torque over 2 N m.

    State [2]: angle, 0 upright, and its rate. Observation [3]: the angle's cosine and sine, and
    the rate.
    """

    horizon: int = 200

    @property
    def spec(self) -> EnvSpec:
        """Three numbers seen, one acted."""
        return EnvSpec(3, Continuous(1), self.horizon)

    def reset(self, key: jax.Array, task: Any) -> tuple[PyTree, jax.Array]:
        """At any angle, at a rate of up to 1 rad/s either way."""
        bound = jnp.array([jnp.pi, 1.0])
        state = jax.random.uniform(key, (2,), minval=-bound, maxval=bound)
        return state, _observation(state)

    def step(
        self, key: jax.Array, state: PyTree, action: jax.Array, task: Any
    ) -> tuple[PyTree, Step]:
        """A semi-implicit Euler step; the reward is for the state before it."""
        angle, rate = state
        torque = _MAX_TORQUE * action[0]
        from_top = (angle + jnp.pi) % (2 * jnp.pi) - jnp.pi
        cost = jnp.square(from_top) + 0.1 * jnp.square(rate) + 0.001 * jnp.square(torque)
        push = 1.5 * _PENDULUM_GRAVITY * jnp.sin(angle) + 3.0 * torque
        rate = jnp.clip(rate + push * _PENDULUM_STEP, -_MAX_SPEED, _MAX_SPEED)
        state = jnp.stack([angle + rate * _PENDULUM_STEP, rate])
        return state, Step(reward=-cost, next_obs=_observation(state))


def cart_pole(config: CartPoleConfig) -> Suite:
    """`cartpole`: one task."""
    return _suite("cartpole", CartPoleEnv(config.horizon))


def pendulum(config: PendulumConfig) -> Suite:
    """`pendulum`: one task."""
    return _suite("pendulum", PendulumEnv(config.horizon))


def _observation(state: jax.Array) -> jax.Array:
    return jnp.stack([jnp.cos(state[0]), jnp.sin(state[0]), state[1]])


def _suite(name: str, env: Env) -> Suite:
    tasks = TaskList(name, [{}])
    return compiled_suite(name, env, tasks, tasks)
