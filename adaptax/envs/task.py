"""Tasks and where they come from."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from adaptax.core.errors import ConfigError, check, one_line
from adaptax.core.spec import check_task_count

Params = Mapping[str, Any]
Value = int | float | str | np.ndarray
"""What may stand for {"value": it}."""
MOST_LISTED = 10**6
"""Tasks of a list; more than are drawn in seconds, and than anybody evaluates on."""


@dataclass(frozen=True)
class Task:
    """One task: its name, index in its distribution (-1 if not listed) and plain parameters."""

    name: str
    index: int
    params: Params
    """Numbers, strings and arrays only: always serialisable, never code."""

    @property
    def class_name(self) -> str | None:
        """What kind of task it is, where it has a parameter `class`; figures come by it too."""
        name = self.params.get("class")
        return None if name is None else str(name)

    def same_as(self, other: Task | None) -> bool:
        """Whether another task is the same, arrays and lists of the same numbers being alike."""
        return self is other or (other is not None and self.plain() == other.plain())

    def plain(self) -> list[Any]:
        """Name, index and parameters as JSON values."""
        params = {name: np.asarray(value).tolist() for name, value in self.params.items()}
        return [self.name, self.index, params]


def plain_params(name: str, params: Params | Value) -> dict[str, Any]:
    """A task's own parameters, of a task that is a single value {"value": it}.

    Raises a ConfigError where one is no number, string or array of them.
    """
    params = params if isinstance(params, Mapping) else {"value": params}
    for key, value in params.items():
        check(isinstance(key, str), f"task {name!r}: the parameter name {key!r} is not a string")
        array = _array(value)
        check(
            array.dtype.kind in "biufU" and array.size > 0,
            f"task {name!r}: its parameter {key!r} is a {type(value).__name__}; "
            "parameters are numbers, strings and arrays of them, not empty",
        )
        finite = array.dtype.kind != "f" or bool(np.isfinite(array).all())
        check(finite, f"task {name!r}: its parameter {key!r} is not finite")
    return copied(params)


def copied(params: Params) -> dict[str, Any]:
    """Parameters whose arrays and lists are nobody else's, so that nobody changes them in place."""
    changeable = (np.ndarray, list, tuple)  # which may hold arrays
    return {k: copy.deepcopy(v) if isinstance(v, changeable) else v for k, v in params.items()}


def _array(value: Any) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError:  # lists of different lengths
        return np.asarray(None)


@runtime_checkable
class TaskDistribution(Protocol):
    """Where tasks come from."""

    @property
    def tasks(self) -> tuple[Task, ...] | None:
        """All tasks, or None if they cannot be listed."""

    def sample(self, rng: np.random.Generator, n: int) -> tuple[Task, ...]:
        """Draw n tasks; where they are listed, every one comes once before any repeats."""


Tasks = TaskDistribution | Iterable[Params | Value]
"""What suites take: where tasks come from, or a list of them."""


class TaskList:
    """A distribution of listed tasks, drawn in random order, each once before any repeats."""

    def __init__(self, name: str, params: Iterable[Params | Value]) -> None:
        alone = isinstance(params, Mapping | str) or not isinstance(params, Iterable)
        alone = alone or (isinstance(params, np.ndarray) and params.ndim == 0)
        check(not alone, f"tasks of {name!r} must be a list of them, [{params!r}], not {params!r}")
        params = [p.params if isinstance(p, Task) else p for p in params]
        check(len(params) > 0, f"task list {name!r} is empty")
        self.tasks: tuple[Task, ...] = tuple(
            Task(f"{name}-{i}", i, plain_params(f"{name}-{i}", p)) for i, p in enumerate(params)
        )

    def sample(self, rng: np.random.Generator, n: int) -> tuple[Task, ...]:
        """Draw n tasks; where they are listed, every one comes once before any repeats."""
        size = len(self.tasks)
        rounds = [rng.permutation(size) for _ in range(-(-n // size))]
        return tuple(self.tasks[i] for i in itertools.islice(itertools.chain(*rounds), n))


def check_listable(name: str, num_tasks: int) -> None:
    """Raise where a suite's settings ask for more tasks than can be listed within seconds."""
    told = f"{name}: {num_tasks:,} tasks are too many to list; at most {MOST_LISTED:,}"
    check(num_tasks <= MOST_LISTED, told)


def drawn_list(
    name: str, draw: Callable[[np.random.Generator], Params], rng: np.random.Generator, n: int
) -> TaskList:
    """A list of n tasks, whose parameters are drawn one after another."""
    check_listable(name, n)
    return TaskList(name, [draw(rng) for _ in range(n)])


def as_tasks(name: str, given: Tasks) -> TaskDistribution:
    """Where tasks come from as it is; listed ones as a TaskList."""
    if isinstance(given, TaskDistribution) and not isinstance(given, type):
        return given
    return TaskList(name, given)  # type: ignore[arg-type]  # it says what is wrong with others


def train_and_test(
    name: str, train: Tasks | None, test: Tasks | None
) -> tuple[TaskDistribution, TaskDistribution]:
    """Training and test tasks of a suite.

    Without `train` there is one task without parameters; without `test` both are the same.
    """
    train = [{}] if train is None else train
    train_tasks = as_tasks(name if test is None else f"{name}-train", train)
    return train_tasks, train_tasks if test is None else as_tasks(f"{name}-test", test)


def one_of(tasks: TaskDistribution) -> Task:
    """A task to try an environment on: the first, if they are listed."""
    listed = tasks.tasks
    return tasks.sample(np.random.default_rng(0), 1)[0] if listed is None else listed[0]


class ClassTasks:
    """Listed tasks of several classes: drawn class by class in a fixed order, as many of each.

    The list goes through the classes too, the first task of each and then the second, so that
    any part of it that is a multiple of the classes is balanced.
    """

    def __init__(self, name: str, params: Mapping[str, Sequence[Params | Value]]) -> None:
        sizes = {len(of_class) for of_class in params.values()}
        check(len(sizes) == 1, f"{name!r} must have as many tasks of each class, not {sizes}")
        self.name, self.num_classes, (self.num_each,) = name, len(params), sizes
        self.tasks: tuple[Task, ...] = tuple(
            Task(
                f"{name}-{kind}-{i}",
                i * self.num_classes + c,
                {"class": kind, **plain_params(f"{name}-{kind}-{i}", of_class[i])},
            )
            for i in range(self.num_each)
            for c, (kind, of_class) in enumerate(params.items())
        )

    def sample(self, rng: np.random.Generator, n: int) -> tuple[Task, ...]:
        """Draw n tasks, a multiple of the classes; within each as `TaskList` does."""
        check_task_count(n, self.num_classes)
        rounds, each = n // self.num_classes, TaskList(self.name, [{}] * self.num_each)
        drawn = [each.sample(rng, rounds) for _ in range(self.num_classes)]
        return tuple(
            self.tasks[drawn[c][r].index * self.num_classes + c]
            for r in range(rounds)
            for c in range(self.num_classes)
        )


class TaskRange:
    """A distribution of tasks that cannot be listed: `draw(rng)` gives one task's parameters."""

    tasks = None

    def __init__(self, name: str, draw: Callable[[np.random.Generator], Params | Value]) -> None:
        check(
            callable(draw),
            f"tasks of {name!r} are drawn by a function of a generator, not {draw!r}",
        )
        self.name, self.draw = name, draw

    def sample(self, rng: np.random.Generator, n: int) -> tuple[Task, ...]:
        """Draw n tasks; from a continuum none repeats."""
        return tuple(
            Task(self.name, -1, plain_params(self.name, self._draw(rng))) for _ in range(n)
        )

    def _draw(self, rng: np.random.Generator) -> Params | Value:
        try:
            return self.draw(rng)
        except Exception as error:
            raise ConfigError(
                f"a task of {self.name!r} cannot be drawn: {one_line(error)}"
            ) from error
