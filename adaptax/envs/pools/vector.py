"""Gymnasium vector environments as pools, whatever they do with a lane that has ended.

Most can reset a single lane on request: SyncVectorEnv, AsyncVectorEnv, and every one whose
autoreset mode is DISABLED. VectorPool runs these, with the data of GymPool. All others reset a lane
on their own, on the step that ended it (SAME_STEP) or in place of the next one (NEXT_STEP);
AutoresetPool runs these, and episodes have the environment's own seeds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from gymnasium.vector import AutoresetMode

from adaptax.core.errors import EnvironmentFault
from adaptax.core.spec import EnvSpec
from adaptax.core.step import Step, ends
from adaptax.envs.pools.episode_log import EpisodeLog
from adaptax.envs.pools.gym import NOT_BY_EVERY_STEP
from adaptax.envs.pools.pool import Pool, check_actions, check_reset, close_quietly, idle
from adaptax.envs.pools.vector_lanes import MakeVec, VectorLanes
from adaptax.envs.task import Task

if TYPE_CHECKING:
    from adaptax.core.experience import PyTree


def vector_pool(make_vec: MakeVec, spec: EnvSpec, num_slots: int) -> Pool:
    """The pool for what this vector environment can do."""
    lanes = VectorLanes(make_vec, num_slots)
    return VectorPool(lanes, spec) if lanes.can_reset_one else AutoresetPool(lanes, spec)


class VectorPool:
    """P lanes that step together and are reset one by one, each from its own seed.

    A step acts in all slots whose episode runs; the others idle. A reset on request comes before
    the environment's own, so that no step is spent on one; only in mode SAME_STEP must the
    environment bear a reset without options.
    """

    def __init__(self, lanes: VectorLanes, spec: EnvSpec) -> None:
        self.spec, self.num_slots = spec, lanes.vec.num_envs
        self._lanes, self._log = lanes, EpisodeLog(spec, self.num_slots)
        self._begun = False
        self._unfit = np.zeros(self.num_slots, bool)
        """Lanes that must not even idle before a reset."""

    def reset(self, slots: np.ndarray, seeds: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
        """Start an episode in each of K slots; gives obs [K, O]."""
        self._log.announce(slots, tasks)
        if not self._begun:  # only then can lanes be reset one by one
            self._lanes.reset_all(0, tasks[0])
            self._begun = True
        obs = self._lanes.reset(slots, seeds, tasks)
        _require_finite(self._log, slots, obs)
        self._log.begin(slots, seeds, obs)
        self._unfit[slots] = False
        return obs

    def step(self, slots: np.ndarray, actions: np.ndarray) -> Step:
        """Act in the K slots whose episode runs; actions [K, *A]."""
        every = _every_action(self.spec, self._log, slots, actions)
        unfit = np.flatnonzero(self._unfit)
        if len(unfit):
            acting = self._log.tasks[slots[0]]
            assert acting is not None
            tasks = [self._log.tasks[slot] or acting for slot in unfit]
            self._lanes.reset(unfit, self._log.seeds[unfit], tasks)
        step, _ = _act(self._lanes, self._log, slots, every)
        self._unfit = step.terminated | step.truncated
        return _in_slots(self.spec, self._log, slots, every, step)

    def save(self) -> PyTree:
        """The seed, the actions and the last observation of each slot's episode, each [P, ...]."""
        return self._log.save()

    def restore(
        self, saved: PyTree, tasks: Sequence[Task], at_work: Callable[[], None] = idle
    ) -> None:
        """Play the running episodes again up to where `save` stood; `tasks` are of the P slots."""
        self._log.play(saved, self, tasks, at_work)

    def close(self) -> None:
        """Close the environments."""
        close_quietly(self._lanes.vec)


class AutoresetPool:
    """P lanes of a vector environment that alone decides when and how it resets a lane.

    A reset of all slots at once takes the first slot's seed for the whole environment. Any other
    is the environment's own: only a lane that has just ended can have it, on the task it had, and
    its seed is ignored. In mode NEXT_STEP it takes the lane's next step (`Step.valid`).
    """

    def __init__(self, lanes: VectorLanes, spec: EnvSpec) -> None:
        self.spec, self.num_slots = spec, lanes.vec.num_envs
        self._lanes, self._log = lanes, EpisodeLog(spec, self.num_slots)
        self._seed = 0
        self._history: list[np.ndarray] = []
        """All lanes' actions since they were reset together, each [k, P, *A]: what save keeps."""
        self._obs = np.zeros((self.num_slots, spec.observation_size), np.float32)
        self._ended = np.zeros(self.num_slots, bool)
        """Lanes that the last step ended; in mode NEXT_STEP the next one is spent on a reset."""

    def reset(self, slots: np.ndarray, seeds: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
        """Start an episode in each of K slots; gives obs [K, O], the last one where it waits."""
        check_reset(slots, seeds, tasks)
        if len(slots) == self.num_slots:
            return self._reset_all(int(seeds[0]), tasks)
        same = [
            task.same_as(self._log.tasks[slot]) for slot, task in zip(slots, tasks, strict=True)
        ]
        self._log.require(np.array(same), slots, "this vector environment cannot change its task")
        self._log.require(
            self._ended[slots],
            slots,
            f"cut at the horizon of {self.spec.horizon} steps, but this vector environment resets "
            "a lane only where it has ended the episode itself: give it the same time limit",
        )
        self._log.announce(slots, tasks)
        self._log.begin(slots, seeds, self._obs[slots])
        obs: np.ndarray = self._obs[slots]
        return obs

    def step(self, slots: np.ndarray, actions: np.ndarray) -> Step:
        """Act in the K slots whose episode runs; actions [K, *A]."""
        every = _every_action(self.spec, self._log, slots, actions)
        step, acted = self._advance(slots, every)
        valid = None if acted[slots].all() else acted[slots]
        return _in_slots(self.spec, self._log, slots, every, step, valid)

    def save(self) -> PyTree:
        """One seed and every action since: the lanes share what they draw from."""
        history = np.zeros((1, self.num_slots, *self.spec.action.shape), self.spec.action.dtype)
        num_actions = sum(map(len, self._history))
        if self._history:
            history = np.concatenate(self._history)
            self._history = [history]  # so that the next call has few to join
        return {
            "seed": self._seed,
            "num_actions": num_actions,
            "history": history,
            "obs": self._obs.copy(),
            "num_steps": self._log.num_steps.copy(),
            "running": self._log.running.copy(),
        }

    def restore(
        self, saved: PyTree, tasks: Sequence[Task], at_work: Callable[[], None] = idle
    ) -> None:
        """Play everything again since all lanes were reset; `tasks` are of the P slots."""
        every = np.arange(self.num_slots)
        self._reset_all(int(saved["seed"]), tasks)
        for actions in saved["history"][: int(saved["num_actions"])]:
            at_work()
            self._advance(every, actions)
        same = (self._obs == saved["obs"]).all(axis=1)
        self._log.require(same, every, "what was saved, played again, led elsewhere")
        self._log.num_steps[:], self._log.running[:] = saved["num_steps"], saved["running"]

    def close(self) -> None:
        """Close the environments."""
        close_quietly(self._lanes.vec)

    def _reset_all(self, seed: int, tasks: Sequence[Task]) -> np.ndarray:
        every = np.arange(self.num_slots)
        if not all(task.same_as(tasks[0]) for task in tasks):
            raise EnvironmentFault("this vector environment takes one task for all its lanes")
        self._log.announce(every, tasks)
        self._seed, self._history = seed, []
        self._obs = self._lanes.reset_all(seed, tasks[0])
        _require_finite(self._log, every, self._obs)
        self._log.begin(every, seed, self._obs)
        self._ended[:] = False
        return self._obs.copy()

    def _advance(self, slots: np.ndarray, every: np.ndarray) -> tuple[Step, np.ndarray]:
        """A step of all lanes, and which of them [P] acted; the others were reset in it."""
        acted = ~self._ended | (self._lanes.mode is not AutoresetMode.NEXT_STEP)
        self._history.append(every[None])
        step, self._obs = _act(self._lanes, self._log, slots, every, acted)
        self._ended = step.terminated | step.truncated
        return step, acted


def _require_finite(log: EpisodeLog, slots: np.ndarray, obs: np.ndarray) -> None:
    log.require_finite(obs, slots, "the observation after the reset")


def _every_action(
    spec: EnvSpec, log: EpisodeLog, slots: np.ndarray, actions: np.ndarray
) -> np.ndarray:
    """The actions of all lanes [P, *A], zero in those that idle.

    All lanes step at once, so that one which is left out goes on without an account of it: its
    episode is over for us.
    """
    check_actions(spec, actions, len(slots))
    log.require(log.running[slots], slots, "no running episode: reset it first")
    log.running[np.setdiff1d(np.arange(len(log.running)), slots)] = False
    every = np.zeros((len(log.running), *spec.action.shape), spec.action.dtype)
    every[slots] = actions
    return every


def _act(
    lanes: VectorLanes,
    log: EpisodeLog,
    slots: np.ndarray,
    every: np.ndarray,
    acted: np.ndarray | None = None,
) -> tuple[Step, np.ndarray]:
    """What `lanes.step` gives; in `slots` it must be finite.

    Where lanes have not `acted` [P], whatever is told beside `next_obs` is of no episode; by
    default all have.
    """
    native = []
    for slot, action in enumerate(every):
        try:
            native.append(lanes.decode(action))
        except ValueError as error:
            raise log.fault(slot, str(error)) from error
    step, obs = lanes.step(native)
    if acted is not None:
        step = replace(
            step,
            reward=np.where(acted, step.reward, np.float32(0)),
            terminated=step.terminated & acted,
            truncated=step.truncated & acted,
        )
    log.require_finite(step.next_obs[slots], slots, "the observation")
    log.require_finite(step.reward[slots], slots, "the reward")
    return step, obs


def _in_slots(
    spec: EnvSpec,
    log: EpisodeLog,
    slots: np.ndarray,
    every: np.ndarray,
    step: Step,
    valid: np.ndarray | None = None,
) -> Step:
    """The step of all lanes in `slots`, with the time limit, and on record where they acted."""
    acted = np.ones(len(slots), bool) if valid is None else valid
    last = acted & (log.num_steps[slots] + 1 >= spec.horizon)
    terminated, truncated = ends(spec, step.terminated[slots], step.truncated[slots], last)
    next_obs, ended = step.next_obs[slots], terminated | truncated
    log.add(slots[acted], every[slots[acted]], next_obs[acted], ended[acted])
    info = {}
    if spec.has_success:
        info["success"] = step.info.get("success", np.zeros_like(log.running))[slots]
    elif "success" in step.info:
        warnings.warn(NOT_BY_EVERY_STEP, stacklevel=2)
    return Step(
        reward=step.reward[slots],
        next_obs=next_obs,
        terminated=terminated,
        truncated=truncated,
        valid=valid,
        info=info,
    )
