"""SVPG: several policies that share what they learn and keep their distance.

Liu et al. 2017, "Stein variational policy gradient" (arXiv 1704.02399), over the loss of A2C. The
particles are one state with a leading axis n.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.on_policy import a2c, family
from adaptax.algorithms.on_policy.a2c import A2CConfig
from adaptax.core.config import check_not_negative, check_positive
from adaptax.core.experience import PyTree, Rollout, select
from adaptax.core.hyperparameters import Hyperparameters, changed
from adaptax.core.spec import EnvSpec
from adaptax.functional.masking import masked_mean
from adaptax.functional.returns import episode_index, last_valid, returns_so_far
from adaptax.functional.stein import spread, stein_direction
from adaptax.learning.minibatches import optimizer
from adaptax.learning.schedules import is_schedule
from adaptax.networks.actor_critic import part_of, with_part
from adaptax.sampling.actors import Actor, PerMember
from adaptax.sampling.sampler import Sampler

FIGURES = ("policy_loss", "value_loss", "entropy", "grad_norm")
"""A2C's figures that are reported."""


@dataclass(frozen=True)
class SVPGConfig(Hyperparameters):
    """How many particles there are, how they interact, and what each of them is."""

    num_particles: int = 8
    """Particles, each a policy with a value of its own."""
    temperature: float = 0.1
    """Weight of the particles' distance against their returns."""
    horizon: int = 0
    """Iterations after which a particle starts afresh, one particle at a time; 0: never."""
    particle: A2CConfig = field(
        default_factory=lambda: A2CConfig(
            num_steps=2048,
            num_minibatches=64,
            lr=5e-4,
            max_grad_norm=None,
            monte_carlo_returns=True,
            normalize_obs=False,
            normalize_returns=False,
        )
    )
    """Each particle, Pyrado's A2C; steps, lanes and episodes are those of one of them."""

    @property
    def num_tasks(self) -> int:
        """Tasks of an iteration, the same for all particles."""
        return self.particle.num_tasks

    @property
    def num_lanes(self) -> int:
        """Lanes of all particles."""
        return self.num_particles * self.particle.num_lanes

    @property
    def iteration_steps(self) -> int | None:
        """Environment steps of an iteration, of all particles; None where episodes decide."""
        each = self.particle.iteration_steps
        return None if each is None else self.num_particles * each

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "num_particles", "temperature")
        check_not_negative(self, "horizon")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything learned; leading axes are n."""

    particles: family.State
    returns: jax.Array
    """[n]: mean return of the episodes that last ended, minus infinity before the first."""
    age: jax.Array
    """[n] iterations."""
    inherited: jax.Array
    """[n, N]: whether the particle before this one began the episode under way in a lane."""


Data = tuple[Rollout, jax.Array]
"""Lanes of all particles, and whether [] they went on where those of the last iteration stopped."""


class SVPG(Algorithm[State, Data]):
    """Stein variational policy gradient; `networks`, of a particle, as in A2C."""

    name = "svpg"
    config: SVPGConfig
    collects_in_program = True
    may_be_infinite = (".returns",)
    finite_metrics = ("direction_norm",)
    learned = (".particles.params", ".particles.moments")
    acting = (".returns",)

    def __init__(
        self, config: SVPGConfig, spec: EnvSpec, networks: nn.Module | None = None
    ) -> None:
        super().__init__(config, spec)
        inner = config.particle
        inner.check_minibatches("particle.num_minibatches", inner.num_minibatches, spec)
        self.networks = family.networks_for(inner, spec, networks)

    def init(self, key: jax.Array) -> State:
        """Independent particles; their ages differ, so that they do not start afresh together."""
        num = self.config.num_particles
        particles = jax.vmap(self._init_particle)(jax.random.split(key, num))
        age = jnp.arange(num) * self.config.horizon // num
        inherited = jnp.zeros((num, self.config.particle.num_lanes), bool)
        return State(particles, jnp.full(num, -jnp.inf, jnp.float32), age, inherited)

    def collect(self, state: State, sampler: Sampler) -> Data:
        """All particles at once on the same tasks, each in lanes of its own."""
        config = self.config.particle
        actors = _actors(self.networks, config.num_tasks, state.particles)
        tasks = sampler.sample_tasks(config.num_tasks) * self.config.num_particles
        goes_on = config.lane_episodes is None and sampler.goes_on(tasks, config.task_lanes)
        return family.collect(config, actors, sampler, tasks), jnp.asarray(goes_on)

    def update(self, state: State, data: Data) -> tuple[State, Metrics]:
        """One step of every particle along the Stein direction."""
        config, (rollout, goes_on) = self.config, data
        state = replace(state, inherited=state.inherited & goes_on)
        own = jax.tree.map(
            lambda x: x.reshape(config.num_particles, 1, -1, *x.shape[2:]),
            replace(rollout, final_carry=None),
        )
        gradient = partial(mean_gradient, config.particle, self.networks)
        gradients, particles, figures = jax.vmap(gradient)(state.particles, own)
        policies, unflatten = _flattened(part_of(particles.params, "policy"))
        ascent = -_flattened(part_of(gradients, "policy"))[0] / config.temperature
        direction = stein_direction(policies, ascent)
        # The kernel is over policies; every particle's value learns for itself.
        gradients = with_part(gradients, unflatten(-direction))
        step = optimizer(config.particle, make=a2c.RMSPROP)
        updates, opt_state = jax.vmap(step.update)(gradients, particles.opt_state, particles.params)
        params = optax.apply_updates(particles.params, updates)
        particles = replace(particles, params=params, opt_state=opt_state)
        returns = _returns(own, self._own_ends(own, state), state.returns)
        after = State(particles, returns, state.age + 1, state.inherited)
        by_particle = {f"return/particle_{i}": x for i, x in enumerate(after.returns, 1)}
        return self._renewed(after, own), {
            **jax.tree.map(jnp.mean, figures),
            **{name: jnp.where(jnp.isfinite(x), x, jnp.nan) for name, x in by_particle.items()},
            "direction_norm": jnp.mean(jnp.linalg.norm(direction, axis=-1)),
            "spread": spread(policies),
        }

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy of the particle with the highest return."""
        best = particle_state(state, jnp.argmax(state.returns))
        return family.policy_actor(self.networks, best, deterministic=deterministic)

    def _init_particle(self, key: jax.Array) -> family.State:
        config, step = self.config.particle, optimizer(self.config.particle, make=a2c.RMSPROP)
        return family.fresh_state(config, self.networks, self.spec, key, step.init)

    def _own_ends(self, own: Rollout, state: State) -> jax.Array:
        """Ends [n, 1, N, T] of episodes that the particle began, not the one before it."""
        if self.config.horizon == 0:
            return own.ended
        first = episode_index(own.terminated, own.truncated) == 0
        return own.ended & ~(first & state.inherited[:, None, :, None])

    def _renewed(self, state: State, own: Rollout) -> State:
        """The state with particles as old as the horizon started afresh.

        Where their lanes go on after it, the episodes under way are not their own.
        """
        if self.config.horizon == 0:
            return state
        under_way = ~(own.ended & last_valid(own.valid)).any((1, 3))
        state = replace(state, inherited=state.inherited & ~own.ended.any((1, 3)))
        old = state.age >= self.config.horizon

        def renew(state: State) -> State:
            fresh = jax.vmap(self._init_particle)(state.particles.key)
            fresh = with_schedule_of(state.particles, fresh)
            no_return = jnp.full_like(state.returns, -jnp.inf)
            new = State(fresh, no_return, jnp.zeros_like(state.age), under_way)
            return select(old, new, state)

        renewed: State = jax.lax.cond(old.any(), renew, lambda state: state, state)
        return renewed


def with_schedule_of(before: family.State, fresh: family.State) -> family.State:
    """A fresh particle, or several, whose schedules stand where the run's do."""
    opt_state = jax.tree.map(
        lambda new, old: old if is_schedule(new) else new,
        fresh.opt_state,
        before.opt_state,
        is_leaf=is_schedule,
    )
    return replace(fresh, opt_state=opt_state, num_passes=before.num_passes)


def mean_gradient(
    config: A2CConfig, network: Any, particle: family.State, rollout: Rollout
) -> tuple[PyTree, family.State, Metrics]:
    """A2C's mean gradient over the minibatches of an iteration, in which the parameters stay.

    With it the particle with its key and moments brought up to date, and figures.
    """
    unclipped = changed(config, max_grad_norm=None)
    watched = replace(particle, opt_state=recorder().init(particle.params))
    after, _, figures = family.learn_jointly(
        unclipped,
        network,
        watched,
        family.sequences_of(particle, rollout),
        partial(a2c.loss, config, network),
        make=lambda rate: recorder(),
    )
    total, num = after.opt_state
    gradient = jax.tree.map(lambda x: x / jnp.maximum(num, 1), total)
    figures = {name: figures[name] for name in FIGURES}
    return gradient, replace(after, opt_state=particle.opt_state), figures


def recorder() -> optax.GradientTransformation:
    """An optimizer that moves nothing; its state is the sum of all gradients, and their number."""

    def init(params: PyTree) -> tuple[PyTree, jax.Array]:
        return jax.tree.map(jnp.zeros_like, params), jnp.array(0)

    def update(
        gradients: PyTree, state: tuple[PyTree, jax.Array], params: PyTree = None
    ) -> tuple[PyTree, tuple[PyTree, jax.Array]]:
        total = jax.tree.map(jnp.add, state[0], gradients)
        return jax.tree.map(jnp.zeros_like, gradients), (total, state[1] + 1)

    return optax.GradientTransformation(init, update)


@jax.jit
def particle_state(state: State, index: Any) -> family.State:
    """One particle, as a state of A2C."""
    one: family.State = jax.tree.map(lambda x: x[index], state.particles)
    return one


@partial(jax.jit, static_argnums=(0, 1))
def _actors(network: Any, num_tasks: int, particles: family.State) -> PerMember:
    """The policies of all particles, each as often as there are tasks."""
    copies = partial(jnp.repeat, repeats=num_tasks, axis=0)
    actors = family.policy_actor(network, particles, deterministic=False)
    return PerMember(jax.tree.map(copies, actors))


def _flattened(stacked: PyTree) -> tuple[jax.Array, Callable[[jax.Array], PyTree]]:
    """Trees with leaves [n, ...] as vectors [n, D], and the way back."""
    _, one_back = ravel_pytree(jax.tree.map(lambda x: x[0], stacked))
    return jax.vmap(lambda tree: ravel_pytree(tree)[0])(stacked), jax.vmap(one_back)


def _returns(own: Rollout, own_ends: jax.Array, before: jax.Array) -> jax.Array:
    """Mean returns [n] of the particles' own episodes that ended, as before where none did."""
    reward = jnp.where(own.valid, own.reward, 0.0)
    returns = returns_so_far(reward, own.ended, own.initial_return)
    means = jax.vmap(masked_mean)(returns, own_ends)
    return jnp.where(own_ends.any((1, 2, 3)), means, before)
