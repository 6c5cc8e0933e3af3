"""What a wheel carries, used away from the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*command, cwd, **variables):
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **variables}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with what a wheel of the files under version control installs."""
    place = tmp_path_factory.mktemp("wheel")
    source, wheels, target = place / "source", place / "wheels", place / "target"
    for name in run("git", "ls-files", "adaptax", "pyproject.toml", "README.md", cwd=ROOT).split():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", wheels, source, cwd=place)
    (wheel,) = wheels.glob("adaptax-*.whl")
    run(*pip, "install", "--no-deps", "--target", target, wheel, cwd=place)
    return target


@pytest.mark.slow
def test_an_installed_wheel_works_away_from_the_checkout(installed, tmp_path):
    def adaptax(*words):
        command = (sys.executable, "-m", "adaptax", *words)
        return run(*command, cwd=tmp_path, PYTHONPATH=str(installed))

    where = run(
        *(sys.executable, "-c", "import adaptax; print(adaptax.__file__)"),
        cwd=tmp_path,
        PYTHONPATH=str(installed),
    )
    assert Path(where.strip()).is_relative_to(installed)
    assert "ppo-classic" in adaptax("list", "--recipes")
    limits = ("--num-steps", "100", "--suite.horizon", "10", "--evaluation.num-lanes", "2")
    adaptax("train", "nop", "half-cheetah", *limits, "--run-dir", "run")
    assert "mean return" in adaptax("evaluate", "run")
