"""What DQN, DDPG, TD3 and SAC share: settings, state, replay, and the loop of an iteration."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from adaptax.algorithms.base import Metrics, check_finite
from adaptax.core.config import check_positive, check_unit
from adaptax.core.errors import check
from adaptax.core.experience import PyTree, Rollout, Transitions
from adaptax.core.products import product_options
from adaptax.core.spec import EnvSpec
from adaptax.functional.q_learning import averaged
from adaptax.learning import minibatches
from adaptax.learning.minibatches import Figures, MakeOptimizer, Schedule
from adaptax.learning.replay import Replay, ReplayConfig
from adaptax.learning.sequences import episode_metrics
from adaptax.sampling.actors import Actor, UniformActor
from adaptax.sampling.exploration import Accountant
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class OffPolicyConfig:
    """How experience is collected, kept and learned from.

    An iteration is `num_cycles` cycles, each of `num_steps` environment steps and then
    `num_updates` gradient steps.
    """

    num_lanes: int = 1
    """Environments run side by side."""
    num_tasks: int = 1
    """Tasks drawn an iteration, each with its share of the lanes, all in one replay. On a family
    of tasks every iteration draws new ones and starts their episodes afresh."""
    num_cycles: int = 20
    """Cycles of an iteration (garage's `steps_per_epoch`)."""
    num_steps: int = 50
    """Environment steps of a cycle in all lanes, equally many in each; they go on where the last
    cycle stopped (Achiam 2018, Spinning Up)."""
    num_updates: int | Literal["auto"] = "auto"
    """Gradient steps of a cycle; `auto`: as many as its environment steps."""
    memory_size: int = 1_000_000
    """Transitions kept; the oldest make room for new ones."""
    num_initial_steps: int | None = 10_000
    """Environment steps, by uniform actions, before the first gradient step: at least
    `batch_size` and at most `memory_size`, which is what None means."""
    use_trained_policy_for_refill: bool = False
    """Whether after `reset` the memory is filled by the policy, rather than uniformly."""
    batch_size: int = 256
    """Transitions of a minibatch."""
    discount: float = 0.99
    n_step: int = 1
    """Rewards summed up before a value is asked for, fewer at an episode's end."""
    reward_scale: float = 1.0
    """Factor on rewards where they are learned from; what is logged does not have it."""
    normalize_rewards: bool = False
    """Whether rewards are learned in units of the standard deviation of all seen."""
    target_update_interval: int = 1
    """Gradient steps from one update of the targets to the next."""
    polyak: float = 0.995
    """Weight of the old target in its update, Pyrado's `tau`; 0 copies."""
    tau: float | None = None
    """Weight of the new values instead, as in Stable-Baselines3 and garage: 1 - polyak."""
    hidden_sizes: tuple[int, ...] = (256, 256)
    """Hidden layers of every network."""
    lr: float = 3e-4
    """Step size of every optimizer."""
    lr_schedule: Schedule = "constant"
    """How the step size falls, from gradient step to gradient step."""
    lr_schedule_steps: int = 1_000_000
    """Gradient steps until a linear schedule is at 0, an exponential one at a tenth."""
    max_grad_norm: float | None = None
    """Bound on the norm of the gradients of each optimizer."""

    def __post_init__(self) -> None:
        check_positive(self, "num_lanes", "num_tasks", "num_cycles", "num_steps", "memory_size")
        check_positive(self, "num_initial_steps", "batch_size", "n_step", "reward_scale")
        check_positive(self, "target_update_interval", "hidden_sizes", "lr", "lr_schedule_steps")
        check_positive(self, "max_grad_norm")
        check_unit(self, "discount")
        check(self.n_step < 256, f"n_step must be less than 256, not {self.n_step}")
        check(0 <= self.polyak < 1, f"polyak must lie in [0, 1), not {self.polyak}")
        check(
            self.tau is None or 0 < self.tau <= 1,
            f"tau must lie in (0, 1], not {self.tau}: it is the weight of the new values, and "
            "1 - polyak",
        )
        check(
            self.num_updates == "auto"
            or (isinstance(self.num_updates, int) and self.num_updates > 0),
            f"num_updates must be greater than 0 or 'auto', not {self.num_updates!r}",
        )
        check(
            self.num_lanes % self.num_tasks == 0,
            f"num_lanes {self.num_lanes} must be a multiple of num_tasks {self.num_tasks}",
        )

    @property
    def lane_steps(self) -> int:
        """Environment steps of a cycle in one lane."""
        return -(-self.num_steps // self.num_lanes)

    @property
    def cycle_updates(self) -> int:
        """Gradient steps of a cycle."""
        if isinstance(self.num_updates, int):
            return self.num_updates
        return self.lane_steps * self.num_lanes

    @property
    def fill(self) -> int:
        """Environment steps before the first gradient step."""
        wanted = self.num_initial_steps
        if wanted is None:
            return self.memory_size
        return max(min(wanted, self.memory_size), self.batch_size)

    @property
    def target_weight(self) -> float:
        """Weight of the old target in its update."""
        return self.polyak if self.tau is None else 1.0 - self.tau


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Learner:
    """What gradient steps change."""

    params: PyTree
    """Of the networks, by name."""
    target: PyTree
    """Copies of some of them that lag behind."""
    opt_state: PyTree
    """Of the optimizers, by name."""
    num_updates: jax.Array
    """Gradient steps so far."""
    key: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything learned."""

    learner: Learner
    replay: Replay
    """Changed in place by `iteration`."""
    num_iterations: np.ndarray
    """Iterations so far, [] int32."""
    key: jax.Array


Update = Callable[[Any, Any, Learner, Transitions, jax.Array], tuple[Learner, Figures]]
"""One gradient step: (config, networks, learner, minibatch, key) -> learner, figures."""


def fresh_state(config: OffPolicyConfig, spec: EnvSpec, learner: Learner, key: jax.Array) -> State:
    """The state before training, its memory empty."""
    layout = ReplayConfig(config.memory_size, 1, config.n_step, config.discount)
    return State(learner, Replay(layout, spec), np.zeros((), np.int32), key)


def fresh_learner(params: PyTree, target: PyTree, opt_state: PyTree, key: jax.Array) -> Learner:
    """A learner before its first step, its targets equal to the networks."""
    return Learner(params, jax.tree.map(jnp.array, target), opt_state, jnp.array(0), key)


def reset_state(state: State, opt_state: PyTree) -> State:
    """The same networks with all else as before training: optimizers, schedules, memory."""
    replay = Replay(state.replay.config, state.replay.spec)
    learner = replace(state.learner, opt_state=opt_state)
    return State(learner, replay, np.zeros((), np.int32), state.key)


@dataclass(frozen=True)
class Loop:
    """An iteration of any of these algorithms: how it explores, and how it learns."""

    config: Any
    networks: Any
    """Hashable, since it is compiled in."""
    update: Update
    explorer: Callable[[State], Actor]
    """What acts while training."""

    def iterate(self, state: State, sampler: Sampler) -> tuple[State, Metrics]:
        """Fill the memory if that is still to be done, then run all cycles."""
        config = self.config
        tasks, rollouts, figures = sampler.sample_tasks(config.num_tasks), [], []
        missing = config.fill - int(state.replay.num_added[0])
        if missing > 0:
            trained = config.use_trained_policy_for_refill and int(state.learner.num_updates) > 0
            filler = self.explorer(state) if trained else UniformActor(sampler.spec.action)
            rollouts.append(self._collect(state, filler, sampler, tasks, missing))
        for _ in range(config.num_cycles):
            actor = self.explorer(state)
            rollouts.append(self._collect(state, actor, sampler, tasks, config.num_steps))
            state, done = self.learn(state)
            figures.append(done)
        means = {name: float(np.mean([f[name] for f in figures])) for name in figures[0]}
        check_finite(means, *means)
        state = replace(state, num_iterations=state.num_iterations + np.int32(1))
        held = {"replay_size": len(state.replay), "num_updates": int(state.learner.num_updates)}
        return state, {**episode_metrics(*rollouts), **means, **held}

    def learn(self, state: State) -> tuple[State, Figures]:
        """The gradient steps of one cycle, as one compiled scan."""
        config = self.config
        key, rows_key = jax.random.split(state.key)
        batches = state.replay.sample(rows_key, config.cycle_updates, config.batch_size)
        std = state.replay.reward_std if config.normalize_rewards else 1.0
        scale = np.float32(config.reward_scale / std)
        fixed = (self.update, config, self.networks)
        steps = gradient_steps(config.batch_size)
        learner, figures = steps(*fixed, state.learner, batches, scale)
        return replace(state, learner=learner, key=key), figures

    def _collect(
        self, state: State, actor: Actor, sampler: Sampler, tasks: tuple[Any, ...], num_steps: int
    ) -> Rollout:
        """At least `num_steps` steps in all lanes, added to the memory."""
        lanes = self.config.num_lanes // len(tasks)
        goes_on = sampler.goes_on(tasks, lanes)
        lane_steps = -(-num_steps // self.config.num_lanes)
        rollout = sampler.steps(Accountant(actor), tasks, lanes, lane_steps)
        state.replay.add(rollout, goes_on=goes_on)
        return rollout


@cache
def gradient_steps(batch_size: int) -> Callable[..., tuple[Learner, Figures]]:
    """The program of all gradient steps of a cycle, compiled for minibatches of this size."""
    options = product_options(batch_size)
    return jax.jit(_steps, static_argnums=(0, 1, 2), compiler_options=options)


def _steps(
    update: Update,
    config: OffPolicyConfig,
    networks: Any,
    learner: Learner,
    batches: Transitions,
    reward_scale: jax.Array,
) -> tuple[Learner, Figures]:
    """One step on each of K minibatches [K, B, ...]: the learner after all, and mean figures."""

    def step(learner: Learner, batch: Transitions) -> tuple[Learner, Figures]:
        key, update_key = jax.random.split(learner.key)
        learner, figures = update(config, networks, learner, batch, update_key)
        return replace(learner, key=key, num_updates=learner.num_updates + 1), figures

    batches = replace(batches, reward=reward_scale * batches.reward)
    learner, figures = jax.lax.scan(step, learner, batches)
    return learner, jax.tree.map(jnp.mean, figures)


def optimizer(
    config: OffPolicyConfig, make: MakeOptimizer = optax.adam
) -> optax.GradientTransformation:
    """Adam with the epsilon of its paper, 1e-8 (Kingma and Ba 2015), or what `make` gives.

    With the 1e-5 of PPO2 and Pyrado SAC learns more slowly (docs/off-policy.md, departures).
    """
    return minibatches.optimizer(config, make=make)


def descended(
    step: optax.GradientTransformation,
    learner: Learner,
    name: str,
    loss: Callable[[PyTree], tuple[jax.Array, Figures]],
) -> tuple[PyTree, PyTree, Figures]:
    """One of the networks a gradient step further down: parameters, optimizer's state, figures."""
    params = learner.params[name]
    grads, figures = jax.grad(loss, has_aux=True)(params)
    updates, opt_state = step.update(grads, learner.opt_state[name], params)
    return optax.apply_updates(params, updates), opt_state, figures


def updated_target(
    config: OffPolicyConfig, num_updates: jax.Array, target: PyTree, online: PyTree
) -> PyTree:
    """The target after a gradient step, the last of `num_updates`: moved if it is due, or not."""
    moved = averaged(target, online, config.target_weight)
    if config.target_update_interval == 1:
        return moved
    due = num_updates % config.target_update_interval == 0
    return jax.tree.map(lambda new, old: jnp.where(due, new, old), moved, target)
