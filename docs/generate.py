"""Writes reference.md, recipes.md and published.md of docs/, and notebooks from pages."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import math
import re
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import jax
import numpy as np

from adaptax.algorithms.base import Algorithm
from adaptax.algorithms.registry import ALGORITHMS
from adaptax.core.errors import ConfigError
from adaptax.core.spec import ActionSpace, Continuous, Discrete, EnvSpec, MultiDiscrete
from adaptax.envs.registry import SUITES
from adaptax.experiment.build import make_algorithm
from adaptax.experiment.evaluator import EvaluatorConfig
from adaptax.experiment.recipe import TABLES, Measured, Recipe, all_recipes
from adaptax.experiment.statistics import student_interval
from adaptax.experiment.trainer import TrainerConfig
from adaptax.networks.convolutions import Convolutions
from adaptax.networks.memory import MemoryConfig

sys.path += [str(Path(__file__).parent), str(Path(__file__).parent.parent / "benchmarks")]
from published import published
from recipes import peer_of

REFERENCE = Path(__file__).parent / "reference.md"
RECIPES = Path(__file__).parent / "recipes.md"
PUBLISHED = Path(__file__).parent / "published.md"
NOTEBOOKS = Path(__file__).parent / "notebooks"
EXAMPLES = Path(__file__).parent.parent / "examples" / "notebooks"
RESULTS = Path(__file__).parent.parent / "results" / "recipes"

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
    yield from _capabilities()
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


CAPABILITIES = """\
What each can take: actions that are continuous, one choice or several; whether it sees pictures
by convolutions; whether it has a memory (optional: by its setting `memory`); whether seeds of a
group on a suite that compiles train in [one program](running.md#groups). As the classes themselves
say, asked by `make docs`.
"""
ACTIONS = {
    "continuous": Continuous(2),
    "one choice": Discrete(2),
    "several choices": MultiDiscrete((2, 3)),
}
PICTURE = (8, 8, 1)


def _capabilities() -> Iterator[str]:
    yield CAPABILITIES
    heads = ["algorithm", *ACTIONS, "pictures", "memory", "one program"]
    yield f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}"
    for entry in ALGORITHMS.values():
        kind, config = entry.load()
        taken = {
            name: made
            for name, action in ACTIONS.items()
            if (made := _made_for(entry.name, action)) is not None
        }
        convolves = any(map(_convolves, taken.values()))
        one_program = kind.traceable and kind.collects_in_program
        fits = (*(name in taken for name in ACTIONS), convolves, one_program)
        cells = ["yes" if fit else "" for fit in fits]
        cells.insert(-1, _memory(config))
        yield f"| [{entry.name}](algorithms/{entry.name}.md) | {' | '.join(cells)} |"
    yield ""


def _made_for(name: str, action: ActionSpace) -> Algorithm[Any, Any] | None:
    """An algorithm for pictures and such actions; None where it does not take these."""
    try:
        return make_algorithm(name, EnvSpec(math.prod(PICTURE), action, 5, picture=PICTURE))
    except ConfigError:
        return None


def _convolves(algorithm: Algorithm[Any, Any]) -> bool:
    """Whether any of its parameters are convolutions'."""
    if not algorithm.traceable:
        return False
    state = jax.eval_shape(algorithm.init, jax.random.key(0))
    leaves, _ = jax.tree_util.tree_flatten_with_path(state)
    return any(Convolutions.__name__ in jax.tree_util.keystr(path) for path, _ in leaves)


def _memory(config: type[Any]) -> str:
    settings = config()
    memory = getattr(getattr(settings, "particle", settings), "memory", None)
    if isinstance(memory, MemoryConfig):
        return "optional" if memory.kind == "none" else "yes"
    return ""


def _settings(config: type[Any]) -> Iterator[str]:
    """A config's fields as a table."""
    yield "| setting | type | default | is |\n|---|---|---|---|"
    yield from _rows(config)
    yield ""


def _rows(config: type[Any], prefix: str = "", defaults: Any = None) -> Iterator[str]:
    """A row for each field; the fields of a config within it come after it, as `NAME.FIELD`."""
    described, hints = descriptions(config), get_type_hints(config)
    for field in dataclasses.fields(config):
        inner = None if defaults is None else getattr(defaults, field.name)
        if field.default_factory is not dataclasses.MISSING and inner is None:
            inner = field.default_factory()
        nested = dataclasses.is_dataclass(inner) and not isinstance(inner, EvaluatorConfig)
        default = f"`{type(inner).__name__}`" if nested else _default(field, inner)
        name = f"`{prefix}{field.name}`"
        cells = (name, f"`{type_name(hints[field.name])}`", default, described[field.name])
        yield f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
        if nested:
            yield from _rows(type(inner), f"{prefix}{field.name}.", inner)


def type_name(hint: Any) -> str:
    """A type as a reader needs it: the choices themselves, not a name for them."""
    if get_origin(hint) is Literal:
        return " | ".join(map(repr, get_args(hint)))
    if get_origin(hint) in (Union, types.UnionType):
        return " | ".join(map(type_name, get_args(hint)))
    if get_origin(hint) is tuple:
        return f"tuple[{type_name(get_args(hint)[0])}, ...]"
    return "None" if hint is type(None) else str(hint.__name__)


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


RECIPES_INTRODUCTION = """\
# Recipes: settings that work

Made by `make docs` from `adaptax/experiment/recipes/*.toml` and `results/recipes`; not to be
edited by hand.

`adaptax train ALGORITHM SUITE` and `adaptax.train("ALGORITHM", "SUITE")` take the settings that
you do not give from the recipe for the two, say so in their first line, and record it in
`config.json`. Flags and settings of your own come before a recipe's; who says how long to train
(`--num-steps`, `--num-iterations`, `--max-seconds`) has none of its limits; a step size that falls
does so over all of your iterations, or, where their number is not known, over as many as in the
recipe's own run, in proportion to the steps.
`--recipe none` trains with the defaults of the classes ([reference.md](reference.md)), `--recipe
NAME` with another recipe of the same algorithm, `--recipe FILE.toml` with one of your own.
`adaptax list --recipes` names them all, `adaptax list --json` tells what is in them.
`make_algorithm` and `make_suite` take no recipe.

A recipe of your own, in which the word "None" stands for None, `max_grad_norm = "None"`:

```toml
[recipe]
algorithm = "ppo"
suites = ["cartpole"]

[algorithm]
lr = 1e-3
critic.lr = 3e-3

[trainer]
num_steps = 50000
```

## What they come to

Return of the last evaluation, after adaptation where the algorithm adapts: mean over seeds, and
Student's 95 % interval of it. Steps are environment steps; minutes are of processor time of a run
on one core of the machine named in the figures, median over seeds: start and evaluations included;
only the first seed's time includes compilation. Recipes were measured at different times, by code
of different speed and on machines of different load: minutes of two rows are not to be compared.
Beside it, where it has such an environment, Stable-Baselines3 with the settings of RL Baselines3
Zoo (rl_zoo3 2.9), as many steps as these say, 20 episodes of its last policy; on MuJoCo's
environments, which are of version 5 here, those that it has for version 4. The zoo's own page
tells of one run each on version 3: 2,410 for ppo on Hopper, 5,819 on HalfCheetah.

    python benchmarks/recipes.py measure NAME
    python benchmarks/recipes.py peers NAME
    python benchmarks/recipes.py write

"""


def recipes() -> str:
    """The page of recipes."""
    lines = [RECIPES_INTRODUCTION]
    heads = ["algorithm", "suite", "recipe", "steps", "return", "minutes"]
    heads += ["Stable-Baselines3", "its steps"]
    lines += [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for recipe in all_recipes().values():
        found = {measured.suite: measured for measured in recipe.measured}
        for suite in recipe.about.suites:
            cells = [recipe.about.algorithm, f"`{suite}`", f"[{recipe.name}](#{recipe.name})"]
            cells += [*_figures(recipe, found.get(suite)), *_zoo(recipe, suite)]
            lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    for recipe in all_recipes().values():
        lines += [f"## {recipe.name}\n", f"{recipe.about.source}\n"]
        for table in TABLES:
            lines += [f"    {flag}" for flag in _flags(table, getattr(recipe, table))]
        lines.append("")
    return "\n".join(lines)


def _figures(recipe: Recipe, found: Measured | None) -> list[str]:
    if found is None:
        elsewhere = f"in [its section](#{recipe.name})" if "results/" in recipe.about.source else ""
        return ["", elsewhere or "not measured", ""]
    interval = _with_interval(found.mean, found.low, found.high)
    where = ", on a GPU" if found.machine.startswith("gpu") else ""
    minutes = f"{found.minutes:.2g}{where}"
    return [f"{found.num_steps:,}", f"{interval}, {found.num_seeds} seeds", minutes]


def _with_interval(*figures: float) -> str:
    return "{} [{}, {}]".format(*(f"{x:.4g}" for x in figures))


def _zoo(recipe: Recipe, suite: str) -> list[str]:
    """Stable-Baselines3's return and steps, empty where it was not run on three seeds."""
    algorithm, env_id = peer_of(recipe, suite)
    paths = sorted(RESULTS.glob(f"zoo.{algorithm}.{env_id}.*.json"))
    runs = [json.loads(path.read_text()) for path in paths]
    if len(runs) < 3:
        return ["", ""]
    returns = np.array([run["return"] for run in runs])
    interval = _with_interval(returns.mean(), *student_interval(returns))
    return [f"{interval}, {len(runs)} seeds", f"{runs[0]['num_steps']:,}"]


def _flags(room: str, settings: dict[str, Any]) -> Iterator[str]:
    """Settings as flags, one a line."""
    for name, value in settings.items():
        flag = f"{room}.{name}"
        if isinstance(value, dict):
            yield from _flags(flag, value)
        elif isinstance(value, bool):
            start, _, end = flag.rpartition(".")
            yield f"--{flag if value else f'{start}.no-{end}'}".replace("_", "-")
        else:
            words = " ".join(map(str, value)) if isinstance(value, list) else value
            yield f"--{flag.removeprefix('trainer.').replace('_', '-')} {words}"


def notebook(page: str) -> str:
    """The page as a notebook: what is Python in it is code, all else text."""
    parts = re.split(r"^```python\n(.*?)^```\n", page, flags=re.M | re.S)
    cells: list[dict[str, Any]] = []
    for i, part in enumerate(parts):
        source = part.strip("\n").splitlines(keepends=True)
        more = {"execution_count": None, "outputs": []} if i % 2 else {}
        kind = "code" if i % 2 else "markdown"
        cells.append({"cell_type": kind, "id": f"{i}", "metadata": {}, "source": source, **more})
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    about = {"metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps({"cells": cells, **about}, indent=1) + "\n"


if __name__ == "__main__":
    for page in sorted(NOTEBOOKS.glob("*.md")):
        (EXAMPLES / f"{page.stem}.ipynb").write_text(notebook(page.read_text()))
    REFERENCE.write_text(reference())
    RECIPES.write_text(recipes())
    PUBLISHED.write_text(published())
