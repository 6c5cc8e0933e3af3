"""SAC: a stochastic policy that seeks reward and entropy, by the lower of two critics.

Haarnoja et al. 2018, "Soft actor-critic algorithms and applications" (arXiv 1812.05905); for
discrete actions Christodoulou 2019 (arXiv 1910.07207): expectations over actions are then sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.off_policy.family import (
    Data,
    LearnerState,
    Networks,
    OffPolicyConfig,
    Optimizers,
    State,
    check_reachable,
    check_target_entropy,
    collect,
    descended,
    init_state,
    off_policy_optimizer,
    target_entropy,
    update,
    with_target,
)
from adaptax.core.config import check_positive
from adaptax.core.errors import ConfigError
from adaptax.core.experience import PyTree, Transitions
from adaptax.core.products import product_options
from adaptax.core.spec import Discrete, EnvSpec, MultiDiscrete
from adaptax.functional.distributions import Categorical
from adaptax.functional.q_learning import (
    ensemble_loss,
    of_action,
    soft_value,
    td_target,
    temperature_loss,
)
from adaptax.networks.critics import ActionValues, Critic, StochasticPolicy, ensemble
from adaptax.networks.own import check_gives, own_or
from adaptax.sampling.actors import Actor, PolicyActor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class SACConfig(OffPolicyConfig):
    """SAC; where the defaults come from: docs/algorithms/sac.md."""

    init_temperature: float = 0.2
    """Weight of the entropy at the start, the papers' alpha."""
    learn_temperature: bool = True
    """Whether it is learned, or stays."""
    target_entropy: float | None = None
    """Entropy in nats that the temperature is learned for; None: minus the number of action
    dimensions (Haarnoja et al. 2018b, appendix D), or half of the highest for discrete actions."""
    max_grad_norm: float | None = 5.0
    """Bound on the norm of the gradients of each optimizer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "init_temperature")
        check_target_entropy(self.target_entropy, is_learned=self.learn_temperature)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Choices:
    """Actions that an expectation goes over, [..., A]: all of them, or one draw of weight 1."""

    q: jax.Array
    """The lower of both critics'."""
    log_prob: jax.Array
    weight: jax.Array

    @property
    def entropy(self) -> jax.Array:
        """[...] in nats, of the draw or exact."""
        return -jnp.sum(self.weight * self.log_prob, axis=-1)

    def value(self, temperature: jax.Array) -> jax.Array:
        """The soft value [...]: the expected q, and the entropy weighed by the temperature."""
        return soft_value(self.q, self.log_prob, temperature, self.weight)


class SAC(Algorithm[State, Data]):
    """Soft actor-critic; `networks` is the family's `Networks`."""

    name = "sac"
    collects_in_program = True
    in_place = ("replay",)
    finite_metrics = ("critic_loss", "policy_loss", "q", "entropy")
    learned = (".learner.params", ".learner.target")
    config: SACConfig
    networks: Networks

    def __init__(self, config: SACConfig, spec: EnvSpec, networks: Networks | None = None) -> None:
        super().__init__(config, spec)
        if isinstance(spec.action, MultiDiscrete):
            raise ConfigError(
                "sac takes continuous actions or one choice; for several choices take ppo"
            )
        check_reachable(config.target_entropy, spec.action)
        self.networks = networks_for(config.hidden_sizes, spec, networks)
        self.num_cycles = config.num_cycles

    def init(self, key: jax.Array) -> State:
        """Fresh parameters, targets equal to them, nothing in the replay."""
        key, policy_key, critic_key = jax.random.split(key, 3)
        obs, action = jnp.zeros(self.spec.observation_size), jnp.zeros(self.spec.action.shape)
        params = {
            "policy": self.networks.policy.init(policy_key, obs),
            "critics": self.networks.critics.init(critic_key, *self._inputs(obs, action)),
            "log_temperature": jnp.log(jnp.float32(self.config.init_temperature)),
        }
        optimizers = dict.fromkeys(params, off_policy_optimizer(self.config))
        return init_state(self.config, self.spec, params, params["critics"], optimizers, key)

    def collect(self, state: State, sampler: Sampler) -> Data:
        """Steps of the policy, which explores by itself."""
        return collect(self.config, state, sampler, self.actor(state))

    def update(self, state: State, data: Data) -> tuple[State, Metrics]:
        """Steps into the replay, and gradient steps on minibatches of it."""
        return update(self.config, state, data, self.gradient_step)

    def gradient_step(
        self, learner: LearnerState, batch: Transitions, key: jax.Array
    ) -> tuple[LearnerState, Metrics]:
        """One gradient step each of critics, policy and, if it is learned, temperature.

        Critics and policy use the temperature from before the step.
        """
        config, adam = self.config, off_policy_optimizer(self.config)
        temperature = jnp.exp(learner.params["log_temperature"])
        target_key, policy_key = jax.random.split(key)
        policy = self.networks.policy.apply(learner.params["policy"], batch.next_obs)
        choices = self._choices(policy, learner.target, batch.next_obs, target_key)
        next_value = choices.value(temperature)
        target = td_target(batch.reward, batch.discount, batch.terminated, next_value)

        def critic_loss(params: PyTree) -> tuple[jax.Array, Metrics]:
            q = self.networks.critics.apply(
                params["critics"], *self._inputs(batch.obs, batch.action)
            )
            q = of_action(q, batch.action[None]) if self._discrete else q
            loss = ensemble_loss(q, target)
            return loss, {"critic_loss": loss, "q": jnp.mean(q)}

        learner, figures = descended(learner, critic_loss, {"critics": adam})
        critics = learner.params["critics"]

        def policy_loss(params: PyTree) -> tuple[jax.Array, Metrics]:
            policy = self.networks.policy.apply(params["policy"], batch.obs)
            choices = self._choices(policy, critics, batch.obs, policy_key)
            loss = -jnp.mean(choices.value(temperature))
            return loss, {"policy_loss": loss, "entropy": jnp.mean(choices.entropy)}

        learner, more = descended(learner, policy_loss, {"policy": adam})
        figures |= more
        if config.learn_temperature:
            adams = {"log_temperature": adam}
            learner, figures = with_temperature(learner, figures, self.target_entropy, adams)
        return with_target(config, learner, critics), figures

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy; deterministic, it acts by the mean of its unsquashed Gaussian."""
        return PolicyActor(state.learner.params["policy"], self.networks.policy, deterministic)

    @property
    def target_entropy(self) -> float:
        """Entropy in nats that the temperature is learned for."""
        return target_entropy(self.config.target_entropy, self.spec.action)

    @property
    def compiler_options(self) -> dict[str, str]:
        """Those of products of a minibatch's rows."""
        return product_options(self.config.batch_size)

    @property
    def _discrete(self) -> bool:
        return isinstance(self.spec.action, Discrete)

    def _inputs(self, obs: jax.Array, action: jax.Array) -> tuple[jax.Array, ...]:
        """What the critics take: of one choice they value all options at once."""
        return (obs,) if self._discrete else (obs, action)

    def _choices(self, policy: Any, critics: PyTree, obs: jax.Array, key: jax.Array) -> Choices:
        """What the policy may do, and the lowest value of each by the critics."""
        if self._discrete:
            probability, log_prob = Categorical(policy.logits).probabilities()
            q = jnp.min(self.networks.critics.apply(critics, obs), axis=0)
            return Choices(q, log_prob, probability)
        action, log_prob = policy.sample_and_log_prob(key)
        q = jnp.min(self.networks.critics.apply(critics, obs, action), axis=0)
        return Choices(q[..., None], log_prob[..., None], jnp.ones((*q.shape, 1)))


def with_temperature(
    learner: LearnerState, figures: Metrics, target: float, optimizers: Optimizers
) -> tuple[LearnerState, Metrics]:
    """One step of the temperature towards the target entropy, from `figures["entropy"]`.

    Adds the figure `temperature`, its value before the step.
    """

    def loss(params: PyTree) -> tuple[jax.Array, Metrics]:
        log_temperature = params["log_temperature"]
        loss = temperature_loss(log_temperature, -figures["entropy"], target)
        return loss, {**figures, "temperature": jnp.exp(log_temperature)}

    return descended(learner, loss, optimizers)


def networks_for(
    hidden_sizes: tuple[int, ...], spec: EnvSpec, networks: Networks | None
) -> Networks:
    """The given policy and critics, or the default ones: twin critics."""
    space, picture = spec.action, spec.picture
    discrete = isinstance(space, Discrete)
    critics = ensemble(Critic, 2)(hidden_sizes, picture)
    if discrete:
        critics = ensemble(ActionValues, 2)(hidden_sizes, space.size, picture)
    own = own_or(Networks(StochasticPolicy(hidden_sizes, space, picture), critics), networks)
    if networks is not None:
        obs, needs = (spec.observation_size,), ("logits" if discrete else "sample_and_log_prob",)
        check_gives("networks.policy", own.policy, [obs], space, needs)
        if discrete:
            check_gives("networks.critics", own.critics, [obs], (None, 0, space.size))
        else:
            check_gives("networks.critics", own.critics, [obs, space.shape], (None, 0))
    return own
