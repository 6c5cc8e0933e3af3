"""What a run writes down while it goes: rows of JSON, and TensorBoard files on request."""

from __future__ import annotations

import json
import math
import os
import socket
import struct
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from adaptax.core.errors import AdaptaxError, DiskError
from adaptax.core.files import is_same_file, open_to_append, parse_json, read_plain, replacing
from adaptax.experiment.run_dir import writing

PROGRESS = "progress.jsonl"
EVALUATIONS = "evaluations.jsonl"

Row = dict[str, Any]


class RunLog:
    """The files `progress.jsonl` and `evaluations.jsonl` of a run: one row, one line.

    Lines are strict JSON: NaN and infinities are written as null, arrays as lists. Each row is
    handed to the operating system at once, so that it outlives a killed process. What a full disk
    does not take waits, in order, for the next row or `flush`; and all while the log is `held`.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        tensorboard: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.run_dir = run_dir
        self.held = False
        """Whether rows wait for a `flush` after this is False again."""
        self._check = check
        """Called before anything is written; raises where nothing must be."""
        self._files: dict[str, IO[bytes]] = {}
        self._waiting: dict[str, list[bytes]] = {PROGRESS: [], EVALUATIONS: []}
        self._late: set[str] = set()
        """What has to wait, and has been said to."""
        self._board = EventFile() if tensorboard else None
        self._board_rows: list[bytes] = []

    def log(self, row: Row) -> None:
        """Append a row of training: `iteration`, `num_steps`, ..., `train/...`."""
        self._append(PROGRESS, row, row)

    def log_evaluation(self, row: Row) -> None:
        """Append a row of an evaluation: `iteration`, `num_steps`, `episodes`, `tasks`, ..."""
        returns = {
            f"evaluate/return/episode_{e['index']}": e["return_mean"] for e in row["episodes"]
        }
        self._append(EVALUATIONS, row, returns)

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
                with writing(path), replacing(path) as file:
                    file.write(b"".join(kept))
        if self._board is not None:
            self._board_rows = [self._board.begin(iteration + 1)]

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

    def _append(self, name: str, row: Row, figures: Row) -> None:
        rows = self._waiting[name]
        rows.append(json.dumps(_plain(row), allow_nan=False).encode() + b"\n")
        if self._board is not None:
            self._board_rows.append(self._board.event(row["iteration"], _plain(figures)))
        with self._going_on("rows"):
            self.flush()
        if self._board is not None and not self.held:
            with self._going_on("events"):
                self._write_all(self._board.name, self._board_rows)

    @contextmanager
    def _going_on(self, what: str) -> Iterator[None]:
        """Have what cannot be written wait, and say so the first time."""
        try:
            yield
        except DiskError as error:
            if what not in self._late:
                warnings.warn(f"{error}; the run goes on and tries again", stacklevel=5)
            self._late.add(what)
        else:
            self._late.discard(what)

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


def row_of(path: Path, iteration: int) -> Row | None:
    """The last complete row of a log file, if it is that of `iteration`."""
    rows = read_rows(path)
    return rows[-1] if rows and rows[-1]["iteration"] == iteration else None


def read_rows(path: Path) -> list[Row]:
    """The complete rows of a log file, none where it does not exist (yet)."""
    return [row for _, row in _lines(path)] if path.exists() else []


class EventFile:
    """What a file of TensorBoard's holds: a record for each row, as bytes."""

    def __init__(self) -> None:
        try:
            import tensorboardX  # noqa: F401
            from tensorboardX.proto import event_pb2, summary_pb2
            from tensorboardX.record_writer import masked_crc32c
        except ImportError as error:
            raise AdaptaxError(
                "TensorBoard logs need tensorboardX: pip install 'adaptax[tensorboard]'"
            ) from error
        self._proto, self._summary, self._checksum = event_pb2, summary_pb2, masked_crc32c
        self._begun = False
        started = f"{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}"
        self.name = f"tensorboard/events.out.tfevents.{started}"

    def begin(self, step: int | None = None) -> bytes:
        """The first record; it has TensorBoard forget what older files have from `step` on."""
        self._begun = True
        first = self._record(file_version="brain.Event:2")
        if step is None:
            return first
        start = self._proto.SessionLog(status=self._proto.SessionLog.START)
        return first + self._record(step=step, session_log=start)

    def event(self, iteration: int, figures: Row) -> bytes:
        """The record of every number of `figures`."""
        first = b"" if self._begun else self.begin()
        values = [
            self._summary.Summary.Value(tag=name, simple_value=value)
            for name, value in figures.items()
            if isinstance(value, (int, float))
        ]
        summary = self._summary.Summary(value=values)
        return first + self._record(step=int(iteration), summary=summary)

    def _record(self, **fields: Any) -> bytes:
        data = self._proto.Event(wall_time=time.time(), **fields).SerializeToString()
        length = struct.pack("<Q", len(data))
        checksums = [struct.pack("<I", self._checksum(part)) for part in (length, data)]
        return length + checksums[0] + data + checksums[1]


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
                f"{path}, line {number}: not a row of JSON: {line[:60]!r}"
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
