"""What the site has and docs/ has not: API pages, one a room, and the files that pages link to.

A hook of MkDocs (`make docs`). On GitHub a page's link to `../examples/x.py` leads into the
repository; the site has a copy of that file for it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
ROOMS = (
    "core",
    "functional",
    "networks",
    "envs",
    "sampling",
    "learning",
    "algorithms",
    "experiment",
)
LINK = re.compile(r"(\]\()(\.\./[^)#\s]+)")


def on_config(config: Any) -> Any:
    """The navigation with every algorithm's page and every room."""
    pages = sorted(p.stem for p in (ROOT / "docs" / "algorithms").glob("*.md"))
    for entry in config.nav:
        if "Algorithms" in entry:
            entry["Algorithms"] += [{name: f"algorithms/{name}.md"} for name in pages]
        if "Reference" in entry:
            entry["Reference"] += [{f"adaptax.{room}": f"api/{room}.md"} for room in ROOMS]
    return config


def on_files(files: Files, config: Any) -> Files:
    """The pages of docs/, the API pages, and copies of linked files."""
    linked = {
        target
        for page in files.documentation_pages()
        for target in outside(page.src_uri, Path(page.abs_src_path).read_text())
    }
    for target in sorted(linked):
        path = str(ROOT / target)
        files.append(File.generated(config, copied(target), abs_src_path=path))
    for room in ROOMS:
        files.append(File.generated(config, f"api/{room}.md", content=api_page(room)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """The page with links out of docs/ leading to the copies."""
    here = posixpath.dirname(page.file.src_uri)

    def replace(match: re.Match[str]) -> str:
        target = resolved(page.file.src_uri, match[2])
        if target is None:
            return match[0]
        return match[1] + posixpath.relpath(copied(target), here or ".")

    return LINK.sub(replace, markdown)


def api_page(room: str) -> str:
    """What MkDocs makes the documentation of a room's modules from."""
    folder = ROOT / "adaptax" / room
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in sorted(folder.rglob("*.py"))
        if path.name != "__init__.py"
    ]
    return f"# adaptax.{room}\n\n" + "\n".join(f"::: {name}\n" for name in modules)


def outside(src_uri: str, markdown: str) -> set[str]:
    """The files outside docs/ that a page links to, by their path in the repository."""
    found = {resolved(src_uri, match[2]) for match in LINK.finditer(markdown)}
    return {target for target in found if target is not None}


def resolved(src_uri: str, link: str) -> str | None:
    """A relative link as a path in the repository; None if it stays within docs/."""
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(src_uri), link))
    return None if path.startswith("docs/") else path


def copied(target: str) -> str:
    """Where the site has a file of the repository; Markdown as text, or it would be a page."""
    return f"source/{target}" + (".txt" if target.endswith((".md", ".py")) else "")
