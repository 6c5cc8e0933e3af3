"""A small part of the attack; `python tests/hostile/attack.py` is all of it."""

from __future__ import annotations

import attack
import pytest

SMALL = ["--configurations", "12", "--edits", "16", "--imports", "8"]
SMALL += ["--kills", "5", "--native", "3", "--workers", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("part", attack.PARTS)
def test_a_part_of_the_attack_breaks_nothing(part, monkeypatch):
    if part == "environments":
        few = dict(list(attack.environments.FAULTS.items())[::6])
        monkeypatch.setattr(attack.environments, "FAULTS", few)
    found = attack.attack(part, attack.parsed([*SMALL, "--only", part]))
    assert found["cases"] > 0
    assert found["bad"] == []
    assert {"fine", "refused"} & found["verdicts"].keys()


def test_the_attack_sees_what_breaks():
    """One line and exit code 2 is fine; a traceback, another code, a signal are not."""
    assert attack.processes.judged(0, "", "", None).verdict == "fine"
    assert attack.processes.judged(2, "", "adaptax: no\n", None).verdict == "refused"
    said = "Traceback (most recent call last):\n"
    bad = [(0, said, "", None), (1, "", "no", None), (2, "", "adaptax: no\nmore\n", None)]
    bad += [(2, "", "", None), (-11, "", "", None), (None, "", "", said)]
    assert all(attack.processes.judged(*each).is_bad for each in bad)


def test_the_attack_sees_bytes_written_outside(tmp_path):
    world = attack.World(tmp_path)
    world.fresh()
    mine = [world.work / "run"]
    before = world.state(mine)
    mine[0].mkdir()
    (mine[0] / "config.json").write_text("{}")
    assert attack.changed_bytes(before, world.state(mine)) == 0
    (world.outside / "folder" / "mine.txt").write_text("yours")
    (world.outside / "new").symlink_to("mine.txt")
    assert attack.changed_bytes(before, world.state(mine)) == 6


def test_the_attack_sees_bits_that_are_lost():
    state = {"x": ("float32", (2,), bytes(8))}
    other = {"x": ("float32", (2,), bytes([3, *bytes(7)]))}
    rows = [{"iteration": 1}, {"iteration": 2}]
    assert attack.processes.different_bits((state, rows, []), (state, rows, [])) == 0
    assert attack.processes.different_bits((state, rows, []), (other, rows[:1], [])) == 3
