"""The notebooks in examples/notebooks are those of docs/notebooks, and run from start to end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs" / "notebooks").glob("*.md"))
FOLDER = ROOT / "examples" / "notebooks"
by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


@by_page
def test_a_notebook_is_that_of_its_page(page, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import generate

    made = (FOLDER / f"{page.stem}.ipynb").read_text()
    assert made == generate.notebook(page.read_text()), "make docs writes it anew"


@pytest.mark.slow
@by_page
def test_a_notebook_runs(page, tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    notebook = nbformat.read(FOLDER / f"{page.stem}.ipynb", as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=1800, resources=resources).execute()
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    said = "".join(o.get("text") or o.get("data", {}).get("text/plain", "") for o in outputs)
    if page.stem == "first_steps":
        lines = [line.split() for line in said.splitlines() if line.startswith("episode ")]
        trained, untrained = (float(lines[-1][i].strip(",")) for i in (3, 5))
        assert trained > untrained + 5
    else:
        assert "probability that" in said
        assert (tmp_path / "runs" / "idea.png").exists()


def test_the_pages_code_is_not_empty():
    assert len(PAGES) == 2 and all("```python" in page.read_text() for page in PAGES)
