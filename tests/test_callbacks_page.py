"""The code of docs/callbacks.md, in order."""

from __future__ import annotations

import re
from pathlib import Path

from adaptax.experiment.logger import read_rows

PAGE = (Path(__file__).parent.parent / "docs" / "callbacks.md").read_text()


def test_the_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.M | re.S))
    for number in (10, 20):
        source = source.replace(f"num_iterations={number}", f"num_iterations={number // 10}")
        source = source.replace(f'"num_iterations": {number}', f'"num_iterations": {number // 10}')
    names = {"__name__": "page"}
    exec(compile(source, "callbacks.md", "exec", dont_inherit=True), names)
    assert all(row["pace"] > 0 for row in read_rows(Path("runs/pace/progress.jsonl")))
    first, second = (row["best"] for row in read_rows(Path("runs/best/progress.jsonl")))
    assert first <= second
    best = names["Best"]()
    assert [best.on_row(None, {"train/return": x})["best"] for x in (-1.0, None, 0.0)] == [
        -1,
        -1,
        0,
    ]
    lines = Path("runs/lines/figures.txt").read_text().splitlines()
    rows = read_rows(Path("runs/lines/progress.jsonl"))
    steps = [int(line.split()[0]) for line in lines]
    assert set(steps) >= {row["num_steps"] for row in rows}
