"""Environments that a module registers, which only what a person types has imported."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gymnasium
import pytest

from adaptax.core.errors import ConfigError
from adaptax.core.imports import VARIABLE, import_permitted, permit
from adaptax.envs.registry import module_of
from adaptax.experiment import cli
from adaptax.experiment.build import load_run, make_suite

WORLD = """
import gymnasium
import numpy as np

class Dot(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(action), False, False, {}

gymnasium.register("OwnDot-v0", entry_point=Dot, max_episode_steps=3)
"""
NAME = "gym:own_world:OwnDot-v0"
NOP = ["train", "nop", NAME, "--run-dir", "run", "--num-iterations", "1", "--quiet"]


@pytest.fixture
def inside(tmp_path, monkeypatch):
    """A current directory with the module in it, which nobody has imported yet."""
    (tmp_path / "own_world.py").write_text(WORLD)
    (tmp_path / "own_broken.py").write_text("import sys; sys.exit(3)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    yield tmp_path
    forget()


def forget() -> None:
    sys.modules.pop("own_world", None)
    gymnasium.registry.pop("OwnDot-v0", None)


def as_another_day(monkeypatch) -> None:
    """What was typed and imported is forgotten."""
    forget()
    monkeypatch.setenv(VARIABLE, "")


def refused(words: list[str], capsys) -> str:
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    out, err = capsys.readouterr()
    assert (stop.value.code, out, err.count("\n")) == (2, "", 1)
    return err


def test_a_run_needs_its_module_typed_again(inside, monkeypatch, capsys):
    cli.main(NOP)
    as_another_day(monkeypatch)
    assert json.loads(Path("run/config.json").read_text())["suite"]["name"] == NAME
    before = sorted(p for p in Path().rglob("*") if p.is_file())
    for words in (["resume", "run"], ["evaluate", "run"], ["video", "run"]):
        assert "add --import own_world, or `import own_world`" in refused(words, capsys)
        assert "own_world" not in sys.modules
    with pytest.raises(ConfigError, match="which no file gets imported"):
        load_run("run")
    assert sorted(p for p in Path().rglob("*") if p.is_file()) == before
    cli.main(["evaluate", "run", "--import", "own_world", "--json"])
    assert json.loads(capsys.readouterr().out)["suite"] == NAME
    as_another_day(monkeypatch)
    cli.main(["resume", "run", "--num-iterations", "2", "--quiet", "--import", "own_world"])
    cli.main(["plot", "run"])


def test_the_command_that_a_run_ends_with_works_as_it_stands(inside, monkeypatch, capsys):
    cli.main([word for word in NOP if word != "--quiet"])
    said = capsys.readouterr().out.splitlines()[-1]
    command = "adaptax evaluate run --import own_world"
    assert said == f"run is done; next: {command}, adaptax plot run"
    as_another_day(monkeypatch)
    cli.main(command.split()[1:])


def test_a_program_that_has_imported_it_needs_no_more(inside, monkeypatch):
    cli.main(NOP)
    as_another_day(monkeypatch)
    monkeypatch.syspath_prepend(inside)
    import own_world  # noqa: F401

    trainer = load_run("run")
    trainer.close()
    assert trainer.suite.spec.horizon == 3


def test_make_suite_is_typed_by_a_person(inside):
    assert make_suite(NAME, horizon=2).spec.horizon == 2


@pytest.mark.slow
def test_workers_import_it_too(inside):
    suite = make_suite(NAME, num_workers=1)
    pool = suite.make_pool(1)
    try:
        assert pool.spec.horizon == 3
    finally:
        pool.close()


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("gym:own_world:Other-v0", "unknown Gymnasium environment 'Other-v0'"),
        ("gym:no_such_world:X-v0", "the module 'no_such_world' cannot be imported"),
        ("gym:own_broken:X-v0", "cannot be imported: SystemExit: 3"),
        ("gym:../own_world:X-v0", "'../own_world' names no module"),
        ("gym:a:b:X-v0", "'a:b' names no module"),
        ("gym::X-v0", "'' names no module"),
    ],
)
def test_what_cannot_be_is_a_line(inside, name, line, capsys):
    assert line in refused(["train", "ppo", name], capsys)
    assert not Path("runs").exists()


def test_a_module_of_an_installed_plugin_needs_no_permission(inside, monkeypatch):
    monkeypatch.syspath_prepend(inside)
    info = inside / "own-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    with pytest.raises(ConfigError, match="which no file gets imported"):
        import_permitted("own_world", "it")
    (info / "entry_points.txt").write_text("[adaptax.suites]\nx = own_world:x\n")
    import_permitted("own_world", "it")
    assert "own_world" in sys.modules


def test_which_names_have_a_module():
    names = ("gym:CartPole-v1", "gym:a.b:C-v0", "point-goal", "gym:ALE/Pong-v5", "ml1-reach-v3")
    assert [module_of(name) for name in names] == [None, "a.b", None, None, None]
    permit(None)
