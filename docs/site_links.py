"""What the site has and docs/ has not: pages of public names, and the files that pages link to.

A hook of MkDocs (`make docs`). On GitHub a page's link to `../examples/x.py` leads into the
repository; the site has a copy of that file for it.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

import adaptax

ROOT = Path(__file__).parent.parent
PARTS = {
    "Train and evaluate": (
        "train",
        "Trainer",
        "TrainerConfig",
        "Group",
        "sweep",
        "Evaluator",
        "EvaluatorConfig",
        "Callback",
        "EarlyStopping",
        "TensorBoard",
        "WandB",
        "MLflow",
        "Trackio",
    ),
    "Load and act": (
        "load",
        "load_run",
        "load_group",
        "Agent",
        "export_run",
        "import_run",
        "write_videos",
        "VideoConfig",
    ),
    "Suites and environments": (
        "make_suite",
        "gym_suite",
        "Suite",
        "Task",
        "Env",
        "Step",
        "Rollout",
    ),
    "Algorithms": ("make_algorithm", "Algorithm"),
}
"""The pages of public names; those of algorithms and their configs are on the last."""
NAMED_FILE = re.compile(r"\[[\w/.-]+\.md\]\(([\w/.-]+\.md)")
LINK = re.compile(r"(\]\()(\.\./[^)#\s]+)")


def on_config(config: Any) -> Any:
    """The navigation with every algorithm's page and every part of the public names."""
    pages = sorted(p.stem for p in (ROOT / "docs" / "algorithms").glob("*.md"))
    for entry in config.nav:
        if "Algorithms" in entry:
            entry["Algorithms"] += [{name: f"algorithms/{name}.md"} for name in pages]
        if "Reference" in entry:
            entry["Reference"] += [{part: page_of(part)} for part in PARTS]
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
    for part in PARTS:
        files.append(File.generated(config, page_of(part), content=api_page(part)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """The page with links out of docs/ leading to the copies."""
    here = posixpath.dirname(page.file.src_uri)

    def replace(match: re.Match[str]) -> str:
        target = resolved(page.file.src_uri, match[2])
        if target is None:
            return match[0]
        return match[1] + posixpath.relpath(copied(target), here or ".")

    return indented(titled(LINK.sub(replace, markdown), ROOT / "docs" / here))


def page_of(part: str) -> str:
    """Where the page of a part of the public names is."""
    return f"api/{part.lower().replace(' ', '-')}.md"


def api_page(part: str) -> str:
    """What MkDocs makes the documentation of public names from."""
    modules = adaptax._modules()
    names = list(PARTS[part])
    if part == "Algorithms":
        named = {name for others in PARTS.values() for name in others}
        names += [name for name in modules if name not in named]
    lead = "All of these are names of the package itself, `adaptax.NAME`.\n"
    return f"# {part}\n\n{lead}\n" + "\n".join(f"::: {modules[n]}.{n}\n" for n in names)


def titled(markdown: str, folder: Path) -> str:
    """The page with titles in the place of file names as texts of links."""

    def replace(match: re.Match[str]) -> str:
        path = folder / match[1]
        heading = path.read_text().splitlines()[0] if path.exists() else ""
        title = heading.removeprefix("# ").partition(": ")[0]
        return f"[{title}]({match[1]}" if heading.startswith("# ") else match[0]

    return NAMED_FILE.sub(replace, markdown)


def indented(markdown: str) -> str:
    """The page with what belongs to a numbered line as far in as MkDocs wants it, four spaces."""
    # In code MkDocs needs no backslash before a bar, where GitHub does, in a table.
    markdown = re.sub(r"`[^`\n]*`", lambda code: code[0].replace("\\|", "|"), markdown)
    parts = re.split(r"(^```.*?^```)", markdown, flags=re.M | re.S)
    outside_code = [re.sub(r"^   (?=\S)", "    ", text, flags=re.M) for text in parts[::2]]
    # The next number after such a paragraph has to stand apart from it.
    outside_code = [
        re.sub(r"^(    \S.*\n)(?=\d+\. )", r"\1\n", t, flags=re.M) for t in outside_code
    ]
    return "".join(x for pair in zip(outside_code, [*parts[1::2], ""], strict=True) for x in pair)


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
