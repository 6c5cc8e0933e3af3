"""The loop for a WorkerPool: each worker interacts in its own lanes for a whole call."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np

from adaptax.core.experience import Rollout
from adaptax.envs.pools.workers import Share, WorkerPool
from adaptax.sampling.actors import Actor
from adaptax.sampling.host_engine import Cursor, host_loop


def worker_loop(
    pool: WorkerPool, actor: Actor, cursor: Cursor, num_steps: int, num_episodes: int | None
) -> tuple[Rollout, Cursor]:
    """The same contract and, bit for bit, the same data as the host loop."""
    actor, cursor.carry = jax.device_get((actor, cursor.carry))
    parts = pool.run(_interact, actor, cursor, num_steps, num_episodes)
    times = [part.pop("t") for part in parts]
    whole = jax.tree.map(lambda *rows: np.concatenate(rows), *parts)
    rollout = jax.tree.map(lambda x: x.reshape(*cursor.shape, *x.shape[1:]), whole["rollout"])
    after = replace(
        cursor,
        obs=whole["obs"],
        carry=rollout.final_carry,
        episode=whole["episode"],
        t=max(times),
    )
    return rollout, after


def _interact(
    share: Share, actor: Actor, cursor: Cursor, num_steps: int, num_episodes: int | None
) -> dict[str, Any]:
    """In a worker: the rows of its own slots [K, ...] of what the host loop gives."""
    rollout, after = host_loop(share, actor, cursor, num_steps, num_episodes, share.slots)
    own = slice(share.slots[0], share.slots[-1] + 1)

    def rows(x: Any) -> np.ndarray:
        every: np.ndarray = np.asarray(x).reshape(cursor.num_slots, *x.shape[2:])
        return every[own]

    return {
        "rollout": jax.tree.map(rows, rollout),
        "obs": after.obs[own],
        "episode": after.episode[own],
        "t": after.t,
    }
