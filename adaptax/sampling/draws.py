"""The host's side of iterations within a program: what it draws for them and counts of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from adaptax.core.errors import check
from adaptax.core.rng import path_words, stream_root
from adaptax.envs.env import Env, TaskArrays
from adaptax.envs.pools.compiled import tasks_as_arrays
from adaptax.envs.task import Task, TaskDistribution
from adaptax.sampling.compiled_engine import slot_fault
from adaptax.sampling.in_program import NO_FAULT, Draw, Outcome, Plan, blank_draw
from adaptax.sampling.statistics import Ended, Unfinished, ended_episodes, episode_returns


@dataclass(frozen=True)
class Planned:
    """What one call of a plan is to run."""

    tasks: tuple[Task, ...]
    """M tasks."""
    number: int | None
    """Number of the call, from which its draws follow; None where it goes on from the last."""


@dataclass(frozen=True)
class Drawn:
    """What K iterations of C cycles each draw."""

    plan: Plan
    num_cycles: int
    rows: tuple[tuple[Planned, ...], ...]
    """[K * C] cycles' calls."""

    @property
    def num_iterations(self) -> int:
        """K."""
        return len(self.rows) // self.num_cycles


@dataclass(frozen=True)
class Counted:
    """What an iteration did."""

    num_steps: int
    num_episodes: int
    ended: tuple[Ended, ...]


def example_tasks(env: Env, tasks: TaskDistribution) -> TaskArrays:
    """Parameters of a few tasks [K, ...], of the types that all tasks have.

    Of listed tasks some are of every type that there is: integers beside numbers are numbers.
    """
    listed = tasks.tasks
    if listed is None:
        some = tasks.sample(np.random.default_rng(0), 16)
    else:
        some = (*listed[:64], *{_types(task): task for task in reversed(listed)}.values())
    return tasks_as_arrays(env, some)[0]


def _types(task: Task) -> tuple[Any, ...]:
    """The types of a task's parameters."""
    return tuple(getattr(x, "dtype", type(x)) for x in jax.tree.leaves(task.params))


def stacked_draws(
    env: Env, stream: tuple[int, str], drawn: Drawn, like: TaskArrays
) -> tuple[tuple[Draw, ...], list[Any]]:
    """Draws [K, C, ...] for every call of the plan, and what must be kept alive during their use.

    Parameters of tasks come in the types of `like`.
    """
    owners: list[Any] = []
    shape = (drawn.num_iterations, drawn.num_cycles)

    def stack(number: int) -> Draw:
        call = drawn.plan.calls[number]
        blank = blank_draw(like, len(call.tasks))
        whole: Draw = jax.tree.map(lambda x: np.zeros((len(drawn.rows), *x.shape), x.dtype), blank)
        planned = [row[number] for row in drawn.rows]
        numbers = {i: each.number for i, each in enumerate(planned) if each.number is not None}
        if numbers:
            places = list(numbers)
            tasks = [task for i in places for task in planned[i].tasks]
            arrays, models = tasks_as_arrays(env, tasks)
            owners.append(models)
            for name, x in arrays.items():
                whole.tasks[name][places] = _typed(name, x, like).reshape(
                    len(places), len(call.tasks), *x.shape[1:]
                )
            whole.fresh[places] = True
            for i, counter in numbers.items():
                whole.root[i] = stream_root(*stream, "episodes", counter)
                whole.words[i] = path_words(*stream, "actions", counter)
        by_cycle: Draw = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), whole)
        return by_cycle

    return tuple(stack(i) for i in range(len(drawn.plan.calls))), owners


def _typed(name: str, x: np.ndarray, like: TaskArrays) -> np.ndarray:
    kinds = x.dtype.kind, like[name].dtype.kind
    check(
        kinds != ("f", "i"),
        f"some tasks have an integer as their parameter {name!r}, others {x.flat[0]}: "
        "make all of them floating-point numbers",
    )
    return x.astype(like[name].dtype)


def raise_fault(drawn: Drawn, outcomes: Sequence[Outcome]) -> None:
    """Raise the first fault that there was, if there was one."""
    found = []
    for call, outcome in enumerate(outcomes):
        faults = outcome.fault.reshape(len(drawn.rows), 3)
        found += [(row, call) for row in np.flatnonzero(faults[:, 0] != NO_FAULT)[:1]]
    if found:
        row, call = min(found)
        fault = outcomes[call].fault.reshape(len(drawn.rows), 3)[row]
        raise slot_fault(fault, drawn.rows[row][call].tasks, drawn.plan.calls[call].shape)


def counted_episodes(
    drawn: Drawn, outcomes: Sequence[Outcome], unfinished: Unfinished | None
) -> tuple[list[Counted], Unfinished | None]:
    """What each iteration did, and the episodes that `steps` leaves under way.

    `unfinished` are those under way before; None, of either, where there are none. Rewards are
    summed call by call, from what the program had until then: how many calls are counted at once
    changes no bit.
    """
    num, cycles = drawn.num_iterations, drawn.num_cycles
    steps, episodes = np.zeros(num, np.int64), np.zeros(num, np.int64)
    ended: list[list[Ended]] = [[] for _ in range(num)]
    for number, (call, outcome) in enumerate(zip(drawn.plan.calls, outcomes, strict=True)):
        steps += outcome.valid.reshape(num, -1).sum(1)
        episodes += outcome.ended.reshape(num, -1).sum(1)
        arrays = {k: getattr(outcome, k) for k in ("reward", "ended", "valid", "success")}
        rows = {
            k: None if x is None else x.reshape(len(drawn.rows), *x.shape[2:])
            for k, x in arrays.items()
        }
        before = outcome.reward_sum.reshape(len(drawn.rows), *call.shape)
        rows["returns"] = episode_returns(rows, before)
        for first, stop in _stretches(drawn, number):
            tasks, length = drawn.rows[first][number].tasks, call.num_steps
            if drawn.rows[first][number].number is not None or unfinished is None:
                unfinished = Unfinished.fresh(call.shape)
            in_a_row = {k: None if x is None else _in_a_row(x[first:stop]) for k, x in rows.items()}
            some, unfinished = ended_episodes(tasks, in_a_row, unfinished)
            for k in range(first // cycles, (stop - 1) // cycles + 1):
                begin, end = (x * cycles - first for x in (k, k + 1))
                own = some.between(begin * length, end * length)
                if len(own.returns):
                    ended[k].append(own)
        if call.num_episodes is not None:
            unfinished = None
    each = zip(steps.tolist(), episodes.tolist(), ended, strict=True)
    return [Counted(s, e, tuple(some)) for s, e, some in each], unfinished


def _stretches(drawn: Drawn, number: int) -> list[tuple[int, int]]:
    """Rows of one call from the first to before the second, in which each goes on with the last."""
    rows = [row[number].number for row in drawn.rows]
    starts = [i for i, fresh in enumerate(rows) if i == 0 or fresh is not None]
    return list(zip(starts, [*starts[1:], len(rows)], strict=True))


def _in_a_row(x: np.ndarray) -> np.ndarray:
    """[R, M, N, T] as [M, N, R * T]."""
    return np.moveaxis(x, 0, 2).reshape(*x.shape[1:3], -1)
