"""Pool: what an agent acts on, P slots at once."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

import numpy as np

from adaptax.core.errors import EnvironmentFault, NotFinite, one_line
from adaptax.core.experience import PyTree
from adaptax.core.spec import Continuous, EnvSpec
from adaptax.core.step import Step
from adaptax.envs.task import Task


def idle() -> None:
    """Nothing."""


AT_WORK: ContextVar[Callable[[], None]] = ContextVar("AT_WORK", default=idle)
"""What a pool calls before each environment that it makes or resets one by one: many slow ones are
told from one that hangs."""


class Pool(Protocol):
    """P environments. An episode depends on (environment, task, seed, actions) and nothing else."""

    spec: EnvSpec
    num_slots: int

    def reset(self, slots: np.ndarray, seeds: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
        """Start an episode in each of K slots (indices [K], seeds uint32 [K]); gives obs [K, O]."""

    def step(self, slots: np.ndarray, actions: np.ndarray) -> Step:
        """Act in K slots: actions [K, *A] in [-1, 1] or integers. An ended slot needs a reset.

        Gives the pool's half of the step, each [K, ...]: `reward` float32, `next_obs`,
        `terminated`, `truncated`, `info`, and `valid` where slots reset themselves.
        """

    def save(self) -> PyTree:
        """The state of all slots in mid-episode: nested dicts of NumPy arrays."""

    def restore(
        self, saved: PyTree, tasks: Sequence[Task], at_work: Callable[[], None] = idle
    ) -> None:
        """Go on exactly where `save` stood; `tasks` are those of the P slots.

        `at_work` is called before every step, where steps are taken to get there.
        """

    def close(self) -> None:
        """Free threads, processes and memory."""


class SlotFault(EnvironmentFault):
    """A fault of one slot: where it happened, at which step of its episode, on which task."""

    def __init__(self, slot: int, step: int, task: Task | None, problem: str) -> None:
        self.slot, self.step, self.task, self.problem = slot, step, task, problem
        name = repr(task.name) if task else "none"
        super().__init__(f"slot {slot}, step {step}, task {name}: {problem}")


class SlotNotFinite(SlotFault, NotFinite):
    """A slot whose action, observation or reward is NaN or infinite."""


class Slots:
    """What P slots are at, and the checks that name the first slot where something is wrong."""

    def __init__(self, num_slots: int) -> None:
        self.tasks: list[Task | None] = [None] * num_slots
        self.num_steps = np.zeros(num_slots, np.int64)
        self.running = np.zeros(num_slots, bool)

    def fault(self, slot: int, problem: str, kind: type[SlotFault] = SlotFault) -> SlotFault:
        """The exception that says what is wrong with a slot."""
        return kind(slot, int(self.num_steps[slot]), self.tasks[slot], problem)

    def require(
        self,
        good: np.ndarray,
        slots: np.ndarray,
        problem: str,
        kind: type[SlotFault] = SlotFault,
    ) -> None:
        """Raise the fault of the first of `slots` [K] whose `good` [K] is False."""
        if not good.all():
            raise self.fault(int(slots[np.argmin(good)]), problem, kind)

    def require_finite(self, values: np.ndarray, slots: np.ndarray, what: str) -> None:
        """Raise the fault of the first of `slots` [K] where `values` [K, ...] is not finite."""
        if not np.isfinite(values).all():
            good = np.isfinite(values).reshape(len(slots), -1).all(axis=1)
            self.require(good, slots, f"{what} is not finite as float32", SlotNotFinite)


@contextlib.contextmanager
def closed_on_error(pool: Pool) -> Iterator[None]:
    """Close the pool on any exception, Ctrl-C included: who still owes an answer is unknown."""
    try:
        yield
    except BaseException:
        pool.close()
        raise


def close_quietly(env: Any) -> None:
    """Close an environment; if that fails it is a warning, lest it hide how the run went."""
    try:
        env.close()
    except (Exception, SystemExit) as error:
        warnings.warn(f"an environment failed to close: {one_line(error)}", stacklevel=2)


def check_actions(spec: EnvSpec, actions: Any, *lanes: int) -> None:
    """Raise a one-line error unless `actions` [*lanes, *A] are of the environment's kind."""
    expected = (*lanes, *spec.action.shape)
    if actions.shape != expected:
        raise EnvironmentFault(
            f"actions have shape {actions.shape}; the environment takes {expected}"
        )
    kinds = "fiu" if isinstance(spec.action, Continuous) else "iu"
    if np.dtype(actions.dtype).kind not in kinds:
        raise EnvironmentFault(f"actions are {actions.dtype}; the environment takes {spec.action}")


def check_saved_form(saved: PyTree, *, played: bool) -> None:
    """Raise unless unfinished episodes were saved as actions to be `played` again, or as states."""
    if ("actions" in saved) != played:
        raise EnvironmentFault(
            "unfinished episodes were saved inside a compiled program and cannot go on outside "
            "one: resume where native code works (with a GPU, by JAX_PLATFORMS=cpu) and without "
            "--suite.num-workers"
            if played
            else "unfinished episodes were saved outside a compiled program and cannot go on "
            "inside one: resume with --suite.num-workers 1, or 0 for this process"
        )


def check_reset(slots: np.ndarray, seeds: np.ndarray, tasks: Sequence[Task]) -> None:
    """Raise a one-line error unless every slot has a seed and a task."""
    if not len(slots) == len(seeds) == len(tasks):
        raise EnvironmentFault(
            f"a reset of {len(slots)} slots was given {len(seeds)} seeds and {len(tasks)} tasks"
        )
