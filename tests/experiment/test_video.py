from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image, ImageSequence

from adaptax.core.errors import AdaptaxError
from adaptax.experiment import cli, gl_backend


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
    with Image.open(tmp_path / "run" / "video.gif") as video:
        frames = [np.asarray(f.convert("RGB")) for f in ImageSequence.Iterator(video)]
    assert frames[0].shape == (500, 1000, 3)
    assert len(frames) == 5
    assert np.std(frames[0][32:]) > 5
    assert any(np.any(frames[0] != frame) for frame in frames[1:])


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


def test_a_suite_that_mujoco_does_not_simulate_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gl_backend, "_draws", lambda backend: True)
    monkeypatch.setenv("MUJOCO_GL", "egl")
    cli.main(["train", "nop", "point-goal", *QUICK])
    with pytest.raises(SystemExit) as stop:
        cli.main(["video", "run"])
    assert stop.value.code == 2
    message = capsys.readouterr().err
    assert message == (
        "adaptax: video needs a suite that MuJoCo simulates; point-goal is not one\n"
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
