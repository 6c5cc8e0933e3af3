"""What a run writes down while it goes: rows of JSON, and TensorBoard files on request."""

from __future__ import annotations

import errno
import json
import math
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from adaptax.core.errors import AdaptaxError, DiskError
from adaptax.experiment.run_dir import writing

PROGRESS = "progress.jsonl"
EVALUATIONS = "evaluations.jsonl"

Row = dict[str, Any]


class RunLog:
    """The files `progress.jsonl` and `evaluations.jsonl` of a run: one row, one line.

    Lines are strict JSON: NaN and infinities are written as null, arrays as lists. Each row is
    handed to the operating system at once, so that it outlives a killed process. What a full disk
    does not take waits, in order, for the next row or `flush`.
    """

    def __init__(self, run_dir: Path, *, tensorboard: bool = False) -> None:
        self.run_dir = run_dir
        self._files: dict[str, IO[bytes]] = {}
        self._waiting: dict[str, list[bytes]] = {PROGRESS: [], EVALUATIONS: []}
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
                with writing(path):
                    _replace(path, b"".join(kept))
        if self._board is not None:
            self._board.purge_from = iteration + 1

    def flush(self) -> None:
        """Write the rows that wait; raises a DiskError that names the file if it still cannot."""
        for name, rows in self._waiting.items():
            with writing(self.run_dir / name):
                while rows:
                    self._write(name, rows[0])
                    rows.pop(0)

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
        rows = self._waiting[name]
        rows.append(json.dumps(_plain(row), allow_nan=False).encode() + b"\n")
        try:
            self.flush()
        except DiskError as error:
            if len(rows) == 1:  # the first that has to wait
                warnings.warn(f"{error}; the run goes on and tries again", stacklevel=3)

    def _write(self, name: str, line: bytes) -> None:
        """Write a whole line or nothing."""
        if name not in self._files:
            self.run_dir.mkdir(parents=True, exist_ok=True)
            self._files[name] = open(self.run_dir / name, "ab", buffering=0)  # noqa: SIM115
        file = self._files[name]
        end = file.seek(0, os.SEEK_END)
        if file.write(line) != len(line):
            file.truncate(end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def row_of(path: Path, iteration: int) -> Row | None:
    """The last complete row of a log file, if it is that of `iteration`."""
    rows = read_rows(path)
    return rows[-1] if rows and rows[-1]["iteration"] == iteration else None


def read_rows(path: Path) -> list[Row]:
    """The complete rows of a log file, none where it does not exist (yet)."""
    return [row for _, row in _lines(path)] if path.is_file() else []


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
