from __future__ import annotations

import json
import os
import struct
import sys
import threading

import pytest
from said import warnings_within
from small import SMALL
from test_callbacks import Adding, run_with
from test_trainer import column, trainer

import adaptax
from adaptax.core.errors import AdaptaxError, ConfigError
from adaptax.experiment import cli, trackers
from adaptax.experiment.callbacks import Callback
from adaptax.experiment.logger import read_rows
from adaptax.experiment.trackers import MLflow, TensorBoard, Tracker, Trackio, WandB
from adaptax.experiment.trainer import Trainer
from adaptax.experiment.trainer_config import TrainerConfig

EVALUATED = {"num_iterations": 2, "evaluation_interval": 1}


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """Enough of it for a busy machine."""
    monkeypatch.setattr(trackers, "PATIENCE", 300.0)


@pytest.fixture
def wait():
    """What a tracker waits for, to the end of the test."""
    event = threading.Event()
    yield event
    event.set()


class Fake(Tracker):
    """Notes what it is told, and fails or waits where it is asked to."""

    package = "json"

    def __init__(self, failing=(), wait=None):
        super().__init__()
        self.failing, self.wait, self.calls = failing, wait, []

    def _note(self, name, *about):
        if self.wait is not None:
            self.wait.wait(600)
        self.calls.append((name, *about))
        if name in self.failing:
            raise ValueError(f"{name} failed")

    def open(self, run):
        self._note("open", run.name, run.group, run.num_steps)

    def log(self, num_steps, figures):
        self._note("log", num_steps, figures.get("train/return", figures.get("evaluate/gain")))

    def video(self, num_steps, path):
        self._note("video", num_steps, path)

    def close(self):
        self._note("close")


def told(run) -> list[str]:
    """What a run that is to go on to its end warns of."""
    with warnings_within() as messages:
        run.run()
    assert column(run)[-1] == run.config.num_iterations
    return messages


def test_a_tracker_gets_every_row_by_steps(tmp_path):
    fake = Fake()
    run = run_with([fake], tmp_path / "run", **EVALUATED)
    assert told(run) == []
    rows, evaluations = (
        read_rows(run.run_dir / name) for name in ("progress.jsonl", "evaluations.jsonl")
    )
    opened, *logged, closed = fake.calls
    assert (opened, closed) == (("open", "run", None, 0), ("close",))
    assert [call[1] for call in logged] == [0, 14, 14, 28, 28]
    assert [call[2] for call in logged[::2]] == [row["gain"]["mean"] for row in evaluations]
    assert [call[2] for call in logged[1::2]] == [row["train/return"] for row in rows]


@pytest.mark.parametrize(
    ("failing", "calls"),
    [
        (("open",), ["open"]),
        (("log",), ["open", *5 * ["log"], "close"]),
        (("log", "close"), ["open", *5 * ["log"], "close"]),
    ],
)
def test_a_tracker_that_fails_warns_once_and_the_run_goes_on(tmp_path, failing, calls):
    fake = Fake(failing)
    messages = told(run_with([fake], tmp_path / "run", **EVALUATED))
    assert messages == [f"Fake: ValueError: {failing[0]} failed; the run goes on"]
    assert [call[0] for call in fake.calls] == calls


def test_a_tracker_that_hangs_does_not_hold_up_the_run(tmp_path, monkeypatch, wait):
    monkeypatch.setattr(trackers, "PATIENCE", 0.05)
    fake = Fake(wait=wait)
    assert told(run_with([fake], tmp_path / "run", **EVALUATED)) == [
        "Fake: not done after 0 s; the run goes on"
    ]
    assert fake.calls == []


def test_rows_beyond_those_that_may_wait_are_left_out_with_a_warning(tmp_path, monkeypatch, wait):
    monkeypatch.setattr(trackers, "MOST_WAITING", 2)
    monkeypatch.setattr(trackers, "PATIENCE", 0.05)
    (message,) = told(run_with([Fake(wait=wait)], tmp_path / "run", num_iterations=6))
    assert message == "Fake: too slow, so that it does not get all rows; the run goes on"


def test_a_run_that_cannot_start_is_not_tracked(tmp_path):
    def fail():
        raise AdaptaxError("no Ray")

    fake = Fake()
    with pytest.raises(AdaptaxError, match="no Ray"):
        run_with([fake], tmp_path / "run", {1: fail}, **EVALUATED).run()
    assert fake.calls == []


@pytest.mark.parametrize("kind", [TensorBoard, WandB, MLflow, Trackio])
def test_a_package_that_is_missing_is_named_with_what_to_install(monkeypatch, kind):
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(AdaptaxError, match=rf"pip install 'adaptax\[{kind.__name__.lower()}\]'"):
        kind()


def test_a_tracker_that_does_not_exist_is_refused_from_python():
    with pytest.raises(ConfigError, match=r"trainer.trackers: 'wandbb' is not one of .*'wandb'"):
        TrainerConfig("run", trackers=("wandbb",))


def test_a_tracker_that_does_not_say_how_to_close_is_refused():
    class Unclosed(Tracker):
        def open(self, run): ...
        def log(self, num_steps, figures): ...

    with pytest.raises(TypeError, match="close"):
        Unclosed()


def test_a_folder_of_the_packages_name_is_no_package(tmp_path, monkeypatch):
    (tmp_path / "not_a_tracker").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(Fake, "package", "not_a_tracker")
    with pytest.raises(AdaptaxError, match="Fake needs not_a_tracker: pip install not_a_tracker"):
        Fake()


def test_a_missing_tracker_is_said_before_anything_is_written(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stop:
        cli.main(["train", "nop", "point-goal", f"--run-dir={tmp_path}/run", "--trackers", "wandb"])
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("adaptax: WandB needs wandb: pip install ")
    assert list(tmp_path.iterdir()) == []


def test_a_run_can_be_evaluated_where_its_tracker_is_not_installed(tmp_path, monkeypatch):
    pytest.importorskip("tensorboardX")
    words = ["--num-iterations=1", "--evaluation-interval=None", "--quiet"]
    run_dir = str(tmp_path / "run")
    cli.main(["train", "nop", "point-goal", "--run-dir", run_dir, *words, "--trackers=tensorboard"])
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    cli.main(["evaluate", run_dir, "--num-tasks", "2"])


# TensorBoard.


def records(directory):
    """All events of TensorBoard's files, by their own format."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    for path in sorted(directory.iterdir()):
        data, at = path.read_bytes(), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            yield event_pb2.Event.FromString(data[at + 12 : at + 12 + size])
            at += size + 16


def scalars(run_dir, name):
    """(step, value) of a figure in TensorBoard's files."""
    values = [(e.step, v) for e in records(run_dir / "tensorboard") for v in e.summary.value]
    return [(step, v.simple_value) for step, v in values if v.tag == name]


def test_tensorboard_has_figures_by_steps_success_and_texts(tmp_path):
    run_dir = tmp_path / "run"
    callbacks = [Adding(note="warm"), TensorBoard()]
    run = run_with(callbacks, run_dir, **EVALUATED)
    run.run()
    assert scalars(run_dir, "iteration") == [(14, 1), (28, 2)]
    returns = [value for _, value in scalars(run_dir, "train/return")]
    assert returns == pytest.approx(column(run, "train/return"))
    assert [step for step, _ in scalars(run_dir, "evaluate/return/episode_2")] == [0, 14, 28]
    values = [v for e in records(run_dir / "tensorboard") for v in e.summary.value]
    texts = [v for v in values if v.tag.startswith("note")]
    assert {text.tensor.string_val[0] for text in texts} == {b"warm"}


def test_an_evaluations_success_and_gain_are_figures():
    row = {
        "iteration": 1,
        "num_steps": 5,
        "num_repeats": 10,
        "held_out": True,
        "interval_over": "tasks",
        "mine": 2.0,
        "episodes": [{"index": 1, "return_mean": -1.5, "success_mean": 0.25}],
        "gain": {"mean": 0.5},
        "test": {"return_mean": float("nan"), "success_mean": None},
    }
    assert trackers.evaluation_figures(row) == {
        "mine": 2.0,
        "evaluate/return/episode_1": -1.5,
        "evaluate/success/episode_1": 0.25,
        "evaluate/gain": 0.5,
    }


def test_what_tensorboard_cannot_have_now_it_has_later(tmp_path):
    board = tmp_path / "run" / "tensorboard"
    # No folder can be made at the place of a file.
    run = run_with([TensorBoard()], tmp_path / "run", {1: board.touch}, num_iterations=5)
    run.algorithm.hooks[4] = lambda: (wait_for_problem(run), board.unlink())
    messages = told(run)
    assert len(messages) == 1
    assert messages[0].startswith("TensorBoard: DiskError: cannot write ")
    assert [value for _, value in scalars(tmp_path / "run", "iteration")] == [1, 2, 3, 4, 5]


def wait_for_problem(run):
    """Until the tracker has tried."""
    tracker = run.callbacks._looking[0]
    for _ in range(12_000):
        if tracker._problem:
            return
        threading.Event().wait(0.01)


def test_tensorboard_forgets_what_a_resumed_run_does_anew(tmp_path):
    trainer(tmp_path / "run", num_iterations=2, trackers=("tensorboard",)).run()
    trainer(tmp_path / "run", num_iterations=3, trackers=("tensorboard",)).resume()
    events = list(records(tmp_path / "run" / "tensorboard"))
    assert [event.step for event in events if event.HasField("session_log")] == [0, 29]


def test_tensorboard_forgets_a_run_that_ended_before_its_first_snapshot(tmp_path):
    class Die(Callback):
        def on_row(self, run, row):
            if row["iteration"] == 2:
                raise KeyboardInterrupt

    settings = {"num_iterations": 3, "snapshot_interval": 3, "trackers": ("tensorboard",)}
    plain = trainer(tmp_path / "run", **settings)
    with pytest.raises(KeyboardInterrupt):
        Trainer(plain.config, plain.algorithm, plain.suite, [Die()]).run()
    with pytest.warns(UserWarning, match="no snapshot yet"):
        trainer(tmp_path / "run", **settings).resume()
    events = list(records(tmp_path / "run" / "tensorboard"))
    assert [event.step for event in events if event.HasField("session_log")] == [0, 0]


def test_a_video_is_shown_beside_the_figures(tmp_path):
    run = trainer(tmp_path / "run", num_iterations=2, trackers=("tensorboard",))
    run.run()
    picture = tmp_path / "video.gif"
    picture.write_bytes(b"GIF89a")
    loaded = trainer(tmp_path / "run", num_iterations=2, trackers=("tensorboard",))
    loaded.load()
    loaded.tell_of_video(picture)
    events = list(records(tmp_path / "run" / "tensorboard"))
    shown = [(e.step, v.image.encoded_image_string) for e in events for v in e.summary.value]
    assert (28, b"GIF89a") in shown
    assert [event.step for event in events if event.HasField("session_log")] == [0]


@pytest.mark.parametrize("kind", [TensorBoard, Fake])
def test_a_tracker_that_a_run_had_is_given_to_seeds_of_a_group(tmp_path, kind):
    own = kind()
    quick = {"num_iterations": 1, "evaluation_interval": None, "quiet": True}
    quick |= {"algorithm": SMALL["nop"], "callbacks": [own]}
    adaptax.train("nop", "point-goal", run_dir=tmp_path / "run", **quick).close()
    adaptax.train("nop", "point-goal", run_dir=tmp_path / "group", seeds=[0, 1], **quick).close()
    if kind is TensorBoard:
        for run in ("run", "group/seed-0", "group/seed-1"):
            assert len(list((tmp_path / run / "tensorboard").iterdir())) == 1


# Weights & Biases.


def wandb_records(path):
    """The records of an offline run: LevelDB's log format behind a header of 7 bytes."""
    internal = pytest.importorskip("wandb.proto.wandb_internal_pb2")
    data, at, part = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 2**15 - at % 2**15 < 7:  # the rest of a block
            at += -at % 2**15
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        part += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # whole, or the last of its parts
            yield internal.Record.FromString(part)
            part = b""


def test_wandb_offline_has_settings_and_figures_of_a_run_and_of_the_resumed_one(
    tmp_path, monkeypatch
):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    settings = {"trackers": ("wandb",), "evaluation_interval": 1}
    assert told(trainer(tmp_path / "run", num_iterations=1, **settings)) == []
    trainer(tmp_path / "run", num_iterations=2, **settings).resume()
    run_id = json.loads((tmp_path / "run" / "config.json").read_text())["run"]
    first, second = sorted((tmp_path / "wandb").glob(f"offline-run-*/run-{run_id}.wandb"))
    steps, names = [], set()
    for record in [*wandb_records(first), *wandb_records(second)]:
        if record.HasField("run"):
            assert (record.run.run_id, record.run.project) == (run_id, "adaptax")
            assert record.run.display_name == "run"
        if record.HasField("history"):
            items = {i.key or "/".join(i.nested_key): i.value_json for i in record.history.item}
            steps.append(int(items["num_steps"]))
            names |= items.keys()
    assert steps == [0, 14, 14, 28, 28]
    assert {"train/return", "iteration", "evaluate/return/episode_1", "evaluate/gain"} <= names


# MLflow.


@pytest.mark.slow  # its package is large: not in the extra `dev`
def test_mlflow_has_settings_and_figures_of_a_run_that_goes_on_as_the_same(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store := f"file:{tmp_path}/mlruns")
    settings = {"trackers": ("mlflow",), "evaluation_interval": 1}
    assert told(trainer(tmp_path / "run", num_iterations=1, **settings)) == []
    trainer(tmp_path / "run", num_iterations=2, **settings).resume()
    client = mlflow.MlflowClient(store)
    experiment = client.get_experiment_by_name("adaptax").experiment_id
    (run,) = client.search_runs([experiment])
    assert (run.info.run_name, run.info.status) == ("run", "FINISHED")
    assert run.data.params["trainer.evaluation_interval"] == "1"
    logged = client.get_metric_history(run.info.run_id, "train/return")
    assert [m.step for m in logged] == [14, 28]
    assert [m.value for m in logged] == column(trainer(tmp_path / "run"), "train/return")
    episodes = client.get_metric_history(run.info.run_id, "evaluate/return.episode_1")
    assert [m.step for m in episodes] == [0, 14, 28]


# Trackio.


@pytest.mark.slow  # its package is large: not in the extra `dev`
def test_trackio_has_figures_of_a_run_that_goes_on_as_the_same(tmp_path, monkeypatch):
    sys.modules.pop("trackio", None)
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio")  # which reads that once
    import sqlite3

    settings = {"trackers": ("trackio",), "evaluation_interval": 1}
    assert told(trainer(tmp_path / "run", num_iterations=1, **settings)) == []
    trainer(tmp_path / "run", num_iterations=2, **settings).resume()
    with sqlite3.connect(os.fspath(tmp_path / "trackio" / "adaptax.db")) as database:
        rows = database.execute("select run_name, step, metrics from metrics order by id")
        found = [(name, step, json.loads(metrics)) for name, step, metrics in rows]
    run_id = json.loads((tmp_path / "run" / "config.json").read_text())["run"]
    assert {name for name, _, _ in found} == {f"run-{run_id[:8]}"}
    assert [step for _, step, _ in found] == [0, 14, 14, 28, 28]
    returns = [m["train/return"] for _, _, m in found if "train/return" in m]
    assert returns == column(trainer(tmp_path / "run"), "train/return")
