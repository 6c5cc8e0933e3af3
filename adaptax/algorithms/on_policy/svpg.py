"""SVPG: several policies that share what they learn and keep their distance.

Liu et al. 2017, "Stein variational policy gradient" (arXiv 1704.02399), over the loss of an inner
algorithm, A2C by default. Its particles are one state with a leading axis n.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from adaptax.algorithms.base import Algorithm, Metrics, check_finite
from adaptax.algorithms.on_policy import a2c
from adaptax.algorithms.on_policy import family as on_policy
from adaptax.algorithms.on_policy.a2c import A2CConfig
from adaptax.algorithms.on_policy.family import collect, episodic_actor, fresh_state, learn_jointly
from adaptax.core.config import check_positive
from adaptax.core.errors import check
from adaptax.core.experience import PyTree, Rollout, select
from adaptax.core.spec import EnvSpec
from adaptax.functional.masking import masked_mean
from adaptax.functional.stein import spread, stein_direction
from adaptax.learning.minibatches import Figures, MakeOptimizer, optimizer
from adaptax.learning.sequences import Batch, Passes, episode_metrics
from adaptax.networks.actor_critic import ActorCritic
from adaptax.sampling.actors import Actor, PerMember
from adaptax.sampling.sampler import Sampler

FIGURES = ("policy_loss", "value_loss", "entropy", "grad_norm")
"""Of the inner algorithm's figures, those to report."""
ParticleLoss = Callable[[Any, ActorCritic, PyTree, Batch], tuple[jax.Array, Figures]]
"""Of (config, network, parameters, part of a batch): an inner algorithm's."""


@dataclass(frozen=True)
class SVPGConfig:
    """How many particles there are, how they interact, and what each of them is."""

    num_particles: int = 8
    temperature: float = 0.1
    """Weight of the particles' distance against their returns."""
    horizon: int = 0
    """Iterations after which a particle starts afresh, one particle at a time; 0: never."""
    particle: A2CConfig = field(default_factory=A2CConfig)
    """Each particle; steps, lanes and episodes are those of one of them."""

    def __post_init__(self) -> None:
        check_positive(self, "num_particles", "temperature")
        check(self.horizon >= 0, f"horizon must not be negative, not {self.horizon}")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything learned; leading axes are n."""

    particles: on_policy.State
    returns: jax.Array
    """[n]: mean return of the episodes that last ended, minus infinity before the first."""
    age: jax.Array
    """[n] iterations."""


class SVPG(Algorithm):
    """Stein variational policy gradient."""

    name = "svpg"
    config: SVPGConfig
    may_be_infinite = (".returns",)

    def __init__(
        self,
        config: SVPGConfig,
        spec: EnvSpec,
        loss: ParticleLoss = a2c.loss,
        make_optimizer: MakeOptimizer = a2c.AS_IN_TORCH,
    ) -> None:
        super().__init__(config, spec)
        inner = config.particle
        inner.check_batch_size("particle.batch_size", inner.batch_size, spec)
        network = on_policy.network_of(inner, spec)
        self.inner = Inner(inner, network, spec, loss, make_optimizer)

    def init(self, key: jax.Array) -> State:
        """Independent particles; their ages differ, so that they do not start afresh together."""
        num = self.config.num_particles
        particles = jax.vmap(self.inner.fresh)(jax.random.split(key, num))
        age = jnp.arange(num) * self.config.horizon // num
        return State(particles, jnp.full(num, -jnp.inf, jnp.float32), age)

    def iteration(self, state: State, sampler: Sampler) -> tuple[State, Metrics]:
        """Collect with all particles at once, and move them together."""
        config = self.config
        actor = _actors(self.inner, state.particles)
        rollout = collect(config.particle, actor, sampler, config.num_particles)
        state, figures = _update(config, self.inner, state, rollout)
        check_finite(figures, "direction_norm")
        returns = {f"return/particle_{i}": _known(x) for i, x in enumerate(state.returns, 1)}
        return state, {**episode_metrics(rollout), **returns, **figures}

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy of the particle with the highest return."""
        best = particle_state(state, jnp.argmax(state.returns))
        return episodic_actor(self.inner.network, best, deterministic)


@dataclass(frozen=True)
class Inner:
    """The algorithm of which every particle is a run."""

    config: A2CConfig
    network: ActorCritic
    spec: EnvSpec
    loss: ParticleLoss
    make_optimizer: MakeOptimizer

    @property
    def step(self) -> optax.GradientTransformation:
        """What moves a particle, once an iteration."""
        return optimizer(self.config, make=self.make_optimizer)

    def fresh(self, key: jax.Array) -> on_policy.State:
        """A particle before training."""
        return fresh_state(self.config, self.network, self.spec, key, self.step.init)

    def gradient(
        self, particle: on_policy.State, rollout: Rollout
    ) -> tuple[PyTree, on_policy.State, Figures]:
        """Mean gradient over the minibatches of an iteration, in which the parameters stay.

        With it the particle with its key and moments brought up to date, and figures.
        """
        unclipped = replace(self.config, max_grad_norm=None)
        loss = partial(self.loss, self.config, self.network)
        passes = Passes(unclipped, loss, lambda rate: recorder())
        watched = replace(particle, opt_state=recorder().init(particle.params))
        empirical = self.config.monte_carlo_returns
        after, figures = learn_jointly(
            self.config, self.network, watched, rollout, passes, empirical=empirical
        )
        total, num = after.opt_state
        # The others say what the update did, which is nothing, and cost as much as it does.
        figures = {name: figures[name] for name in FIGURES}
        gradient = jax.tree.map(lambda x: x / jnp.maximum(num, 1), total)
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
def particle_state(state: State, index: Any) -> on_policy.State:
    """One particle, as a state of the inner algorithm."""
    one: on_policy.State = jax.tree.map(lambda x: x[index], state.particles)
    return one


@partial(jax.jit, static_argnums=0)
def _actors(inner: Inner, particles: on_policy.State) -> PerMember:
    """The policies of all particles, each as often as there are tasks."""
    copies = partial(jnp.repeat, repeats=inner.config.num_tasks, axis=0)
    actors = episodic_actor(inner.network, particles, deterministic=False)
    return PerMember(jax.tree.map(copies, actors))


@partial(jax.jit, static_argnums=(0, 1))
def _update(
    config: SVPGConfig, inner: Inner, state: State, rollout: Rollout
) -> tuple[State, Figures]:
    """One step of every particle along the Stein direction."""
    own = jax.tree.map(
        lambda x: x.reshape(config.num_particles, 1, -1, *x.shape[2:]),
        rollout.steps,
    )
    gradients, particles, figures = jax.vmap(inner.gradient)(state.particles, own)
    policies, shape_like = _flattened(particles.params["policy"])
    climb = -_flattened(gradients["policy"])[0] / config.temperature
    direction = stein_direction(policies, climb)
    # The kernel is over policies; every particle's value learns for itself.
    gradients = {**gradients, "policy": shape_like(-direction)}
    updates, opt_state = jax.vmap(inner.step.update)(
        gradients, particles.opt_state, particles.params
    )
    params = optax.apply_updates(particles.params, updates)
    particles = replace(particles, params=params, opt_state=opt_state)
    figures = jax.tree.map(jnp.mean, figures) | {
        "direction_norm": jnp.mean(jnp.linalg.norm(direction, axis=-1)),
        "spread": spread(policies),
    }
    after = State(particles, _returns(own, state.returns), state.age + 1)
    return _renewed(config, inner, after), figures


def _flattened(stacked: PyTree) -> tuple[jax.Array, Callable[[jax.Array], PyTree]]:
    """Trees with leaves [n, ...] as vectors [n, D], and the way back."""
    _, one_back = ravel_pytree(jax.tree.map(lambda x: x[0], stacked))
    return jax.vmap(lambda tree: ravel_pytree(tree)[0])(stacked), jax.vmap(one_back)


def _returns(own: Rollout, before: jax.Array) -> jax.Array:
    """Mean returns [n] of the episodes that ended, as before where none did."""
    ended = own.valid & (own.terminated | own.truncated)
    means = jax.vmap(masked_mean)(own.extras["return"] + own.reward, ended)
    return jnp.where(ended.any((1, 2, 3)), means, before)


def _renewed(config: SVPGConfig, inner: Inner, state: State) -> State:
    """The state with particles as old as the horizon started afresh."""
    if config.horizon == 0:
        return state
    old = state.age >= config.horizon

    def renew(state: State) -> State:
        fresh = jax.vmap(inner.fresh)(state.particles.key)
        no_return = jnp.full_like(state.returns, -jnp.inf)
        return select(old, State(fresh, no_return, jnp.zeros_like(state.age)), state)

    renewed: State = jax.lax.cond(old.any(), renew, lambda state: state, state)
    return renewed


def _known(mean_return: jax.Array) -> float | None:
    return float(mean_return) if np.isfinite(mean_return) else None
