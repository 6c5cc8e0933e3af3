"""The loop for a WorkerPool: each worker interacts in its own lanes for a whole call."""

from __future__ import annotations

import jax

from adaptax.core.experience import Rollout
from adaptax.envs.pools.workers import Share, WorkerPool
from adaptax.sampling.actors import Actor
from adaptax.sampling.host_engine import Cursor, PartialRollout, interact, joined


def worker_loop(
    pool: WorkerPool, actor: Actor, cursor: Cursor, num_steps: int, num_episodes: int | None
) -> tuple[Rollout, Cursor]:
    """The same contract and, bit for bit, the same data as the host loop."""
    actor, cursor.carry = jax.device_get((actor, cursor.carry))
    return joined(cursor, pool.run(_interact, actor, cursor, num_steps, num_episodes))


def _interact(
    share: Share, actor: Actor, cursor: Cursor, num_steps: int, num_episodes: int | None
) -> PartialRollout:
    """In a worker: what comes of its own lanes."""
    return interact(share, actor, cursor, num_steps, num_episodes, share.slots)
