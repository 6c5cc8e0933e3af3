from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import gymnasium
import imageio_ffmpeg
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageSequence

from adaptax.core.errors import AdaptaxError, ConfigError
from adaptax.envs import registry
from adaptax.envs.suites.gym import gym_suite
from adaptax.envs.task import TaskList, TaskRange
from adaptax.experiment import cli, gl_backend, video
from adaptax.experiment.build import make_suite, train
from adaptax.experiment.video import RecordedEpisode, VideoConfig, _captioned, write_videos
from adaptax.sampling.sampler import Sampler


@pytest.fixture(scope="session")
def backend():
    """A backend that draws on this machine."""
    drawing = [name for name in gl_backend.BACKENDS if gl_backend._draws(name)]
    if not drawing:
        pytest.skip("nothing here draws off-screen")
    return drawing[0]


def adaptax(*args, cwd, **environment):
    command = [sys.executable, "-m", "adaptax.experiment.cli", *args]
    environment = {**os.environ, **environment}
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


QUICK = ["--num-iterations", "1", "--evaluation-interval", "None", "--run-dir", "run", "--quiet"]
SUITES = {
    "half-cheetah-vel": ["--suite.horizon", "8"],
    "ml1-reach-v3": ["--suite.horizon", "8", "--suite.num-workers", "2"],
}


@pytest.mark.parametrize(
    "suite", ["half-cheetah-vel", pytest.param("ml1-reach-v3", marks=pytest.mark.slow)]
)
def test_a_video_shows_both_episodes_side_by_side(tmp_path, monkeypatch, backend, suite):
    monkeypatch.chdir(tmp_path)
    cli.main(["train", "nop", suite, *QUICK, "--algorithm.num-lanes", "2", *SUITES[suite]])
    # More pixels than the buffer has that MuJoCo's models bring along.
    flags = ["--num-episodes", "2", "--stride", "2", "--size", "500"]
    done = adaptax("video", "run", *flags, cwd=tmp_path, MUJOCO_GL=backend)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "wrote run/video.gif\n"
    with Image.open(tmp_path / "run" / "video.gif") as moving:
        frames = [np.asarray(f.convert("RGB")) for f in ImageSequence.Iterator(moving)]
    assert frames[0].shape == (500, 1000, 3)
    assert len(frames) == 5
    assert np.std(frames[0][32:]) > 5
    below = slice(250, None)  # the captions
    assert np.abs(frames[0][below, :500] - frames[0][below, 500:].astype(int)).mean() < 2
    assert any(np.any(frames[0] != frame) for frame in frames[1:])


@pytest.mark.parametrize("wrong", [{"task": 1.5}, {"stride": 1.5}, {"size": 100.5}])
def test_what_a_film_is_of_is_in_whole_numbers(wrong):
    with pytest.raises(ConfigError, match=r"video\.\w+: expected int, not 1"):
        VideoConfig(**wrong)


@pytest.mark.parametrize(
    ("out", "config", "message"),
    [
        ("x.gif", {"task": 1}, "write_videos takes a VideoConfig, not {'task': 1}"),
        (None, VideoConfig(), "expected a folder to be made, not None"),
    ],
)
def test_what_is_no_film_is_one_line(out, config, message):
    with pytest.raises(ConfigError, match=message):
        write_videos("run", out, config)


@pytest.mark.parametrize("size", [0, -1, 10_000, 10**12])
def test_pictures_of_an_absurd_size_are_refused(monkeypatch, capsys, size):
    monkeypatch.setattr(gl_backend, "_draws", lambda backend: True)
    monkeypatch.setenv("MUJOCO_GL", "egl")
    with pytest.raises(SystemExit) as stop:
        cli.main(["video", "run", "--size", str(size)])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("adaptax: size must be ")
    assert err.count("\n") == 1


class Lamp(gymnasium.Env):
    """A picture whose brightness is the episode's start, and its red the step; taller than wide."""

    metadata: ClassVar = {"render_modes": ["rgb_array"]}
    observation_space = gymnasium.spaces.Box(0, 1, (1,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, render_mode=None, picture="rgb"):
        self.render_mode, self.picture = render_mode, picture

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.start, self.t = self.np_random.integers(50, 250), 0
        return np.array([self.start / 255], np.float32), {}

    def step(self, action):
        self.t += 1
        info = {"velocity": 0.5 * self.t, "note": "text", "success": self.t > 2}
        return np.array([self.start / 255], np.float32), 1.0, False, False, info

    def render(self):
        if self.render_mode is None or self.picture == "none":
            return None
        if self.picture == "broken":
            raise RuntimeError("no screen")
        picture = np.full((60, 40, 3), self.start, np.uint8)
        picture[..., 0] = 20 * self.t
        return picture


NO_GL = AdaptaxError("nothing here draws off-screen")


@pytest.fixture
def lamps(tmp_path, monkeypatch):
    """A function that trains on lamps, on a machine without OpenGL, and gives the run's flags."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gl_backend, "choose_gl_backend", lambda: (_ for _ in ()).throw(NO_GL))

    def train(**settings):
        gymnasium.register("Lamp-v0", entry_point=Lamp, max_episode_steps=5, kwargs=settings)
        cli.main(["train", "nop", "gym:Lamp-v0", *QUICK, "--algorithm.num-lanes", "2"])

    yield train
    gymnasium.registry.pop("Lamp-v0", None)


def test_an_environment_that_renders_is_filmed_without_opengl_as_it_is(lamps, tmp_path):
    lamps()
    flags = ["--stride", "1", "--size", "120"]
    cli.main(["video", "run", "--out", "lamp.gif", *flags])
    with Image.open(tmp_path / "lamp.gif") as moving:
        frames = [np.asarray(f.convert("RGB")) for f in ImageSequence.Iterator(moving)]
    assert len(frames) == 6
    assert frames[0].shape == (120, 160, 3)
    first, after = frames[0][-5:, :80], frames[0][-5:, 80:]
    np.testing.assert_array_equal(first, after)  # the same start
    reds = [int(frame[-3, 40, 0]) for frame in frames]
    np.testing.assert_allclose(reds, 20 * np.arange(6), atol=4)
    cli.main(["video", "run", "--out", "lamp.mp4", *flags])
    assert (tmp_path / "lamp.mp4").read_bytes()[4:8] == b"ftyp"
    number, seconds = imageio_ffmpeg.count_frames_and_secs(str(tmp_path / "lamp.mp4"))
    assert (number, seconds) == (6, pytest.approx(0.3, abs=0.06))


def test_an_environment_is_filmed_as_what_makes_it_made_it():
    def make_env():
        env = gymnasium.make("CartPole-v1")
        env.unwrapped.gravity = env.unwrapped.force_mag = 1.0
        return env

    suite = gym_suite("slow", make_env)
    pool = suite.make_pool(1)
    pool.make_drawable()
    slots, num_steps, over = np.array([0]), 0, False
    pool.reset(slots, np.array([3], np.uint32), suite.train.tasks[:1])
    while not over:
        over, num_steps = bool(pool.step(slots, np.array([1])).terminated[0]), num_steps + 1
    picture = pool.picture(0)
    pool.close()
    assert num_steps == 30  # 10 in the one that is registered
    assert picture.ndim == 3 and picture.dtype == np.uint8


def test_a_run_whose_callbacks_are_not_here_is_filmed_and_shared(lamps, tmp_path):
    lamps(render_mode="rgb_array")
    config = tmp_path / "run" / "config.json"
    recorded = json.loads(config.read_text())
    recorded["trainer"]["callbacks"] = ["gone"]
    config.write_text(json.dumps(recorded))
    cli.main(["video", "run", "--size", "60"])
    assert (tmp_path / "run" / "video.gif").exists()
    cli.main(["export", "run", "new", "--video", "gif"])
    cli.main(["import", "new", "again"])
    cli.main(["evaluate", "again", "--json"])
    cli.main(["video", "again", "--size", "60"])
    for folder in ("new", "again"):
        taken = json.loads((tmp_path / folder / "config.json").read_text())
        assert taken["trainer"]["callbacks"] == []
    assert "gone" not in (tmp_path / "new" / "README.md").read_text()


class ClassLamp(Lamp):
    """A lamp whose brightness is its class's."""

    def __init__(self):
        super().__init__(render_mode="rgb_array")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.start = {"dim": 60, "lit lamp/2": 200, "off": 0}[options["class"]]
        return np.array([self.start / 255], np.float32), {}


@dataclass(frozen=True)
class ClassLampsConfig:
    """Nothing to set."""


def class_lamps(config):
    test = [{"class": "dim"}, {"class": "lit lamp/2"}] * 2
    return gym_suite("lamps", ClassLamp, train=[{"class": "off"}], test=test, horizon=5)


@pytest.fixture
def class_run(tmp_path, monkeypatch):
    """A run on lamps of two held-out classes, of two tasks each."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gl_backend, "choose_gl_backend", lambda: (_ for _ in ()).throw(NO_GL))
    entry = SimpleNamespace(summary="", load=lambda: (ClassLampsConfig, class_lamps))
    monkeypatch.setitem(registry.SUITES, "lamps", entry)
    cli.main(["train", "nop", "lamps", *QUICK, "--algorithm.num-lanes", "2"])
    return tmp_path / "run"


def brightness(path):
    """Of the lower corners of a film's first picture: those of both episodes."""
    with Image.open(path) as moving:
        picture = np.asarray(moving.convert("RGB"))
    return picture[-1, [0, -1], 2].tolist()


class TaskLamp(Lamp):
    """A lamp as bright as its task says."""

    def __init__(self):
        super().__init__(render_mode="rgb_array")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.start = options["value"]
        return np.array([self.start / 255], np.float32), {}


def task_lamps():
    drawn = TaskRange("lamps", lambda rng: int(rng.integers(50, 250)))
    return gym_suite("lamps", TaskLamp, train=drawn, test=drawn, horizon=5)


def test_a_film_of_a_suite_of_ones_own_is_of_the_tasks_of_evaluations(tmp_path):
    """Drawn tasks, too: they are not listed."""
    suite, film = task_lamps(), tmp_path / "film.gif"
    settings = {"num_iterations": 1, "evaluation_interval": None, "quiet": True}
    trainer = train("nop", suite, algorithm={"num_lanes": 2}, run_dir=tmp_path / "run", **settings)
    tasks = trainer.evaluate().tasks
    for number in (0, 3):
        config = VideoConfig(task=number, stride=2, size=60)
        assert write_videos(tmp_path / "run", film, config, suite=task_lamps()) == [film]
        np.testing.assert_allclose(brightness(film), [tasks[number].params["value"]] * 2, atol=4)
    with pytest.raises(AdaptaxError, match="task 20 is beyond the 20 drawn for an evaluation"):
        write_videos(tmp_path / "run", film, VideoConfig(task=20), suite=suite)
    with pytest.raises(AdaptaxError, match="no suite that is known here"):
        write_videos(tmp_path / "run", film)


def test_each_held_out_class_has_a_film_of_its_own(class_run, capsys):
    capsys.readouterr()
    flags = ["--stride", "2", "--size", "60"]
    cli.main(["video", "run", *flags])
    films = {"video-dim.gif": 60, "video-lit_lamp_2.gif": 200}
    assert capsys.readouterr().out == "".join(f"wrote run/{name}\n" for name in films)
    assert sorted(path.name for path in class_run.glob("video*")) == sorted(films)
    for name, level in films.items():
        np.testing.assert_allclose(brightness(class_run / name), [level] * 2, atol=4)
    cli.main(["video", "run", *flags, "--task", "3"])
    assert brightness(class_run / "video.gif") == [200] * 2
    cli.main(["export", "run", "new", "--video", "gif"])
    assert [path.name for path in Path("new").glob("video*")] == ["video.gif"]
    cli.main(["video", "run", "--out", "run/video.webp", *flags, "--task", "3"])
    (class_run / "video-notes.txt").write_text("mine")
    flags = [*QUICK, "--algorithm.num-lanes", "2", "--overwrite"]
    cli.main(["train", "nop", "lamps", *flags])
    assert [path.name for path in class_run.glob("video*")] == ["video-notes.txt"]


def test_a_film_is_of_the_episodes_of_the_runs_evaluations(class_run, monkeypatch):
    played = []

    class Counting(Sampler):
        def episodes(self, *args):
            played.append(args)
            return super().episodes(*args)

    monkeypatch.setattr(video, "Sampler", Counting)
    flags = [*QUICK, "--algorithm.num-lanes", "2", "--overwrite", "--evaluation.num-episodes", "3"]
    film = ["video", "run", "--stride", "2", "--size", "60", "--task", "0"]
    for num_test, before in (("0", 2), ("1", 3)):
        cli.main(["train", "nop", "lamps", *flags, "--evaluation.num-test-episodes", num_test])
        played.clear()
        cli.main(film)
        assert len(played) == before + 1
    played.clear()
    cli.main([*film, "--num-episodes", "4"])
    assert len(played) == 4 + 1


def test_as_many_classes_are_filmed_as_a_page_holds_each_under_a_name_of_its_own():
    many = TaskList("many", [{"class": f"kind-{i % 12}"} for i in range(24)]).tasks
    expected = {Path("a") / f"x-kind-{i}.mp4": i for i in range(10)}
    assert video._chosen(many, None, Path("a/x.mp4")) == expected
    assert video._chosen(many, 23, Path("x.gif")) == {Path("x.gif"): 23}
    alike = TaskList("alike", [{"class": "a b"}, {"class": "a/b"}]).tasks
    assert video._chosen(alike, None, Path("x.gif")) == {Path("x-0.gif"): 0, Path("x-1.gif"): 1}
    plain = TaskList("plain", [{"x": 1.0}, {"x": 2.0}]).tasks
    assert video._chosen(plain, None, Path("x.gif")) == {Path("x.gif"): 0}
    assert video._chosen(None, None, Path("x.gif")) == {Path("x.gif"): 0}


def test_captions_tell_the_task_and_what_came_of_it():
    texts = []
    frames = [np.zeros((100, 100, 3), np.uint8)] * 3
    episode = RecordedEpisode(
        frames,
        2,
        np.array([1.0, 2, 3, 4]),
        np.array([False, False, False, True]),
        "target 1.20",
        ("velocity", np.array([0.0, 1.0, 1.1, 1.3])),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            ImageDraw.ImageDraw,
            "multiline_text",
            lambda self, place, text, **how: texts.append(text.split("\n")),
        )
        _captioned(episode, "first episode")
    assert texts == [
        ["first episode", "return 0.0", "target 1.20"],
        ["first episode", "return 3.0", "target 1.20", "velocity 0.50"],
        ["first episode", "return 10.0", "target 1.20", "velocity 1.20", "success"],
    ]


@pytest.mark.parametrize(
    ("picture", "message"),
    [("none", "its `render` gives object[], not a picture"), ("broken", "RuntimeError: no screen")],
)
def test_a_render_that_gives_no_picture_is_one_line(lamps, capsys, picture, message):
    lamps(picture=picture)
    with pytest.raises(SystemExit) as stop:
        cli.main(["video", "run", "--out", "lamp.gif"])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("adaptax: gym:Lamp-v0 cannot be drawn: ")
    assert message in err
    assert err.count("\n") == 1
    assert not os.path.exists("lamp.gif")


def test_without_opengl_what_mujoco_simulates_is_neither_filmed_nor_exported_with_a_video(
    lamps, tmp_path, capsys
):
    cli.main(["train", "nop", "half-cheetah-vel", *QUICK, *SUITES["half-cheetah-vel"]])
    for words in (["video", "run", "--out", "a.gif"], ["export", "run", "new", "--video", "gif"]):
        with pytest.raises(SystemExit) as stop:
            cli.main(words)
        assert stop.value.code == 2
        assert capsys.readouterr().err == f"adaptax: {NO_GL}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_export_has_the_video_that_is_asked_for(lamps, tmp_path):
    lamps()
    cli.main(["export", "run", "new", "--video", "gif"])
    assert "](video.gif)" in (tmp_path / "new" / "README.md").read_text()
    cli.main(["import", "new", "theirs"])
    with Image.open(tmp_path / "theirs" / "video.gif") as moving:
        assert moving.n_frames == 2


def test_an_mp4_without_what_encodes_it_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(video, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as stop:
        cli.main(["video", "run", "--out", "x.mp4"])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("adaptax: x.mp4 needs imageio-ffmpeg: pip install")
    assert err.count("\n") == 1


def test_a_point_is_drawn_where_it_is_and_its_goal():
    env = make_suite("point-goal").make_pool(1).env
    picture = env.render(np.array([0.0, 0.5]), {"goal": np.array([1.0, 0.0])})
    assert picture.shape == (240, 240, 3)
    scale = 240 / 3
    for (x, y), colour in (((0.0, 0.5), (0, 80, 180)), ((1.0, 0.0), (120, 200, 120))):
        row, column = round(120 - scale * y), round(120 + scale * x)
        assert tuple(picture[row, column]) == colour


def test_a_suite_that_cannot_be_drawn_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gl_backend, "_draws", lambda backend: True)
    monkeypatch.setenv("MUJOCO_GL", "egl")
    cli.main(["train", "nop", "bandit", *QUICK])
    with pytest.raises(SystemExit) as stop:
        cli.main(["video", "run"])
    assert stop.value.code == 2
    message = capsys.readouterr().err
    assert message == (
        "adaptax: video needs environments that MuJoCo simulates or that have a `render`; those "
        "of bandit are neither\n"
    )


@pytest.mark.parametrize(("asked", "tried"), [(None, "egl and osmesa"), ("glfw", "MUJOCO_GL=glfw")])
def test_without_a_gl_backend_there_is_one_clear_message(monkeypatch, asked, tried):
    monkeypatch.setattr(gl_backend, "_draws", lambda backend: False)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    if asked:
        monkeypatch.setenv("MUJOCO_GL", asked)
    with pytest.raises(AdaptaxError) as raised:
        gl_backend.choose_gl_backend()
    assert f"nothing here draws off-screen (tried {tried}): install EGL or OSMesa" in str(
        raised.value
    )
    assert "\n" not in str(raised.value)


def test_a_backend_that_crashes_does_not_draw(monkeypatch):
    monkeypatch.setattr(gl_backend, "TRIAL", "import os; os.abort()")
    assert not gl_backend._draws("egl")


def test_the_first_backend_that_draws_is_chosen(monkeypatch):
    monkeypatch.setenv("MUJOCO_GL", "")  # so that what is chosen is undone
    monkeypatch.setattr(gl_backend, "_draws", lambda backend: backend == "osmesa")
    assert gl_backend.choose_gl_backend() == os.environ["MUJOCO_GL"] == "osmesa"
