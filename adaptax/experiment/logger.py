"""What a run writes down while it goes: rows of JSON, TensorBoard on request, live progress."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from adaptax.core.errors import AdaptaxError

PROGRESS = "progress.jsonl"
EVALUATIONS = "evaluations.jsonl"

Row = dict[str, Any]


class RunLog:
    """The files `progress.jsonl` and `evaluations.jsonl` of a run: one row, one line.

    Lines are strict JSON: NaN and infinities are written as null, arrays as lists. Each row is
    handed to the operating system at once, so that it outlives a killed process.
    """

    def __init__(self, run_dir: Path, *, tensorboard: bool = False) -> None:
        self.run_dir = run_dir
        self._files: dict[str, IO[bytes]] = {}
        self._board = _Board(run_dir / "tensorboard") if tensorboard else None

    def log(self, row: Row) -> None:
        """Append a row of training: `iteration`, `num_steps`, ..., `train/...`."""
        self._append(PROGRESS, row)
        if self._board is not None:
            self._board.add(row["iteration"], row)

    def log_evaluation(self, row: Row) -> None:
        """Append a row of an evaluation: `iteration`, `num_steps`, `episodes`, `tasks`, ..."""
        self._append(EVALUATIONS, row)
        if self._board is not None:
            returns = {f"episode_{e['index']}": e["return_mean"] for e in row["episodes"]}
            self._board.add(row["iteration"], {f"evaluate/return/{k}": returns[k] for k in returns})

    def truncate(self, iteration: int, evaluation_iteration: int | None = None) -> None:
        """Cut both files back to rows up to `iteration`, byte for byte; a half-written line goes.

        `evaluation_iteration` is the last to keep of evaluations, by default the same. Each file
        is replaced in one step: a crash leaves the old one or the new one.
        """
        self.close()
        last_evaluation = iteration if evaluation_iteration is None else evaluation_iteration
        for name, last in ((PROGRESS, iteration), (EVALUATIONS, last_evaluation)):
            path = self.run_dir / name
            if path.exists():
                kept = [line for line, row in _lines(path) if row["iteration"] <= last]
                _replace(path, b"".join(kept))
        if self._board is not None:
            self._board.purge_from = iteration + 1

    def close(self) -> None:
        """Close the files; a later row opens them again."""
        for file in self._files.values():
            file.close()
        self._files.clear()
        if self._board is not None:
            self._board.close()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, name: str, row: Row) -> None:
        if name not in self._files:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            self._files[name] = open(self.run_dir / name, "ab")  # noqa: SIM115 (open for the run)
        self._files[name].write(json.dumps(_plain(row), allow_nan=False).encode() + b"\n")
        self._files[name].flush()


def read_rows(path: Path) -> list[Row]:
    """The complete rows of a log file, none where it does not exist (yet)."""
    return [row for _, row in _lines(path)] if path.is_file() else []


class Progress:
    """How far a run is: a live line on a terminal, elsewhere a plain one every ten seconds.

    `limits` are on fields of the rows: `iteration`, `seconds`, `num_steps`; the time left is that
    to the first of them, at the pace of the last 20 rows, or 20 seconds if rows come faster.
    """

    def __init__(self, limits: dict[str, float], *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._limits = limits
        self._recent: deque[tuple[float, Row]] = deque(maxlen=20)
        self._unprinted: str | None = None
        self._printed_at = -math.inf
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if not self._quiet and sys.stdout.isatty():
            self._bar = _live_bar()
            self._bar.start()
            self._task = self._bar.add_task("", total=None, line="starting")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self._unprinted is not None:
            print(self._unprinted, flush=True)

    def update(self, row: Row) -> None:
        """Show a row of training."""
        if self._quiet:
            return
        now = time.monotonic()
        if len(self._recent) > 1 and now - self._recent[-2][0] < 1.0:
            self._recent.pop()
        self._recent.append((now, row))
        line = " | ".join(self._parts(row))
        if self._bar is not None:
            done = self._fraction(row)
            total = None if done is None else 1.0
            self._bar.update(self._task, completed=done or 0.0, total=total, line=line)
            return
        self._unprinted = line
        if now - self._printed_at >= 10.0:
            print(line, flush=True)
            self._unprinted, self._printed_at = None, now

    def _fraction(self, row: Row) -> float | None:
        """How much of the nearest limit is used up; None without limits."""
        used = [row[name] / limit for name, limit in self._limits.items()]
        return min(max(used), 1.0) if used else None

    def _seconds_left(self) -> float | None:
        """Seconds to the nearest limit; None without limits, or before two rows tell the pace."""
        (since, first), (now, row) = self._recent[0], self._recent[-1]
        left = [
            max(limit - row[name], 0) * (now - since) / (row[name] - first[name])
            for name, limit in self._limits.items()
            if row[name] > first[name]
        ]
        return min(left) if left else None

    def _parts(self, row: Row) -> Iterator[str]:
        total = self._limits.get("iteration")
        yield f"iteration {row['iteration']}" + ("" if total is None else f"/{total}")
        yield f"{row['num_steps']:,} steps"
        (since, first), (now, _) = self._recent[0], self._recent[-1]
        if now > since:
            yield f"{(row['num_steps'] - first['num_steps']) / (now - since):,.0f} steps/s"
        seconds_left = self._seconds_left()
        if seconds_left is not None:
            yield f"{_clock(seconds_left)} left"
        if row.get("train/return") is not None:
            yield f"return {row['train/return']:.4g}"
        first_return, last_return = episode_returns(row)
        if first_return is not None and last_return is not None:
            yield f"first episode {first_return:.4g}, last {last_return:.4g}"


def episode_returns(row: Row) -> tuple[float | None, float | None]:
    """The training return of the first and of the last episode on a task, if there are several."""
    prefix = "train/return/episode_"
    last = max(
        (int(name.removeprefix(prefix)) for name in row if name.startswith(prefix)), default=1
    )
    return (row.get(f"{prefix}1"), row[f"{prefix}{last}"]) if last > 1 else (None, None)


class _Board:
    """A TensorBoard writer, made at the first row so that it knows where a resumed run goes on."""

    def __init__(self, directory: Path) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise AdaptaxError(
                "TensorBoard logs need tensorboardX: pip install 'adaptax[tensorboard]'"
            ) from error
        self.purge_from: int | None = None
        self._make, self._directory = SummaryWriter, directory
        self._writer: Any = None

    def add(self, iteration: int, figures: Row) -> None:
        """Write every finite number of `figures`."""
        if self._writer is None:
            self._writer = self._make(str(self._directory), purge_step=self.purge_from)
        for name, value in _plain(figures).items():
            if isinstance(value, (int, float)):
                self._writer.add_scalar(name, value, iteration)
        self._writer.flush()

    def close(self) -> None:
        """Close the file; a later row starts another."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _live_bar() -> Any:
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    # A column of its own, because TextColumn's own cuts the line off where it should wrap.
    line = TextColumn("{task.fields[line]}", table_column=Column())
    return Progress(BarColumn(bar_width=16), line)


def _lines(path: Path) -> Iterator[tuple[bytes, Row]]:
    """The complete lines of a file as bytes and as rows."""
    *lines, _ = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise AdaptaxError(
                f"{path}, line {number}: not a row of JSON: {line[:60]!r}"
            ) from error
        if not isinstance(row, dict) or not isinstance(row.get("iteration"), int):
            raise AdaptaxError(f"{path}, line {number}: a row without an iteration: {line[:60]!r}")
        yield line + b"\n", row


def _replace(path: Path, content: bytes) -> None:
    """Write a file beside `path` and move it into place."""
    temporary = path.with_name(path.name + ".new")
    with open(temporary, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def _plain(value: Any) -> Any:
    """`value` as strict JSON knows it: arrays as lists, non-finite numbers as None."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _clock(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
