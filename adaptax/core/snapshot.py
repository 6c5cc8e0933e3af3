"""Snapshots: pytrees on disk, whole or not at all, checked before they are read.

A snapshot is a directory `iteration-N`, written elsewhere and moved into place: `arrays.npz`, and
`tree.json` with numbers, text and the place of each array; never code. `iteration-N.json` beside
it, written last, says which iteration of which run it is, and holds a digest of that and of every
byte: a directory without it was never finished, one that does not match is damaged, and one of
another name or run is refused. What is half-written, or could not be, never touches an older
snapshot.

Not Orbax: what it adds, shards and writing in the background, is not needed, and TensorStore below
it keeps a few hundred bytes of memory for every array that it ever wrote.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import math
import os
import shutil
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.errors import AdaptaxError, ConfigError, DiskError, SnapshotError, one_line
from adaptax.core.experience import PyTree
from adaptax.core.files import open_new, parse_json, read_plain

_PREFIX = "iteration-"
_TREE, _ARRAYS, _ARRAY = "tree.json", "arrays.npz", "<array>"
GONE = (FileNotFoundError, NotADirectoryError)
DAMAGE = (errno.EINVAL, errno.EFBIG, errno.ELOOP, errno.EISDIR)
"""Error codes that come of what is in a file's place, or of its size."""
PLAIN = "numbers, strings, arrays, and lists and dicts of such, whose keys are strings"
"""What snapshots hold."""
LOCK = "lock"
"""The file beside the directory of the snapshots that the run which writes them holds locked; it
tells who does. The lock ends with the process, however that ends: none is ever left behind."""


class Snapshots:
    """The snapshots of a run: the last `keep` and the best."""

    def __init__(
        self, directory: Path, keep: int = 3, owner: Mapping[str, Any] | None = None
    ) -> None:
        self.directory, self.keep = directory.resolve(), keep
        self.owner = owner
        """What tells the run from others, on record in each snapshot; those of others are refused.
        None: whoever's they are."""

    def save(self, iteration: int, tree: PyTree, score: float | None = None) -> None:
        """Write `tree` as the snapshot of `iteration`: dicts, lists, arrays, numbers and strings.

        `score` decides which snapshot is the best; None and NaN never are. Raises a DiskError, and
        leaves nothing behind, where the disk is full or cannot be written.
        """
        path = self._path(iteration)
        writing, about_writing = path.with_name(f"{path.name}.writing"), path.with_suffix(".tmp")
        try:
            self._clear(writing, about_writing)
            _write(writing, tree)
            comparable = score is not None and math.isfinite(score)
            about = {
                "iteration": iteration,
                "score": score if comparable else None,
                "owner": dict(self.owner or {}),
                "files": _digests(writing),
            }
            with open_new(about_writing) as file:
                file.write(json.dumps({**about, "digest": _digest(about)}).encode())
            self._remove(iteration)
            writing.rename(path)
            os.replace(about_writing, path.with_suffix(".json"))
        except OSError as error:
            with contextlib.suppress(OSError):
                self._clear(writing, about_writing)
            raise DiskError(f"cannot write snapshot {path}: {error.strerror}") from error
        self._prune()

    def holds(self, iteration: int) -> bool:
        """Whether there is a whole snapshot of `iteration`, and of this run."""
        try:
            self._check(iteration)
        except SnapshotError:
            return False
        return True

    def _check(self, iteration: int) -> None:
        """Raise a SnapshotError unless a snapshot is as it was written, and of this run."""
        path, about = self._path(iteration), self._about(iteration)
        try:
            found = _digests(path) if path.is_dir() else None
        except GONE as error:  # the run that goes on has removed it meanwhile, say
            raise SnapshotError(f"snapshot {path} cannot be read: {one_line(error)}") from None
        except OSError as error:
            raise _unread(path, error) from error
        if found is None or about.get("files") != found:
            culprit = _culprit(about.get("files"), found)
            raise SnapshotError(f"snapshot {path} is damaged or incomplete{culprit}")
        if about["iteration"] != iteration:
            raise SnapshotError(
                f"snapshot {path} is not what its name says: it is of iteration "
                f"{about['iteration']}"
            )
        if self.owner is not None and about["owner"] != self.owner:
            raise SnapshotError(f"snapshot {path} is not of this run")

    def load(self, iteration: int) -> PyTree:
        """The tree of one snapshot; raises SnapshotError if it is damaged."""
        self._check(iteration)
        path = self._path(iteration)
        try:
            return _read(path)
        except MemoryError as error:
            raise AdaptaxError(f"snapshot {path} does not fit into memory") from error
        except Exception as error:  # whatever NumPy makes of files that it has not written
            if isinstance(error, OSError) and not isinstance(error, GONE):
                raise _unread(path, error) from error  # they are as they were written
            raise SnapshotError(f"snapshot {path} cannot be read: {one_line(error)}") from error

    def newest(self, *, own: bool = False) -> Iterator[tuple[int, PyTree]]:
        """Snapshots that can be read, newest first; others are skipped with a warning.

        The run may go on meanwhile, unless it is one's `own`: what it is at, or has removed, is no
        fault, and where it has removed all that there were, there are newer ones.
        """
        goes_on = not own and is_held(self.directory.parent / LOCK)
        for path in [] if goes_on else self._unfinished():
            warnings.warn(f"snapshot {path} is not finished and not used", stacklevel=2)
        tried = set[int]()
        found = False
        while not found and (untried := [i for i in self.iterations() if i not in tried]):
            for iteration in reversed(untried):
                tried.add(iteration)
                try:
                    tree = self.load(iteration)
                except SnapshotError as error:
                    if self._path(iteration).with_suffix(".json").exists():
                        warnings.warn(f"{error}; trying the one before it", stacklevel=2)
                    continue
                found = True
                yield iteration, tree

    def best(self) -> Iterator[tuple[int, PyTree]]:
        """The one with the best score; a SnapshotError where none has one, or it is damaged."""
        iteration = self._best()
        if iteration is None:
            raise SnapshotError(f"no snapshot in {self.directory} has a score: none is the best")
        try:
            tree = self.load(iteration)
        except SnapshotError:
            better = self._best()  # which has taken its place meanwhile
            if better is None or better == iteration:
                raise
            iteration, tree = better, self.load(better)
        yield iteration, tree

    def read(self, *, best: bool = False, own: bool = False) -> tuple[int, PyTree]:
        """The newest one that can be read, or the best; a SnapshotError where there is none.

        `own`: nobody else may be writing one meanwhile.
        """
        for found in self.best() if best else self.newest(own=own):
            return found
        run_dir = self.directory.parent
        raise SnapshotError(f"{run_dir} has no snapshot that can be read")

    @contextlib.contextmanager
    def reading(self, iteration: int) -> Iterator[None]:
        """Take what its tree lacks, or has in another shape, for the snapshot's fault."""
        try:
            yield
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            raise SnapshotError(
                f"snapshot {self._path(iteration)} is not of this run: {one_line(error)}"
            ) from error

    def iterations(self) -> list[int]:
        """Iterations with a finished snapshot, in order."""
        names = [p.stem.removeprefix(_PREFIX) for p in self._paths() if p.suffix == ".json"]
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def _paths(self) -> list[Path]:
        """What has a snapshot's name; a DiskError where that cannot be read now."""
        try:
            names = os.listdir(self.directory)
        except GONE:
            return []
        except OSError as error:
            raise DiskError(f"{self.directory} cannot be read now: {one_line(error)}") from error
        return [self.directory / name for name in sorted(names) if name.startswith(_PREFIX)]

    def discard_after(self, iteration: int) -> None:
        """Remove snapshots newer than `iteration`, and what an interrupted save left behind."""
        for other in self.iterations():
            if other > iteration:
                self._remove(other)
        for path in self._unfinished():
            _erase(path)

    def _unfinished(self) -> list[Path]:
        """Directories that an interrupted save left behind."""
        finished = {self._path(i) for i in self.iterations()}
        return [path for path in self._paths() if path.is_dir() and path not in finished]

    def _clear(self, writing: Path, about_writing: Path) -> None:
        """Remove what is left of a save."""
        _erase(about_writing)
        _erase(writing)

    def _prune(self) -> None:
        best = self._best()
        for iteration in self.iterations()[: -self.keep]:
            if iteration != best:
                self._remove(iteration)

    def _best(self) -> int | None:
        """The iteration with the best score, the last of equals."""
        abouts = [(self._about(i), i) for i in self.iterations()]
        scores = [(a.get("score"), i) for a, i in abouts if a.get("iteration") == i]
        return max(((score, i) for score, i in scores if score is not None), default=(0, None))[1]

    def _remove(self, iteration: int) -> None:
        path = self._path(iteration)
        _erase(path.with_suffix(".json"))
        _erase(path)

    def _path(self, iteration: int) -> Path:
        return self.directory / f"{_PREFIX}{iteration:08d}"

    def _about(self, iteration: int) -> dict[str, Any]:
        """What `iteration-N.json` says, empty where it is not as it was written."""
        try:
            about = parse_json(read_plain(self._path(iteration).with_suffix(".json")))
            digest = about.pop("digest")
            kinds = {"iteration": int, "owner": dict, "score": int | float | None}
            fits = all(isinstance(about[name], kind) for name, kind in kinds.items())
        except (*GONE, ValueError, KeyError, AttributeError, TypeError):
            return {}
        except OSError as error:
            if error.errno in DAMAGE:
                return {}
            raise _unread(self._path(iteration), error) from error
        return about if fits and digest == _digest(about) else {}


def _unread(path: Path, error: OSError) -> DiskError:
    """For a snapshot that may be whole: going on from an older one would delete it."""
    return DiskError(f"snapshot {path} cannot be read now: {one_line(error)}")


def is_held(lock: Path) -> bool:
    """Whether a process that lives holds the lock of a run."""
    try:
        file = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(file)
    return False


def _erase(path: Path) -> None:
    """Remove what has a name of ours, whatever it is: damage may have left a file or a folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@runtime_checkable
class Store(Protocol):
    """A part of a pytree that knows what of its arrays is in use, such as a replay."""

    def save(self) -> dict[str, np.ndarray]:
        """The parts in use, by name."""

    def restore(self, saved: dict[str, np.ndarray]) -> Store:
        """One like this that holds what `save` gave; it may take over this one's memory."""


def is_store(node: Any) -> bool:
    """Whether a node of a pytree is a store: `is_leaf` for whoever does not look into them."""
    return isinstance(node, Store)


def flatten(tree: PyTree) -> dict[str, Any]:
    """The leaves of any pytree by their path, PRNG keys as their data, stores as their parts."""
    flat: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf=is_store):
        name = jax.tree_util.keystr(path)
        if isinstance(leaf, Store):
            flat |= {f"{name}/{part}": x for part, x in leaf.save().items()}
        else:
            flat[name] = _key_data(leaf)
    return flat


def unflatten(template: PyTree, saved: dict[str, Any]) -> PyTree:
    """A pytree shaped like `template` with the leaves that `flatten` saved.

    The template's stores may lose their memory to it. Raises SnapshotError where names, shapes or
    types differ.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(template, is_leaf=is_store)
    leaves = {jax.tree_util.keystr(path): leaf for path, leaf in paths}
    parts: dict[str, Any] = {name: {} for name, leaf in leaves.items() if isinstance(leaf, Store)}
    found: dict[str, Any] = {**parts}
    for name, x in saved.items():
        owner, _, part = name.partition("/")
        if part and owner in parts:
            parts[owner][part] = x
        else:
            found[name] = x
    if missing := sorted(set(leaves) ^ set(found)):
        raise SnapshotError(f"snapshot and configuration differ at {missing[0]!r}")
    return jax.tree.unflatten(
        structure, [_restored(leaf, found[name], name) for name, leaf in leaves.items()]
    )


def _restored(leaf: Any, saved: Any, name: str) -> Any:
    if not isinstance(leaf, Store):
        return _like(leaf, saved, name)
    try:
        return leaf.restore(saved)
    except (KeyError, ConfigError) as error:
        raise SnapshotError(f"snapshot and configuration differ at {name!r}: {error}") from None


def _like(leaf: Any, saved: Any, name: str) -> Any:
    own = np.asarray(_key_data(leaf))
    if own.shape != np.shape(saved) or own.dtype != np.asarray(saved).dtype:
        found = f"{np.asarray(saved).dtype}{list(np.shape(saved))}"
        raise SnapshotError(
            f"snapshot has {found} at {name!r}, configuration {own.dtype}{list(own.shape)}"
        )
    if _is_key(leaf):
        return jax.random.wrap_key_data(saved)
    return jnp.asarray(saved) if isinstance(leaf, jax.Array) else saved


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _key_data(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _write(directory: Path, tree: PyTree) -> None:
    """The tree, in two files of a new directory."""
    arrays: list[np.ndarray] = []
    rest = _without_arrays(tree, arrays)
    directory.mkdir(parents=True)
    with open_new(directory / _TREE) as file:
        file.write(json.dumps(rest).encode())
    with open_new(directory / _ARRAYS) as file:
        # Not compressed: floating-point numbers hardly shrink.
        np.savez(file, *arrays, allow_pickle=False)


def _read(directory: Path) -> PyTree:
    """The tree that `_write` wrote."""
    rest, arrays = parse_json(read_plain(directory / _TREE)), directory / _ARRAYS
    _check_size(arrays)
    with np.load(arrays, allow_pickle=False) as file:
        # Each once, however often the tree names it.
        return _with_arrays(rest, dict(file))


def _check_size(path: Path) -> None:
    """Raise a ValueError where arrays say that they take more memory than their file has bytes."""
    with zipfile.ZipFile(path) as file:
        members = file.infolist()
        sizes = [max(m.file_size, _told_size(file, m)) for m in members]
    if sum(sizes) > path.stat().st_size:
        raise ValueError(f"its arrays are to take {sum(sizes):,} bytes, more than their file")


def _told_size(file: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    """Bytes that an array takes by its own header."""
    with file.open(member) as stream:
        np.lib.format.read_magic(stream)
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    return math.prod(shape) * dtype.itemsize


def unfit(tree: PyTree) -> str | None:
    """In words, what of a tree a snapshot cannot hold as it is; None where all of it fits."""
    if isinstance(tree, dict):
        odd = [key for key in tree if not isinstance(key, str)]
        return f"the key {odd[0]!r}" if odd else unfit(list(tree.values()))
    if isinstance(tree, (list, tuple)):
        return next((words for words in map(unfit, tree) if words), None)
    plain = str | int | float | jax.Array | np.ndarray | np.generic | None
    return None if isinstance(tree, plain) else f"a {type(tree).__name__}"


def with_numbers(tree: Any) -> Any:
    """The tree with Python's numbers in the place of NumPy's, which would come back as arrays."""
    if isinstance(tree, dict):
        return {name: with_numbers(x) for name, x in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [with_numbers(x) for x in tree]
    return tree.item() if isinstance(tree, np.generic) else tree


def _without_arrays(tree: PyTree, arrays: list[np.ndarray]) -> Any:
    """The tree with the place in `arrays`, where it is put, and the type of each array."""
    if isinstance(tree, dict):
        return {name: _without_arrays(x, arrays) for name, x in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [_without_arrays(x, arrays) for x in tree]
    if not isinstance(tree, (jax.Array, np.ndarray, np.generic)):
        return tree
    arrays.append(np.asarray(tree))
    return {_ARRAY: len(arrays) - 1, "dtype": arrays[-1].dtype.name}


def _with_arrays(rest: Any, arrays: Mapping[str, np.ndarray]) -> PyTree:
    """What `_without_arrays` took apart."""
    if isinstance(rest, list):
        return [_with_arrays(x, arrays) for x in rest]
    if not isinstance(rest, dict):
        return rest
    if _ARRAY not in rest:
        return {name: _with_arrays(x, arrays) for name, x in rest.items()}
    array = arrays[f"arr_{rest[_ARRAY]}"]
    # Types that NumPy does not know, bfloat16 among them, come back as bytes.
    return array.view(jnp.dtype(rest["dtype"])) if array.dtype.kind == "V" else array


def _digests(directory: Path) -> dict[str, str]:
    """SHA-256 of each file, by its name."""
    files = {}
    walk = os.walk(directory, onerror=_refuse)  # rglob takes what it may not enter for empty
    paths = [Path(folder, name) for folder, _, names in walk for name in names]
    for path in sorted(p for p in paths if p.is_file()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
        files[str(path.relative_to(directory))] = digest.hexdigest()
    return files


def _refuse(error: OSError) -> None:
    raise error


def _digest(about: dict[str, Any]) -> str:
    """SHA-256 of all that `iteration-N.json` says, the digests of the files among it."""
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


def _culprit(written: Any, present: dict[str, str] | None) -> str:
    """In words, the first file that is not as it was written."""
    if not isinstance(written, dict) or present is None:
        return ""
    for name in sorted(written.keys() | present.keys()):
        if name not in present:
            return f": its file {name} is missing"
        if written.get(name) != present[name]:
            return f": its file {name} {'has changed' if name in written else 'was added'}"
    return ""
