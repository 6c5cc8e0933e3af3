"""The loop for a RayPool: each Ray actor interacts in its own lanes for a whole call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from adaptax.core.experience import Rollout, Step
from adaptax.core.spec import EnvSpec
from adaptax.envs.pools.pool import Pool
from adaptax.envs.pools.ray import RayPool
from adaptax.envs.task import Task
from adaptax.sampling.actors import Actor
from adaptax.sampling.host_engine import Cursor, host_loop


def ray_loop(
    pool: RayPool, actor: Actor, cursor: Cursor, num_steps: int, num_episodes: int | None
) -> tuple[Rollout, Cursor]:
    """The same contract and, bit for bit, the same data as the host loop."""
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
    pool: Pool,
    slots: np.ndarray,
    actor: Actor,
    cursor: Cursor,
    num_steps: int,
    num_episodes: int | None,
) -> dict[str, Any]:
    """In a Ray actor: the rows of its own slots [K, ...] of what the host loop gives."""
    part: Any = _Part(pool, int(slots[0]))
    rollout, after = host_loop(part, actor, cursor, num_steps, num_episodes, slots)

    def own(x: Any) -> np.ndarray:
        rows: np.ndarray = np.asarray(x).reshape(cursor.num_slots, *x.shape[2:])[slots]
        return rows

    return {
        "rollout": jax.tree.map(own, rollout),
        "obs": after.obs[slots],
        "episode": after.episode[slots],
        "t": after.t,
    }


@dataclass(frozen=True)
class _Part:
    """A pool whose slots are numbered as in the whole that it is a part of."""

    pool: Pool
    first: int

    @property
    def spec(self) -> EnvSpec:
        return self.pool.spec

    def reset(self, slots: np.ndarray, seeds: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
        """Start an episode in each of K slots."""
        return self.pool.reset(slots - self.first, seeds, tasks)

    def step(self, slots: np.ndarray, actions: np.ndarray) -> Step:
        """Act in K slots."""
        return self.pool.step(slots - self.first, actions)
