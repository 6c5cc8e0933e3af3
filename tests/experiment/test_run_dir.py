"""What a run writes and deletes: its own files only, never through a link, never another run's."""

from __future__ import annotations

import errno
import json
import os
import shutil
import warnings
from pathlib import Path

import pytest
from said import warnings_within
from test_trainer import column, left_behind, snapshots, trainer

from adaptax.core.errors import AdaptaxError, SnapshotError
from adaptax.experiment import cli
from adaptax.experiment.logger import read_rows
from adaptax.experiment.run_dir import OWN

WORDS = ["--num-iterations", "1", "--evaluation.num-tasks", "2", "--evaluation-interval", "1"]
TRAIN = ["train", "nop", "point-goal", "--quiet", *WORDS]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished run."""
    run_dir = tmp_path_factory.mktemp("place") / "run"
    cli.main([*TRAIN, "--run-dir", str(run_dir)])
    return run_dir


@pytest.fixture
def run_dir(finished, tmp_path):
    """A copy of it."""
    shutil.copytree(finished, tmp_path / "run")
    return tmp_path / "run"


def contents(folder: Path) -> dict[str, str | bytes]:
    """Bytes of every file and targets of every link, by path."""
    found: dict[str, str | bytes] = {}
    for path in folder.rglob("*"):
        if path.is_symlink():
            found[str(path)] = os.readlink(path)
        elif path.is_file():
            found[str(path)] = path.read_bytes()
    return found


def refused(args: list[str], capsys, place: Path) -> str:
    """The line that refuses a command, which has changed nothing."""
    before = contents(place)
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        cli.main(args)
    out, err = capsys.readouterr()
    assert (stop.value.code, out, err.count("\n")) == (2, "", 1), err
    assert contents(place) == before
    return err


@pytest.mark.parametrize("config", ["{}", "[]", "", '{"algorithm": {}, "suite": {}}'])
@pytest.mark.parametrize("flags", [[], ["--overwrite"]])
def test_a_folder_whose_config_is_not_a_runs_is_left_alone(tmp_path, capsys, config, flags):
    project = tmp_path / "project"
    (project / ".git").mkdir(parents=True)
    (project / ".git" / "HEAD").write_text("ref")
    (project / "config.json").write_text(config)
    err = refused([*TRAIN, "--run-dir", str(project), *flags], capsys, tmp_path)
    assert f"{project} is not empty and holds no run" in err
    assert ("--overwrite" in err) == bool(flags)


def test_overwriting_a_run_leaves_strangers_files(run_dir):
    strangers = ("notes.md", "snapshots/mine.txt", "tensorboard/mine.txt", ".git/HEAD", "lock.py")
    for name in strangers:
        (run_dir / name).parent.mkdir(exist_ok=True)
        (run_dir / name).write_text("mine")
    ours = ("learning.png", "config.json.tmp", "progress.jsonl.new", "snapshots/iteration-9.tmp")
    for name in (*ours, "tensorboard/events.out.tfevents.1.host"):
        (run_dir / name).write_text("ours")
    cli.main([*TRAIN, "--run-dir", str(run_dir), "--overwrite"])
    assert {(run_dir / name).read_text() for name in strangers} == {"mine"}
    left = {str(p.relative_to(run_dir)) for p in run_dir.rglob("*") if p.is_file()}
    snapshot = "snapshots/iteration-00000001"
    new = {"config.json", "progress.jsonl", "evaluations.jsonl", f"{snapshot}.json"}
    assert left == {*strangers, *new, f"{snapshot}/tree.json", f"{snapshot}/arrays.npz"}


LINKS = sorted(
    OWN | {"snapshots/iteration-00000001.json", "snapshots/iteration-00000001/tree.json"}
)


@pytest.mark.parametrize("name", LINKS)
def test_a_link_among_our_files_is_refused_by_every_command(run_dir, tmp_path, capsys, name):
    outside, path = tmp_path / "outside", run_dir / name
    if path.exists():
        path.rename(outside)
    else:
        outside.write_text("mine")
    path.symlink_to(outside)
    for command in ("resume", "evaluate", "plot", "video"):
        err = refused([command, str(run_dir)], capsys, tmp_path)
        assert f"{path} is a link" in err
    err = refused([*TRAIN, "--run-dir", str(run_dir), "--overwrite"], capsys, tmp_path)
    assert f"{path} is a link" in err


def test_a_link_to_nowhere_and_a_pipe_are_refused_too(run_dir, tmp_path, capsys):
    (run_dir / "progress.jsonl.new").symlink_to(tmp_path / "absent")
    assert "is a link" in refused(["resume", str(run_dir)], capsys, tmp_path)
    (run_dir / "progress.jsonl.new").unlink()
    os.mkfifo(run_dir / "lock")
    assert "is a special file" in refused(["resume", str(run_dir)], capsys, tmp_path)


@pytest.mark.parametrize("command", ["resume", "evaluate", "plot"])
def test_a_config_that_is_no_file_or_larger_than_any_is_refused(run_dir, tmp_path, capsys, command):
    config = run_dir / "config.json"
    config.unlink()
    config.mkdir()
    words = [command, str(run_dir)]
    assert f"cannot read {config}: not a regular file" in refused(words, capsys, tmp_path)
    config.rmdir()
    config.touch()
    os.truncate(config, 2**40)  # a sparse file
    assert f"cannot read {config}: larger than" in refused(words, capsys, run_dir / "snapshots")
    config.write_bytes(b'{"x":' * 100_000)
    assert f"{config} is not JSON: nested too deeply" in refused(words, capsys, tmp_path)


def test_a_lock_that_is_a_hard_link_is_refused(run_dir, tmp_path, capsys):
    (tmp_path / "mine").write_text("mine")
    (run_dir / "lock").hardlink_to(tmp_path / "mine")
    words = ["resume", str(run_dir), "--num-iterations", "2"]
    assert "lock is a hard link" in refused(words, capsys, tmp_path)


def test_a_log_that_becomes_a_link_is_not_followed(tmp_path):
    mine, log = tmp_path / "mine", tmp_path / "run" / "progress.jsonl"

    def swap():
        log.unlink()
        log.symlink_to(mine)

    mine.write_text("mine")
    run = trainer(tmp_path / "run", {2: swap}, num_iterations=3)
    with warnings.catch_warnings(), pytest.raises(AdaptaxError, match=r"cannot write .*progress"):
        warnings.simplefilter("ignore")
        run.run()
    assert mine.read_text() == "mine"


def test_a_picture_replaces_what_is_at_its_name(run_dir, tmp_path, capsys):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "curves.png").symlink_to(tmp_path / "mine")
    cli.main(["plot", str(run_dir), "--out", str(tmp_path / "curves.png")])
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"
    assert not list(tmp_path.glob("*.new"))


def test_a_picture_that_cannot_be_written_is_one_line(run_dir, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    out = tmp_path / "file" / "curves.png"
    assert f"cannot write {out}" in refused(
        ["plot", str(run_dir), "--out", str(out)], capsys, run_dir
    )


def unreadable(name, only, monkeypatch):
    """Have a function of `os` refuse one path, as to a user who may not look at it."""
    own = getattr(os, name)

    def refusing(path=".", *args, **kwargs):
        if os.fspath(path) == str(only):
            raise PermissionError(errno.EACCES, "Permission denied", str(only))
        return own(path, *args, **kwargs)

    monkeypatch.setattr(os, name, refusing)


def test_a_directory_that_cannot_be_read_is_one_line(tmp_path, capsys, monkeypatch):
    place = tmp_path / "nd"
    place.mkdir()
    unreadable("listdir", place, monkeypatch)
    err = refused([*TRAIN, "--run-dir", str(place)], capsys, tmp_path / "nowhere")
    assert err == f"adaptax: cannot read {place}: Permission denied\n"


def test_a_member_that_cannot_be_read_is_one_line(tmp_path, capsys, monkeypatch):
    config = tmp_path / "g" / "seed-0" / "config.json"
    config.parent.mkdir(parents=True)
    (tmp_path / "g" / "group.json").write_text('{"seeds": [0, 1]}')
    unreadable("stat", config, monkeypatch)
    err = refused(["resume", str(tmp_path / "g")], capsys, tmp_path / "nowhere")
    assert err == f"adaptax: cannot read {config}: Permission denied\n"


def swap_run(place: Path, **settings):
    """Delete the run in mid-run and have another one at its place."""
    shutil.rmtree(place)
    return trainer(place, num_iterations=4, snapshot_interval=1, seed=1, **settings).run()


@pytest.mark.parametrize("running", [False, True])
def test_a_run_whose_directory_another_has_taken_stops_and_writes_nothing(tmp_path, running):
    place = tmp_path / "run"
    kept = {}

    def take():
        swap_run(place)
        if running:
            (place / "lock").touch()
        kept.update(contents(place))

    run = trainer(place, {3: take}, num_iterations=6, snapshot_interval=1)
    with pytest.raises(AdaptaxError, match=f"{place} is another run's now: this one stops"):
        run.run()
    assert contents(place) == kept
    assert column(run) == [1, 2, 3, 4]


def test_snapshots_of_another_run_are_not_taken(tmp_path):
    for seed, name in ((0, "a"), (0, "b")):
        trainer(tmp_path / name, num_iterations=2 + seed, seed=seed, snapshot_interval=1).run()
    shutil.rmtree(tmp_path / "a" / "snapshots")
    shutil.copytree(tmp_path / "b" / "snapshots", tmp_path / "a" / "snapshots")
    with (
        pytest.warns(UserWarning, match="iteration-00000002 is not of this run"),
        pytest.raises(SnapshotError, match="no snapshot that can be read"),
    ):
        trainer(tmp_path / "a").load()


def test_a_copied_run_goes_on_as_the_run(tmp_path):
    trainer(tmp_path / "a", num_iterations=2).run()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    runs = [trainer(tmp_path / name, num_iterations=4) for name in ("a", "b")]
    for run in runs:
        run.resume()
    assert left_behind(runs[0]) == left_behind(runs[1])


def told(run) -> list[str]:
    """The warnings of a run."""
    with warnings_within() as messages:
        run.run()
    return [message for message in messages if "removed" in message]


@pytest.mark.parametrize("how", ["removed", "moved"])
def test_a_log_that_is_removed_goes_on_with_later_rows(tmp_path, how):
    log = tmp_path / "run" / "progress.jsonl"
    away = log.unlink if how == "removed" else lambda: log.rename(tmp_path / "elsewhere")
    run = trainer(tmp_path / "run", {3: away}, num_iterations=5)
    assert told(run) == [f"{log} was removed or moved: it goes on with the rows from here on"]
    assert column(run) == [3, 4, 5]
    if how == "moved":
        assert [row["iteration"] for row in read_rows(tmp_path / "elsewhere")] == [1, 2]


@pytest.mark.parametrize("how", ["removed", "moved"])
def test_a_directory_that_is_removed_is_made_anew(tmp_path, how):
    place, other = tmp_path / "run", tmp_path / "other"
    away = (lambda: shutil.rmtree(place)) if how == "removed" else lambda: place.rename(other)
    run = trainer(place, {3: away}, num_iterations=5, snapshot_interval=2)
    found = told(run)
    assert f"{place} or its lock was removed or moved: made anew" in found[0]
    assert len(found) == 2  # and that the log is another one
    assert column(run) == [3, 4, 5]
    assert snapshots(run) == [4, 5]
    assert sorted(p.name for p in place.iterdir()) == ["config.json", "progress.jsonl", "snapshots"]
    again, whole = (trainer(tmp_path / name, num_iterations=7) for name in ("run", "whole"))
    again.resume()
    whole.run()
    assert left_behind(again)[0] == left_behind(whole)[0]


def test_a_config_that_is_removed_is_made_anew(tmp_path):
    config, kept = tmp_path / "run" / "config.json", []

    def away():
        kept.append(config.read_bytes())
        config.unlink()

    run = trainer(config.parent, {3: away}, num_iterations=5)
    assert told(run) == [f"{config} was removed or moved: made anew"]
    assert [config.read_bytes()] == kept


def test_a_run_stays_in_its_directory_where_the_process_changes_to_another(tmp_path, monkeypatch):
    """As some simulators have it do, which write files of their own."""
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    hooks = {3: lambda: os.chdir(tmp_path / "other")}
    run = trainer("run", hooks, num_iterations=5, evaluation_interval=2)
    assert told(run) == []
    monkeypatch.chdir(tmp_path)
    assert column(run) == [1, 2, 3, 4, 5]
    assert column(run, file="evaluations.jsonl") == [0, 2, 4, 5]
    assert not any((tmp_path / "other").iterdir())
    assert "lock" not in os.listdir("run")


def test_a_second_run_of_a_trainer_starts_from_zero(tmp_path):
    run = trainer(tmp_path / "run", num_iterations=3, overwrite=True, evaluation_interval=2)
    run.run()
    first, before = left_behind(run), json.loads((run.run_dir / "config.json").read_text())
    run.run()
    assert left_behind(run) == first
    assert run.algorithm.count == 6
    assert snapshots(run) == [3]
    after = json.loads((run.run_dir / "config.json").read_text())
    assert {k for k in before if before[k] != after[k]} == {"run"}


def test_a_second_run_without_overwrite_is_refused_and_keeps_the_first(tmp_path):
    run = trainer(tmp_path / "run", num_iterations=3)
    run.run()
    before = contents(tmp_path)
    with pytest.raises(AdaptaxError, match="holds a run already"):
        run.run()
    assert contents(tmp_path) == before


@pytest.mark.parametrize("evaluation_interval", [None, 1])
def test_a_run_that_cannot_start_leaves_the_one_it_would_replace(tmp_path, evaluation_interval):
    settings = {"num_iterations": 3, "evaluation_interval": evaluation_interval}
    trainer(tmp_path / "run", **settings).run()
    before = contents(tmp_path)

    def fail():
        assert contents(tmp_path / "run").keys() - before.keys() == {str(tmp_path / "run/lock")}
        raise AdaptaxError("no Ray")

    run = trainer(
        tmp_path / "run", {1: fail}, overwrite=True, trackers=("tensorboard",), **settings
    )
    with pytest.raises(AdaptaxError, match="no Ray"):
        run.run()
    assert contents(tmp_path) == before


def test_a_run_that_starts_replaces_the_old_one_and_has_all_its_rows(tmp_path):
    settings = {"num_iterations": 2, "evaluation_interval": 1, "snapshot_interval": 5}
    trainer(tmp_path / "run", seed=3, **settings).run()
    run, whole = (trainer(tmp_path / name, overwrite=True, **settings) for name in ("run", "whole"))
    for each in (run, whole):
        each.run()
    assert left_behind(run) == left_behind(whole)
    assert column(run, file="evaluations.jsonl") == [0, 1, 2]


@pytest.mark.parametrize("num_iterations", [10, 60])
def test_resuming_a_finished_run_says_so_and_changes_nothing(tmp_path, capsys, num_iterations):
    run_dir = tmp_path / "run"
    words = ["--num-iterations", "60", "--evaluation-interval", "None", "--quiet"]
    cli.main(["train", "nop", "point-goal", "--run-dir", str(run_dir), *words])
    before = contents(run_dir)
    cli.main(["resume", str(run_dir), "--num-iterations", str(num_iterations)])
    out = capsys.readouterr().out
    assert out.startswith(f"{run_dir} has done all of its 60 iterations: nothing to do")
    assert out.count("\n") == 1
    assert contents(run_dir) == before
