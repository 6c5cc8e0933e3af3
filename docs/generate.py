"""Writes docs/reference.md: every setting with its default and description, from the code."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

from adaptax.algorithms.registry import ALGORITHMS
from adaptax.envs.registry import SUITES
from adaptax.experiment.evaluator import EvaluatorConfig
from adaptax.experiment.trainer import TrainerConfig

REFERENCE = Path(__file__).parent / "reference.md"

INTRODUCTION = """\
# Reference: every setting

Made from the code by `make docs`; not to be edited by hand. On the command line underscores are
dashes, for example `--algorithm.init-std 0.5`; [command-line.md](command-line.md) says how values
are written.
"""


def reference() -> str:
    """The whole page."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield INTRODUCTION
    yield "## Trainer\n"
    yield "`--NAME` or `--trainer.NAME`; in Python `TrainerConfig(NAME=...)`.\n"
    yield from _settings(TrainerConfig)
    yield "## Evaluator\n"
    yield "`--evaluation.NAME`; in Python `TrainerConfig(evaluation=EvaluatorConfig(NAME=...))`.\n"
    yield from _settings(EvaluatorConfig)
    yield "## Algorithms\n"
    yield "`--algorithm.NAME`; in Python `make_algorithm(algorithm, spec, NAME=...)`.\n"
    for algorithm in ALGORITHMS.values():
        page = f"[{algorithm.name}](algorithms/{algorithm.name}.md)"
        yield f"### {algorithm.name}\n\n{page}: {algorithm.summary}.\n"
        yield from _settings(algorithm.load()[1])
    yield "## Suites\n"
    yield "`--suite.NAME`; in Python `make_suite(suite, NAME=...)`.\n"
    for suite in SUITES.values():
        summary = suite.summary[0].upper() + suite.summary[1:]
        yield f"### {suite.name}\n\n{summary}.\n"
        yield from _settings(suite.load()[0])


def _settings(config: type[Any]) -> Iterator[str]:
    """A config's fields as a table."""
    yield "| setting | type | default | is |\n|---|---|---|---|"
    yield from _rows(config)
    yield ""


def _rows(config: type[Any], prefix: str = "", defaults: Any = None) -> Iterator[str]:
    """A row for each field; the fields of a config within it come after it, as `NAME.FIELD`."""
    described, hints = descriptions(config), get_type_hints(config)
    for field in dataclasses.fields(config):
        # A name for choices says nothing to a reader; the choices do.
        choices = str(hints[field.name]).removeprefix("typing.")
        type_name = choices if choices.startswith("Literal[") else field.type
        inner = None if defaults is None else getattr(defaults, field.name)
        if field.default_factory is not dataclasses.MISSING and inner is None:
            inner = field.default_factory()
        nested = dataclasses.is_dataclass(inner) and not isinstance(inner, EvaluatorConfig)
        default = f"`{type(inner).__name__}`" if nested else _default(field, inner)
        name = f"`{prefix}{field.name}`"
        cells = (name, f"`{type_name}`", default, described[field.name])
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
        if nested:
            yield from _rows(type(inner), f"{prefix}{field.name}.", inner)


def descriptions(config: type[Any]) -> dict[str, str]:
    """The string below each field of a dataclass and its ancestors; '' where there is none."""
    found = dict.fromkeys((field.name for field in dataclasses.fields(config)), "")
    for cls in reversed(config.__mro__[:-1]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        assert isinstance(tree, ast.ClassDef)
        for field, below in zip(tree.body, tree.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                found[field.target.id] = _text(below)
    return found


def _text(node: ast.stmt) -> str:
    """The text of a bare string on one line, '' of anything else."""
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return ""
    return " ".join(str(node.value.value).split())


def _default(field: dataclasses.Field[Any], given: Any) -> str:
    if isinstance(given, EvaluatorConfig):
        return "`EvaluatorConfig()`"
    if given is None and field.default is dataclasses.MISSING:
        return "required"
    return f"`{field.default if given is None else given!r}`"


if __name__ == "__main__":
    REFERENCE.write_text(reference())
