"""Agents that come with adaptax, each a folder in `shipped/` as `adaptax export` writes it."""

from __future__ import annotations

import os
from pathlib import Path

from adaptax.core.errors import check, unknown_name
from adaptax.core.files import parse_json, read_plain

PREFIX = "pretrained:"
FOLDER = Path(__file__).parent / "shipped"


def run_path(run_dir: str | Path) -> Path:
    """The directory of a run; of an agent that comes with adaptax by its name, pretrained:NAME."""
    is_path = isinstance(run_dir, str | os.PathLike) and "\0" not in str(run_dir)
    check(is_path, f"expected the directory of a run, not {run_dir!r}")
    text = str(run_dir)
    if not text.startswith(PREFIX):
        return Path(run_dir)
    name, names = text.removeprefix(PREFIX), _names()
    if name not in names:
        raise unknown_name("pretrained agent", name, names)
    return FOLDER / name


def folder_path(folder: str | Path) -> Path:
    """A folder to be made; a ConfigError where it is no path."""
    is_path = isinstance(folder, str | os.PathLike) and bool(str(folder))
    check(is_path and "\0" not in str(folder), f"expected a folder to be made, not {folder!r}")
    check_writable(folder)
    return Path(folder)


def check_writable(folder: str | os.PathLike[str]) -> None:
    """Raise a ConfigError where a path is the name of an agent that comes with adaptax."""
    shipped = os.fspath(folder).startswith(PREFIX)
    check(not shipped, f"{folder} names what comes with adaptax: choose another directory")


def is_pretrained(run_dir: Path) -> bool:
    """Whether a run's directory is that of an agent that comes with adaptax, only to be read."""
    return run_dir.parent == FOLDER


def all_pretrained() -> dict[str, str]:
    """What each agent that comes with adaptax is, by the name that commands take."""
    return {f"{PREFIX}{name}": _summary(FOLDER / name) for name in _names()}


def _names() -> list[str]:
    return sorted(path.name for path in FOLDER.glob("*") if path.is_dir())


def _summary(folder: Path) -> str:
    config = parse_json(read_plain(folder / "config.json"))
    first, *_, last = read_plain(folder / "evaluations.jsonl").split(b"\n")[:-1]
    trained, untrained = (parse_json(row)["episodes"][-1] for row in (last, first))
    return (
        f"{config['algorithm']['name']} on {config['suite']['name']}: return "
        f"{trained['return_mean']:.4g} in episode {trained['index']}, untrained "
        f"{untrained['return_mean']:.4g}"
    )
