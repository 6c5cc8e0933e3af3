"""Rooms import each other along these arrows and nowhere else."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import adaptax

PACKAGE = Path(adaptax.__file__).parent
ARROWS = {
    "core": set(),
    "functional": {"core"},
    "networks": {"core", "functional"},
    "envs": {"core"},
    "sampling": {"core", "functional", "envs", "networks"},
    "learning": {"core", "functional", "networks", "sampling"},
    "algorithms": {"core", "functional", "networks", "sampling", "learning"},
    "experiment": {"core", "functional", "networks", "envs", "sampling", "learning", "algorithms"},
}
"""What each room may import beside itself."""
MODULES = sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py"))
HEAVY = {"jax", "flax", "optax", "mujoco", "gymnasium", "matplotlib", "numpy", "ray"}


def imported(source: str, module: str) -> set[str]:
    """Full names of all that a module imports, wherever in it an import stands."""
    package = module.split(".")[:-1]
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = [*base, *([node.module] if node.module else [])]
            names |= {".".join([*base, alias.name]) for alias in node.names}
    return names


def rooms(names: set[str]) -> set[str]:
    """The rooms of adaptax among imported names."""
    return {name.split(".")[1] for name in names if name.startswith("adaptax.")}


def test_every_room_of_the_package_has_its_arrows():
    found = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert found == set(ARROWS)


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_imports_follow_the_arrows(path):
    room = path.parts[0] if len(path.parts) > 1 else None
    module = ".".join(["adaptax", *path.with_suffix("").parts])
    used = rooms(imported((PACKAGE / path).read_text(), module))
    allowed = ARROWS[room] | {room} if room else set(ARROWS)  # the package itself names them all
    assert used <= allowed, f"adaptax/{path} may not import {sorted(used - allowed)}"


def test_imports_are_found_wherever_they_stand():
    source = """
if TYPE_CHECKING:
    from adaptax.envs.task import Task
def late():
    import adaptax.algorithms.search.nop
    from adaptax import experiment
    from ..networks import mlp
    from . import rng
"""
    assert rooms(imported(source, "adaptax.core.experience")) == {
        "envs",
        "algorithms",
        "experiment",
        "networks",
        "core",
    }


@pytest.mark.parametrize("path", MODULES, ids=str)
def test_no_module_is_a_drawer_for_anything(path):
    forbidden = {"util", "utils", "common", "helper", "helpers", "misc"}
    assert not forbidden & set(path.with_suffix("").parts)


@pytest.mark.parametrize("args", [["--help"], ["list"], ["list", "--json"], ["train", "--help"]])
def test_the_command_line_answers_without_heavy_imports(args):
    program = f"""
import sys
from adaptax.experiment import cli
cli.main({args!r})
sys.stderr.write(",".join(sorted({sorted(HEAVY)!r} & sys.modules.keys())))
""".replace(repr(sorted(HEAVY)), repr(HEAVY))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr == ""
    assert len(done.stdout) > 100
