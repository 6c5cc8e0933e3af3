"""Share: a trained agent as a folder for others, and back to a run that acts and is evaluated.

The folder is laid out as a run with a single snapshot, of weights only. `export.json` has the
digest of every file of it but the card, which people edit. Whoever imports it trusts nothing: names
are known ones, files are regular ones of bounded size, and nothing in them is code.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import adaptax
from adaptax.algorithms.registry import find_algorithm
from adaptax.core.errors import AdaptaxError, ConfigError, check
from adaptax.core.files import MOST_BYTES, open_new, parse_json, read_plain
from adaptax.core.snapshot import Snapshots
from adaptax.envs.suite import Suite
from adaptax.experiment.build import load_run
from adaptax.experiment.card import card
from adaptax.experiment.choices import VideoFormat
from adaptax.experiment.logger import Row, read_rows
from adaptax.experiment.pretrained import folder_path, run_path
from adaptax.experiment.run_dir import (
    CONFIG,
    EVALUATIONS,
    PROGRESS,
    make_run_dir,
    read_config,
    refuse_link,
    refuse_links,
    write_config,
    writing,
)
from adaptax.experiment.weights import WEIGHTS_ONLY, weights_of

MANIFEST, CARD = "export.json", "README.md"
FORMAT = 1
MOST_ROWS = {PROGRESS: 100, EVALUATIONS: 10}
"""Rows of each log that are exported, the first and the last among them."""
_SNAPSHOT = r"snapshots/iteration-\d{8}"
KNOWN = {
    rf"{re.escape(CONFIG)}|{_SNAPSHOT}\.json|{_SNAPSHOT}/tree\.json": 2**24,
    rf"{re.escape(PROGRESS)}|{re.escape(EVALUATIONS)}": 2**28,
    rf"video\.(gif|mp4)|{_SNAPSHOT}/arrays\.npz": MOST_BYTES,
}
"""Patterns of the files of an export, and how many bytes each may have."""
MOST_FILES = 8


def export_run(
    run_dir: str | Path,
    out: str | Path,
    *,
    best: bool = False,
    video: VideoFormat | None = None,
    no_gl: AdaptaxError | None = None,
    suite: Suite | None = None,
    networks: Any = None,
) -> Path:
    """Write the agent of a run's newest snapshot to a new folder for others; gives the folder.

    With `best` that of the snapshot with the highest return in training; `video` films it, for
    which `no_gl` is as in `write_videos`. It holds weights, settings, thinned logs with an
    evaluation of these very weights, and a card in the form of the Hugging Face Hub. `suite` and
    `networks` are those of the run, where they were one's own.
    Raises an AdaptaxError where there is no run, or `out` is not empty.
    """
    formats = get_args(VideoFormat)
    check(video is None or video in formats, f"video must be one of {formats}, not {video!r}")
    check(isinstance(best, bool), f"best must be True or False, not {best!r}")
    run_dir, out = run_path(run_dir), folder_path(out)
    recorded = read_config(run_dir)
    _check_new(out)
    own = {"suite": suite, "networks": networks}
    if suite is not None or networks is not None:
        load_run(run_dir, **own).close()  # which refuses what is not the run's
    iteration, tree = _snapshot(run_dir, best=best)
    learned = _learned(recorded["algorithm"]["name"], tree.get("state", {}))
    with _new_directory(out) as folder:
        rows = {
            PROGRESS: [r for r in read_rows(run_dir / PROGRESS) if r["iteration"] <= iteration],
            EVALUATIONS: _evaluations(run_dir, iteration, tree, own),
        }
        write_config(folder, _for_others(recorded))
        for name, most in MOST_ROWS.items():
            lines = [json.dumps(row) + "\n" for row in _thinned(rows[name], most)]
            (folder / name).write_text("".join(lines))
        owner = {"run": recorded.get("run"), "seed": recorded["trainer"].get("seed")}
        weights = {
            "state": learned,
            "sampler": {"counters": tree["sampler"]["counters"]},
            "seconds": tree["seconds"],
            WEIGHTS_ONLY: True,
        }
        score = next((r.get("train/return") for r in rows[PROGRESS][-1:]), None)
        Snapshots(folder / "snapshots", owner=owner).save(iteration, weights, score)
        if video is not None:
            from adaptax.experiment.video import VideoConfig, write_videos

            write_videos(folder, folder / f"video.{video}", VideoConfig(task=0), no_gl, **own)
        files = {
            str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        about = {"format": FORMAT, "adaptax": adaptax.__version__, "files": files}
        (folder / MANIFEST).write_text(json.dumps(about, indent=2) + "\n")
        text = card(
            _for_others(recorded), rows[EVALUATIONS], rows[PROGRESS], out.resolve().name, files
        )
        # The name of a folder may have bytes that are no letters.
        (folder / CARD).write_bytes(text.encode(errors="backslashreplace"))
    return out


def import_run(source: str | Path, run_dir: str | Path) -> Path:
    """Make a run directory of what `export_run` wrote, whoever sent it; gives the directory.

    It can be evaluated, plotted, filmed, loaded, and begun from, but not resumed: it has no
    optimizer. Raises an AdaptaxError, and leaves nothing behind, where a file is not as it was
    written or not one that an export has.
    """
    source, run_dir = run_path(source), folder_path(run_dir)
    _check_new(run_dir)
    digests = _manifest(source)
    refuse_links(source)
    with _new_directory(run_dir) as folder:
        for name, digest in digests.items():
            data = _read(source, name)
            if hashlib.sha256(data).hexdigest() != digest:
                raise AdaptaxError(f"{source} is damaged: its file {name} has changed")
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with open_new(path) as file:
                file.write(data)
        try:
            write_config(folder, _for_others(read_config(folder)))
            _check_snapshot(folder)
        except AdaptaxError as error:  # which names where it is for now
            raise AdaptaxError(str(error).replace(str(folder), str(source))) from None
    return run_dir


def _snapshot(run_dir: Path, *, best: bool) -> tuple[int, dict[str, Any]]:
    refuse_links(run_dir)
    return Snapshots(run_dir / "snapshots").read(best=best)


def _check_snapshot(folder: Path) -> None:
    """Raise an AdaptaxError unless a folder has one snapshot, of weights only."""
    snapshots = Snapshots(folder / "snapshots")
    iterations = snapshots.iterations()
    check(len(iterations) == 1, f"{folder} has {len(iterations)} snapshots; an export has one")
    tree = snapshots.load(iterations[0])
    weights = isinstance(tree, dict) and tree.get(WEIGHTS_ONLY) is True
    check(weights, f"the snapshot of {folder} is no export's: it is not of weights only")


def _evaluations(
    run_dir: Path, iteration: int, tree: dict[str, Any], own: dict[str, Any]
) -> list[Row]:
    """Those on record up to an iteration, its own among them: if there is none it is made now.

    Of this very tree: the run may go on meanwhile, and have a newer one. `own` is what was handed
    in for the run's own parts.
    """
    rows = [row for row in read_rows(run_dir / EVALUATIONS) if row["iteration"] <= iteration]
    if rows and rows[-1]["iteration"] == iteration:
        return rows
    trainer = load_run(run_dir, **own)
    try:
        trainer.take_up(iteration, tree)
        if not rows and trainer.config.init_from is None:
            rows.append({"iteration": 0, "num_steps": 0, **trainer.evaluate_untrained().row()})
        about = {"iteration": iteration, "num_steps": trainer.sampler.num_steps}
        return [*rows, {**about, **trainer.evaluate().row()}]
    finally:
        trainer.close()


def _thinned(rows: list[Row], most: int) -> list[Row]:
    """At most so many rows, evenly, with the first and the last."""
    if len(rows) <= most:
        return rows
    return [rows[i * (len(rows) - 1) // (most - 1)] for i in range(most)]


def _for_others(recorded: dict[str, Any]) -> dict[str, Any]:
    """A run's config without paths of the machine, and without whom to tell of it."""
    trainer = dict(recorded["trainer"])
    for name in ("run_dir", "init_from", "recipe"):
        if isinstance(trainer.get(name), str):
            trainer[name] = Path(trainer[name]).name
    told: dict[str, Any] = {"callbacks": [], "trackers": []}  # whose packages others may not have
    return {**recorded, "trainer": {**trainer, **told, "overwrite": False}}


def _manifest(source: Path) -> dict[str, str]:
    """The digests of an export's files by their names, each a known one."""
    path = source / MANIFEST
    refuse_link(path)
    try:
        about = parse_json(read_plain(path, 2**20))
    except (FileNotFoundError, NotADirectoryError):
        raise AdaptaxError(f"{source} is no export: there is no {path}") from None
    except (OSError, ValueError) as error:
        raise AdaptaxError(f"cannot read {path}: {error}") from None
    files = about.get("files") if isinstance(about, dict) else None
    if not isinstance(files, dict) or not all(isinstance(d, str) for d in files.values()):
        raise AdaptaxError(f"{path} does not tell an export's files")
    if about.get("format") != FORMAT:
        raise AdaptaxError(
            f"{source} is an export of format {about.get('format')!r}; this adaptax reads {FORMAT}"
        )
    for name in files:
        if _most_bytes(name) is None or len(files) > MOST_FILES:
            raise AdaptaxError(f"{path} names {name!r}, which is no file of an export")
    return files


def _most_bytes(name: str) -> int | None:
    """How large a file of an export may be; None where no file of it has this name."""
    fitting = [most for pattern, most in KNOWN.items() if re.fullmatch(pattern, name)]
    return fitting[0] if fitting else None


def _read(source: Path, name: str) -> bytes:
    most = _most_bytes(name)
    assert most is not None
    try:
        return read_plain(source / name, most)
    except FileNotFoundError:
        raise AdaptaxError(f"{source} is damaged: its file {name} is missing") from None
    except OSError as error:
        raise AdaptaxError(f"cannot read {source / name}: {error.strerror}") from None


def _learned(name: str, state: dict[str, Any]) -> dict[str, Any]:
    """What an algorithm of this name has learned; an AdaptaxError where it says that of nothing."""
    try:
        algorithm, _ = find_algorithm(name).load()
    except ConfigError as error:
        raise ConfigError(
            f"{error}; an agent of an algorithm of your own is exported where an installed package "
            "offers it"
        ) from None
    learned = weights_of(algorithm, state)
    check(
        bool(learned) or not state,
        f"{name} names none of its state as learned, so that an export would hold no agent: name "
        f"it in the class's `learned` and `acting`, beginnings of {', '.join(sorted(state)[:3])}",
    )
    return learned


def _check_new(path: Path) -> None:
    """Raise an AdaptaxError unless a path is free, or an empty directory."""
    if os.path.isdir(path):
        check(not any(path.iterdir()), f"{path} is not empty; choose a new folder")
    else:
        check(not os.path.lexists(path), f"{path} is a file or a link; choose a new folder")


@contextmanager
def _new_directory(path: Path) -> Iterator[Path]:
    """A directory to fill, which is at `path` once that is done; nothing is where it fails.

    An empty one that is there, in which a shell may stand, is kept.
    """
    path = path.resolve()
    make_run_dir(path.parent)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with writing(path):
            unfinished.mkdir()
            yield unfinished
            if path.is_dir():
                for name in sorted(os.listdir(unfinished), key=lambda name: name == MANIFEST):
                    os.replace(unfinished / name, path / name)
            else:
                os.replace(unfinished, path)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
