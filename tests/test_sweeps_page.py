"""The commands of docs/sweeps.md, smaller, one after another."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from adaptax.algorithms.registry import find_algorithm
from adaptax.core.config import to_dict
from adaptax.experiment.cli import main
from adaptax.experiment.sweep_space import checked_space, read_space

PAGE = (Path(__file__).parent.parent / "docs" / "sweeps.md").read_text()
SMALLER = {"50": "2", "100000": "4000"}


def commands() -> list[list[str]]:
    blocks = re.findall(r"^```sh\n(.*?)^```", PAGE, flags=re.M | re.S)
    lines = [shlex.split(line)[1:] for line in "".join(blocks).splitlines()]
    return [[SMALLER.get(word, word) for word in line] for line in lines]


def write_space() -> None:
    (text,) = re.findall(r"^```toml\n(.*?)^```", PAGE, flags=re.M | re.S)
    Path("space.toml").write_text(text)


@pytest.mark.slow
def test_the_commands_lead_to_a_winner_and_a_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_space()
    small = ["--seeds", "0:2", "--winner-seeds", "5,6"]
    for command in commands():
        main([*command, *(small if command[0] == "sweep" else [])])
    out = capsys.readouterr().out
    assert out.count("return on fresh seeds: ") == 2
    assert "<h2" in (tmp_path / "sweep.html").read_text()


def test_the_page_has_all_its_commands_and_a_space_that_can_be_searched(tmp_path, monkeypatch):

    monkeypatch.chdir(tmp_path)
    write_space()
    assert [command[0] for command in commands()] == ["sweep", "resume", "report"]
    algorithm = {"name": "rl2-ppo", **to_dict(find_algorithm("rl2-ppo").load()[1]())}
    assert len(checked_space(read_space(Path("space.toml")), algorithm, "space.toml")) == 3
