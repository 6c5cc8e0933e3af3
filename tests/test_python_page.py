"""The code of docs/python.md, in order."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "python.md").read_text()
PLUGINS = (ROOT / "docs" / "plugins.md").read_text()


def test_the_code_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.M | re.S))
    names = {"__name__": "page"}
    for number in (20, 10):
        source = source.replace(f"num_iterations={number}", f"num_iterations={number // 10}")
    exec(compile(source, "python.md", "exec", dont_inherit=True), names)
    (printed,) = re.findall(r"^-?[\d.]+$", capsys.readouterr().out, flags=re.M)
    assert float(printed) < 0
    assert [rollout.reward.shape for rollout in names["history"]] == 3 * [(1, 1, 50)]
    action, _ = names["agent"].act(names["carry"], np.zeros(3))
    assert action.shape == (1,)


def test_the_packages_entry_points_are_those_of_the_example():
    (shown,) = re.findall(r"^```toml\n(.*?)^```", PLUGINS, flags=re.M | re.S)
    file = (ROOT / "examples" / "plugin" / "pyproject.toml").read_text()
    assert shown.strip() in re.sub(r" #.*", "", file)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "runs"),
    [
        ("networks.md", ["torso", "fading"]),
        ("off-policy.md", []),
        ("running.md", ["own-schedule"]),
        ("algorithms/svpg.md", ["particles"]),
    ],
)
def test_the_code_of_other_pages_runs(page, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / page).read_text()
    source = "\n".join(re.findall(r"^```python\n(.*?)^```", text, flags=re.M | re.S))
    source = source.replace("num_iterations=2", "num_iterations=1")
    exec(compile(source, page, "exec", dont_inherit=True), {"__name__": "page"})
    made = [path.parent.name for path in tmp_path.glob("runs/*/progress.jsonl")]
    assert sorted(made) == sorted(runs)
