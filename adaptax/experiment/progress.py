"""How far a run is, on the console."""

from __future__ import annotations

import math
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from adaptax.experiment.console import Forgiving, say
from adaptax.experiment.logger import Row
from adaptax.experiment.trainer_config import A_DAY

LONG = 5.0
"""Seconds after which an iteration that is not done yet is said to be under way."""
PULSE = 1.0
"""Seconds from one look at that to the next."""


class Progress:
    """How far a run is: a live line on a terminal, elsewhere a plain one every ten seconds.

    An iteration that takes long is said to be under way meanwhile, by a thread that only reads the
    clock.

    `limits` are on fields of the rows: `iteration`, `seconds`, `num_steps`; the time left is that
    to the first of them, at the pace of the last 20 rows, or 20 seconds if rows come faster. Where
    that is days, and no limit on seconds was set, it `warns` once, of a quiet run too.
    """

    def __init__(
        self, limits: dict[str, float], *, quiet: bool = False, warns: bool = True
    ) -> None:
        self._quiet = quiet
        self._limits = limits
        self._recent: deque[tuple[float, Row]] = deque(maxlen=20)
        self._unprinted: str | None = None
        self._printed_at = -math.inf
        self._bar: Any = None
        self._line = ""
        self._seeds: set[int] = set()
        """Those that a group's mean is of."""
        self._members: dict[int, str] = {}
        """The line of each seed of a group."""
        self._places: dict[int, Any] = {}
        """Where on the terminal it is."""
        self._warns = warns and "seconds" not in limits
        self._lock = threading.Lock()
        self._begun: tuple[str, float] | None = None
        """What is under way, and when it began."""
        self._told_at = -math.inf
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._look_at_times, daemon=True)

    def __enter__(self) -> Progress:
        if self._quiet:
            return self
        if sys.stdout is not None and sys.stdout.isatty():
            self._bar = _live_bar()
            self._bar.start()
            self._task = self._bar.add_task("", total=None, line="starting")
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._quiet:
            return
        self._ended.set()
        self._watch.join()
        if self._bar is not None:
            self._bar.stop()
        else:
            for line in (*self._members.values(), self._unprinted):
                if line is not None:
                    say(line, sys.stdout)

    def begin(self, what: str) -> None:
        """Take note that something begins, `iteration 3`; it ends with the next row or `end`."""
        with self._lock:
            self._begun = what, time.monotonic()

    def end(self) -> None:
        """Take note that nothing is under way."""
        with self._lock:
            self._begun = None

    def update(self, row: Row) -> None:
        """Show a row of training."""
        with self._lock:
            self._begun = None
            self._note(row)
            if not self._quiet:
                self._show()

    def update_group(self, rows: Mapping[int, Row]) -> None:
        """Show the mean of a group's rows, by seed; each one on a terminal, and at the end."""
        with self._lock:
            self._begun = None
            if rows.keys() != self._seeds:
                # The pace of a mean is that of the same seeds: one more takes the mean back.
                self._recent.clear()
                self._seeds = set(rows)
            self._note(mean_row(rows.values()))
            if self._quiet:
                return
            for seed, row in rows.items():
                self._show_member(seed, row)
            self._show("mean | ")

    def tell(self, line: str) -> None:
        """Show a line that stays."""
        if self._quiet:
            return
        with self._lock:
            if self._bar is not None:
                self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)
            else:
                say(line, sys.stdout)

    def _show_member(self, seed: int, row: Row) -> None:
        self._members[seed] = line = " | ".join([f"seed {seed}", *self._done(row), *_returns(row)])
        if self._bar is None:
            return
        if seed not in self._places:
            self._places[seed] = self._bar.add_task("", total=1.0, line="")
        self._bar.update(self._places[seed], completed=self._fraction(row) or 0.0, line=line)

    def _note(self, row: Row) -> None:
        """Have a row count for the pace; warn where that tells of days."""
        now = time.monotonic()
        if len(self._recent) > 1 and now - self._recent[-2][0] < 1.0:
            self._recent.pop()
        self._recent.append((now, row))
        if not self._warns or now - self._recent[0][0] < LONG:
            return
        days = (self._seconds_left() or 0.0) / A_DAY
        if days > 1:
            self._warns = False
            warnings.warn(
                f"at its pace this run takes {days:,.1f} days more; --num-iterations, --num-steps "
                "or --max-seconds end it sooner",
                stacklevel=3,
            )

    def _show(self, who: str = "") -> None:
        now, row = self._recent[-1]
        self._line = line = who + " | ".join(self._parts(row))
        if self._bar is not None:
            done = self._fraction(row)
            total = None if done is None else 1.0
            self._bar.update(self._task, completed=done or 0.0, total=total, line=line)
            return
        self._unprinted = line
        if now - self._printed_at >= 10.0:
            say(line, sys.stdout)
            self._unprinted, self._printed_at = None, now

    def _look_at_times(self) -> None:
        while not self._ended.wait(PULSE):
            with self._lock:
                self._tell_if_long()

    def _tell_if_long(self) -> None:
        """Say for how long what is under way has been so, if that is long."""
        if self._begun is None:
            return
        (what, began), now = self._begun, time.monotonic()
        if now - began < LONG:
            return
        line = f"{what} under way for {now - began:.0f} s"
        if self._bar is not None:
            self._bar.update(self._task, line=f"{self._line} | {line}" if self._line else line)
        elif now - max(self._printed_at, self._told_at) >= 10.0:
            say(line, sys.stdout)
            self._told_at = now

    def _fraction(self, row: Row) -> float | None:
        """How much of the nearest limit is used up; None without limits."""
        used = [row[name] / limit for name, limit in self._limits.items()]
        return min(max(used), 1.0) if used else None

    def _seconds_left(self) -> float | None:
        """Seconds to the nearest limit; None without limits, or before two rows tell the pace."""
        (_, first), (_, row), elapsed = self._recent[0], self._recent[-1], self._elapsed()
        left = [
            max(limit - row[name], 0) * elapsed / (row[name] - first[name])
            for name, limit in self._limits.items()
            if row[name] > first[name]
        ]
        return min(left) if left else None

    def _elapsed(self) -> float:
        """Seconds from the first to the last of the recent rows.

        Iterations of one call have their rows at once; how long they took is in these.
        """
        (since, first), (now, row) = self._recent[0], self._recent[-1]
        return max(now - since, row["seconds"] - first["seconds"])

    def _done(self, row: Row) -> Iterator[str]:
        total = self._limits.get("iteration")
        yield f"iteration {row['iteration']}" + ("" if total is None else f"/{total}")
        yield f"{row['num_steps']:,} steps"

    def _parts(self, row: Row) -> Iterator[str]:
        yield from self._done(row)
        first, elapsed = self._recent[0][1], self._elapsed()
        num_steps = row["num_steps"] - first["num_steps"]
        if elapsed > 0 and num_steps > 0:
            yield f"{num_steps / elapsed:,.0f} steps/s"
        seconds_left = self._seconds_left()
        if seconds_left is not None:
            yield f"{_clock(seconds_left)} left"
        yield from _returns(row)


def _returns(row: Row) -> Iterator[str]:
    if row.get("train/return") is not None:
        yield f"return {row['train/return']:.4g}"
    first_return, last_return = episode_returns(row)
    if first_return is not None and last_return is not None:
        yield f"first episode {first_return:.4g}, last {last_return:.4g}"


def mean_row(rows: Collection[Row]) -> Row:
    """The mean of rows: of the figures that all of them have."""
    numbers = [{n for n, x in row.items() if isinstance(x, int | float)} for row in rows]
    names = set.intersection(*numbers)
    mean = {name: sum(row[name] for row in rows) / len(rows) for name in names}
    counts = ("iteration", "num_steps", "num_episodes")
    return {**mean, **{n: round(mean[n]) for n in counts}}


def episode_returns(row: Row) -> tuple[float | None, float | None]:
    """The training return of the first and of the last episode on a task, if there are several."""
    prefix = "train/return/episode_"
    numbers = (name.removeprefix(prefix) for name in row if name.startswith(prefix))
    last = max((int(number) for number in numbers if number.isdecimal()), default=1)
    return (row.get(f"{prefix}1"), row[f"{prefix}{last}"]) if last > 1 else (None, None)


def _live_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    # A column of its own, because TextColumn's own cuts the line off where it should wrap.
    line = TextColumn("{task.fields[line]}", table_column=Column())
    console = Console(file=Forgiving(sys.stdout))  # type: ignore[arg-type]
    return Progress(BarColumn(bar_width=16), line, console=console)


def _clock(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
