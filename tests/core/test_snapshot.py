from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import shutil
import sys
import threading
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import adaptax.core.snapshot
from adaptax.core.errors import AdaptaxError, SnapshotError
from adaptax.core.snapshot import Snapshots, _digest, _digests, flatten, unflatten
from adaptax.experiment.run_dir import locked

STRANGE = np.array([np.nan, -0.0, np.inf, 1e-45, 1 / 3], np.float32)


def bits(tree):
    """Types and bytes of all leaves."""
    leaves = {k: np.asarray(x) for k, x in flatten(tree).items()}
    return {k: (str(x.dtype), x.shape, x.tobytes()) for k, x in leaves.items()}


def state():
    """A pytree with all that states are made of."""
    params = {"w": jnp.asarray(STRANGE), "b": jnp.float32(0.1)}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    return {
        "params": params,
        "opt_state": optimizer.init(params),
        "key": jax.random.key(7),
        "keys": jax.random.split(jax.random.key(8), 3),
        "replay": np.arange(6, dtype=np.uint32).reshape(2, 3),
        "flags": np.array([True, False]),
        "counter": np.array(2**40, np.int64),
        "precise": np.array(1 / 3, np.float64),
        "tuple": (jnp.int32(4), [jnp.bfloat16(1.5)]),
    }


@pytest.fixture
def snapshots(tmp_path):
    return Snapshots(tmp_path / "snapshots", keep=3)


def newest(snapshots):
    """The first snapshot that can be read, and the warnings on the way."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = next(snapshots.newest(), None)
    own = [str(w.message) for w in caught if "snapshot" in str(w.message)]
    return found, own


def files(snapshots, iteration: int):
    directory = snapshots.directory / f"iteration-{iteration:08d}"
    return sorted(path for path in directory.rglob("*") if path.is_file())


def test_a_state_comes_back_bit_for_bit(snapshots):
    before = state()
    snapshots.save(3, {"state": flatten(before)})
    after = unflatten(state(), snapshots.load(3)["state"])
    assert jax.tree.structure(after) == jax.tree.structure(before)
    assert bits(after) == bits(before)


def test_restored_leaves_are_of_the_kind_they_were(snapshots):
    snapshots.save(3, {"state": flatten(state())})
    after = unflatten(state(), snapshots.load(3)["state"])
    kinds = jax.tree.map(lambda x: isinstance(x, jax.Array), after)
    assert kinds == jax.tree.map(lambda x: isinstance(x, jax.Array), state())
    assert jax.random.uniform(after["key"]) == jax.random.uniform(jax.random.key(7))


def test_numbers_and_text_come_back_equal(snapshots):
    tree = {"seconds": 0.1 + 0.2, "count": 2**53 + 1, "text": "goal ä", "empty": "", "yes": True}
    snapshots.save(1, tree)
    loaded = snapshots.load(1)
    assert loaded == tree
    assert {k: type(x) for k, x in loaded.items()} == {k: type(x) for k, x in tree.items()}


def test_what_is_empty_or_nested_comes_back_equal(snapshots):
    tree = {"none": None, "dict": {}, "list": [1, [np.arange(2)], {}], "size 0": np.zeros((0, 3))}
    snapshots.save(1, tree)
    loaded = snapshots.load(1)
    assert [loaded["none"], loaded["dict"], loaded["list"][0]] == [None, {}, 1]
    np.testing.assert_array_equal(loaded["list"][1][0], [0, 1])
    assert loaded["size 0"].shape == (0, 3)


def test_nothing_in_a_snapshot_is_a_pickle(snapshots):
    snapshots.save(3, {"state": flatten(state()), "text": "x"})
    paths = [p for p in snapshots.directory.rglob("*") if p.is_file()]
    assert {p.name for p in paths} == {"arrays.npz", "tree.json", "iteration-00000003.json"}
    for path in paths:
        with pytest.raises(Exception):  # noqa: B017 (pickle raises of all kinds)
            pickle.loads(path.read_bytes())


def sign(snapshots, iteration: int, /, **changes):
    """Make what is said of a snapshot fit its files, as a forger would."""
    directory = snapshots.directory / f"iteration-{iteration:08d}"
    about = {"iteration": iteration, "score": None, "owner": {}, "files": _digests(directory)}
    about |= changes
    about["digest"] = _digest(about)
    directory.with_suffix(".json").write_text(json.dumps(about))


class Hostile:
    """Makes a file where it is unpickled."""

    def __init__(self, mark) -> None:
        self.mark = str(mark)

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("protocol", [0, 4])
def test_a_hostile_snapshot_runs_nothing_and_the_one_before_it_is_used(
    snapshots, tmp_path, protocol
):
    """Every file of the newest snapshot a pickle, with digests that fit."""
    for iteration in (3, 6):
        snapshots.save(iteration, {"x": np.full(10, iteration)})
    payload = pickle.dumps(Hostile(tmp_path / "mark"), protocol)
    for path in files(snapshots, 6):
        path.write_bytes(payload)
    sign(snapshots, 6)
    (iteration, _), warned = newest(snapshots)
    assert iteration == 3
    assert "iteration-00000006 cannot be read" in warned[0]
    assert not (tmp_path / "mark").exists()
    pickle.loads(payload)  # it would have
    assert (tmp_path / "mark").exists()


AUDITED: dict[int, list[str]] = {}
"""Events of a thread that is listened to; an audit hook cannot be taken away again."""


def listen(event, args):
    if event in ("pickle.find_class", "exec", "os.system", "subprocess.Popen"):
        AUDITED.get(threading.get_ident(), []).append(f"{event} {args}")


def test_loading_unpickles_and_executes_nothing(snapshots):
    snapshots.save(3, {"state": flatten(state()), "text": "x"})
    snapshots.load(3)  # imports, which execute modules, are done with
    sys.addaudithook(listen)
    AUDITED[threading.get_ident()] = events = []
    try:
        tree = snapshots.load(3)
        unflatten(state(), tree["state"])
        assert events == []
        pickle.loads(pickle.dumps(Hostile))
        assert len(events) == 1  # the hook does hear
    finally:
        AUDITED.clear()


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "largest file cut in half": lambda paths, about: (
        lambda p: p.write_bytes(p.read_bytes()[: p.stat().st_size // 2])
    )(max(paths, key=lambda p: p.stat().st_size)),
    "a bit flipped in the largest file": lambda paths, about: flip_a_bit(
        max(paths, key=lambda p: p.stat().st_size)
    ),
    "a bit flipped in the smallest file": lambda paths, about: flip_a_bit(
        min((p for p in paths if p.stat().st_size), key=lambda p: p.stat().st_size)
    ),
    "a file missing": lambda paths, about: paths[0].unlink(),
    "a file too many": lambda paths, about: (paths[0].parent / "other").write_text("x"),
    "no directory": lambda paths, about: shutil.rmtree(about.with_suffix("")),
    "an empty digest file": lambda paths, about: about.write_text(""),
    "a digest file of other JSON": lambda paths, about: about.write_text("[1]"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_snapshot_is_named_and_the_one_before_it_used(snapshots, damage):
    for iteration in (3, 6):
        snapshots.save(iteration, {"x": np.full(1000, iteration)})
    DAMAGES[damage](files(snapshots, 6), snapshots.directory / "iteration-00000006.json")
    (iteration, tree), warned = newest(snapshots)
    assert iteration == 3
    assert tree["x"][0] == 3
    assert len(warned) == 1
    assert str(snapshots.directory / "iteration-00000006") in warned[0]
    assert (": its file " in warned[0]) == ("file" in damage and "digest" not in damage)
    with pytest.raises(SnapshotError, match="iteration-00000006 is damaged or incomplete"):
        snapshots.load(6)


@pytest.mark.parametrize("name", ["iteration-00000002", "iteration-00000002.json"])
@pytest.mark.parametrize("what", ["file", "folder", "pipe"])
def test_whatever_has_a_snapshots_name_makes_room_for_it(snapshots, name, what):
    """As damage left it: a folder in the place of a file, a file in that of the folder."""
    for iteration in (1, 2):
        snapshots.save(iteration, {"x": iteration})
    path = snapshots.directory / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    make = {"file": path.touch, "folder": lambda: (path / "in").mkdir(parents=True)}
    make.get(what, lambda: os.mkfifo(path))()
    assert newest(snapshots)[0] == (1, {"x": 1})
    snapshots.discard_after(1)
    snapshots.save(2, {"x": 3})
    assert newest(snapshots) == ((2, {"x": 3}), [])


def test_a_half_written_snapshot_is_passed_over_and_cleared_away(snapshots):
    snapshots.save(3, {"x": np.arange(3)})
    snapshots.save(6, {"x": np.arange(6)})
    (snapshots.directory / "iteration-00000006.json").unlink()
    (snapshots.directory / "iteration-00000009.writing").mkdir()
    (iteration, _), warned = newest(snapshots)
    assert iteration == 3
    assert [w.rpartition("/")[2] for w in warned] == [
        "iteration-00000006 is not finished and not used",
        "iteration-00000009.writing is not finished and not used",
    ]
    snapshots.discard_after(3)
    names = sorted(path.name for path in snapshots.directory.iterdir())
    assert names == ["iteration-00000003", "iteration-00000003.json"]


def test_what_a_run_is_writing_is_not_said_to_be_unfinished(snapshots):
    snapshots.save(3, {"x": 3})
    (snapshots.directory / "iteration-00000006.writing").mkdir()
    with locked(snapshots.directory.parent):
        assert newest(snapshots) == ((3, {"x": 3}), [])
        with pytest.warns(UserWarning, match="6.writing is not finished and not used"):
            assert snapshots.read(own=True)[0] == 3
    assert len(newest(snapshots)[1]) == 1


def test_a_snapshot_that_is_removed_while_it_is_read_is_a_snapshot_error(snapshots, monkeypatch):
    snapshots.save(3, {"x": np.arange(3)})
    real, path = Path.is_file, snapshots.directory / "iteration-00000003"

    def is_file_and_goes(self):
        found = real(self)
        if self.parent == path:
            self.unlink()
        return found

    monkeypatch.setattr(Path, "is_file", is_file_and_goes)
    with pytest.raises(SnapshotError, match="iteration-00000003 cannot be read"):
        snapshots.load(3)


@pytest.mark.parametrize(
    ("module", "name", "fault", "message"),
    [
        ("", "read_plain", OSError(24, "Too many open files"), "cannot be read now: .*Too many"),
        ("np", "load", MemoryError(), "does not fit into memory"),
        ("np", "load", OSError(5, "Input/output error"), "cannot be read now: .*Input/output"),
        ("os", "walk", PermissionError(13, "Permission denied"), "read now: .*Permission den"),
        ("os", "listdir", PermissionError(13, "Permission denied"), "read now: .*Permission den"),
    ],
)
def test_what_cannot_be_read_now_is_not_taken_for_damage(
    snapshots, monkeypatch, module, name, fault, message
):
    for iteration in (1, 2):
        snapshots.save(iteration, {"x": np.arange(3)})

    def fails(*args, **kwargs):
        raise fault

    place = adaptax.core.snapshot
    monkeypatch.setattr(getattr(place, module) if module else place, name, fails)
    with pytest.raises(AdaptaxError, match=message):
        snapshots.read()
    monkeypatch.undo()
    assert snapshots.iterations() == [1, 2]
    assert snapshots.read()[0] == 2


@pytest.mark.parametrize("how", ["newest", "best"])
def test_where_the_run_has_removed_what_was_listed_the_newer_ones_are_read(
    tmp_path, monkeypatch, how
):
    written, snapshots = (Snapshots(tmp_path / "snapshots", keep=1) for _ in range(2))
    written.save(1, {"x": 1}, score=1.0)
    read = snapshots.load

    def load_late(iteration):
        if iteration == 1:
            written.save(2, {"x": 2}, score=2.0)
        return read(iteration)

    monkeypatch.setattr(snapshots, "load", load_late)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert snapshots.read(best=how == "best") == (2, {"x": 2})


def test_reading_while_another_writes_and_prunes_never_fails(snapshots):
    reader, tree = Snapshots(snapshots.directory), {"x": np.zeros(100_000)}
    snapshots.save(1, tree)
    stop = threading.Event()

    def write():
        iteration = 2
        while not stop.is_set():
            snapshots.save(iteration, tree)
            iteration += 1

    with ThreadPoolExecutor(1) as threads, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        writing = threads.submit(write)
        try:
            for _ in range(200):
                with contextlib.suppress(SnapshotError):  # it wrote faster than they were listed
                    reader.read()
        finally:
            stop.set()
        writing.result()


def test_without_any_readable_snapshot_there_is_none(snapshots):
    assert newest(snapshots) == (None, [])
    snapshots.save(3, {"x": np.arange(3)})
    files(snapshots, 3)[0].unlink()
    found, warned = newest(snapshots)
    assert found is None
    assert len(warned) == 1


def test_the_last_ones_and_the_best_are_kept(tmp_path):
    snapshots = Snapshots(tmp_path, keep=2)
    for iteration, score in enumerate([1.0, 5.0, 2.0, None, 4.0, 3.0], start=1):
        snapshots.save(iteration, {"x": iteration}, score)
    assert snapshots.iterations() == [2, 5, 6]
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {
        "iteration-00000002",
        "iteration-00000005",
        "iteration-00000006",
    }
    assert list(snapshots.best()) == [(2, {"x": 2})]


def test_without_a_score_none_is_the_best(snapshots):
    snapshots.save(1, {"x": 1})
    with pytest.raises(SnapshotError, match="has a score: none is the best"):
        list(snapshots.best())


@pytest.mark.parametrize("strange", [float("nan"), None])
def test_a_score_that_is_no_number_is_never_the_best(tmp_path, strange):
    snapshots = Snapshots(tmp_path, keep=1)
    for iteration, score in enumerate([strange, 1.0, 0.5], start=1):
        snapshots.save(iteration, {"x": iteration}, score)
    assert snapshots.iterations() == [2, 3]


def test_an_iteration_saved_again_replaces_the_first(snapshots):
    snapshots.save(3, {"x": np.arange(3)})
    snapshots.save(3, {"y": np.arange(4)})
    assert list(snapshots.load(3)) == ["y"]
    assert snapshots.iterations() == [3]


def test_a_snapshot_is_held_where_it_is_whole_and_of_this_run(tmp_path):
    own, others = (Snapshots(tmp_path, owner={"run": run, "seed": 0}) for run in "ab")
    assert not own.holds(3)
    own.save(3, {"x": np.arange(3)})
    assert (own.holds(3), own.holds(4), others.holds(3)) == (True, False, False)
    (tmp_path / "iteration-00000003" / "tree.json").unlink()
    assert not own.holds(3)


def test_snapshots_after_an_iteration_are_discarded(snapshots):
    for iteration in (3, 6, 9):
        snapshots.save(iteration, {"x": iteration})
    snapshots.discard_after(3)
    assert snapshots.iterations() == [3]
    assert not (snapshots.directory / "iteration-00000009").exists()


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            {"w": jnp.zeros(3)},
            "snapshot has float32\\[2\\] at \"\\['w'\\]\", configuration float32",
        ),
        ({"w": jnp.zeros(2, jnp.int32)}, "configuration int32\\[2\\]"),
        ({"w": jnp.zeros(2), "b": jnp.zeros(1)}, "differ at \"\\['b'\\]\""),
        ({}, "differ at \"\\['w'\\]\""),
    ],
)
def test_a_snapshot_of_another_configuration_is_refused(template, message):
    with pytest.raises(SnapshotError, match=message):
        unflatten(template, flatten({"w": jnp.zeros(2)}))


def test_the_score_is_on_record(snapshots):
    snapshots.save(3, {"x": 1}, -2.5)
    about = json.loads((snapshots.directory / "iteration-00000003.json").read_text())
    assert about["score"] == -2.5


def test_a_snapshot_under_another_name_is_refused(snapshots):
    for iteration in (5, 7):
        snapshots.save(iteration, {"x": iteration})
    for suffix in ("", ".json"):
        old = snapshots.directory / f"iteration-00000005{suffix}"
        old.rename(snapshots.directory / f"iteration-00000009{suffix}")
    (iteration, tree), warned = newest(snapshots)
    assert (iteration, tree) == (7, {"x": 7})
    assert "iteration-00000009 is not what its name says: it is of iteration 5" in warned[0]


def test_a_snapshot_of_another_run_is_refused(tmp_path):
    for run in ("a", "b"):
        Snapshots(tmp_path, owner={"run": run, "seed": 0}).save(len(run), {"run": run})
    own, whose = Snapshots(tmp_path, owner={"run": "a", "seed": 0}), Snapshots(tmp_path)
    with pytest.raises(SnapshotError, match="iteration-00000001 is not of this run"):
        own.load(1)
    assert whose.load(1) == {"run": "b"}


@pytest.mark.parametrize("field", ["score", "iteration", "owner"])
def test_what_is_said_of_a_snapshot_is_under_the_digest(snapshots, field):
    for iteration, score in ((3, 1.0), (4, 2.0)):
        snapshots.save(iteration, {"x": iteration}, score)
    path = snapshots.directory / "iteration-00000003.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: 99}))
    with pytest.raises(SnapshotError, match="iteration-00000003 is damaged or incomplete"):
        snapshots.load(3)
    for iteration in (5, 6, 7):
        snapshots.save(iteration, {"x": iteration}, 0.0)
    assert snapshots.iterations() == [4, 5, 6, 7]


def header(shape) -> bytes:
    """The beginning of a file of an array, and nothing of it."""
    stream = io.BytesIO()
    about = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, about)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("content", "compression"),
    [
        (header((2**40,)), zipfile.ZIP_STORED),
        (header((2**20,)) + bytes(2**22), zipfile.ZIP_DEFLATED),
    ],
)
def test_arrays_larger_than_their_file_are_refused_unread(
    snapshots, monkeypatch, content, compression
):
    snapshots.save(3, {"x": np.arange(3)})
    with zipfile.ZipFile(files(snapshots, 3)[0], "w", compression) as arrays:
        arrays.writestr("arr_0.npy", content)
    sign(snapshots, 3)
    monkeypatch.setattr(np, "load", None)
    with pytest.raises(SnapshotError, match="cannot be read: ValueError: its arrays are to take"):
        snapshots.load(3)


def test_an_array_named_many_times_is_read_once(snapshots):
    snapshots.save(3, {"x": np.arange(3)})
    tree = files(snapshots, 3)[1]
    tree.write_text(json.dumps([json.loads(tree.read_text())["x"]] * 1000))
    sign(snapshots, 3)
    assert len({id(x) for x in snapshots.load(3)}) == 1


def test_a_tree_nested_too_deeply_is_refused(snapshots):
    snapshots.save(3, {"x": 1})
    files(snapshots, 3)[1].write_text("[" * 100_000)
    sign(snapshots, 3)
    with pytest.raises(SnapshotError, match="cannot be read: ValueError: nested too deeply"):
        snapshots.load(3)


@pytest.mark.parametrize("name", ["tree.json", "arrays.npz", ".json"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_not_read(snapshots, name, make):
    snapshots.save(3, {"x": np.arange(3)})
    directory = snapshots.directory / "iteration-00000003"
    path = directory.with_suffix(name) if name == ".json" else directory / name
    path.unlink()
    make(path)
    with pytest.raises(SnapshotError, match="iteration-00000003 is damaged or incomplete"):
        snapshots.load(3)


@pytest.mark.parametrize("change", [{"score": "9"}, {"iteration": "3"}, {"owner": None}])
def test_what_is_said_in_another_type_is_refused(snapshots, change):
    snapshots.save(3, {"x": 3})
    sign(snapshots, 3, **change)
    with pytest.raises(SnapshotError, match="iteration-00000003 is damaged or incomplete"):
        snapshots.load(3)
    snapshots.save(4, {"x": 4}, 1.0)
    assert snapshots.iterations() == [3, 4]


def test_a_name_with_another_number_is_passed_over(snapshots):
    snapshots.save(3, {"x": 3})
    (snapshots.directory / "iteration-²³.json").touch()
    assert snapshots.iterations() == [3]
