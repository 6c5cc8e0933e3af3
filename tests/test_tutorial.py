"""The tutorial's code, in order, as a newcomer would type it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from adaptax.experiment.cli import main

PAGE = (Path(__file__).parent.parent / "docs" / "tutorial.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.M | re.S)


SMALLER = {
    "num_iterations=120": "num_iterations=1",
    "num_iterations=30": "num_iterations=10",
    '"reward_scale": 1.0': (
        '"reward_scale": 1.0, "meta_batch_size": 8, "hidden_sizes": (16,), '
        '"memory": {"kind": "gru", "size": 16}'
    ),
}


def run_python(place, changes: dict[str, str]):
    """What the page's names stand for after all of its Python."""
    source = "\n".join(blocks("python"))
    for old, new in changes.items():
        assert source.count(old) == 1
        source = source.replace(old, new)
    path = place / "radio.py"
    path.write_text(source)
    names = {"__name__": "radio"}
    exec(compile(source, str(path), "exec", dont_inherit=True), names)
    return names


def returns(out: str, name: str) -> list[float]:
    (figures,) = re.findall(rf"^{name}: \[(.*)\]$", out, flags=re.M)
    return [float(x) for x in figures.split()]


@pytest.mark.slow
def test_the_code_runs_and_the_own_algorithm_learns_and_adapts(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source = run_python(tmp_path, SMALLER)
    out = capsys.readouterr().out
    assert len(returns(out, "RL2-PPO")) == 3
    own, untrained = returns(out, "Stations"), returns(out, "untrained")
    assert own[0] > untrained[0] + 0.5
    assert own[2] > own[0] + 0.3
    assert np.isfinite(source["trainer"].state["mean"]).all()
    assert len(source["rewards"]) == 15 and max(source["rewards"]) <= 0


@pytest.mark.slow
def test_the_whole_tutorial_gives_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for line in blocks("sh")[0].splitlines():
        main(shlex.split(line)[1:])
    assert (tmp_path / "runs" / "first" / "adaptation.png").exists()
    run_python(tmp_path, {})
    out = capsys.readouterr().out
    for name in ("RL2-PPO", "Stations"):
        first, *_, last = returns(out, name)
        assert last > first + 0.1
