"""Moving pictures of an agent on a held-out task: its first episode, and one after adaptation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from adaptax.core.config import check_positive
from adaptax.core.errors import AdaptaxError, check
from adaptax.core.experience import Rollout, Step
from adaptax.core.files import replacing
from adaptax.envs.pools.pool import Pool
from adaptax.envs.task import Task
from adaptax.experiment.build import load_run
from adaptax.experiment.run_dir import writing
from adaptax.sampling.sampler import Sampler

CAMERAS = {"corner2": 2, "track": 0}
"""Meta-World's and Gymnasium's, by their names in the model, and the quarter turns that put their
pictures upright; where neither is, MuJoCo's free camera."""
FRAME_MILLISECONDS = 50
SUFFIXES = (".gif", ".webp")
MAX_SIZE = 1024
"""Pixels: all pictures of an episode are in memory at once, and not every OpenGL draws 10 000."""


@dataclass(frozen=True)
class VideoConfig:
    """Which task, how many episodes, and how the pictures are taken."""

    task: int = 0
    """Which of the held-out tasks, counted from 0."""
    num_episodes: int | None = None
    """Episodes in a row before the one after adaptation; by default as in training."""
    stride: int = 4
    """Steps from one picture to the next."""
    size: int = 240
    """Pixels of each picture's sides, at most 1024."""
    deterministic: bool = False
    """Act by the mode of the policy."""

    def __post_init__(self) -> None:
        check_positive(self, "num_episodes", "stride", "size")
        check(self.size <= MAX_SIZE, f"size must be at most {MAX_SIZE} pixels, not {self.size}")
        check(self.task >= 0, f"task must not be negative, but is {self.task}")


def film(run_dir: Path, out: Path, config: VideoConfig) -> None:
    """Write the first episode beside the last to `out`, side by side.

    Call `choose_gl_backend` before anything imports MuJoCo.
    """
    check(out.suffix in SUFFIXES, f"a video is one of {', '.join(SUFFIXES)}, not {out}")
    trainer = load_run(run_dir, in_process=True)
    try:
        trainer.load()
        episodes = _two_episodes(trainer, config)
    finally:
        trainer.close()
    titles = ("first episode", "after adaptation")
    strips = [_captioned(e, title) for e, title in zip(episodes, titles, strict=True)]
    length = max(map(len, strips))
    padded = [strip + strip[-1:] * (length - len(strip)) for strip in strips]
    frames = [_beside(pair) for pair in zip(*padded, strict=True)]
    more = {"duration": FRAME_MILLISECONDS, "loop": 0, "format": out.suffix.removeprefix(".")}
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        with replacing(out) as file:
            frames[0].save(file, save_all=True, append_images=frames[1:], **more)
    trainer.tell_of_video(out)


@dataclass(frozen=True)
class FilmedEpisode:
    """Pictures of an episode, and its rewards and successes at every step."""

    frames: list[np.ndarray]
    """Each [H, W, 3] uint8, one every `stride` steps."""
    stride: int
    reward: np.ndarray
    """[T]"""
    success: np.ndarray | None
    """[T]; None where the suite knows none."""


def _two_episodes(trainer: Any, config: VideoConfig) -> list[FilmedEpisode]:
    """The first episode of an agent on a task, and one after adaptation."""
    algorithm, state, suite = trainer.algorithm, trainer.state, trainer.suite
    cameras: list[FilmedPool] = []

    def make_pool(num_slots: int) -> FilmedPool:
        cameras.append(FilmedPool(suite.make_pool(num_slots), suite.name, config))
        return cameras[-1]

    filmed = replace(suite, make_pool=make_pool, engine="host")
    sampler = Sampler(filmed, filmed.test, trainer.config.seed, "video")
    tasks = (_task(sampler, config.task),)
    actor = algorithm.actor(state, deterministic=config.deterministic)
    history: list[Rollout] = []
    num_episodes = config.num_episodes or suite.spec.trial_episodes
    episodes = []
    try:
        for k in range(num_episodes + 1):
            if history:
                actor = algorithm.adapt(state, actor, history, deterministic=config.deterministic)
            for camera in cameras:
                camera.rolling = k == num_episodes
            history.append(sampler.episodes(actor, tasks, 1, 1))
            if cameras[0].frames:
                episodes.append(_episode(cameras[0].take(), config.stride, history[-1]))
    finally:
        sampler.close()
    return episodes


def _task(sampler: Sampler, number: int) -> Task:
    listed = sampler.tasks.tasks
    if listed is None:
        return sampler.tasks.sample(np.random.default_rng(number), 1)[0]
    check(number < len(listed), f"task {number} is beyond the {len(listed)} held-out tasks")
    return listed[number]


def _episode(frames: list[np.ndarray], stride: int, rollout: Rollout) -> FilmedEpisode:
    valid = np.asarray(rollout.valid)[0, 0]
    success = rollout.extras.get("success")
    return FilmedEpisode(
        frames,
        stride,
        np.asarray(rollout.reward)[0, 0][valid],
        None if success is None else np.asarray(success)[0, 0][valid],
    )


class FilmedPool:
    """A pool whose first slot is drawn every few steps while `rolling`."""

    def __init__(self, pool: Pool, name: str, config: VideoConfig) -> None:
        if not hasattr(pool, "simulation"):
            raise AdaptaxError(f"video needs a suite that MuJoCo simulates; {name} is not one")
        self.spec, self.num_slots = pool.spec, pool.num_slots
        self.rolling = True
        self.frames: list[np.ndarray] = []
        self._pool: Any = pool
        self._config, self._num_steps = config, 0
        self._renderers: dict[int, Any] = {}

    def reset(self, slots: np.ndarray, seeds: np.ndarray, tasks: Sequence[Task]) -> np.ndarray:
        """Start episodes and draw the first moment."""
        obs: np.ndarray = self._pool.reset(slots, seeds, tasks)
        self._num_steps = 0
        self._draw()
        return obs

    def step(self, slots: np.ndarray, actions: np.ndarray) -> Step:
        """Act, and draw what came of it when it is time."""
        step: Step = self._pool.step(slots, actions)
        self._num_steps += 1
        self._draw()
        return step

    def take(self) -> list[np.ndarray]:
        """The pictures since the last time."""
        frames, self.frames = self.frames, []
        return frames

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

    def _draw(self) -> None:
        if not self.rolling or self._num_steps % self._config.stride != 0:
            return
        import mujoco

        model, data = self._pool.simulation(0)
        if id(model) not in self._renderers:
            size, buffer = self._config.size, model.vis.global_
            buffer.offwidth, buffer.offheight = size, size  # the model's own may be smaller
            self._renderers[id(model)] = mujoco.Renderer(model, size, size)
        renderer = self._renderers[id(model)]
        named = [name for name in CAMERAS if name in _cameras(model)]
        renderer.update_scene(data, camera=named[0] if named else -1)
        self.frames.append(np.rot90(renderer.render(), CAMERAS[named[0]] if named else 0))


def _cameras(model: Any) -> list[str]:
    return [model.camera(i).name for i in range(model.ncam)]


def _captioned(episode: FilmedEpisode, title: str) -> list[Any]:
    """The frames as pictures that say how the episode goes."""
    from PIL import Image, ImageDraw

    pictures = []
    for i, frame in enumerate(episode.frames):
        picture = Image.fromarray(frame)
        past = slice(0, i * episode.stride)
        text = f"{title}\nreturn {episode.reward[past].sum():.1f}"
        if episode.success is not None and episode.success[past].any():
            text += "\nsuccess"
        ImageDraw.Draw(picture).multiline_text(
            (4, 4), text, fill="white", stroke_width=1, stroke_fill="black"
        )
        pictures.append(picture)
    return pictures


def _beside(pictures: Sequence[Any]) -> Any:
    from PIL import Image

    both = Image.new("RGB", (sum(p.width for p in pictures), pictures[0].height))
    both.paste(pictures[0], (0, 0))
    both.paste(pictures[1], (pictures[0].width, 0))
    return both
