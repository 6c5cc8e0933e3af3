"""What a run writes down while it goes: rows of JSON."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from adaptax.core.errors import AdaptaxError, DiskError
from adaptax.core.files import is_same_file, open_to_append, parse_json, read_plain
from adaptax.experiment.run_dir import EVALUATIONS, PROGRESS, write_whole, writing

Row = dict[str, Any]
MOST_OF_A_ROW = 2**16
"""Bytes of a row of training at most."""


class RunLog:
    """The files `progress.jsonl` and `evaluations.jsonl` of a run: one row, one line.

    Lines are strict JSON: NaN and infinities are written as null, arrays as lists. Each row is
    handed to the operating system at once, so that it outlives a killed process. What a full disk
    does not take waits, in order, for the next row or `flush`; and all while the log is `held`.
    """

    def __init__(self, run_dir: Path, *, check: Callable[[], None] = lambda: None) -> None:
        self.run_dir = run_dir
        self.held = False
        """Whether rows wait for a `flush` after this is False again."""
        self._check = check
        """Called before anything is written; raises where nothing must be."""
        self._files: dict[str, IO[bytes]] = {}
        self._waiting: dict[str, list[bytes]] = {PROGRESS: [], EVALUATIONS: []}
        self._is_late = False
        """Whether rows have to wait, and have been said to."""

    def log(self, row: Row) -> None:
        """Append a row of training: `iteration`, `num_steps`, ..., `train/...`."""
        self._append(PROGRESS, row)

    def log_evaluation(self, row: Row) -> None:
        """Append a row of an evaluation: `iteration`, `num_steps`, `episodes`, `tasks`, ..."""
        self._append(EVALUATIONS, row)

    def truncate(self, iteration: int, evaluation_iteration: int | None = None) -> None:
        """Cut both files back to rows up to `iteration`, byte for byte; a half-written line goes.

        `evaluation_iteration` is the last to keep of evaluations, by default the same. Each file
        is replaced in one step: a crash leaves the old one or the new one. A warning where rows of
        training are missing before the last one.
        """
        self.close()
        last_evaluation = iteration if evaluation_iteration is None else evaluation_iteration
        for name, last in ((PROGRESS, iteration), (EVALUATIONS, last_evaluation)):
            path = self.run_dir / name
            if path.exists():
                lines = [(line, row["iteration"]) for line, row in _lines(path)]
                kept = [(line, number) for line, number in lines if number <= last]
                write_whole(path, b"".join(line for line, _ in kept))
                if name == PROGRESS:
                    _warn_of_gaps(path, [number for _, number in kept])

    def flush(self) -> None:
        """Write the rows that wait; raises a DiskError that names the file if it still cannot."""
        if self.held:
            return
        self._check()
        for name, rows in self._waiting.items():
            self._write_all(name, rows)

    def close(self) -> None:
        """Close the files; a later row opens them again."""
        for file in self._files.values():
            file.close()
        self._files.clear()

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, name: str, row: Row) -> None:
        """Write a row; what cannot be written waits, and the first time that is said."""
        line = json.dumps(_plain(row), allow_nan=False).encode() + b"\n"
        self._waiting[name].append(line)
        try:
            self.flush()
        except DiskError as error:
            if not self._is_late:
                warnings.warn(f"{error}; the run goes on and tries again", stacklevel=4)
            self._is_late = True
        else:
            self._is_late = False

    def _write_all(self, name: str, rows: list[bytes]) -> None:
        with writing(self.run_dir / name):
            while rows:
                self._write(name, rows[0])
                rows.pop(0)

    def _write(self, name: str, line: bytes) -> None:
        """Write a whole line or nothing."""
        file = self._file(name)
        end = file.seek(0, os.SEEK_END)
        try:
            while line:  # only the write after a short one says why
                line = line[file.write(line) :]
        except OSError:
            file.truncate(end)
            raise

    def _file(self, name: str) -> IO[bytes]:
        """The open file; a new one where it is not at its path any more."""
        path, file = self.run_dir / name, self._files.get(name)
        if file is not None and is_same_file(file.fileno(), path):
            return file
        if file is not None:
            warnings.warn(
                f"{path} was removed or moved: it goes on with the rows from here on", stacklevel=6
            )
            self._files.pop(name).close()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._files[name] = open_to_append(path)
        return self._files[name]


def _warn_of_gaps(path: Path, iterations: Sequence[int]) -> None:
    own = sorted({0, *iterations})
    gaps = [(before + 1, after) for before, after in pairwise(own) if after > before + 1]
    if gaps:
        num = sum(end - start for start, end in gaps)
        more = f" and {num - 1} more" if num > 1 else ""
        warnings.warn(
            f"{path} lacks the row of iteration {gaps[0][0]}{more}: plots and figures go without",
            stacklevel=4,
        )


def row_of(path: Path, iteration: int) -> Row | None:
    """The last complete row of a log file, if it is that of `iteration`."""
    rows = read_rows(path)
    return rows[-1] if rows and rows[-1]["iteration"] == iteration else None


def newest_row(path: Path) -> Row | None:
    """The last complete row of a log file that is being written; None where there is none yet."""
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - MOST_OF_A_ROW, 0))
            *lines, _ = file.read().split(b"\n")
        row = parse_json(lines[-1]) if lines else None
    except (OSError, ValueError):
        return None
    return row if isinstance(row, dict) and "iteration" in row else None


def read_rows(path: Path) -> list[Row]:
    """The complete rows of a log file, none where it does not exist (yet)."""
    return [row for _, row in _lines(path)] if path.exists() else []


def after_adaptation(row: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of an evaluation that count: of the test episodes, or of the last one."""
    figures: dict[str, Any] = row.get("test", row["episodes"][-1])
    return figures


def by_last_protocol(rows: Sequence[Row]) -> list[Row]:
    """The evaluations of as many tasks, episodes and test episodes as the last one has.

    A run that was resumed may have had another protocol before.
    """

    def size(row: Row) -> tuple[Any, ...]:
        test = row.get("test")
        tests = test.get("num_episodes") if isinstance(test, dict) else test
        return row.get("num_tasks"), len(row["episodes"]), tests

    return [row for row in rows if size(row) == size(rows[-1])]


def _lines(path: Path) -> Iterator[tuple[bytes, Row]]:
    """The complete lines of a file as bytes and as rows."""
    try:
        *lines, _ = read_plain(path).split(b"\n")
    except OSError as error:
        raise AdaptaxError(f"cannot read {path}: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        try:
            row = parse_json(line)
        except ValueError as error:
            raise AdaptaxError(
                f"{path}, line {number}: not a row of JSON, {line[:60]!r}: to go on without it, "
                "remove the line"
            ) from error
        if not isinstance(row, dict) or not isinstance(row.get("iteration"), int):
            raise AdaptaxError(f"{path}, line {number}: a row without an iteration: {line[:60]!r}")
        yield line + b"\n", row


def _plain(value: Any) -> Any:
    """`value` as strict JSON knows it: arrays as lists, non-finite numbers as None."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
