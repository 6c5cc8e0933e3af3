from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from adaptax.algorithms.registry import ALGORITHMS
from adaptax.envs.registry import SUITES

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def generator():
    """docs/generate.py as a module."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def prose(page):
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)


def relative_links(page):
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(page))
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def anchors(page):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.+)$", prose(page), flags=re.M)
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


def leads_somewhere(page, target):
    path, _, anchor = target.partition("#")
    goal = (page.parent / path).resolve() if path else page
    return goal.exists() and (not anchor or anchor in anchors(goal))


def test_reference_is_up_to_date_with_the_code():
    module = generator()
    assert module.REFERENCE.read_text() == module.reference(), "run `make docs`"


def test_reference_tells_a_setting_with_type_default_and_description():
    row = "| `lr` | `float` | `0.003` | Adam's step size. |"
    assert row in generator().reference().partition("### reinforce")[2]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    assert [t for t in relative_links(page) if not leads_somewhere(page, t)] == []


@pytest.mark.parametrize("page", PAGES[2:], ids=lambda page: str(page.relative_to(ROOT)))
def test_links_out_of_the_site_lead_to_files(page):
    """Of which it has copies; of a folder there is none."""
    paths = [page.parent / target.partition("#")[0] for target in relative_links(page)]
    assert [str(path) for path in paths if path.is_dir() and path != page.parent] == []


def test_a_link_to_a_missing_heading_is_noticed():
    page = ROOT / "docs" / "index.md"
    assert leads_somewhere(page, "running.md#exact-resume")
    assert not leads_somewhere(page, "running.md#inexact-resume")


def test_every_page_is_on_the_map():
    linked = {(ROOT / "docs" / t).resolve() for t in relative_links(ROOT / "docs" / "index.md")}
    assert [page for page in PAGES[2:] if page not in linked and page.name != "index.md"] == []


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_has_a_page_with_its_command(name):
    page = ROOT / "docs" / "algorithms" / f"{name}.md"
    assert page.is_file(), f"{page} is missing"
    assert page.read_text().startswith(f"# {name}\n")
    assert f"adaptax train {name} " in page.read_text()


def test_every_suite_has_a_row():
    text = (ROOT / "docs" / "suites.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \|.*\|.*\|", text.partition("\n## ")[0], flags=re.M)
    assert sorted(rows) == sorted(SUITES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_figure_is_left_to_be_filled_in(page):
    assert [line for line in page.read_text().splitlines() if "TODO-FIGURE" in line] == []
