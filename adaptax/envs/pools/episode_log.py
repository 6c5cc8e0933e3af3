"""Every slot's episode: its task, its seed and its actions, enough to play it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from adaptax.core.errors import EnvironmentFault
from adaptax.core.experience import PyTree
from adaptax.core.spec import EnvSpec
from adaptax.envs.pools.pool import Pool, Slots, check_saved_form, idle
from adaptax.envs.task import Task

_SAVED = ("seeds", "actions", "num_steps", "running", "obs")


class EpisodeLog(Slots):
    """What a pool keeps whose environments cannot tell their state.

    An episode is a function of (environment, task, seed, actions), so seed and actions stand for
    the state. The format does not tell pools apart: what one saved, another can play again.
    """

    def __init__(self, spec: EnvSpec, num_slots: int) -> None:
        super().__init__(num_slots)
        self.horizon = spec.horizon
        self.seeds = np.zeros(num_slots, np.uint32)
        # Grows with the episodes: most horizons are longer than them, some than any memory.
        self.actions = np.zeros((num_slots, 0, *spec.action.shape), np.dtype(spec.action.dtype))
        self.obs = np.zeros((num_slots, spec.observation_size), np.float32)

    def announce(self, slots: np.ndarray, tasks: Sequence[Task]) -> None:
        """Episodes on `tasks` are about to begin in `slots`."""
        for slot, task in zip(slots.tolist(), tasks, strict=True):
            self.tasks[slot] = task
        self.num_steps[slots], self.running[slots], self.actions[slots] = 0, False, 0

    def begin(self, slots: Any, seeds: Any, obs: np.ndarray) -> None:
        """The announced episodes have begun in `slots`, an index or several."""
        self.seeds[slots], self.obs[slots], self.running[slots] = seeds, obs, True

    def add(self, slots: Any, actions: np.ndarray, obs: np.ndarray, ended: Any) -> None:
        """`slots`, an index or several, have acted."""
        if self.num_steps.max() >= self.actions.shape[1]:
            num_slots, _, *action = self.actions.shape
            room = np.zeros((num_slots, self.num_steps.max() + 1, *action), self.actions.dtype)
            self.actions = np.concatenate([self.actions, room], axis=1)
        self.actions[slots, self.num_steps[slots]] = actions
        self.num_steps[slots] += 1
        self.obs[slots], self.running[slots] = obs, np.logical_not(ended)

    def save(self) -> PyTree:
        """Seeds, actions, counts and last observations, each [P, ...]; actions so far only."""
        kept = {name: getattr(self, name) for name in _SAVED}
        kept["actions"] = self.actions[:, : self.num_steps.max()]
        return {name: array.copy() for name, array in kept.items()}

    def play(
        self,
        saved: PyTree,
        pool: Pool,
        tasks: Sequence[Task],
        at_work: Callable[[], None] = idle,
    ) -> None:
        """Bring `pool`, which keeps this log, to where `save` stood; `tasks` are of the P slots."""
        check_saved_form(saved, played=True)
        shape, (num_slots, _, *action) = np.shape(saved["actions"]), self.actions.shape
        fits = len(shape) > 1 and shape == (num_slots, shape[1], *action)
        if not fits or not np.max(saved["num_steps"]) <= shape[1] <= self.horizon:
            raise EnvironmentFault(
                f"the saved actions have shape {shape}; this pool of {num_slots} slots takes "
                f"{(num_slots, '...', *action)}, every step and at most {self.horizon}"
            )
        every = np.arange(num_slots)
        self.announce(every, tasks)
        self.actions = np.zeros_like(self.actions, shape=shape)
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
