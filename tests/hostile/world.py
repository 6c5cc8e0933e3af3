"""A folder in which an attack happens, and what has changed in it."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Collection
from pathlib import Path


class World:
    """`work`, where commands run, and `outside`, `home` and `tmp`, where nothing must change."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for name in ("work", "outside", "home", "tmp"):
            (place / name).mkdir(parents=True, exist_ok=True)
        self.work, self.outside = place / "work", place / "outside"

    def fresh(self) -> None:
        """Empty it, but for a stranger's files outside."""
        for name in ("work", "outside", "home", "tmp"):
            clear(self.place / name)
        (self.outside / "mine.txt").write_text("mine\n" * 20)
        (self.outside / "folder").mkdir()
        (self.outside / "folder" / "mine.txt").write_text("mine")
        (self.work / "notes.txt").write_text("mine")

    def state(self, but: Collection[Path] = ()) -> dict[str, tuple[str, int]]:
        """By path what there is, and its bytes; without the folders and files of `but`."""
        found = {}
        for folder, folders, files in os.walk(self.place):
            here = Path(folder)
            folders[:] = [name for name in folders if here / name not in but]
            for name in [*folders, *files]:
                path = here / name
                if path not in but:
                    found[str(path.relative_to(self.place))] = _about(path)
        return found


def changed_bytes(before: dict[str, tuple[str, int]], after: dict[str, tuple[str, int]]) -> int:
    """Bytes that were written or lost between two states; one for what has none of its own."""
    paths = [p for p in before.keys() | after.keys() if before.get(p) != after.get(p)]
    return sum(max(after.get(p, ("", 0))[1], before.get(p, ("", 0))[1], 1) for p in paths)


def clear(folder: Path) -> None:
    """Remove all that is in a folder, whatever it is, following no link."""
    for entry in list(os.scandir(folder)):
        if entry.is_dir(follow_symlinks=False):
            os.chmod(entry.path, 0o700)
            clear(Path(entry.path))
            os.rmdir(entry.path)
        else:
            os.unlink(entry.path)


def _about(path: Path) -> tuple[str, int]:
    about = path.lstat()
    if stat.S_ISLNK(about.st_mode):
        return f"link {os.readlink(path)}", 1
    if not stat.S_ISREG(about.st_mode):
        return f"kind {stat.S_IFMT(about.st_mode)}", 1
    if about.st_size > 2**26:  # a sparse file of an attack
        return f"large {about.st_size} {about.st_mtime_ns}", about.st_size
    return hashlib.sha256(path.read_bytes()).hexdigest(), about.st_size
