"""PEARL: infers what task it is on from a few episodes, and learns to from replay, with SAC.

Rakelly et al. 2019, "Efficient off-policy meta-reinforcement learning via probabilistic context
variables" (arXiv 1903.08254). An encoder turns context, steps of a task in any order, into a
belief about the task's variable z; policy and critics are told z, and the critics' error teaches
the encoder. An episode is played on one draw of z, so that what is uncertain is explored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from adaptax.algorithms.base import Algorithm, Metrics, check_finite, return_metrics
from adaptax.algorithms.meta.pearl_networks import Networks, PEARLConfig
from adaptax.algorithms.off_policy.family import Learner, fresh_learner
from adaptax.core.errors import ConfigError
from adaptax.core.experience import PyTree, Rollout, Transitions
from adaptax.core.spec import Continuous, EnvSpec
from adaptax.functional.q_learning import averaged, ensemble_loss, td_target, temperature_loss
from adaptax.learning.minibatches import Figures
from adaptax.learning.replay import Replay, ReplayConfig
from adaptax.sampling.actors import Actor
from adaptax.sampling.latent import LatentActor, bare, in_a_row
from adaptax.sampling.sampler import Sampler

BLOCK_BYTES = 2**26
"""Minibatches that are gathered at once."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything learned; both replays have a ring for each task and change in place."""

    learner: Learner
    replay: Replay
    """What policy and values learn from."""
    context: Replay
    """What z is inferred from: steps of the last visit to each task."""
    key: jax.Array


class PEARL(Algorithm):
    """Probabilistic embeddings for actor-critic RL."""

    name = "pearl"
    task_counts = ("num_train_tasks",)
    config: PEARLConfig

    def __init__(self, config: PEARLConfig, spec: EnvSpec) -> None:
        super().__init__(config, spec)
        if not isinstance(spec.action, Continuous):
            raise ConfigError("pearl takes continuous actions, not choices")
        self.networks = Networks(config, spec)

    def init(self, key: jax.Array) -> State:
        """Fresh parameters, targets equal to them, empty replays."""
        config = self.config
        key, params_key, learner_key = jax.random.split(key, 3)
        params = self.networks.init(params_key)
        opt_state = {name: self.networks.optimizer(name).init(params[name]) for name in params}
        target = params["value" if config.critic == "value" else "critics"]
        learner = fresh_learner(params, target, opt_state, learner_key)
        visit = config.num_prior_steps + config.num_posterior_steps
        # Whole episodes, so that a phase may be longer by almost one.
        context_size = max(config.num_initial_steps, visit) + 2 * self.spec.horizon
        replay, context = (
            Replay(ReplayConfig(size, config.num_train_tasks, 1, config.discount), self.spec)
            for size in (config.buffer_size, context_size)
        )
        return State(learner, replay, context, key)

    def iteration(self, state: State, sampler: Sampler) -> tuple[State, Metrics]:
        """Visit a few tasks to collect steps, then learn from replays of all (algorithm 1)."""
        config = self.config
        tasks = sampler.fixed_tasks(config.num_train_tasks)
        key, visit_key, collect_key, learn_key = jax.random.split(state.key, 4)
        visit = _Visits(self, state, sampler, tasks)
        if len(state.replay) == 0:
            for rings in _parts(np.arange(len(tasks)), config.num_tasks_sample):
                visit.collect(rings, config.num_initial_steps)
        rings = np.asarray(jax.random.permutation(visit_key, len(tasks)))
        rollouts = visit.run(rings[: config.num_tasks_sample], collect_key)
        learner, figures = self._learn(state, len(tasks), learn_key)
        check_finite(figures, "critic_loss", "policy_loss")
        returns = [return_metrics(rollout, 1)["return"] for rollout in rollouts]
        held = {"replay_size": len(state.replay), "num_updates": int(learner.num_updates)}
        metrics = {"return": returns[-1], "return/prior": returns[0], **figures, **held}
        return replace(state, learner=learner, key=key), metrics

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy on a z of the prior, another in every episode."""
        params = state.learner.params["policy"]
        return LatentActor(params, self.networks.policy, self.networks.prior, deterministic)

    def adapt(
        self,
        state: State,
        actor: Actor,
        history: Sequence[Rollout],
        *,
        deterministic: bool = False,
    ) -> Actor:
        """The policy on a z inferred, lane by lane, from all steps so far (algorithm 2)."""
        seen = jax.tree.map(lambda *xs: np.concatenate(xs, axis=2), *map(bare, history))
        belief = _infer(self.networks, state.learner.params["encoder"], seen, seen.valid)
        params = state.learner.params["policy"]
        return LatentActor(params, self.networks.policy, belief, deterministic)

    def _learn(self, state: State, num_tasks: int, key: jax.Array) -> tuple[Learner, Metrics]:
        """All gradient steps of an iteration, in compiled scans over what was gathered before."""
        config, learner, every = self.config, state.learner, []
        shape = (config.num_updates, config.meta_batch_size)
        rings = np.asarray(jax.random.randint(key, shape, 0, num_tasks))
        rings = np.repeat(rings, config.context_size // config.mini_context, axis=0)
        for i, block in enumerate(_parts(rings, self._block_size(len(rings)))):
            keys = jax.random.split(jax.random.fold_in(key, i))
            batches = state.replay.sample_rings(keys[0], block, config.batch_size)
            contexts = state.context.sample_rings(keys[1], block, config.mini_context)
            learner, figures = gradient_steps(self.networks, learner, batches, contexts)
            every.append(figures)
        return learner, {name: float(np.mean([f[name] for f in every])) for name in every[0]}

    def _block_size(self, num_steps: int) -> int:
        """Gradient steps whose minibatches fit in BLOCK_BYTES, in blocks of equal size."""
        config, spec = self.config, self.spec
        rows = config.meta_batch_size * (config.batch_size + config.mini_context)
        step_bytes = 4 * rows * (2 * spec.observation_size + spec.action.size + 3)
        most = min(max(BLOCK_BYTES // step_bytes, 1), num_steps)
        return next(size for size in range(most, 0, -1) if num_steps % size == 0)


@dataclass(frozen=True)
class _Visits:
    """Collection: all tasks of a visit side by side, in whole episodes."""

    pearl: PEARL
    state: State
    sampler: Sampler
    tasks: tuple[Any, ...]
    """Those trained on, in the order of their rings."""

    def run(self, rings: np.ndarray, key: jax.Array) -> list[Rollout]:
        """A visit to some tasks: context anew, and steps for the replay."""
        config, keys = self.pearl.config, jax.random.split(key)
        if config.num_prior_steps + config.num_posterior_steps > 0:
            self.state.context.clear(rings)
        return [
            *self.collect(rings, config.num_prior_steps),
            *self.collect(rings, config.num_posterior_steps, keys[0]),
            *self.collect(rings, config.num_extra_posterior_steps, keys[1], context=False),
        ]

    def collect(
        self,
        rings: np.ndarray,
        num_steps: int,
        infer_key: jax.Array | None = None,
        *,
        context: bool = True,
    ) -> list[Rollout]:
        """At least `num_steps` steps on each task.

        On a z of the prior; with `infer_key`, after each round of `update_post_train` episodes, on
        one inferred from a random part of the context.
        """
        state, horizon = self.state, self.pearl.spec.horizon
        lanes = -(-num_steps // horizon)
        if infer_key is not None:
            lanes = self.pearl.config.update_post_train
        tasks = tuple(self.tasks[ring] for ring in rings)
        actor, rollouts = self.pearl.actor(state), list[Rollout]()
        missing = np.full(len(rings), num_steps)
        while missing.max() > 0:
            if infer_key is not None and rollouts:
                actor = self._informed(rings, jax.random.fold_in(infer_key, len(rollouts)))
            rollout = self.sampler.episodes(actor, tasks, lanes, 1)
            steps = in_a_row(rollout)
            state.replay.add(steps, rings)
            if context:
                state.context.add(steps, rings)
            missing = missing - np.asarray(rollout.valid).sum((1, 2))
            rollouts.append(rollout)
        return rollouts

    def _informed(self, rings: np.ndarray, key: jax.Array) -> Actor:
        """The actor on each task's own z, inferred as in a gradient step."""
        config, params = self.pearl.config, self.state.learner.params
        context = self.state.context.sample_rings(key, rings, config.context_size)
        belief = _infer(self.pearl.networks, params["encoder"], context)
        belief = jax.tree.map(lambda x: x[:, None], belief)
        return LatentActor(params["policy"], self.pearl.networks.policy, belief)


@partial(jax.jit, static_argnums=0)
def gradient_steps(
    networks: Networks, learner: Learner, batches: Transitions, contexts: Transitions
) -> tuple[Learner, Figures]:
    """A step on each of K minibatches [K, M, B, ...] and contexts [K, M, C, ...]; mean figures."""

    def step(learner: Learner, data: tuple[Transitions, Transitions]) -> tuple[Learner, Figures]:
        key, update_key = jax.random.split(learner.key)
        learner, figures = update(networks, learner, *data, update_key)
        return replace(learner, key=key, num_updates=learner.num_updates + 1), figures

    learner, figures = jax.lax.scan(step, learner, (batches, contexts))
    return learner, jax.tree.map(jnp.mean, figures)


def update(
    nets: Networks, learner: Learner, batch: Transitions, context: Transitions, key: jax.Array
) -> tuple[Learner, Figures]:
    """One gradient step on M tasks, their minibatches [M, B, ...] and contexts [M, C, ...]."""
    config, z_key, next_key, action_key = nets.config, *jax.random.split(key, 3)
    with_value = config.critic == "value"
    alpha = jnp.float32(1.0) if with_value else jnp.exp(learner.params["log_alpha"])

    def next_value(z: jax.Array) -> jax.Array:
        if with_value:
            return nets.value.apply(learner.target, batch.next_obs, z)
        distribution = nets.policy.apply(learner.params["policy"], batch.next_obs, z)
        action, log_prob = distribution.sample_and_log_prob(next_key)
        q = nets.critics.apply(learner.target, batch.next_obs, action, z)
        return jnp.min(q, axis=0) - alpha * log_prob

    def critic_loss(params: PyTree) -> tuple[jax.Array, Any]:
        belief = nets.infer(params["encoder"], context)
        z = belief.sample(z_key)[:, None]
        reward, after = config.reward_scale * batch.reward, next_value(jax.lax.stop_gradient(z))
        target = td_target(reward, batch.discount, batch.terminated, after)
        q = nets.critics.apply(params["critics"], batch.obs, batch.action, z)
        # Not halved in the originals, and the KL is weighed against it.
        loss = 2.0 * ensemble_loss(q.reshape(2, -1), target.reshape(-1))
        kl = nets.kl(belief)
        figures = {"critic_loss": loss, "q": jnp.mean(q), "kl": kl}
        return loss + config.kl_coeff * kl, (jax.lax.stop_gradient(z), figures)

    def policy_loss(params: PyTree) -> tuple[jax.Array, Any]:
        distribution = nets.policy.apply(params["policy"], batch.obs, z)
        u = distribution.unbounded.sample(action_key)
        log_prob = distribution.log_prob_of_unbounded(u)
        q = nets.critics.apply(learner.params["critics"], batch.obs, jnp.tanh(u), z).min(0)
        loss = jnp.mean(alpha * log_prob - q)
        penalty = config.policy_mean_reg_coeff * jnp.mean(jnp.square(distribution.mean))
        penalty += config.policy_std_reg_coeff * jnp.mean(jnp.square(distribution.log_std))
        penalty += config.policy_pre_activation_coeff * jnp.mean(jnp.sum(jnp.square(u), -1))
        figures = {"policy_loss": loss, "entropy": -jnp.mean(log_prob)}
        return loss + penalty, (q - log_prob, figures)

    def value_loss(params: PyTree) -> tuple[jax.Array, Figures]:
        value = nets.value.apply(params["value"], batch.obs, z)
        loss = jnp.mean(jnp.square(value - soft_value))
        return loss, {"value_loss": loss}

    def alpha_loss(params: PyTree) -> tuple[jax.Array, Figures]:
        loss = temperature_loss(params["log_alpha"], -figures["entropy"], nets.target_entropy)
        return loss, {"temperature": alpha}

    step = partial(_descended, nets)
    learner, (z, figures) = step(learner, critic_loss, "critics", "encoder")
    learner, (soft_value, more) = step(learner, policy_loss, "policy")
    figures |= more
    if with_value:
        learner, more = step(learner, value_loss, "value")
        figures |= more
    elif config.learn_temperature:
        learner, more = step(learner, alpha_loss, "log_alpha")
        figures |= more
    online = learner.params["value" if with_value else "critics"]
    target = averaged(learner.target, online, 1.0 - config.tau)
    return replace(learner, target=target), figures


def _descended(
    nets: Networks, learner: Learner, loss: Callable[[PyTree], Any], *names: str
) -> tuple[Learner, Any]:
    """The learner with the named networks a gradient step down the loss of their parameters."""
    params, opt_state = dict(learner.params), dict(learner.opt_state)
    grads, aux = jax.grad(loss, has_aux=True)({name: params[name] for name in names})
    for name in names:
        updates, opt_state[name] = nets.optimizer(name).update(grads[name], opt_state[name])
        params[name] = optax.apply_updates(params[name], updates)
    return replace(learner, params=params, opt_state=opt_state), aux


_infer = jax.jit(Networks.infer, static_argnums=0)


def _parts(x: np.ndarray, size: int) -> list[np.ndarray]:
    """Consecutive parts of so many entries; the last may have fewer."""
    return [x[i : i + size] for i in range(0, len(x), size)]
