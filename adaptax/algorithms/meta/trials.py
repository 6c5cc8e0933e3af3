"""Trials of RL2 as whole sequences, and a recurrent network run over them."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from adaptax.core.experience import PyTree, Rollout, zero_padding
from adaptax.functional.distributions import Distribution
from adaptax.networks.memory.recurrent import RecurrentActorCritic
from adaptax.sampling.actors import recurrent_input, recurrent_inputs


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Trials:
    """B whole trials of T steps as sequences, padding last."""

    inputs: jax.Array
    """[B, T, O + A + 2]: what the network saw."""
    next_input: jax.Array
    """[B, O + A + 2]: what it would have seen next, had the last episode gone on."""
    action: jax.Array
    reward: jax.Array
    """[B, T]"""
    log_prob: jax.Array
    """[B, T], of the policy that acted."""
    terminated: jax.Array
    """[B, T]"""
    valid: jax.Array
    """[B, T]"""


def trial_batch(rollout: Rollout, network: RecurrentActorCritic) -> Trials:
    """The lanes [M, N, T] of a rollout as B = M * N trials."""
    rollout = zero_padding(rollout)
    trials = Trials(
        inputs=recurrent_inputs(rollout, network.space),
        next_input=_next_input(rollout),
        action=jnp.asarray(rollout.action),
        reward=jnp.asarray(rollout.reward),
        log_prob=jnp.asarray(rollout.extras["log_prob"]),
        terminated=jnp.asarray(rollout.terminated),
        valid=jnp.asarray(rollout.valid),
    )
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), trials)


def _next_input(rollout: Rollout) -> jax.Array:
    carry = rollout.final_carry
    last = jnp.sum(rollout.valid, axis=-1) - 1
    obs = jnp.take_along_axis(rollout.next_obs, last[..., None, None], axis=2)[:, :, 0]
    going_on = jnp.zeros_like(carry["boundary"])
    return recurrent_input(obs, carry["last_action"], carry["last_reward"], going_on)


def evaluate(
    network: RecurrentActorCritic, variables: PyTree, inputs: jax.Array
) -> tuple[Distribution, jax.Array]:
    """Distributions and values [B, T] for inputs [B, T, F], run from the zero state."""
    memory = jnp.zeros((inputs.shape[0], network.memory_size))
    distribution, value, _ = network.apply(variables, inputs, memory)
    return distribution, value
