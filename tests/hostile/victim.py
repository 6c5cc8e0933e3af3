"""A process that runs commands one after another, and what becomes of each.

`Victim` is its parent's side; `python victim.py` is the process. Its home, its folder for temporary
files and its cache are folders of the attack.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
SILENT_SECONDS = 60.0
"""Processor time that a command may take, or sleep, without a word: longer is a hang."""
MOST_SECONDS = 90.0
"""Processor time after which a command that does say something is ended."""
IDLE_SECONDS = 240.0
"""Wall-clock seconds for those; the machine may be busy with others."""
MOST_COMMANDS = 60
"""After so many a process has had its time: each command compiles programs."""
MOST_MEMORY = 12 * 2**30
"""Bytes of address space; beyond it is a MemoryError in place of a machine that stands still."""


@dataclass
class Outcome:
    """What became of a command."""

    verdict: str
    """fine, refused, interrupted, long, skipped; or traceback, crash, hang."""
    detail: str = ""
    seconds: float = 0.0

    @property
    def is_bad(self) -> bool:
        """Whether it must not be."""
        return self.verdict in ("traceback", "crash", "hang")


def environment(place: Path) -> dict[str, str]:
    """The environment of a process whose home is in `place`."""
    folders = {"HOME": "home", "TMPDIR": "tmp"}
    for folder in folders.values():
        (place / folder).mkdir(parents=True, exist_ok=True)
    own = {name: str(place / folder) for name, folder in folders.items()}
    cache = place.parent / "cache"
    cache.mkdir(exist_ok=True)
    paths = [
        str(TESTS.parent),
        str(TESTS),
        str(TESTS / "hostile"),
        os.environ.get("PYTHONPATH", ""),
    ]
    kept = {
        "XDG_CACHE_HOME": str(cache),
        "JAX_PLATFORMS": "cpu",
        "MPLCONFIGDIR": str(cache),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": os.pathsep.join(paths),
    }
    return {**os.environ, **own, **kept}


def judged(code: int | None, out: str, err: str, trace: str | None) -> Outcome:
    """What an end comes to."""
    if trace is None and "Traceback (most recent call last)" in out + err:
        trace = (out + err)[-3000:]
    if trace is not None:
        return Outcome("traceback", trace[-3000:])
    if code == 0:
        return Outcome("fine")
    if code == 130:
        return Outcome("interrupted")
    lines = [x for x in err.splitlines() if not x.startswith("adaptax: warning: ")]
    ours = [line for line in lines if line.startswith("adaptax: ")]
    if code == 2 and len(ours) == 1 and lines[-1] == ours[0]:
        return Outcome("refused", ours[0])
    if code is not None and code < 0:
        return Outcome("crash", f"signal {-code}: {err[-2000:]}")
    return Outcome("traceback", f"exit code {code}: {err[-2000:]}")


class Victim:
    """The process, started anew when it is used up or dead."""

    def __init__(self, place: Path, setup: Sequence[str] = ()) -> None:
        self.place, self.setup = place, setup
        self._process: subprocess.Popen[bytes] | None = None
        self._num = 0

    def run(self, words: Sequence[str], folder: Path) -> Outcome:
        """What becomes of `adaptax WORDS` in a folder."""
        process = self._started()
        assert process.stdin is not None and process.stdout is not None
        self._num += 1
        with tempfile.TemporaryDirectory() as kept:
            out, err = Path(kept) / "out", Path(kept) / "err"
            job = {"words": list(words), "folder": str(folder), "out": str(out), "err": str(err)}
            started = time.monotonic()
            process.stdin.write(json.dumps(job).encode() + b"\n")
            process.stdin.flush()
            outcome = self._awaited(process, [out, err])
            outcome.seconds = time.monotonic() - started
        return outcome

    def end(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _started(self) -> subprocess.Popen[bytes]:
        if self._num >= MOST_COMMANDS or (self._process and self._process.poll() is not None):
            self.end()
        if self._process is None:
            self._num = 0
            self._process = subprocess.Popen(
                [sys.executable, __file__, *self.setup],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment(self.place),
                cwd=self.place,
            )
        return self._process

    def _awaited(self, process: subprocess.Popen[bytes], files: list[Path]) -> Outcome:
        """The outcome of the command that has been given."""
        began, own = time.monotonic(), _processor_seconds(process.pid)
        said, said_at, said_own = 0, began, own
        while True:
            if select.select([process.stdout], [], [], 0.2)[0]:
                line = process.stdout.readline() if process.stdout else b""
                texts = [_text(path) for path in files]
                if not line:
                    code = process.wait()
                    self.end()
                    return Outcome("crash", f"exit code {code}: {texts[1][-2000:]}")
                return _answer(line, texts)
            size = sum(path.stat().st_size for path in files if path.exists())
            now, used = time.monotonic(), _processor_seconds(process.pid)
            if size != said:
                said, said_at, said_own = size, now, used
            silent = used - said_own > SILENT_SECONDS or now - said_at > IDLE_SECONDS
            if silent or used - own > MOST_SECONDS or now - began > IDLE_SECONDS:
                last = " | ".join(_text(path).strip()[-300:] for path in files)
                self.end()
                return Outcome("hang" if silent else "long", last)


def _answer(line: bytes, texts: list[str]) -> Outcome:
    answer = json.loads(line)
    return judged(answer["code"], texts[0], texts[1], answer["trace"])


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _processor_seconds(pid: int) -> float:
    """What a process has used, those that it has waited for included; 0 where it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def serve(setup: Sequence[str]) -> None:
    """The process: a command a line comes in, how it ended goes out."""
    import resource
    from importlib import import_module

    jobs, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    from adaptax.experiment import cli

    for name in setup:
        import_module(name)
    mark = os.dup(2)
    for line in jobs:
        job = json.loads(line)
        os.chdir(job["folder"])
        sys.stdout, sys.stderr = _onto(1, job["out"]), _onto(2, job["err"])
        answer = _ended(cli.main, job["words"])
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os.dup2(mark, 1)
        os.dup2(mark, 2)
        answers.write(json.dumps(answer).encode() + b"\n")
        _forget_programs()


def _onto(number: int, path: str) -> io.TextIOWrapper:
    """A standard stream that goes into a file."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, number)
    os.close(file)
    return open(number, "w", buffering=1, closefd=False, errors="backslashreplace")


def _ended(main: Any, words: list[str]) -> dict[str, Any]:
    try:
        main(words)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        return {"code": code, "trace": None}
    except BaseException:
        return {"code": None, "trace": traceback.format_exc()}
    return {"code": 0, "trace": None}


def _forget_programs() -> None:
    """Beyond the limit of mappings the next compiled program crashes Python."""
    with open("/proc/self/maps") as lines:
        many = sum(1 for _ in lines) > 20_000
    if many:
        import jax

        jax.clear_caches()


if __name__ == "__main__":
    serve(sys.argv[1:])
