"""Moving pictures of an agent on a held-out task: its first episode, and one after adaptation."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import numpy as np

from adaptax.core.config import check_not_negative, check_positive, check_types
from adaptax.core.errors import AdaptaxError, check, check_kind, one_line
from adaptax.core.experience import Rollout, Step
from adaptax.core.files import replacing
from adaptax.envs.pools.pool import Pool
from adaptax.envs.suite import Suite
from adaptax.envs.task import Task
from adaptax.experiment.build import load_run
from adaptax.experiment.pretrained import folder_path, is_pretrained, run_path
from adaptax.experiment.run_dir import MOST_VIDEOS, VIDEO_KINDS, writing
from adaptax.sampling.sampler import Sampler

CAMERAS = {"corner2": 2, "track": 0}
"""Meta-World's and Gymnasium's, by their names in the model, and the quarter turns that put their
pictures upright; where neither is, MuJoCo's free camera."""
FRAME_MILLISECONDS = 50
ACTUAL = ("velocity", "x_velocity", "distance", "obj_to_target")
"""Figures that steps tell and that a task may be about; the first of them is drawn in."""
MAX_SIZE = 1024
"""Pixels: all pictures of an episode are in memory at once, and not every OpenGL draws 10 000."""


@dataclass(frozen=True)
class VideoConfig:
    """Which task, how many episodes, and how the pictures are taken."""

    task: int | None = None
    """Number of the held-out task, from 0, in the order in which evaluations run them; None: the
    first, of each class if there are several, up to MOST_VIDEOS of them."""
    num_episodes: int | None = None
    """Episodes in a row before the one after adaptation; by default as many as come before the last
    one of the run's evaluations."""
    stride: int = 4
    """Steps from one picture to the next."""
    size: int = 240
    """Pixels of each picture's sides, at most 1024."""
    deterministic: bool = False
    """Act by the mode of the policy."""
    best: bool = False
    """The snapshot with the highest return in training, instead of the newest."""

    def __post_init__(self) -> None:
        check_types(self, "video")
        check_positive(self, "num_episodes", "stride", "size")
        check(self.size <= MAX_SIZE, f"size must be at most {MAX_SIZE} pixels, not {self.size}")
        check_not_negative(self, "task")


DEFAULTS = VideoConfig()


def write_videos(
    run_dir: str | Path,
    out: str | Path,
    config: VideoConfig = DEFAULTS,
    no_gl: AdaptaxError | None = None,
    *,
    suite: Suite | None = None,
    networks: Any = None,
) -> list[Path]:
    """Write the first episode beside the last to `out`, side by side, from the same start.

    Of several classes a file each, named after `out` and the class. Gives what was written. `suite`
    and `networks` are those of the run, where they were one's own.

    Environments that MuJoCo simulates are drawn by it, others by their `render`. Call
    `choose_gl_backend` before anything imports MuJoCo; `no_gl` is its error, raised where MuJoCo
    has to draw.
    """
    check_kind(config, VideoConfig, "write_videos")
    run_dir, out = run_path(run_dir), folder_path(out)
    check(out.suffix in VIDEO_KINDS, f"a video is one of {', '.join(VIDEO_KINDS)}, not {out}")
    if out.suffix == ".mp4" and find_spec("imageio_ffmpeg") is None:
        raise AdaptaxError(
            f"{out} needs imageio-ffmpeg: pip install 'adaptax[video]'; a .gif does without"
        )
    trainer = load_run(run_dir, suite=suite, networks=networks, in_process=True)
    try:
        trainer.load(best=config.best)
        chosen = _chosen(trainer.suite.test.tasks, config.task, out)
        for path, number in chosen.items():
            _write_video(path, _two_episodes(trainer, number, config, no_gl))
    finally:
        trainer.close()
    if not is_pretrained(run_dir):
        trainer.tell_of_video(*chosen)
    return list(chosen)


def _chosen(tasks: Sequence[Task] | None, number: int | None, out: Path) -> dict[Path, int]:
    """The numbers of the tasks to film, by the files that the videos go to."""
    firsts: dict[str | None, int] = {}
    for i, task in enumerate(tasks or ()):
        firsts.setdefault(task.class_name, i)
    if number is not None or len(firsts) < 2:
        return {out: number or 0}
    several = list(firsts.items())[:MOST_VIDEOS]
    names = [re.sub(r"[^\w.-]+", "_", str(name))[:80] for name, _ in several]
    if len(set(names)) < len(names):
        names = [str(i) for _, i in several]
    paths = [out.with_stem(f"{out.stem}-{name}") for name in names]
    return {path: i for path, (_, i) in zip(paths, several, strict=True)}


def _write_video(out: Path, episodes: list[RecordedEpisode]) -> None:
    """The two episodes side by side, until the longer one ends."""
    titles = ("first episode", "after adaptation")
    strips = [_captioned(e, title) for e, title in zip(episodes, titles, strict=True)]
    length = max(map(len, strips))
    padded = [strip + strip[-1:] * (length - len(strip)) for strip in strips]
    frames = [_beside(pair) for pair in zip(*padded, strict=True)]
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out) as file:
            _write(frames, file, out.suffix)


def _write(frames: list[Any], file: IO[bytes], suffix: str) -> None:
    """The frames as a moving picture of the kind that a suffix says."""
    if suffix == ".mp4":
        file.write(_mp4(frames))
        return
    more = {"duration": FRAME_MILLISECONDS, "loop": 0, "format": suffix.removeprefix(".")}
    frames[0].save(file, save_all=True, append_images=frames[1:], **more)


def _mp4(frames: list[Any]) -> bytes:
    """The frames, whose sides are even, as H.264 that browsers play."""
    import imageio_ffmpeg

    width, height = frames[0].size
    source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
    source += ["-r", str(1000 / FRAME_MILLISECONDS), "-i", "-"]
    wanted = ["-c:v", "libx264", "-pix_fmt", "yuv420p", "-movflags", "+faststart"]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "video.mp4")
        # Not by imageio itself, which forks beside JAX's threads.
        command = [imageio_ffmpeg.get_ffmpeg_exe(), "-loglevel", "error", *source, *wanted, path]
        pictures = b"".join(frame.tobytes() for frame in frames)
        done = subprocess.run(command, input=pictures, capture_output=True, check=False)
        if done.returncode:
            why = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["no reason"]
            raise AdaptaxError(f"ffmpeg cannot write the video: {why[0]}")
        return path.read_bytes()


@dataclass(frozen=True)
class RecordedEpisode:
    """Pictures of an episode, and its rewards and successes at every step."""

    frames: list[np.ndarray]
    """Each [H, W, 3] uint8, one every `stride` steps."""
    stride: int
    reward: np.ndarray
    """[T]"""
    success: np.ndarray | None
    """[T]; None where the suite knows none."""
    target: str = ""
    """The task's class and numbers in words."""
    actual: tuple[str, np.ndarray] | None = None
    """The name of what the task is about, and its value [T]; None where steps do not tell it."""


def _two_episodes(
    trainer: Any, number: int, config: VideoConfig, no_gl: AdaptaxError | None
) -> list[RecordedEpisode]:
    """The first episode of an agent on a task, and one after adaptation."""
    algorithm, state, suite = trainer.algorithm, trainer.state, trainer.suite
    cameras: list[RecordingPool] = []

    def make_pool(num_slots: int) -> RecordingPool:
        cameras.append(RecordingPool(suite.make_pool(num_slots), suite.name, config, no_gl))
        return cameras[-1]

    filmed = replace(suite, make_pool=make_pool, engine="host")
    sampler = Sampler(filmed, filmed.test, trainer.config.seed, "video")
    tasks = (_task(trainer, number),)
    actor = algorithm.actor(state, deterministic=config.deterministic)
    history: list[Rollout] = []
    protocol = trainer.protocol()
    evaluated = protocol["num_episodes"] - (protocol["num_test_episodes"] == 0)
    num_episodes = config.num_episodes or max(evaluated, 1)
    episodes = []
    try:
        for k in range(num_episodes + 1):
            if history:
                actor = algorithm.adapt(state, actor, history, deterministic=config.deterministic)
            for camera in cameras:
                camera.rolling = k == num_episodes
            # As many lanes as one adaptation takes; the first is filmed.
            history.append(sampler.episodes(actor, tasks, algorithm.lanes_per_task, 1))
            if cameras[0].frames:
                episodes.append(_episode(cameras[0], config.stride, history[-1], tasks[0]))
    finally:
        sampler.close()
    return episodes


def _task(trainer: Any, number: int) -> Task:
    listed = trainer.suite.test.tasks
    if listed is not None:
        check(number < len(listed), f"task {number} is beyond the {len(listed)} held-out tasks")
        return listed[number]
    drawn = trainer.evaluation_tasks()
    check(number < len(drawn), f"task {number} is beyond the {len(drawn)} drawn for an evaluation")
    return drawn[number]


def _episode(camera: RecordingPool, stride: int, rollout: Rollout, task: Task) -> RecordedEpisode:
    valid = np.asarray(rollout.valid)[0, 0]
    success = rollout.extras.get("success")
    frames, figures = camera.take()
    named = [name for name in ACTUAL if name in figures]
    return RecordedEpisode(
        frames,
        stride,
        np.asarray(rollout.reward)[0, 0][valid],
        None if success is None else np.asarray(success)[0, 0][valid],
        "\n".join(filter(None, (task.class_name, _numbers(task)))),
        (named[0], np.array(figures[named[0]])) if named else None,
    )


def _numbers(task: Task) -> str:
    """The few numbers that are a task's parameters, in words."""
    parts = []
    for name, value in task.params.items():
        values = np.ravel(value)
        if values.dtype.kind in "iuf" and values.size <= 3:
            parts.append(f"{name} {', '.join(f'{x:.2f}' for x in values)}")
    return "; ".join(parts[:2])


class RecordingPool:
    """A pool whose first slot is drawn every few steps while `rolling`.

    All episodes that are drawn start alike, whatever seed they are given.
    """

    def __init__(
        self, pool: Pool, name: str, config: VideoConfig, no_gl: AdaptaxError | None = None
    ) -> None:
        self.spec, self.num_slots = pool.spec, pool.num_slots
        self.rolling = True
        self.frames: list[np.ndarray] = []
        self.figures: dict[str, list[float]] = {}
        """What each step of the episode told, by name."""
        self._pool: Any = pool
        self._name, self._no_gl = name, no_gl
        self._config, self._num_steps = config, 0
        self._first_seeds: np.ndarray | None = None
        self._renderers: dict[int, Any] = {}
        if hasattr(pool, "make_drawable"):
            pool.make_drawable()

    def reset(self, slots: np.ndarray, seeds: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
        """Start episodes and draw the first moment."""
        if self._first_seeds is None:
            self._first_seeds = seeds
        alike = self.rolling and len(seeds) == len(self._first_seeds)
        obs: np.ndarray = self._pool.reset(slots, self._first_seeds if alike else seeds, tasks)
        if 0 in slots:
            self._num_steps, self.figures = 0, {}
            self._draw()
        return obs

    def step(self, slots: np.ndarray, actions: np.ndarray) -> Step:
        """Act, and draw what came of it when it is time."""
        step: Step = self._pool.step(slots, actions)
        if 0 in slots:
            place = slots.tolist().index(0)
            self._num_steps += 1
            told = {name: values[place] for name, values in step.info.items()}
            for name, value in {**self._told(), **told}.items():
                self.figures.setdefault(name, []).append(float(value))
            self._draw()
        return step

    def take(self) -> tuple[list[np.ndarray], dict[str, list[float]]]:
        """The pictures since the last time, and the figures of the last episode."""
        frames, self.frames = self.frames, []
        return frames, self.figures

    def save(self) -> Any:
        """As the pool."""
        return self._pool.save()

    def restore(self, saved: Any, tasks: Sequence[Task]) -> None:
        """As the pool."""
        self._pool.restore(saved, tasks)

    def close(self) -> None:
        """Free the pool and what draws."""
        for renderer in self._renderers.values():
            renderer.close()
        self._renderers.clear()
        self._pool.close()

    def _told(self) -> dict[str, float]:
        """Numbers that the environment itself tells, such as Gymnasium's of its last step."""
        told: dict[str, float] = getattr(self._pool, "last_info", lambda slot: {})(0)
        return told

    def _draw(self) -> None:
        if not self.rolling or self._num_steps % self._config.stride != 0:
            return
        simulated = self._pool.simulation(0) if hasattr(self._pool, "simulation") else None
        self.frames.append(self._rendered() if simulated is None else self._filmed(*simulated))

    def _filmed(self, model: Any, data: Any) -> np.ndarray:
        """MuJoCo's picture."""
        if self._no_gl is not None:
            raise self._no_gl
        import mujoco

        if id(model) not in self._renderers:
            size, buffer = self._config.size, model.vis.global_
            buffer.offwidth, buffer.offheight = size, size  # the model's own may be smaller
            try:
                self._renderers[id(model)] = mujoco.Renderer(model, size, size)
            except Exception as error:  # which OpenGL it is to use was not said before its import
                raise AdaptaxError(
                    f"MuJoCo cannot draw: {one_line(error)}; set MUJOCO_GL to egl or osmesa before "
                    "Python begins"
                ) from error
        renderer = self._renderers[id(model)]
        named = [name for name in CAMERAS if name in _cameras(model)]
        renderer.update_scene(data, camera=named[0] if named else -1)
        return np.rot90(renderer.render(), CAMERAS[named[0]] if named else 0)

    def _rendered(self) -> np.ndarray:
        """The environment's own picture, as high as the config says."""
        from PIL import Image

        if not hasattr(self._pool, "picture"):
            raise AdaptaxError(
                f"video needs environments that MuJoCo simulates or that have a `render`; those of "
                f"{self._name} are neither"
            )
        try:
            frame = np.asarray(self._pool.picture(0))
        except NotImplementedError as error:  # Gymnasium's, where an environment has no `render`
            raise AdaptaxError(f"{self._name} cannot be drawn: it has no `render`") from error
        except Exception as error:  # whatever somebody's environment raises
            raise AdaptaxError(f"{self._name} cannot be drawn: {one_line(error)}") from error
        if frame.ndim != 3 or frame.shape[2] != 3 or frame.dtype != np.uint8 or not frame.size:
            raise AdaptaxError(
                f"{self._name} cannot be drawn: its `render` gives {frame.dtype}"
                f"{list(frame.shape)}, not a picture uint8 [H, W, 3] (render_mode 'rgb_array')"
            )
        height, width, _ = frame.shape
        size = self._config.size
        scaled = (max(round(width * size / height), 1), size)
        return np.asarray(Image.fromarray(frame).resize(scaled))


def _cameras(model: Any) -> list[str]:
    return [model.camera(i).name for i in range(model.ncam)]


def _captioned(episode: RecordedEpisode, title: str) -> list[Any]:
    """The frames as pictures that say how the episode goes."""
    from PIL import Image, ImageDraw, ImageFont

    height = episode.frames[0].shape[0]
    font = ImageFont.load_default(size=max(height // 17, 10))
    pictures = []
    for i, frame in enumerate(episode.frames):
        picture = Image.fromarray(frame)
        past = slice(0, i * episode.stride)
        lines = [title, f"return {episode.reward[past].sum():.1f}"]
        if episode.target:
            lines.append(episode.target)
        if episode.actual is not None and i > 0:
            name, values = episode.actual
            since = values[(i - 1) * episode.stride : i * episode.stride]
            lines.append(f"{name.replace('_', ' ')} {since.mean():.2f}")
        if episode.success is not None and episode.success[past].any():
            lines.append("success")
        text, place = "\n".join(lines), (height // 60 + 2,) * 2
        draw = ImageDraw.Draw(picture)
        _, _, right, bottom = draw.multiline_textbbox(place, text, font=font)
        draw.rectangle((0, 0, right + place[0], bottom + place[1]), fill="black")
        draw.multiline_text(place, text, font=font, fill="white")
        pictures.append(picture)
    return pictures


def _beside(pictures: Sequence[Any]) -> Any:
    from PIL import Image

    width, height = sum(p.width for p in pictures), pictures[0].height
    both = Image.new("RGB", (width + width % 2, height + height % 2))
    both.paste(pictures[0], (0, 0))
    both.paste(pictures[1], (pictures[0].width, 0))
    return both
