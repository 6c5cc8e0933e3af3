"""Within the environments: suites are made of pools, never the other way, and nothing in a ring."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import adaptax.envs

ENVS = Path(adaptax.envs.__file__).parent


def imports() -> dict[str, set[str]]:
    """By module of adaptax.envs, the others that it imports when it is imported."""
    files = {
        ".".join(["adaptax.envs", *path.relative_to(ENVS).with_suffix("").parts]): path
        for path in ENVS.rglob("*.py")
        if path.stem != "__init__"
    }
    found = {}
    for name, path in files.items():
        nodes = ast.parse(path.read_text()).body
        from_imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        full = {f"{node.module}.{alias.name}" for node in from_imports for alias in node.names}
        full |= {str(node.module) for node in from_imports}
        found[name] = full & files.keys()
    return found


def test_pools_know_no_suite():
    of_suites = {"adaptax.envs.suite", "adaptax.envs.placement"}
    for name, used in imports().items():
        if name.startswith("adaptax.envs.pools."):
            assert not [u for u in used if u in of_suites or u.startswith("adaptax.envs.suites.")]


def test_no_modules_import_each_other_in_a_ring():
    order = list(TopologicalSorter(imports()).static_order())
    assert "adaptax.envs.suites.locomotion.ant" in order
