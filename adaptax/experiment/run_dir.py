"""A run's directory: ours to write without following links, held by one process at a time.

What a run writes there has names that are known; nothing else in it is read, written or deleted.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import socket
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from adaptax.core.errors import AdaptaxError, DiskError
from adaptax.core.files import is_same_file, parse_json, read_plain, replacing
from adaptax.core.snapshot import LOCK
from adaptax.experiment.own_parts import going_on

CONFIG = "config.json"
PROGRESS = "progress.jsonl"
EVALUATIONS = "evaluations.jsonl"
UNFINISHED = f"{CONFIG}.tmp"
GROUP = "group.json"
"""What a group's folder holds beside its members' folders: which seeds they are."""
NEXT_GROUP = f"{GROUP}.next"
"""The same of a group that is to take its place, until this one has done an iteration."""
SWEEP = "sweep.json"
"""What a sweep's folder holds beside those of its trials: what it does, and what it found."""
WINNER = "winner"
"""The folder of the group that trains its winner."""
REPLACE = "--overwrite (from Python overwrite=True)"
"""What has a run, or a group, take the place of another."""
VIDEO_KINDS = {".mp4": "video/mp4", ".webp": "image/webp", ".gif": "image/gif"}
"""How the names of videos end, and what they are on a page, which has the first of each name."""
PICTURES = (
    *("learning.png", "adaptation.png", "classes.png"),
    *(f"video{kind}" for kind in VIDEO_KINDS),
)
MOST_VIDEOS = 10
"""Classes of tasks that a run is filmed on at most, and videos of it that a page holds."""
FILES = (CONFIG, PROGRESS, EVALUATIONS, LOCK, *PICTURES)
OWN = {*FILES, *(f"{name}.new" for name in FILES), UNFINISHED, "snapshots", "tensorboard"}
"""The names of all that a run, or a command on it, leaves in its directory."""
OWN_WITHIN = {"snapshots": "iteration-*", "tensorboard": "events.out.tfevents.*"}


def read_config(run_dir: Path) -> dict[str, Any]:
    """What `config.json` of a run holds; raises an AdaptaxError where it is not a run's."""
    refuse_links(run_dir)
    path = run_dir / CONFIG
    try:
        recorded = parse_json(read_plain(path))
    except (FileNotFoundError, NotADirectoryError):
        if exists(run_dir / GROUP):
            one = next(iter(sorted(run_dir.glob("seed-*"))), member_dir(run_dir, 0))
            raise AdaptaxError(
                f"{run_dir} is a group of runs: take one of them, for example {one}; in Python "
                "adaptax.load_group has all"
            ) from None
        if exists(run_dir / SWEEP):
            raise AdaptaxError(f"{run_dir} is a sweep: take {run_dir / WINNER}") from None
        raise AdaptaxError(f"{run_dir} holds no run: there is no {path}") from None
    except OSError as error:
        raise AdaptaxError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        raise AdaptaxError(f"{path} is not JSON: {error}") from None
    names = ("algorithm", "suite", "trainer")
    if not isinstance(recorded, dict) or not all(isinstance(recorded.get(n), dict) for n in names):
        raise AdaptaxError(f"{path} is not the config of a run: it lacks one of {', '.join(names)}")
    for name in ("algorithm", "suite"):
        if not isinstance(recorded[name].get("name"), str):
            raise AdaptaxError(f"{path} is not the config of a run: its {name} has no name")
    for name in ("versions", "protocol"):
        if not isinstance(recorded.get(name, {}), dict):
            raise AdaptaxError(f"{path} is not the config of a run: its {name} is no object")
    return recorded


def recorded_config(run_dir: Path) -> dict[str, Any]:
    """What `config.json` holds, whatever that is; nothing where it cannot be read."""
    try:
        recorded = parse_json(read_plain(run_dir / CONFIG))
    except (OSError, ValueError):
        return {}
    return recorded if isinstance(recorded, dict) else {}


def videos_of(run_dir: Path) -> list[Path]:
    """What `adaptax video` has left of single classes of tasks in a run's directory."""
    if not os.path.isdir(run_dir):  # a name that is too long, say, where glob raises
        return []
    return [path for kind in VIDEO_KINDS for path in sorted(run_dir.glob(f"video-*{kind}"))]


def refuse_links(run_dir: Path) -> None:
    """Raise an AdaptaxError where one of our names in a directory leads somewhere else."""
    for path in videos_of(run_dir):
        refuse_link(path)
    for name in sorted(OWN):
        path = run_dir / name
        refuse_link(path)
        if name in OWN_WITHIN:
            for folder, folders, files in os.walk(path):
                for within in (*folders, *files):
                    refuse_link(Path(folder, within))


def refuse_link(path: Path) -> None:
    """Raise an AdaptaxError where a path is a link or a special file."""
    try:
        mode = path.lstat().st_mode
    except OSError:  # most often: there is none
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        kind = "link" if stat.S_ISLNK(mode) else "special file"
        raise AdaptaxError(
            f"{path} is a {kind}: a run directory has plain files only; put the file itself there"
        )


class Hold:
    """A run directory locked for this process, until `release`."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir, self._path = run_dir, run_dir / LOCK
        refuse_links(run_dir)
        self._file = self._take()

    def keep(self, description: dict[str, Any], *, begun: bool = True) -> None:
        """Make sure that the directory is still this run's, whose config is `description`.

        One that was removed is made anew, and so is the config of a run that has `begun` there;
        raises an AdaptaxError where another run has it.
        """
        if is_same_file(self._file, self._path):
            if begun and not os.path.exists(self.run_dir / CONFIG):
                write_config(self.run_dir, description)
                warnings.warn(
                    f"{self.run_dir / CONFIG} was removed or moved: made anew", stacklevel=2
                )
            return
        refuse_links(self.run_dir)
        if exists(self._path) or _is_others(self.run_dir, description.get("run")):
            raise AdaptaxError(
                f"{self.run_dir} is another run's now: this one stops and writes nothing there"
            )
        make_run_dir(self.run_dir)
        old, self._file = self._file, self._take()
        os.close(old)
        write_config(self.run_dir, description)
        warnings.warn(
            f"{self.run_dir} or its lock was removed or moved: made anew, for what comes from "
            "here on",
            stacklevel=2,
        )

    def release(self) -> None:
        """Let others have the directory."""
        if is_same_file(self._file, self._path):
            self._path.unlink(missing_ok=True)
        os.close(self._file)

    def _take(self) -> int:
        file = _lock(self._path)
        try:
            with writing(self._path):
                os.truncate(file, 0)
                os.pwrite(file, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        except DiskError:
            self._path.unlink(missing_ok=True)
            os.close(file)
            raise
        return file


@contextmanager
def locked(run_dir: Path) -> Iterator[Hold]:
    """Hold a run directory; an AdaptaxError where another run holds it."""
    hold = Hold(run_dir)
    try:
        yield hold
    finally:
        hold.release()


def _lock(path: Path) -> int:
    with writing(path):
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    if os.fstat(file).st_nlink > 1:
        os.close(file)
        raise AdaptaxError(f"{path} is a hard link to another file: remove it")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            warnings.warn(f"{path.parent} cannot be locked: {error.strerror}", stacklevel=4)
            return file
        holder = os.pread(file, 200, 0).decode(errors="replace") or "another process"
        os.close(file)
        raise AdaptaxError(
            f"{path.parent} is in use by {holder}: wait for it or stop it, or choose another "
            "--run-dir"
        ) from None
    if os.fstat(file).st_nlink == 0:  # its holder removed it while this process opened it
        os.close(file)
        return _lock(path)
    return file


def names_in(run_dir: Path) -> set[str]:
    """What is in a directory that runs are to take; nothing where there is none.

    An AdaptaxError where it is a file, or cannot be read.
    """
    if os.path.isdir(run_dir):  # which a name that is too long is not; Path.is_dir raises
        try:
            return set(os.listdir(run_dir))
        except OSError as error:
            raise AdaptaxError(f"cannot read {run_dir}: {error.strerror}") from None
    if os.path.exists(run_dir):
        raise AdaptaxError(f"{run_dir} is a file, not a directory: choose another --run-dir")
    return set()


def exists(path: Path) -> bool:
    """Whether there is such a file; an AdaptaxError where that cannot be seen."""
    try:
        return path.exists()
    except OSError as error:
        raise AdaptaxError(f"cannot read {path}: {error.strerror}") from None


def member_dir(run_dir: Path, seed: int) -> Path:
    """The folder of one seed's run within that of a group."""
    return run_dir / f"seed-{seed}"


def check_run_dir(run_dir: Path, *, overwrite: bool, seed: int) -> bool:
    """Refuse a directory that holds something, but for a run that may be overwritten.

    A member of a group may be by a run of its own seed only. Whether there is such a run.
    """
    if names_in(run_dir) <= {LOCK, UNFINISHED}:
        return False
    try:
        recorded = read_config(run_dir)
    except AdaptaxError as error:
        refuse_links(run_dir)  # which says more than that there is no run
        if exists(run_dir / GROUP):
            raise AdaptaxError(
                f"{run_dir} holds a group of runs, which --overwrite replaces by a group only; "
                "choose another --run-dir"
            ) from None
        why = f" ({error})" if exists(run_dir / CONFIG) else ""
        only = "; --overwrite deletes runs only" if overwrite else ""
        raise AdaptaxError(
            f"{run_dir} is not empty and holds no run{why}; choose another --run-dir{only}"
        ) from None
    if not overwrite:
        raise AdaptaxError(
            f"{run_dir} holds a run already; choose another --run-dir, go on with "
            f"`{going_on(run_dir, recorded)}`, or replace it with {REPLACE}"
        )
    place = run_dir.absolute()
    is_member = exists(place.parent / GROUP) and re.fullmatch(r"seed-\d+", place.name)
    if is_member and place != member_dir(place.parent, seed):
        raise AdaptaxError(
            f"{run_dir} is a member of the group {place.parent}, whose place is for its own seed "
            f"and not for {seed}: choose another --run-dir"
        )
    return True


def make_run_dir(run_dir: Path) -> None:
    """Make the directory where there is none."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DiskError(f"cannot make {run_dir}: {error.strerror}") from None


def begin_run(run_dir: Path, description: dict[str, Any]) -> None:
    """Write the config of a run that starts, and delete what another one has left of ours.

    The old config goes last, in one step: a run that can be read is never half there.
    """
    with writing(run_dir / CONFIG), replacing(run_dir / CONFIG, ".tmp") as file:
        file.write(_text(description))
        file.flush()
        _clear(run_dir)


def clear_run(run_dir: Path) -> None:
    """Delete a run's own files, the config last; strangers' stay, and the lock is its holder's."""
    if run_dir.is_dir():
        refuse_links(run_dir)
        with writing(run_dir):
            _clear(run_dir)
            for name in (UNFINISHED, CONFIG):
                (run_dir / name).unlink(missing_ok=True)


def _clear(run_dir: Path) -> None:
    """Delete our own files, but for those that a start needs; strangers' stay."""
    for name in OWN - {CONFIG, UNFINISHED, LOCK, *OWN_WITHIN}:
        (run_dir / name).unlink(missing_ok=True)
    for path in videos_of(run_dir):
        path.unlink()
    for name, pattern in OWN_WITHIN.items():
        for path in (run_dir / name).glob(pattern):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        with suppress(OSError):  # it holds more than ours, or there is none
            (run_dir / name).rmdir()


def write_config(run_dir: Path, description: dict[str, Any]) -> None:
    """Write `config.json` as a whole or not at all."""
    write_whole(run_dir / CONFIG, _text(description), ".tmp")


def _text(description: dict[str, Any]) -> bytes:
    return (json.dumps(description, indent=2) + "\n").encode()


def write_whole(path: Path, data: bytes, suffix: str = ".new") -> None:
    """Write a file as a whole or not at all; a DiskError where it cannot be."""
    with writing(path), replacing(path, suffix) as file:
        file.write(data)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the operating system refuses into one clear line about `path`."""
    try:
        yield
    except OSError as error:
        raise DiskError(f"cannot write {path}: {error.strerror}") from error


def _is_others(run_dir: Path, run: str | None) -> bool:
    """Whether a directory holds a config that is not that of `run`."""
    try:
        recorded = parse_json(read_plain(run_dir / CONFIG))
    except FileNotFoundError:
        return False
    except (OSError, ValueError):
        return True
    return not isinstance(recorded, dict) or recorded.get("run") != run
