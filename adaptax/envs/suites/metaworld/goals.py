"""The goals of Meta-World's benchmarks, found again from their seed.

Meta-World draws goals by running each class's reset 50 times on one generator, and hands them
out pickled. What it draws does not depend on the physics in between, so that here the arm stays
where it is and the vectors themselves are the tasks (tests/envs/test_metaworld_goals.py compares
them with the benchmarks').
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
from metaworld.env_dict import ALL_V3_ENVIRONMENTS

from adaptax.core.errors import check

NUM_GOALS = 50
"""Goals of each class in Meta-World's benchmarks."""


def benchmark_goals(names: Sequence[str], seed: int) -> dict[str, np.ndarray]:
    """The goals [50, D] of each class as a benchmark with these classes draws them."""
    generator = np.random.RandomState(seed)  # Meta-World's global one, but apart
    return {name: _draw(ALL_V3_ENVIRONMENTS[name], generator) for name in names}


def _draw(original: type[Any], generator: np.random.RandomState) -> np.ndarray:
    """The goals [50, D] of one class."""

    def draw(env: Any) -> np.ndarray:
        space = env._random_reset_space
        env._last_rand_vec = generator.uniform(space.low, space.high, size=space.low.size)
        return np.asarray(env._last_rand_vec)

    def keep_still(env: Any, steps: int = 50) -> None:
        mujoco.mj_forward(env.model, env.data)
        env.init_tcp = env.tcp_center

    changed = {"_get_state_rand_vec": draw, "_reset_hand": keep_still}
    env = type(original.__name__, (original,), changed)()
    env._set_task_called = True
    goals = []
    for _ in range(NUM_GOALS):
        env.reset()
        goals.append(np.array(env._last_rand_vec))
    env.close()
    distinct = len(np.unique(np.array(goals), axis=0))
    check(distinct == NUM_GOALS, f"{original.__name__} drew only {distinct} distinct goals")
    return np.array(goals)
