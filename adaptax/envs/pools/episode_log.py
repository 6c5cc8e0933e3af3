"""Every slot's episode: its task, its seed and its actions, enough to play it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adaptax.core.errors import EnvironmentFault
from adaptax.core.experience import PyTree
from adaptax.core.spec import EnvSpec
from adaptax.envs.pools.pool import Pool, Slots, idle
from adaptax.envs.task import Task

_SAVED = ("seeds", "actions", "num_steps", "running", "obs")


class EpisodeLog(Slots):
    """What a pool keeps whose environments cannot tell their state.

    An episode is a function of (environment, task, seed, actions), so seed and actions stand for
    the state. The format does not tell pools apart: what one saved, another can play again.
    """

    def __init__(self, spec: EnvSpec, num_slots: int) -> None:
        super().__init__(num_slots)
        self.seeds = np.zeros(num_slots, np.uint32)
        self.actions = np.zeros(
            (num_slots, spec.horizon, *spec.action.shape), np.dtype(spec.action.dtype)
        )
        self.obs = np.zeros((num_slots, spec.observation_size), np.float32)

    def announce(self, slots: np.ndarray, tasks: Sequence[Task]) -> None:
        """Episodes on `tasks` are about to begin in `slots`."""
        for slot, task in zip(slots.tolist(), tasks, strict=True):
            self.tasks[slot] = task
        self.num_steps[slots], self.running[slots] = 0, False

    def begin(self, slots: Any, seeds: Any, obs: np.ndarray) -> None:
        """The announced episodes have begun in `slots`, an index or several."""
        self.seeds[slots], self.obs[slots], self.running[slots] = seeds, obs, True

    def add(self, slots: Any, actions: np.ndarray, obs: np.ndarray, ended: Any) -> None:
        """`slots`, an index or several, have acted."""
        self.actions[slots, self.num_steps[slots]] = actions
        self.num_steps[slots] += 1
        self.obs[slots], self.running[slots] = obs, np.logical_not(ended)

    def save(self) -> PyTree:
        """Seeds, actions, counts and last observations, each [P, ...]."""
        return {name: getattr(self, name).copy() for name in _SAVED}

    def play(
        self,
        saved: PyTree,
        pool: Pool,
        tasks: Sequence[Task],
        at_work: Callable[[], None] = idle,
    ) -> None:
        """Bring `pool`, which keeps this log, to where `save` stood; `tasks` are of the P slots."""
        if np.shape(saved["actions"]) != self.actions.shape:
            raise EnvironmentFault(
                f"the saved actions have shape {np.shape(saved['actions'])}; "
                f"this pool of {len(self.seeds)} slots takes {self.actions.shape}"
            )
        every = np.arange(len(self.seeds))
        self.announce(every, tasks)
        for name in _SAVED:
            getattr(self, name)[:] = saved[name]
        self.running[:] = False
        problem = (
            "the saved episode, played again, led elsewhere: "
            "the environment is not deterministic given its seed"
        )
        lengths = np.where(saved["running"], saved["num_steps"], -1)
        # All arrive together, the longest episode first on its way: some pools step every slot.
        for left in range(lengths.max(), -1, -1):
            fresh, going = np.flatnonzero(lengths == left), np.flatnonzero(lengths >= left)
            at_work()
            if len(fresh):
                pool.reset(fresh, saved["seeds"][fresh], [tasks[slot] for slot in fresh.tolist()])
            if left:
                pool.step(going, saved["actions"][going, lengths[going] - left])
            self.require(self.running[going], going, problem)
        self.require((self.obs == saved["obs"]).all(axis=1), every, problem)
