"""VariBAD: believes, step by step, what task it is on, and acts on what it believes and how surely.

Zintgraf et al. 2020, "VariBAD: a very good method for Bayes-adaptive deep RL via meta-learning"
(arXiv 1910.08348). A recurrent encoder turns a trial's transitions into a belief about the task's
variable z at every step; it learns to by decoding whole trials, past and future, from draws of z.
The policy sees the belief, mean and deviation, and is trained by PPO over trials: how much to
explore for the sake of later episodes is learned from what it pays, unless an episode terminates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp

from adaptax.algorithms.base import Algorithm, Metrics
from adaptax.algorithms.meta import rl2, rl2_ppo
from adaptax.algorithms.meta.rl2_ppo import RL2PPOConfig
from adaptax.algorithms.on_policy import family
from adaptax.core.config import check_not_negative, check_positive
from adaptax.core.errors import check
from adaptax.core.experience import PyTree, Rollout
from adaptax.core.spec import EnvSpec
from adaptax.functional.distributions import DiagonalGaussian
from adaptax.functional.elbo import decoding_errors, divergences
from adaptax.functional.masking import masked_mean
from adaptax.learning.minibatches import ADAM, one_step, optimizer
from adaptax.learning.replay import Replay, draw_rings
from adaptax.learning.trials import make_trials, read_trials, with_trials
from adaptax.networks.actor_critic import (
    ActorCritic,
    as_actor_critic,
    checked_actor_critic,
    has_memory,
    with_part,
)
from adaptax.networks.belief import BeliefActorCritic, RecurrentEncoder
from adaptax.networks.encoders import JointMLP
from adaptax.networks.hypernetwork import Behind, head_inputs
from adaptax.networks.memory import MemoryConfig
from adaptax.networks.normalizer import Moments, normalized
from adaptax.networks.own import check_gives, own_or
from adaptax.sampling.actors import Actor
from adaptax.sampling.memory_actors import TransitionInputs, transition
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class VariBADConfig(RL2PPOConfig):
    """PPO over trials as in rl2-ppo, and a belief.

    Which defaults are the authors' is said in docs/algorithms/varibad.md.
    """

    network_settings: ClassVar[tuple[str, ...]] = (
        *RL2PPOConfig.network_settings,
        *("action_embedding_size", "reward_embedding_size", "obs_embedding_size"),
        "decoder_hidden_sizes",
    )

    hidden_sizes: tuple[int, ...] = (128, 128)
    """Hidden layers of the policy, and as many of the value."""
    memory: MemoryConfig = field(default_factory=lambda: MemoryConfig("gru", 128))
    """What the encoder remembers by within a trial; with none it knows the last step alone."""
    latent_size: int = 5
    """L, the dimensions of z."""
    action_embedding_size: int = 16
    """Units of the encoder's layer for actions."""
    reward_embedding_size: int = 16
    """Units of that for rewards."""
    obs_embedding_size: int = 32
    """Units of that for observations."""
    encoder_gradient: bool = False
    """Whether gradients of policy and value reach the encoder too."""
    decoder_hidden_sizes: tuple[int, ...] = (64, 32)
    """Hidden layers of each decoder."""
    reward_from: Literal["transition", "next_obs"] = "transition"
    """What a reward is decoded from beside z: (o, a, o'), or o' alone where it suffices."""
    decode_next_obs: bool = False
    """Whether next observations are decoded too, from (o, a): for tasks that differ in how things
    move."""
    kl_coeff: float = 1.0
    """Weight of the KL from each belief to the one before it."""
    elbo_lr: float = 1e-3
    """Adam's step size for encoder and decoders; it stays as it is, whatever `lr_schedule`."""
    buffer_size: int = 1000
    """Trials, the last ones, that encoder and decoders learn from; the authors' 10,000 are more
    than fits into a snapshot."""
    num_elbo_updates: int = 3
    """Gradient steps of encoder and decoders an iteration."""
    elbo_batch_size: int = 25
    """Trials of such a step."""
    num_elbo_terms: int = 50
    """Beliefs of a trial, drawn in each step, that the whole trial is decoded from; all of them
    where there are fewer."""
    cut_at_termination: bool = True
    """Whether returns end where an episode terminates, though its trial goes on: the belief does
    not tell how many episodes are left, so the value could not predict them. An end by the horizon
    cuts nothing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "latent_size", "action_embedding_size", "reward_embedding_size")
        check_positive(self, "obs_embedding_size", "decoder_hidden_sizes", "elbo_lr")
        check_positive(self, "buffer_size", "num_elbo_updates", "elbo_batch_size")
        check_positive(self, "num_elbo_terms")
        check_not_negative(self, "kl_coeff")
        check(
            len(self.decoder_hidden_sizes) > 0, "decoder_hidden_sizes must name at least one layer"
        )
        check(
            self.meta_batch_size <= self.buffer_size,
            f"buffer_size {self.buffer_size} must be at least meta_batch_size "
            f"{self.meta_batch_size}: an iteration's trials are kept for the next",
        )


@dataclass(frozen=True)
class Networks:
    """VariBAD's networks: Flax modules, yours or the default ones.

    O numbers of an observation, A of an action, L of z.
    """

    encoder: nn.Module
    """With the call signature of a RecurrentEncoder (networks/belief.py)."""
    actor_critic: nn.Module
    """(o, mu, log sigma) [..., O + 2 L] -> (distribution, value), or an ActorCritic without memory
    over them."""
    reward_decoder: nn.Module
    """(z [..., L], o [..., O], a [..., A], o' [..., O]) -> [..., 1], or of (z, o') alone, whose
    leading axes broadcast."""
    next_obs_decoder: nn.Module | None = None
    """(z, o, a) -> [..., O]; only for `decode_next_obs`."""


def default_networks(config: VariBADConfig, spec: EnvSpec) -> Networks:
    """The networks that the config describes."""
    embeddings = "action_embedding_size", "reward_embedding_size", "obs_embedding_size"
    decoder = partial(JointMLP, config.decoder_hidden_sizes)
    bins, torso = config.value_bins, None
    heads = head_inputs(config.heads, spec, bins)
    if heads:
        torso = Behind(spec.observation_size, config.hidden_sizes)
    return Networks(
        encoder=RecurrentEncoder(
            config.memory.make(rl2.remembered_steps(config, spec)),
            config.latent_size,
            (spec.action.size, 1, spec.observation_size),
            tuple(getattr(config, name) for name in embeddings),
        ),
        actor_critic=ActorCritic(
            spec.action,
            config.hidden_sizes,
            torso=torso,
            value_bins=bins,
            **rl2.policy_settings(config),
            **heads,
        ),
        reward_decoder=decoder(1),
        next_obs_decoder=decoder(spec.observation_size) if config.decode_next_obs else None,
    )


def check_own(networks: Networks, config: VariBADConfig, spec: EnvSpec) -> None:
    """Raise a ConfigError unless networks of one's own make of their inputs what is needed."""
    inputs = spec.observation_size + 2 * config.latent_size
    checked_actor_critic(networks.actor_critic, spec.action, inputs, config.value_bins)
    obs, action, z = (spec.observation_size,), (spec.action.size,), (config.latent_size,)
    from_what = [obs, action, obs] if config.reward_from == "transition" else [obs]
    check_gives("networks.reward_decoder", networks.reward_decoder, [z, *from_what], (0, 1))
    if networks.next_obs_decoder is not None:
        check_gives(
            "networks.next_obs_decoder", networks.next_obs_decoder, [z, obs, action], (0, *obs)
        )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class State:
    """Everything learned, and the trials that encoder and decoders learn from."""

    policy: family.State
    """What PPO brings along: parameters of encoder, policy and value, moments, a key."""
    decoders: PyTree
    """Parameters by name."""
    elbo_opt_state: PyTree
    """State of the optimizer that moves encoder and decoders."""
    trials: Replay
    """A ring for each trial."""
    num_trials: jax.Array
    """[] int32, trials so far."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Trials:
    """B trials to decode, up to T steps of each; zero where not valid."""

    obs: jax.Array
    """[B, T, O], normalised as the policy's."""
    transitions: jax.Array
    """[B, T + 1, A + 1 + O], normalised: zeros, then (a, r, o') of every step."""
    reward: jax.Array
    """[B, T], as it came."""
    valid: jax.Array
    """[B, T]"""


class VariBAD(Algorithm[State, Rollout]):
    """Variational Bayes-adaptive deep RL; `networks` is a `Networks` of this file."""

    name = "varibad"
    config: VariBADConfig
    collects_in_program = True
    in_place = ("trials",)
    finite_metrics = ("approx_kl", "value_loss", "decoding_error", "kl")
    learned = (".policy.params", ".policy.moments", ".decoders")
    trained_episodes: int

    def __init__(
        self, config: VariBADConfig, spec: EnvSpec, networks: Networks | None = None
    ) -> None:
        super().__init__(config, spec)
        rl2_ppo.check_critic(config, spec)
        self.networks = own_or(default_networks(config, spec), networks)
        if networks is not None:
            check_own(networks, config, spec)
        actor_critic = as_actor_critic(self.networks.actor_critic)
        no_memory = not has_memory(actor_critic)
        check(no_memory, "varibad's actor-critic must have no memory: the encoder has it")
        check(
            not config.decode_next_obs or self.networks.next_obs_decoder is not None,
            "decode_next_obs needs networks with a next_obs_decoder",
        )
        self.network = BeliefActorCritic(
            self.networks.encoder, actor_critic, spec.observation_size, config.encoder_gradient
        )
        self.trained_episodes = rl2.trial_length(config, spec)

    def init(self, key: jax.Array) -> State:
        """Fresh parameters, no trials."""
        config, spec = self.config, self.spec
        policy_key, *keys = jax.random.split(key, 3)
        size = 2 * spec.observation_size + spec.action.size + 1
        step = optimizer(config)
        policy = rl2.init_state(config, self.network, spec, size, policy_key, step.init)
        z, obs = jnp.zeros(config.latent_size), jnp.zeros(spec.observation_size)
        action = jnp.zeros(spec.action.size)
        from_what = (obs, action, obs) if config.reward_from == "transition" else (obs,)
        decoders = {"reward": self.networks.reward_decoder.init(keys[0], z, *from_what)}
        if config.decode_next_obs:
            assert self.networks.next_obs_decoder is not None
            decoders["next_obs"] = self.networks.next_obs_decoder.init(keys[1], z, obs, action)
        opt_state = ADAM(config.elbo_lr).init((encoder_of(policy.params), decoders))
        length = rl2.trial_steps(config, spec)
        trials = make_trials(config.buffer_size, length, spec, config.discount)
        return State(policy, decoders, opt_state, trials, jnp.int32(0))

    def collect(self, state: State, sampler: Sampler) -> Rollout:
        """One trial on each of `meta_batch_size` tasks, the belief carried through all of it."""
        return rl2.collect(self.config, self.actor(state), sampler)

    def update(self, state: State, data: Rollout) -> tuple[State, Metrics]:
        """PPO on the new trials, then ELBO steps of encoder and decoders on those in the buffer."""
        policy, policy_figures = self._improved_policy(state.policy, data)
        trials, num_trials = with_trials(state.trials, state.num_trials, data)
        state = replace(state, policy=policy, trials=trials, num_trials=num_trials)
        state, model_figures = self._improved_model(state)
        returns = rl2.trial_returns(data, self.trained_episodes)
        return state, returns | policy_figures | model_figures

    def _improved_policy(self, state: family.State, data: Rollout) -> tuple[family.State, Metrics]:
        """PPO passes, each trial as one episode unless `cut_at_termination` cuts it."""
        config, network = self.config, self.network
        state = rl2.with_reward_moments(state, data)
        sequences = rl2.sequences_of(config, network, self.spec, state, data, transitions=True)
        return rl2_ppo.learn(config, network, state, sequences)

    def _improved_model(self, state: State) -> tuple[State, Metrics]:
        """Gradient steps of encoder and decoders, each on trials drawn from all that are kept."""
        config, policy = self.config, state.policy
        key, elbo_key = jax.random.split(policy.key)
        moments = policy.moments.get("obs")

        def loss(params: PyTree, key: jax.Array) -> tuple[jax.Array, Metrics]:
            rings_key, draw_key = jax.random.split(key)
            rings = draw_rings(state.trials, rings_key, (config.elbo_batch_size,))
            return self.elbo_loss(params, self.minibatch(state.trials, rings, moments), draw_key)

        start = (encoder_of(policy.params), state.decoders), state.elbo_opt_state
        step = partial(one_step, loss, ADAM(config.elbo_lr))
        keys = jax.random.split(elbo_key, config.num_elbo_updates)
        ((encoder, decoders), opt_state), figures = jax.lax.scan(step, start, keys)
        params = with_part(policy.params, {"params": {"encoder": encoder}})
        after = replace(policy, params=params, key=key)
        figures = {"elbo_grad_norm": figures.pop("grad_norm"), **figures}
        state = replace(state, policy=after, decoders=decoders, elbo_opt_state=opt_state)
        return state, jax.tree.map(jnp.mean, figures)

    def elbo_loss(
        self, params: tuple[PyTree, PyTree], trials: Trials, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Minus the mean ELBO_t over trials and t = 0, ..., T (equations 8 to 10), and its terms.

        `params` are (the encoder's, the decoders'). Reconstruction is averaged over
        `num_elbo_terms` random times t, the KL over all.
        """
        encoder, decoders = params
        times_key, z_key = jax.random.split(key)
        beliefs = self.beliefs(encoder, trials)
        known = jnp.pad(trials.valid, ((0, 0), (1, 0)), constant_values=True)
        # Of a ring that has lost its trial not even the prior counts.
        known = known & trials.valid[:, :1]
        kl = masked_mean(divergences(beliefs), known)
        num_times = known.shape[1]
        times = jax.random.permutation(times_key, num_times)[: self.config.num_elbo_terms]
        z = jax.tree.map(lambda x: x[:, times], beliefs).sample(z_key)
        errors = self._decoding_errors(decoders, z, trials)
        error = masked_mean(errors, known[:, times])
        return error + self.config.kl_coeff * kl, {"decoding_error": error, "kl": kl}

    def beliefs(self, encoder: PyTree, trials: Trials) -> DiagonalGaussian:
        """Beliefs q_0, ..., q_T [B, T + 1, L]; q_0 is the prior."""
        start = self.network.initial(trials.valid.shape[:1])
        params = {"params": {"encoder": encoder}}
        return self.network.apply(params, start, trials.transitions, method="beliefs")[1]

    def _decoding_errors(self, decoders: PyTree, z: jax.Array, trials: Trials) -> jax.Array:
        """Sums [B, K] of squared errors over a trial decoded from each z [B, K, L]."""
        networks, z = self.networks, z[:, :, None]
        num_actions = self.spec.action.size
        after = trials.transitions[:, 1:]
        obs, next_obs = trials.obs[:, None], after[:, None, :, num_actions + 1 :]
        action = after[:, None, :, :num_actions]
        whole = self.config.reward_from == "transition"
        from_what = (obs, action, next_obs) if whole else (next_obs,)
        reward = networks.reward_decoder.apply(decoders["reward"], z, *from_what)
        errors = decoding_errors(reward, trials.reward[..., None], trials.valid)
        if networks.next_obs_decoder is not None and self.config.decode_next_obs:
            predicted = networks.next_obs_decoder.apply(decoders["next_obs"], z, obs, action)
            errors = errors + decoding_errors(predicted, next_obs[:, 0], trials.valid)
        return errors

    def minibatch(self, buffer: Replay, rings: jax.Array, moments: Moments | None) -> Trials:
        """The trials of rings [B], normalised by the `moments` of the policy's inputs."""
        steps, valid = read_trials(buffer, rings)
        num_obs = self.spec.observation_size
        # What stands for a choice that was not made is none of the choices.
        transitions = jnp.where(valid[..., None], transition(steps, self.spec.action), 0.0)
        transitions = jnp.pad(transitions, ((0, 0), (1, 0), (0, 0)))
        obs = jnp.pad(steps.obs, ((0, 0), (0, 1), (0, 0)))
        inputs = jnp.concatenate([obs, transitions], axis=-1)
        inputs = normalized(inputs, moments)
        obs, transitions = inputs[:, :-1, :num_obs], inputs[..., num_obs:]
        return Trials(obs, transitions, steps.reward, valid)

    def actor(self, state: State, *, deterministic: bool = False) -> Actor:
        """The policy at the start of a trial, on the prior."""
        inner = family.policy_actor(self.network, state.policy, deterministic=deterministic)
        return TransitionInputs(inner, self.spec.action, None, self.spec.observation_size)

    def adapt(
        self,
        state: State,
        actor: Actor,
        history: Sequence[Rollout],
        *,
        deterministic: bool = False,
    ) -> Actor:
        """Go on from the belief at the end of the last rollout."""
        return rl2.adapted(actor, history, deterministic=deterministic)


def encoder_of(params: PyTree) -> PyTree:
    """The encoder's parameters among those of encoder, policy and value."""
    return params["params"]["encoder"]
