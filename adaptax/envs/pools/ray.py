"""RayPool: a pool in each of several Ray actors, on one machine or on many.

`run` sends a piece of work to where the environments are, so that a sampler sends policy and tasks
once for a whole rollout and not once a step. What an actor does in a call is a function of the
call and of the state that its pool was left in; each call brings that state back. So if an actor
is lost, with its machine or without, another takes up the state and does the call again: the data
are the same, bit for bit, as if nothing had happened.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from adaptax.core.errors import ConfigError, EnvironmentFault, check, one_line
from adaptax.core.experience import PyTree, Step
from adaptax.core.spec import EnvSpec
from adaptax.envs.pools.pool import Pool, check_actions, check_reset, closed_on_error
from adaptax.envs.pools.ray_crew import MakePool, RayCrew, Work
from adaptax.envs.pools.remote_fault import FaultReport
from adaptax.envs.task import Task

MAX_ATTEMPTS = 3
"""Actors that may be lost one after another in one call before it counts as its own fault."""


class _Lost(EnvironmentFault):
    """An actor that died, or whose answer did."""


@dataclass
class _Part:
    """The slots that one actor hosts."""

    actor: int
    slots: np.ndarray
    """In a row."""
    state: PyTree = None
    """What its pool saved at the end of the last call; None before the first."""

    @property
    def name(self) -> str:
        return f"Ray actor {self.actor} (slots {self.slots[0]} to {self.slots[-1]})"


class RayPool:
    """P slots shared out to the actors of `crew`, each with a pool made by `make_pool`.

    Where none of the actors that owe an answer, to a whole rollout for example, has given one
    within `timeout` seconds, that is an EnvironmentFault.
    """

    def __init__(
        self,
        make_pool: MakePool,
        spec: EnvSpec,
        crew: RayCrew,
        num_slots: int,
        timeout: float = 1800.0,
    ) -> None:
        check(num_slots > 0, f"num_slots must be greater than 0, not {num_slots}")
        self._timeout = timeout
        self.spec, self.num_slots = spec, num_slots
        self._make_pool, self._crew = make_pool, crew
        self._tasks: list[Task | None] = [None] * num_slots
        split = np.array_split(np.arange(num_slots), min(crew.num_actors, num_slots))
        self._parts = [_Part(actor, slots) for actor, slots in enumerate(split)]
        self._key = crew.enter()
        self._end = weakref.finalize(self, crew.leave, self._key)
        with closed_on_error(self):
            making = [self._make(part) for part in self._parts]
            for part, ref in zip(self._parts, making, strict=True):
                self._answer(part, ref)

    def run(self, work: Work, *args: Any) -> list[Any]:
        """`work(pool, slots, *args)` in every actor; `slots` are its pool's among all P.

        `args` travel once to every machine.
        """
        shared = self._crew.ray.put(args)
        return self._collect({part.actor: (work, part.slots, shared) for part in self._parts})

    def reset(self, slots: np.ndarray, seeds: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
        """Start an episode in each of K slots; gives obs [K, O]."""
        check_reset(slots, seeds, tasks)
        jobs, places = {}, self._places(slots)
        for actor, which in places.items():
            more = (slots[which], seeds[which], [tasks[i] for i in which])
            jobs[actor] = (_reset, self._parts[actor].slots, more)
        obs = np.zeros((len(slots), self.spec.observation_size), np.float32)
        for which, rows in zip(places.values(), self._collect(jobs), strict=True):
            obs[which] = rows
        for slot, task in zip(slots.tolist(), tasks, strict=True):
            self._tasks[slot] = task
        return obs

    def step(self, slots: np.ndarray, actions: np.ndarray) -> Step:
        """Act in K slots, at the price of a call to each actor: `run` does better."""
        check_actions(self.spec, actions, len(slots))
        jobs, places = {}, self._places(slots)
        for actor, which in places.items():
            jobs[actor] = (_step, self._parts[actor].slots, (slots[which], actions[which]))
        back = np.argsort(np.concatenate(list(places.values())))
        step: Step = jax.tree.map(lambda *rows: np.concatenate(rows)[back], *self._collect(jobs))
        return step

    def save(self) -> PyTree:
        """The state of all slots: what the actors' pools saved, one below the other."""
        return jax.tree.map(lambda *rows: np.concatenate(rows), *(p.state for p in self._parts))

    def restore(self, saved: PyTree, tasks: Sequence[Task]) -> None:
        """Go on exactly where `save` stood; `tasks` are of the P slots."""
        jobs = {}
        for part in self._parts:
            rows = jax.tree.map(lambda x, slots=part.slots: np.asarray(x)[slots], saved)
            jobs[part.actor] = (_restore, part.slots, (rows, [tasks[i] for i in part.slots]))
        self._collect(jobs)
        self._tasks[:] = tasks

    def close(self) -> None:
        """Close the actors' pools; the last pool of a crew ends its actors."""
        self._end()

    def _places(self, slots: np.ndarray) -> dict[int, np.ndarray]:
        """By actor, the places in `slots` of those that it hosts."""
        found = {part.actor: np.flatnonzero(np.isin(slots, part.slots)) for part in self._parts}
        return {actor: which for actor, which in found.items() if len(which)}

    def _collect(self, jobs: dict[int, tuple[Any, ...]]) -> list[Any]:
        """What each job of an actor gives; the first fault is raised as soon as it is known."""
        if not self._end.alive:
            raise EnvironmentFault("this pool is closed")
        ray, results, losses = self._crew.ray, {}, dict.fromkeys(jobs, 0)
        with closed_on_error(self):
            pending = {self._send(actor, jobs[actor]): actor for actor in jobs}
            while pending:
                ready = ray.wait(list(pending), timeout=self._timeout)[0]
                if not ready:
                    name = self._parts[next(iter(pending.values()))].name
                    raise EnvironmentFault(f"{name} has not answered within {self._timeout:g} s")
                ref = ready[0]
                part = self._parts[pending.pop(ref)]
                try:
                    answer = self._answer(part, ref)
                    if answer is None:  # this actor has taken the place of one that was lost
                        self._answer(part, self._make(part))
                except _Lost as loss:
                    losses[part.actor] += 1
                    if losses[part.actor] == MAX_ATTEMPTS:
                        raise EnvironmentFault(f"{loss}, {MAX_ATTEMPTS} times in a call") from loss
                    self._crew.replace(part.actor)
                    answer = None
                if answer is None:
                    pending[self._send(part.actor, jobs[part.actor])] = part.actor
                else:
                    results[part.actor], part.state = answer
        return [results[actor] for actor in jobs]

    def _send(self, actor: int, job: tuple[Any, ...]) -> Any:
        return self._crew.actors[actor].run.remote(self._key, *job)

    def _answer(self, part: _Part, ref: Any) -> Any:
        """What an actor has answered; None where it knows nothing of this pool."""
        errors = self._crew.ray.exceptions
        try:
            answer = self._crew.ray.get(ref)
        except (errors.RayActorError, errors.ObjectLostError) as error:
            raise _Lost(f"{part.name} was lost") from error
        except errors.RayError as error:
            cause = getattr(error, "cause", None) or error
            problem = f"{part.name} cannot begin: {str(cause).splitlines()[0]}"
            raise EnvironmentFault(problem) from error
        if isinstance(answer, FaultReport):
            answer.raise_here(part.name, int(part.slots[0]))
        return answer

    def _make(self, part: _Part) -> Any:
        """Have an actor make its pool, in the state of its last answer."""
        tasks = [self._tasks[i] for i in part.slots]
        job = (self._key, self._make_pool, len(part.slots), part.state, tasks)
        try:
            return self._crew.actors[part.actor].make.remote(*job)
        except TypeError as error:
            problem = f"the environment cannot be sent to a Ray actor: {one_line(error)}"
            raise ConfigError(problem) from error


def _reset(
    pool: Pool, own: np.ndarray, slots: np.ndarray, seeds: np.ndarray, tasks: Sequence[Task]
) -> np.ndarray:
    return pool.reset(slots - own[0], seeds, tasks)


def _step(pool: Pool, own: np.ndarray, slots: np.ndarray, actions: np.ndarray) -> Step:
    return pool.step(slots - own[0], actions)


def _restore(pool: Pool, own: np.ndarray, saved: PyTree, tasks: Sequence[Task]) -> None:
    pool.restore(saved, tasks)
