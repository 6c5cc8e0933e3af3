"""What a stranger, a clumsy editor or a bad disk does to the folder of a run.

Each edit takes a random generator, the run's folder and a folder outside that holds a stranger's
files. `DAMAGES` leave enough to go on from, to the last bit; of `FORGERIES` a command must make one
clear line or a run, and nothing outside.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import pickle
import random
import shutil
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from adaptax.core.snapshot import _digest, _digests
from adaptax.experiment.run_dir import OWN

Edit = Callable[[random.Random, Path, Path], None]
VALUES: list[Any] = [
    *(None, True, False, "", "x", "os:system", "../x", "$x^{$", "\ud800", [], [[]], {}, [None]),
    *(-1, 0, 1, 3, 2**31, 2**63, -(2**70), 10**400, 1.5, -1e308, 1e-320, {"value": 1}, "9" * 5000),
    *(math.nan, math.inf),
]
NAMES = [
    "nobodys-plugin",
    "evil_module:Evil",
    "evil_module",
    "os",
    "",
    "gym:",
    "gym:evil_module:E-v0",
]


def newest(run_dir: Path) -> Path:
    """The folder of the newest snapshot."""
    return max(p for p in (run_dir / "snapshots").glob("iteration-*") if p.is_dir())


def about(snapshot: Path) -> Path:
    """What is said of it."""
    return snapshot.with_suffix(".json")


def sign(snapshot: Path, **changes: Any) -> None:
    """Make what is said of a snapshot fit its files, as a forger would."""
    said = json.loads(about(snapshot).read_text())
    said = {**said, "files": _digests(snapshot), **changes}
    said.pop("digest", None)
    about(snapshot).write_text(json.dumps({**said, "digest": _digest(said)}))


def flip(rng: random.Random, path: Path) -> None:
    """Flip a bit of a file."""
    content = bytearray(path.read_bytes())
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(content)


def cut(rng: random.Random, path: Path) -> None:
    """Cut a file short."""
    path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size)])


def any_file(rng: random.Random, snapshot: Path) -> Path:
    """One of the files of a snapshot."""
    return rng.choice([*sorted(p for p in snapshot.rglob("*") if p.is_file()), about(snapshot)])


def _damage(how: Callable[[random.Random, Path], None]) -> Edit:
    return lambda rng, run_dir, outside: how(rng, newest(run_dir))


def _swap(rng: random.Random, snapshot: Path) -> None:
    first = min(p for p in snapshot.parent.glob("iteration-*") if p.is_dir())
    between = snapshot.with_name("between")
    for one, other in ((snapshot, first), (about(snapshot), about(first)))[: rng.randint(1, 2)]:
        one.rename(between)
        other.rename(one)
        between.rename(other)


def _rename(rng: random.Random, snapshot: Path) -> None:
    name = snapshot.with_name(f"iteration-{rng.choice(['00000099', '9' * 30, '00000001x', '²'])}")
    snapshot.rename(name)
    about(snapshot).rename(name.with_suffix(".json"))


def _in_its_place(make: Callable[[Path], None]) -> Edit:
    def edit(rng: random.Random, run_dir: Path, outside: Path) -> None:
        path = any_file(rng, newest(run_dir))
        path.unlink()
        make(path)

    return edit


def _half_written(rng: random.Random, snapshot: Path) -> None:
    rng.choice(
        [
            about(snapshot).unlink,
            lambda: snapshot.rename(snapshot.with_name(f"{snapshot.name}.writing")),
            lambda: shutil.copytree(snapshot, snapshot.with_name("iteration-00000077.writing")),
            lambda: about(snapshot).rename(snapshot.with_suffix(".tmp")),
        ]
    )()


def _grown(rng: random.Random, snapshot: Path) -> None:
    os.truncate(any_file(rng, snapshot), 2**33)  # a sparse file


DAMAGES: dict[str, Edit] = {
    "snapshot: a bit flipped": _damage(lambda rng, at: flip(rng, any_file(rng, at))),
    "snapshot: a file cut short": _damage(lambda rng, at: cut(rng, any_file(rng, at))),
    "snapshot: a file missing": _damage(lambda rng, at: any_file(rng, at).unlink()),
    "snapshot: a folder missing": _damage(lambda rng, at: shutil.rmtree(at)),
    "snapshot: a file too many": _damage(lambda rng, at: (at / "more").mkdir()),
    "snapshot: another's place": _damage(_swap),
    "snapshot: another name": _damage(_rename),
    "snapshot: a folder in a file's place": _in_its_place(os.mkdir),
    "snapshot: half written": _damage(_half_written),
    "snapshot: a huge file": _damage(_grown),
    "log: a half row at its end": lambda rng, run_dir, outside: _append(
        run_dir, rng, b'{"iteration": 5, "num_st'
    ),
    "lock: left behind": lambda rng, run_dir, outside: (run_dir / "lock").write_text("process 1"),
    "config: unfinished": lambda rng, run_dir, outside: (run_dir / "config.json.tmp").touch(),
}


def _append(run_dir: Path, rng: random.Random, text: bytes) -> None:
    with (run_dir / rng.choice(["progress.jsonl", "evaluations.jsonl"])).open("ab") as file:
        file.write(text)


def _link(rng: random.Random, run_dir: Path, outside: Path) -> None:
    inside = [str(p.relative_to(run_dir)) for p in run_dir.rglob("*")]
    path = run_dir / rng.choice([*sorted(OWN), *sorted(inside)])
    target = rng.choice(
        [outside / "mine.txt", outside / "folder", outside / "absent", Path("/dev/zero"), run_dir]
    )
    _remove(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)


def _parent_link(rng: random.Random, run_dir: Path, outside: Path) -> None:
    """The run's folder itself is a link: that is the user's."""
    moved = run_dir.with_name("moved")
    run_dir.rename(moved)
    run_dir.symlink_to(moved)


def _special_file(rng: random.Random, run_dir: Path, outside: Path) -> None:
    path = run_dir / rng.choice(sorted(OWN))
    _remove(path)
    kind = rng.choice(["fifo", "socket", "folder", "hard link", "huge"])
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "hard link":
        path.hardlink_to(outside / "mine.txt")
    elif kind == "huge":
        path.touch()
        os.truncate(path, 2**40)
    else:
        before = os.getcwd()
        os.chdir(path.parent)  # whose whole path is too long for a socket
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(path.name)
        os.chdir(before)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all that is in a tree of JSON."""
    found = [path] if path else []
    pairs = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for name, value in pairs:
        found += places(value, (*path, name))
    return found


def edited(rng: random.Random, tree: Any, values: list[Any] = VALUES) -> Any:
    """A tree of JSON with something of it replaced, removed or added."""
    *way, last = rng.choice(places(tree))
    at = tree
    for name in way:
        at = at[name]
    how = rng.choice(["replace", "replace", "remove", "add"])
    if how == "replace":
        at[last] = rng.choice(values)
    elif how == "remove":
        del at[last]
    elif isinstance(at, dict):
        at[rng.choice(["x", "", "trainer", "__class__", "function"])] = rng.choice(values)
    else:
        at.append(rng.choice(values))
    return tree


def _json(name: str, values: list[Any] = VALUES) -> Edit:
    def edit(rng: random.Random, run_dir: Path, outside: Path) -> None:
        path = run_dir / name
        tree = json.loads(path.read_text())
        for _ in range(rng.randint(1, 2)):
            tree = edited(rng, tree, values)
        path.write_text(json.dumps(tree), errors="replace")

    return edit


def _names(rng: random.Random, run_dir: Path, outside: Path) -> None:
    """A config that names what nobody has installed, though a module of that name lies about."""
    mark = f"open({str(outside / 'executed')!r}, 'w').write('executed')\n"
    for folder in (run_dir, run_dir.parent):
        (folder / "evil_module.py").write_text(mark)
        (folder / "evil.dist-info").mkdir()
        text = "[adaptax.algorithms]\nnobodys-plugin = evil_module:Evil\n"
        (folder / "evil.dist-info" / "entry_points.txt").write_text(text)
    path = run_dir / "config.json"
    tree = json.loads(path.read_text())
    kind = rng.choice(["algorithm", "suite", "trackers", "init_from", "networks", "memory"])
    name = rng.choice(NAMES)
    if kind in ("algorithm", "suite"):
        tree[kind]["name"] = name
    elif kind == "networks":
        tree["algorithm"]["networks"] = name
    elif kind == "memory":
        tree["algorithm"]["memory"] = {"kind": name, "size": 16}
    else:
        tree["trainer"][kind] = [name] if kind == "trackers" else name
    path.write_text(json.dumps(tree))


def _text(rng: random.Random, path: Path) -> None:
    """A file of text becomes another."""
    texts = [b"", b"\0" * 100, b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe{}", b"null", b"[1]"]
    texts += [b'"x"', b"{}", b"\n\n\n", b"NaN", b"1e999", b'{"iteration": 1}\n', b"\x80\x04K\x01."]
    if rng.random() < 0.5:
        rng.choice([flip, cut])(rng, path)
    else:
        path.write_bytes(rng.choice(texts))


def _rows(rng: random.Random, run_dir: Path, outside: Path) -> None:
    path = run_dir / rng.choice(["progress.jsonl", "evaluations.jsonl"])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    how = rng.choice(["edit", "edit", "edit", "repeat", "reverse", "drop", "huge", "deep"])
    if how == "edit":
        index = rng.randrange(len(rows))
        rows[index] = edited(rng, rows[index])
    elif how == "repeat":
        rows += rows
    elif how == "reverse":
        rows.reverse()
    elif how == "drop":
        del rows[rng.randrange(len(rows))]
    elif how == "huge":
        rows[0]["x" * 10**6] = list(range(10**5))
    lines = [json.dumps(row) for row in rows]
    if how == "deep":
        lines.append('{"iteration": ' * 50_000)
    path.write_text("\n".join(lines) + "\n", errors="replace")


def _tree(rng: random.Random, run_dir: Path, outside: Path) -> None:
    """A forged tree of a snapshot, under a digest that fits."""
    at = newest(run_dir)
    path = at / "tree.json"
    tree = json.loads(path.read_text())
    path.write_text(json.dumps(edited(rng, tree)), errors="replace")
    sign(at)


def _arrays(rng: random.Random, run_dir: Path, outside: Path) -> None:
    """Forged arrays of a snapshot, under a digest that fits."""
    at = newest(run_dir)
    with np.load(at / "arrays.npz") as file:
        arrays = dict(file)
    name = rng.choice(sorted(arrays))
    x = arrays[name]
    numbers = x.dtype.kind in "fiu"
    arrays[name] = rng.choice(
        [
            lambda: np.full_like(x, np.nan) if x.dtype.kind == "f" else np.full_like(x, 2**30),
            lambda: x.astype(np.float64) if numbers else x,
            lambda: np.zeros((*x.shape, 2), x.dtype),
            lambda: np.zeros(0, x.dtype),
            lambda: np.asarray(x).reshape(-1)[:1],
            lambda: np.full_like(x, -1 if x.dtype.kind in "if" else 0) if numbers else x,
            lambda: np.array(["text"]),
            lambda: np.full(x.shape, np.finfo(np.float32).max).astype(x.dtype) if numbers else x,
        ]
    )()
    if rng.random() < 0.1:
        del arrays[name]
    np.savez(at / "arrays.npz", **arrays)
    sign(at)


def _bomb(rng: random.Random, run_dir: Path, outside: Path) -> None:
    """Arrays that say that they are far larger than their file."""
    at, stream = newest(run_dir), io.BytesIO()
    shape = rng.choice([(2**40,), (-1,), (2**20,), (), (10**400,)])
    said = {"descr": rng.choice(["<f4", "|O", "|V1000000"]), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, said)
    more = bytes(2**22) if shape == (2**20,) else b""
    with zipfile.ZipFile(at / "arrays.npz", "w", zipfile.ZIP_DEFLATED) as arrays:
        arrays.writestr(
            rng.choice(["arr_0.npy", "../../../outside/x.npy"]), stream.getvalue() + more
        )
    sign(at)


class Evil:
    """Writes a file where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"echo executed > {self.mark}",)


def _pickle(rng: random.Random, run_dir: Path, outside: Path) -> None:
    """Files of a snapshot that are pickles, under a digest that fits."""
    at = newest(run_dir)
    path = rng.choice([at / "tree.json", at / "arrays.npz"])
    path.write_bytes(pickle.dumps(Evil(outside / "executed"), rng.choice([0, 4])))
    if rng.random() < 0.5:
        with zipfile.ZipFile(at / "arrays.npz", "w") as arrays:
            arrays.writestr("arr_0.npy", pickle.dumps(Evil(outside / "executed")))
    sign(at)


def _said(rng: random.Random, run_dir: Path, outside: Path) -> None:
    """What is said of a snapshot, changed, under a digest that fits."""
    at = newest(run_dir)
    field = rng.choice(["iteration", "score", "owner", "files"])
    sign(at, **{field: rng.choice(VALUES[:-2])})


def _foreign(rng: random.Random, run_dir: Path, outside: Path) -> None:
    """Something that is not a run, with a name of ours."""
    for path in list(run_dir.iterdir()):
        _remove(path)
    (run_dir / ".git").mkdir()
    (run_dir / ".git" / "HEAD").write_text("ref")
    (run_dir / "main.py").write_text("print()")
    name = rng.choice(["config.json", "group.json", "sweep.json", "snapshots", "progress.jsonl"])
    (run_dir / name).write_text(rng.choice(["{}", "", "[]", '{"seeds": [0]}', "null"]))


FORGERIES: dict[str, Edit] = {
    "a link": _link,
    "the folder is a link": _parent_link,
    "a special file": _special_file,
    "snapshot: a pipe in a file's place": _in_its_place(os.mkfifo),
    "config: other values": _json("config.json"),
    "config: other text": lambda rng, run_dir, outside: _text(rng, run_dir / "config.json"),
    "config: names of nobody's": _names,
    "log: other values": _rows,
    "log: other text": lambda rng, run_dir, outside: _text(
        rng, run_dir / rng.choice(["progress.jsonl", "evaluations.jsonl"])
    ),
    "snapshot: forged tree": _tree,
    "snapshot: forged arrays": _arrays,
    "snapshot: arrays beyond memory": _bomb,
    "snapshot: pickles": _pickle,
    "snapshot: forged digest": _said,
    "no run at all": _foreign,
}

MANIFEST = "export.json"


def resigned(run_dir: Path) -> None:
    """Make the digests of an export fit its files, as a forger would."""
    path = run_dir / MANIFEST
    tree = json.loads(path.read_text())
    for name in tree["files"]:
        if (file := run_dir / name).is_file() and file.stat().st_size < 2**30:
            tree["files"][name] = hashlib.sha256(file.read_bytes()).hexdigest()
    path.write_text(json.dumps(tree))


def _other_files(rng: random.Random, run_dir: Path, outside: Path) -> None:
    """An export that names files of others, or which no export has."""
    path = run_dir / MANIFEST
    tree = json.loads(path.read_text())
    names = [str(outside / "mine.txt"), "../outside/mine.txt", "../../etc/passwd", "lock", ".git/x"]
    names += ["snapshots/iteration-00000004/../../../x", "config.json\n", "", ".", "x" * 5000]
    name = rng.choice([*names, "snapshots/iteration-00000099/tree.json"])
    if rng.random() < 0.5 and 0 < len(name) < 100 and ".." not in name and name[0] not in "/.":
        (run_dir / name).parent.mkdir(parents=True, exist_ok=True)
        (run_dir / name).write_text("evil")
    tree["files"][name] = hashlib.sha256(b"evil").hexdigest()
    path.write_text(json.dumps(tree))


def _forged_export(rng: random.Random, run_dir: Path, outside: Path) -> None:
    """Any forgery of a run, under digests that fit."""
    rng.choice([*DAMAGES.values(), *FORGERIES.values()])(rng, run_dir, outside)
    if (run_dir / MANIFEST).is_file():
        resigned(run_dir)


EXPORT_FORGERIES: dict[str, Edit] = {
    "export: other values": _json(MANIFEST),
    "export: other text": lambda rng, run_dir, outside: _text(rng, run_dir / MANIFEST),
    "export: other files": _other_files,
    "export: damaged": lambda rng, run_dir, outside: rng.choice(
        [*DAMAGES.values(), *FORGERIES.values()]
    )(rng, run_dir, outside),
    "export: forged": _forged_export,
}
"""Of the folder that `adaptax export` writes."""

GROUP_FORGERIES: dict[str, Edit] = {
    "group: other values": _json("group.json", [*VALUES, [0, 0], [-1], [0, 7], list(range(2000))]),
    "group: other text": lambda rng, run_dir, outside: _text(rng, run_dir / "group.json"),
    "group: a member is gone": lambda rng, run_dir, outside: shutil.rmtree(run_dir / "seed-1"),
    "group: a member is another": lambda rng, run_dir, outside: (
        shutil.rmtree(run_dir / "seed-1"),
        shutil.copytree(run_dir / "seed-0", run_dir / "seed-1"),
    )[0],
    "group: a member is a link": lambda rng, run_dir, outside: (
        shutil.rmtree(run_dir / "seed-1"),
        (run_dir / "seed-1").symlink_to(outside / "folder"),
    )[0],
    "group: a member is damaged": lambda rng, run_dir, outside: rng.choice(
        [*DAMAGES.values(), *FORGERIES.values()]
    )(rng, run_dir / "seed-1", outside),
}
