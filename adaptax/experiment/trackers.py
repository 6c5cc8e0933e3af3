"""Trackers: callbacks that tell TensorBoard, Weights & Biases, MLflow or Trackio of a run.

Each works on a thread of its own, so that a slow or failing service costs a run nothing: what goes
wrong is one warning. Environment steps are the x-axis of all figures. A run that is resumed goes on
as the same run there, by the random id in its `config.json`.
"""

from __future__ import annotations

import math
import os
import socket
import struct
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from queue import Full, Queue
from typing import TYPE_CHECKING, Any, ClassVar

from adaptax.core.config import flat
from adaptax.core.errors import AdaptaxError, one_line
from adaptax.core.files import open_to_append
from adaptax.experiment.callbacks import Callback, Row
from adaptax.experiment.run_dir import GROUP, writing

if TYPE_CHECKING:
    from adaptax.experiment.trainer import Trainer
    from adaptax.experiment.trainer_config import TrainerConfig

PROJECT = "adaptax"
"""What runs are filed under, unless the tracker's own environment variable says otherwise."""
MOST_WAITING = 10_000
"""Rows that wait for a slow tracker; what comes after is left out."""
PATIENCE = 30.0
"""Seconds that a run waits for its trackers in the end."""
Figures = dict[str, float | str]
"""Numbers, all finite, and texts by name."""


@dataclass(frozen=True)
class Tracked:
    """What a tracker is told of a run when it begins or goes on."""

    run_dir: Path
    run_id: str
    name: str
    group: str | None
    """The folder's name, where the run is one of a group."""
    config: dict[str, Any]
    """As in `config.json`."""
    num_steps: int
    """Environment steps done, 0 unless the run goes on."""
    quiet: bool
    """Whether nothing is to be printed."""


class Tracker(Callback, ABC):
    """What all trackers share; one of them says how to `open`, `log` and `close`."""

    in_step = False
    package: ClassVar[str | None] = None
    """What it imports, when the run begins, and what may be missing."""

    def __init__(self) -> None:
        if self.package is None:
            return
        found = find_spec(self.package)
        if found is None or found.origin is None:  # a folder that only has its name
            kind = type(self)
            shipped = kind.__module__ == __name__
            install = f"'adaptax[{kind.__name__.lower()}]'" if shipped else self.package
            raise AdaptaxError(f"{kind.__name__} needs {self.package}: pip install {install}")

    def __getstate__(self) -> dict[str, Any]:
        """What a copy has of it: not the thread and the connections of a run."""
        return {name: getattr(self, name) for name in getattr(self, "_own", vars(self))}

    @abstractmethod
    def open(self, run: Tracked) -> None:
        """Begin; where this fails, nothing else is called."""

    @abstractmethod
    def log(self, num_steps: int, figures: Figures) -> None:
        """Take the figures and texts of a row."""

    def video(self, num_steps: int, path: Path) -> None:
        """Take a video; nothing here."""

    @abstractmethod
    def close(self) -> None:
        """Hand on what waits, and end."""

    def on_start(self, run: Trainer) -> None:
        """Nothing yet: a run that replaces another has first to show that it can."""
        self._own = getattr(self, "_own", tuple(vars(self)))
        self._jobs: Queue[Callable[[], None] | None] = Queue(MOST_WAITING)
        self._problem, self._has_warned = "", False
        self._thread = threading.Thread(
            target=self._work, args=(_tracked(run),), name=type(self).__name__, daemon=True
        )

    def on_row(self, run: Trainer, row: Row) -> None:
        """Have it logged."""
        self._tell(partial(self.log, row["num_steps"], row_figures(row)))

    def on_evaluation(self, run: Trainer, row: Row) -> None:
        """Have it logged."""
        job = partial(self.log, row["num_steps"], evaluation_figures(row))
        self._tell(job, begins=row["iteration"] > 0)

    def on_video(self, run: Trainer, path: Path) -> None:
        """Have it shown."""
        self._tell(partial(self.video, run.sampler.num_steps, path))

    def on_end(self, run: Trainer) -> None:
        """Wait for what is under way, but not for long."""
        if self._thread.ident is None:  # nothing came
            return
        self._tell(self.close)
        self._put(None)
        self._thread.join(PATIENCE)
        if self._thread.is_alive():
            self._problem = self._problem or f"not done after {PATIENCE:.0f} s"
        self._warn_once()

    def _tell(self, job: Callable[[], None], begins: bool = True) -> None:
        if begins and self._thread.ident is None:
            self._thread.start()
        self._put(job)
        self._warn_once()

    def _put(self, job: Callable[[], None] | None) -> None:
        try:
            self._jobs.put_nowait(job)
        except Full:
            self._problem = self._problem or "too slow, so that it does not get all rows"

    def _warn_once(self) -> None:
        if self._problem and not self._has_warned:
            self._has_warned = True
            warnings.warn(f"{type(self).__name__}: {self._problem}; the run goes on", stacklevel=2)

    def _work(self, run: Tracked) -> None:
        is_open = self._did(partial(self.open, run))
        while (job := self._jobs.get()) is not None:
            if is_open:
                self._did(job)

    def _did(self, job: Callable[[], None]) -> bool:
        """Whether it went well."""
        try:
            job()
        except (Exception, SystemExit) as error:  # whatever a service may come up with
            self._problem = self._problem or one_line(error)
            return False
        return True


class TensorBoard(Tracker):
    """Event files in the run's directory; what a full disk does not take, it gets later."""

    package = "tensorboardX"

    def open(self, run: Tracked) -> None:
        """A file of its own for each process that trains the run."""
        self._events = EventFile()
        started = f"{time.time():010.0f}.{socket.gethostname()}.{os.getpid()}"
        self._path = run.run_dir / "tensorboard" / f"events.out.tfevents.{started}"
        self._unwritten = self._events.begin()
        self._forget_from: int | None = run.num_steps + 1 if run.num_steps else 0

    def log(self, num_steps: int, figures: Figures) -> None:
        """A record of all figures."""
        if self._forget_from is not None:  # what comes is done anew
            self._unwritten += self._events.forget(self._forget_from)
            self._forget_from = None
        self._unwritten += self._events.figures(num_steps, figures)
        self._write()

    def video(self, num_steps: int, path: Path) -> None:
        """The moving picture as it is, where a browser shows it as one; not an .mp4."""
        if path.suffix == ".mp4":
            return
        self._unwritten += self._events.picture(num_steps, path.read_bytes())
        self._write()

    def close(self) -> None:
        """What is left."""
        self._write()

    def _write(self) -> None:
        """Write all that waits, or nothing."""
        with writing(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open_to_append(self._path) as file:
                end = file.seek(0, os.SEEK_END)
                try:
                    written = 0
                    while written < len(self._unwritten):
                        written += file.write(self._unwritten[written:])
                except OSError:
                    file.truncate(end)
                    raise
        self._unwritten = b""


class EventFile:
    """The records that TensorBoard's event files consist of, as bytes."""

    def __init__(self) -> None:
        from tensorboardX import summary
        from tensorboardX.proto import event_pb2, summary_pb2
        from tensorboardX.record_writer import masked_crc32c

        self._text = summary.text
        self._proto, self._summary, self._checksum = event_pb2, summary_pb2.Summary, masked_crc32c

    def begin(self) -> bytes:
        """The first record of a file."""
        return self._record(file_version="brain.Event:2")

    def forget(self, step: int) -> bytes:
        """A record that has TensorBoard forget what older files have from `step` on."""
        start = self._proto.SessionLog(status=self._proto.SessionLog.START)
        return self._record(step=step, session_log=start)

    def figures(self, step: int, figures: Figures) -> bytes:
        """A record of numbers and texts."""
        values = [
            self._text(name, value).value[0]
            if isinstance(value, str)
            else self._summary.Value(tag=name, simple_value=value)
            for name, value in figures.items()
        ]
        return self._record(step=step, summary=self._summary(value=values))

    def picture(self, step: int, encoded: bytes) -> bytes:
        """A record of a picture, which may move, as a browser shows it."""
        image = self._summary.Image(encoded_image_string=encoded)
        value = self._summary.Value(tag="video", image=image)
        return self._record(step=step, summary=self._summary(value=[value]))

    def _record(self, **fields: Any) -> bytes:
        data = self._proto.Event(wall_time=time.time(), **fields).SerializeToString()
        length = struct.pack("<Q", len(data))
        checksums = [struct.pack("<I", self._checksum(part)) for part in (length, data)]
        return length + checksums[0] + data + checksums[1]


class WandB(Tracker):
    """Weights & Biases, with `settings` for `wandb.init`; offline with WANDB_MODE=offline."""

    package = "wandb"

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = settings

    def open(self, run: Tracked) -> None:
        """A run there of the same id."""
        import wandb

        self._wandb = wandb
        defaults = {
            "project": os.environ.get("WANDB_PROJECT", PROJECT),
            "id": run.run_id,
            "name": run.name,
            "group": run.group,
            "config": run.config,
            "resume": "allow",
            "reinit": "create_new",  # others in this process may have theirs
            # The console would take over the standard output.
            "settings": wandb.Settings(console="off", silent=run.quiet),
        }
        self._run = wandb.init(**{**defaults, **self.settings})
        self._run.define_metric("*", step_metric="num_steps")

    def log(self, num_steps: int, figures: Figures) -> None:
        """A step of its history."""
        self._run.log({"num_steps": num_steps, **figures})

    def video(self, num_steps: int, path: Path) -> None:
        """A video panel."""
        self._run.log({"num_steps": num_steps, "video": self._wandb.Video(str(path))})

    def close(self) -> None:
        """Hand on what waits."""
        self._run.finish()


class MLflow(Tracker):
    """MLflow, at `tracking_uri`, by default MLFLOW_TRACKING_URI; texts are tags."""

    package = "mlflow"

    def __init__(self, tracking_uri: str | None = None, experiment: str | None = None) -> None:
        super().__init__()
        self.tracking_uri, self.experiment = tracking_uri, experiment

    def open(self, run: Tracked) -> None:
        """The run with the same id as a tag, or a new one, in the experiment."""
        from mlflow import MlflowClient

        self._client = MlflowClient(self.tracking_uri)
        name = self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        found = self._client.get_experiment_by_name(name)
        experiment = found.experiment_id if found else self._client.create_experiment(name)
        known = self._client.search_runs([experiment], f"tags.`adaptax.run` = '{run.run_id}'")
        if known:
            self._id = known[0].info.run_id
            self._client.update_run(self._id, "RUNNING")
            return
        tags = {"adaptax.run": run.run_id} | ({"adaptax.group": run.group} if run.group else {})
        self._id = self._client.create_run(experiment, tags=tags, run_name=run.name).info.run_id
        for setting, value in flat(run.config).items():
            self._client.log_param(self._id, setting, value)

    def log(self, num_steps: int, figures: Figures) -> None:
        """A batch of metrics; its files have one level of folders only."""
        from mlflow.entities import Metric

        now, metrics = int(1000 * time.time()), []
        for name, value in figures.items():
            first, slash, rest = name.partition("/")
            name = f"{first}{slash}{rest.replace('/', '.')}"
            if isinstance(value, str):
                self._client.set_tag(self._id, name, value)
            else:
                metrics.append(Metric(name, value, now, num_steps))
        self._client.log_batch(self._id, metrics)

    def video(self, num_steps: int, path: Path) -> None:
        """An artifact."""
        self._client.log_artifact(self._id, str(path))

    def close(self) -> None:
        """Say that it is over."""
        self._client.set_terminated(self._id)


class Trackio(Tracker):
    """Trackio, with `settings` for `trackio.init`; by default in a database on this machine."""

    package = "trackio"

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.settings = settings

    def open(self, run: Tracked) -> None:
        """A run there whose name has the id."""
        import trackio

        self._trackio = trackio
        defaults = {
            "project": PROJECT,
            "name": f"{run.name}-{run.run_id[:8]}",
            "group": run.group,
            "config": run.config,
            "resume": "allow",
            "embed": False,
        }
        self._run = trackio.init(**{**defaults, **self.settings})

    def log(self, num_steps: int, figures: Figures) -> None:
        """A step of its history."""
        self._run.log(dict(figures), step=num_steps)

    def video(self, num_steps: int, path: Path) -> None:
        """A video."""
        self._run.log({"video": self._trackio.Video(str(path))}, step=num_steps)

    def close(self) -> None:
        """Hand on what waits."""
        self._run.finish()


TRACKERS: dict[str, Callable[[], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "mlflow": MLflow,
    "trackio": Trackio,
}
"""What `--trackers` takes."""


def trackers_of(config: TrainerConfig) -> list[Tracker]:
    """One of each kind that the settings of a run name."""
    return [TRACKERS[name]() for name in dict.fromkeys(config.trackers)]


def row_figures(row: Row) -> Figures:
    """What trackers are told of a row: its numbers and texts."""
    return _told({name: value for name, value in row.items() if name != "num_steps"})


def evaluation_figures(row: Row) -> Figures:
    """What trackers are told of the row of an evaluation, and what callbacks have added to it."""
    about = ("iteration", "num_steps", "num_tasks", "num_available", "num_repeats", "interval_over")
    figures = {name: value for name, value in row.items() if name not in about}
    for episode in row["episodes"]:
        for name in ("return", "success"):
            figures[f"evaluate/{name}/episode_{episode['index']}"] = episode.get(f"{name}_mean")
    figures["evaluate/gain"] = row.get("gain", {}).get("mean")
    for name in ("return", "success"):
        figures[f"evaluate/test/{name}"] = row.get("test", {}).get(f"{name}_mean")
    return _told(figures)


def _told(figures: Mapping[str, Any]) -> Figures:
    """Texts and finite numbers."""
    return {
        name: value
        for name, value in figures.items()
        if isinstance(value, str)
        or (isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value))
    }


def _tracked(run: Trainer) -> Tracked:
    folder = run.run_dir.resolve()
    in_group = (folder.parent / GROUP).exists()
    group = folder.parent.name if in_group else None
    name = f"{group}-{folder.name}" if group else folder.name
    config, num_steps = run.recorded, run.sampler.num_steps
    quiet = run.config.quiet
    return Tracked(folder, str(config["run"]), name, group, config, num_steps, quiet)
