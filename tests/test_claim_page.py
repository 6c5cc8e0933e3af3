"""The commands of docs/claim.md, smaller, one after another."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from adaptax.experiment.cli import main

PAGE = (Path(__file__).parent.parent / "docs" / "claim.md").read_text()
SMALLER = {"200000": "4000", "0:10": "0:2"}


def commands() -> list[list[str]]:
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, flags=re.M | re.S)
    text = "".join(blocks).replace("\\\n", " ")
    lines = [shlex.split(line)[1:] for line in text.splitlines()]
    return [[SMALLER.get(word, word) for word in line] for line in lines]


@pytest.mark.slow
def test_the_commands_lead_to_a_comparison_and_a_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for command in commands():
        main(command)
    out = capsys.readouterr().out
    assert "probability that rl2-ppo beats ppo on a task: " in out
    assert (tmp_path / "comparison.png").exists()
    assert "<h1>rl2-ppo and ppo on point-goal</h1>" in (tmp_path / "report.html").read_text()


def test_the_page_has_all_its_commands():
    names = [command[0] for command in commands()]
    assert names == ["train", "evaluate", "plot", "train", "plot", "train", "compare", "report"]
