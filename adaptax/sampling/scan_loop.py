"""The compiled loop: policy and environment together in one scan, for a JaxPool."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.batch import PyTree, Rollout, select
from adaptax.core.rng import episode_seeds
from adaptax.envs.jax_pool import JaxEnv, JaxPool, Lanes, reset_lanes, step_lanes
from adaptax.sampling.actor import Actor
from adaptax.sampling.host_loop import Cursor, act, observe


def scan_loop(
    pool: JaxPool, actor: Actor, cursor: Cursor, num_steps: int, num_episodes: int | None
) -> tuple[Rollout, Cursor]:
    """The same contract and the same data (to rounding) as the host loop."""
    inputs = (pool.params, cursor.root, cursor.key, np.uint32(cursor.t))
    start = (pool.lanes, cursor.carry, jnp.asarray(cursor.episode))
    settings = (pool.env, cursor.shape, num_steps, num_episodes)
    rollout, (lanes, episode) = _interact(*settings, actor, inputs, start)
    pool.lanes = lanes
    after = replace(
        cursor,
        obs=lanes.obs,
        carry=rollout.final_carry,
        episode=episode,
        t=cursor.t + num_steps,
    )
    return rollout, after


@partial(jax.jit, static_argnums=(0, 1, 2, 3))
def _interact(
    env: JaxEnv,
    shape: tuple[int, int],
    num_steps: int,
    num_episodes: int | None,
    actor: Actor,
    inputs: tuple[Any, ...],
    start: tuple[Lanes, PyTree, jax.Array],
) -> tuple[Rollout, tuple[Lanes, jax.Array]]:
    params, root, key, first = inputs
    num_slots = shape[0] * shape[1]
    slots = jnp.arange(num_slots, dtype=jnp.uint32)

    def split(x: jax.Array) -> jax.Array:
        return x.reshape(*shape, *x.shape[1:])

    def step(
        state: tuple[Lanes, PyTree, jax.Array], t: jax.Array
    ) -> tuple[tuple[Lanes, PyTree, jax.Array], dict[str, Any]]:
        lanes, carry, episode = state
        running = jnp.ones(num_slots, bool) if num_episodes is None else episode < num_episodes
        obs = split(lanes.obs)
        action, acted, extras = act(actor, carry, obs, key, t)
        flat = action.reshape(num_slots, *action.shape[2:])
        stepped, outcome, truncated = step_lanes(env, params, lanes, flat)
        if env.spec.has_success:
            extras = {**extras, "success": split(outcome.success)}
        record: dict[str, Any] = {
            "obs": obs,
            "action": action,
            "reward": split(outcome.reward),
            "next_obs": split(outcome.obs),
            "terminated": split(outcome.terminated),
            "truncated": split(truncated),
        }
        seen = observe(actor, acted, (split(running), *record.values()), key, t + 1)
        carry = select(split(running), seen, carry)
        ended = running & (outcome.terminated | truncated)
        episode = episode + ended
        again = ended if num_episodes is None else ended & (episode < num_episodes)
        lanes = select(running, stepped, lanes)
        lanes = jax.lax.cond(again.any(), lambda: _restart(again, episode, lanes), lambda: lanes)
        record |= {"extras": extras}
        zeros = jax.tree.map(jnp.zeros_like, record)
        return (lanes, carry, episode), {
            **select(split(running), record, zeros),
            "valid": split(running),
        }

    def _restart(again: jax.Array, episode: jax.Array, lanes: Lanes) -> Lanes:
        seeds = episode_seeds(jnp.asarray(root), episode * np.uint32(num_slots) + slots)
        return select(again, reset_lanes(env, params, seeds), lanes)

    times = first + jnp.arange(num_steps, dtype=jnp.uint32)
    (lanes, carry, episode), record = jax.lax.scan(step, start, times)
    record = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2), record)
    return Rollout(**record, final_carry=carry), (lanes, episode)
