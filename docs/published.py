"""Published figures beside ours: docs/published.md from docs/published.toml and results/.

Of a row of the table, `measures` say where our figures lie: `values` leads through the JSON of
`files` to one number a seed, `ci` to the interval of a single seed, `steps` to environment steps;
how, says `pick`.
"""

from __future__ import annotations

import itertools
import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from adaptax.experiment.statistics import student_interval

ROWS = Path(__file__).parent / "published.toml"
RESULTS = Path(__file__).parent.parent / "results"

HEADS = ("problem", "algorithm", "published", "ours", "what differs")
COUNTS = {1: "one seed", 2: "two seeds"}


def published() -> str:
    """The whole page."""
    page = tomllib.loads(ROWS.read_text())
    lines = [page["introduction"], f"| {' | '.join(HEADS)} |", "|" + "---|" * len(HEADS)]
    for row in page["row"]:
        cells = [row["problem"], row["algorithm"], row["published"], ours(row), row["differs"]]
        lines.append(f"| {' | '.join(' '.join(cell.split()) for cell in cells)} |")
    return "\n".join([*lines, "", page["closing"]])


def ours(row: dict[str, Any]) -> str:
    """The cell of our figures: every measure with its seeds and steps, the protocol, links."""
    told: list[tuple[str, str]] = []
    used: dict[Path, Any] = {}
    for measure in row.get("measures", []):
        where = {"files": row.get("files"), "steps": row.get("steps"), **measure}
        paths = sorted(path for name in where["files"] for path in RESULTS.glob(name))
        trees = {path: json.loads(path.read_text()) for path in paths}
        told.append(figure(where, [*trees.values()]))
        used |= trees
    texts = [
        f"{'; '.join(text for text, _ in group)} ({seeds_and_steps})"
        for seeds_and_steps, group in itertools.groupby(told, lambda one: one[1])
    ]
    if "ours" in row:
        texts.append(row["ours"])
    if "protocol" in row:
        texts.append(in_words(pick(next(iter(used.values())), row["protocol"])[0]))
    if "page" in row:
        texts.append(f"[page]({row['page']})")
    if used:
        files = [f"(../results/{path.relative_to(RESULTS)})" for path in used]
        names = ["[figures]", *(f"[{i}]" for i in range(2, len(files) + 1))]
        texts.append(", ".join(map("".join, zip(names, files, strict=True))))
    return "; ".join(texts)


def figure(measure: dict[str, Any], trees: list[Any]) -> tuple[str, str]:
    """A figure over seeds, and how many seeds of how many steps: both in words.

    Of three seeds and more it is the mean with Student's interval; of two it is both; of one it is
    that with the interval of its evaluation, where there is one.
    """
    percent = measure.get("percent", False)
    form, scale = (".0f", 100) if percent else (".4g", 1)
    values = np.array([value for tree in trees for value in pick(tree, measure["values"])])
    if len(values) > 2:
        low, high = student_interval(values)
        text = _with_interval(form, scale * np.array([values.mean(), low, high]))
    elif len(values) == 1 and "ci" in measure:
        ((low, high),) = pick(trees[0], measure["ci"])
        text = _with_interval(form, scale * np.array([values[0], low, high]))
    else:
        text = " and ".join(format(scale * value, form) for value in values)
    text = f"{measure['label']} {text}{' %' if percent else ''}"
    if "optimum" in measure:
        file, path = measure["optimum"]
        (optimum,) = pick(json.loads((RESULTS / file).read_text()), path)
        reached = np.sum(values > optimum - 1e-3)
        text += f", {reached} of {len(values)} at the optimum of {optimum:.4g}"
    parts = [[pick(tree, part) for part in measure["steps"].split(" + ")] for tree in trees]
    steps = [sum(of_a_seed) for of_a_file in parts for of_a_seed in zip(*of_a_file, strict=True)]
    count = COUNTS.get(len(values), f"{len(values)} seeds")
    return text, f"{count}, {_millions(min(steps), max(steps))} M steps"


def _with_interval(form: str, figures: np.ndarray) -> str:
    return "{} [{}, {}]".format(*(format(x, form) for x in figures))


def _millions(*ends: int) -> str:
    """The range of numbers of steps, one number where its ends look alike."""
    return " to ".join(dict.fromkeys(f"{end / 1e6:.3g}" for end in ends))


def in_words(protocol: dict[str, Any] | int) -> str:
    """What an evaluation was; a number is that of machines, each played once."""
    if isinstance(protocol, int):
        return f"{protocol:,} machines"
    lanes, test = protocol["num_lanes"], protocol["num_test_episodes"]
    words = [f"{protocol['num_tasks']} tasks", f"{protocol['num_episodes']} episodes"]
    if lanes > 1:
        words.insert(1, f"{lanes} lanes")
    if test:
        words.append(f"then {test} of a test")
    if protocol["deterministic"]:
        words.append("by the mode")
    return ", ".join(words)


def pick(tree: Any, path: str) -> list[Any]:
    """What a path leads to: keys and indices, `*` for each, `NAME=VALUE` for those, `+` for a sum.

    "runs.*.episodes.-1.mean" is the last episode's mean of every run, "runs.*.episodes.+*.mean" the
    sum over the episodes of every run.
    """
    if not path:
        return [tree]
    if path.startswith("+"):
        return [sum(pick(tree, path[1:]))]
    head, _, rest = path.partition(".")
    return [found for child in _children(tree, head) for found in pick(child, rest)]


def _children(tree: Any, head: str) -> Iterator[Any]:
    if head == "*":
        yield from tree.values() if isinstance(tree, dict) else tree
    elif "=" in head:
        name, _, value = head.partition("=")
        yield from (child for child in tree if str(child[name]) == value)
    else:
        yield tree[int(head)] if isinstance(tree, list) else tree[head]
