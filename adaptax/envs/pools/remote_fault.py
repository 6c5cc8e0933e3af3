"""An exception on its way from one process to another."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import NoReturn

from adaptax.core.errors import AdaptaxError, EnvironmentFault, one_line
from adaptax.envs.pools.pool import SlotFault, SlotNotFinite
from adaptax.envs.task import Task


class RemoteTraceback(Exception):
    """Where the exception was raised over there, as text: the cause of the one raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


@dataclass(frozen=True)
class FaultReport:
    """What happened in a worker's pool, in plain values that every process can read."""

    problem: str
    """One line."""
    traceback: str
    slot: int | None = None
    """The slot among the worker's own, where the fault is that of one."""
    step: int = 0
    task: Task | None = None
    not_finite: bool = False
    """Whether it was NaN or infinity."""

    @classmethod
    def of(cls, error: BaseException) -> FaultReport:
        """The report of an exception that is being handled."""
        text = "".join(traceback.format_exception(error))
        if isinstance(error, SlotFault):
            not_finite = isinstance(error, SlotNotFinite)
            return cls(error.problem, text, error.slot, error.step, error.task, not_finite)
        return cls(str(error) if isinstance(error, AdaptaxError) else one_line(error), text)

    def raise_here(self, worker: str, first_slot: int) -> NoReturn:
        """Raise it in this process, for a `worker` whose slots start at `first_slot`."""
        fault = EnvironmentFault(f"{worker}: {self.problem}")
        if self.slot is not None:
            kind = SlotNotFinite if self.not_finite else SlotFault
            fault = kind(first_slot + self.slot, self.step, self.task, self.problem)
        raise fault from RemoteTraceback(self.traceback)
