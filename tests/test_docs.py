from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from adaptax.algorithms.registry import ALGORITHMS, find_algorithm
from adaptax.envs.registry import SUITES, find_suite
from adaptax.experiment.recipe import all_recipes
from adaptax.experiment.trainer import TrainerConfig

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
    assert module.RECIPES.read_text() == module.recipes(), "run `make docs`"


def test_published_figures_are_beside_those_of_the_results():
    module = generator()
    assert module.PUBLISHED.read_text() == module.published(), "run `make docs`"


def test_our_figures_beside_published_ones_tell_how_many_seeds_they_are_of():
    generator()
    from published import figure, pick

    about = {"num_steps": 2_000_000, "ci": [0.1, 0.3]}
    runs = [{**about, "episodes": [{"mean": x}]} for x in (0.2, 0.4)]
    measure = {"label": "test", "values": "runs.*.episodes.-1.mean", "steps": "runs.*.num_steps"}
    measure |= {"ci": "runs.*.ci", "percent": True}
    told = [figure(measure, [{"runs": some}]) for some in (runs[:1], runs, [*runs, runs[0]])]
    assert told[0] == ("test 20 [10, 30] %", "one seed, 2 M steps")
    assert told[1] == ("test 20 and 40 %", "two seeds, 2 M steps")
    assert told[2] == ("test 27 [-2, 55] %", "3 seeds, 2 M steps")
    assert pick({"runs": runs}, "runs.num_steps=2000000.ci") == [[0.1, 0.3]] * 2
    assert pick({"episodes": [{"mean": 1}, {"mean": 2}]}, "episodes.+*.mean") == [3]


def test_reference_tells_a_setting_with_type_default_and_description():
    row = "| `lr` | `float` | `0.003` | Adam's step size. |"
    assert row in generator().reference().partition("### reinforce")[2]


def test_every_setting_says_what_it_is():
    empty = re.findall(r"^\| `(.+?)` \|.*\|  \|$", generator().reference(), flags=re.M)
    assert empty == []


def test_help_says_what_every_argument_of_a_command_is():
    from adaptax.experiment import arguments

    classes = [c for name, c in vars(arguments).items() if name.endswith("Args")]
    assert len(classes) > 10
    for cls in classes:
        assert all(generator().descriptions(cls).values()), cls


@pytest.mark.parametrize(
    "command",
    ["list", "train", "sweep", "resume", "evaluate", "plot", "compare", "report", "video"],
)
def test_the_page_of_the_command_line_has_every_flag(command):
    from adaptax.experiment import arguments

    cls = getattr(arguments, f"{command.capitalize()}Args")
    page = (ROOT / "docs" / "command-line.md").read_text()
    section = page.partition(f"\n## {command}\n")[2].partition("\n## ")[0]
    of_another_name = {"imports": "import", "num_workers": "suite.num-workers", "prune": "no-prune"}
    names = {f.name for f in dataclasses.fields(cls)} - {"run_dir", "run_dirs", "groups"}
    flags = {f"--{of_another_name.get(name, name.replace('_', '-'))}" for name in names}
    assert {flag for flag in flags if flag not in section} == set()


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


def test_what_the_site_loads_is_in_the_repository():
    listed = re.findall(r"^extra_\w+: \[(.+)\]$", (ROOT / "mkdocs.yml").read_text(), flags=re.M)
    files = [f"docs/{name.strip()}" for names in listed for name in names.split(",")]
    assert len(files) == 4 and all((ROOT / name).is_file() for name in files)
    git = ["git", "-C", str(ROOT), "check-ignore", "--no-index", *files]
    assert subprocess.run(git, capture_output=True, check=False).stdout == b""


def formulas(page):
    """What `$$...$$` and `$...$` hold outside code, and whether each stands by itself."""
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    found = re.split(r"\$\$(.+?)\$\$", text, flags=re.S)
    inline = [f for part in found[::2] for f in re.findall(r"(?<!\$)\$(\S[^$\n]*)\$", part)]
    return [(f, True) for f in found[1::2]] + [(f, False) for f in inline]


SET_ALL = """
const katex = require(process.argv[1]);
for (const [formula, displayMode] of JSON.parse(require("fs").readFileSync(0)))
  try { katex.renderToString(formula, { displayMode }); }
  catch (error) { console.log(formula, error.message); }
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="no node to run KaTeX")
def test_every_formula_can_be_set():
    every = [each for page in PAGES for each in formulas(page)]
    assert len(every) > 200
    program = ["node", "-e", SET_ALL, str(ROOT / "docs" / "katex" / "katex.min.js")]
    told = subprocess.run(program, input=json.dumps(every), capture_output=True, text=True)
    assert (told.stdout, told.returncode) == ("", 0), told.stderr


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


def flags(config: type, prefix: str = "--") -> Iterator[str]:
    """The flags of a config's settings, those of configs within it too."""
    hints = get_type_hints(config)
    for field in dataclasses.fields(config):
        name = field.name.replace("_", "-")
        yield f"{prefix}{name}"
        if hints[field.name] is bool:
            yield f"{prefix}no-{name}"
        if dataclasses.is_dataclass(hints[field.name]):
            yield from flags(hints[field.name], f"{prefix}{name}.")


def settings_of_training(algorithm: str, suite: str) -> set[str]:
    """Every flag of `adaptax train ALGORITHM SUITE`."""
    return {
        *flags(TrainerConfig),
        *flags(TrainerConfig, "--trainer."),
        *flags(find_algorithm(algorithm).load()[1], "--algorithm."),
        *flags(find_suite(suite).load()[0], "--suite."),
        "--help",
    }


def training_commands(page: Path) -> list[list[str]]:
    """The words after `adaptax train` of every command, which may be of several lines."""
    text = page.read_text().replace("\\\n", " ")
    return [words.split() for words in re.findall(r"adaptax train ([a-z][^\n`#]*)", text)]


def unknown_flags(words: list[str]) -> list[str]:
    """What a training command sets that its algorithm, suite or trainer does not have."""
    known = {*settings_of_training(*words[:2]), "--seeds", "--on"}
    given = [word.partition("=")[0] for word in words[2:] if word.startswith("--")]
    return [flag for flag in given if flag not in known]


NOT_HERE = {"rl2-pp", "my-reinforce", "radio", "gym:my_worlds:Dot-v0"}
"""A wrong name, to show what it is answered, and those of packages and modules of a reader's."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_training_commands_name_algorithms_suites_and_flags_that_exist(page):
    commands = [words for words in training_commands(page) if not NOT_HERE & set(words[:2])]
    faults = {" ".join(words): unknown_flags(words) for words in commands}
    assert {command: unknown for command, unknown in faults.items() if unknown} == {}


def commands_to_try() -> Iterator[Any]:
    """Every training command of all pages, once; the seed that a reader fills in is 0."""
    every = [words for page in PAGES for words in training_commands(page)]
    tried = [" ".join(words) for words in every if not NOT_HERE & set(words[:2])]
    for command in dict.fromkeys(words.replace("--seed SEED", "--seed 0") for words in tried):
        of_metaworld = command.split()[1][:2] in ("ml", "mt")  # whose simulators take seconds
        yield pytest.param(command, marks=[pytest.mark.slow] if of_metaworld else [])


@pytest.mark.parametrize("command", [*commands_to_try()])
def test_training_commands_can_begin(command, monkeypatch, tmp_path):
    """Suite, algorithm and trainer are made as the command makes them, and nothing is trained."""
    from adaptax.experiment import cli

    for prefix, module in (("gymnax:", "gymnax"), ("xland:", "xminigrid")):
        if command.split()[1].startswith(prefix):
            pytest.importorskip(module)

    def check(trainer, train):
        if "--init-from" not in command:  # a run that the reader has
            trainer.check_start()
        trainer.close()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(cli, "set_up_process", lambda num_cores: None)
    monkeypatch.setattr(cli, "_to_its_end", check)
    cli.train_command(command.split())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_flags_of_algorithms_and_suites_exist_somewhere(page):
    known = set()
    for registry, which, prefix in ((ALGORITHMS, 1, "--algorithm."), (SUITES, 0, "--suite.")):
        for entry in registry.values():
            known |= set(flags(entry.load()[which], prefix))
    named = re.findall(r"--(?:algorithm|suite)\.[a-z][a-z.-]*[a-z]", page.read_text())
    assert [flag for flag in named if flag not in known] == []


def test_a_flag_that_is_not_is_noticed():
    words = ["ppo", "cartpole", "--algorithm.batch-size", "64", "--seed", "1"]
    assert unknown_flags(words) == ["--algorithm.batch-size"]


def named_files(page: Path) -> list[str]:
    """Paths of the package's modules that a page mentions, from the root or from the package."""
    rooms = "|".join(sorted(path.name for path in (ROOT / "adaptax").iterdir() if path.is_dir()))
    return re.findall(rf"(?<![\w/])(?:adaptax/)?(?:{rooms})/[\w/]+\.py", page.read_text())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_that_a_page_mentions_exist(page):
    paths = {name: ROOT / "adaptax" / name.removeprefix("adaptax/") for name in named_files(page)}
    assert [name for name, path in paths.items() if not path.is_file()] == []


def published_variants():
    """The suites with flags of the table of what papers used."""
    table = (ROOT / "docs" / "suites.md").read_text().partition("## As published")[2]
    return [
        words.split()
        for words in re.findall(r"`([^`]+)`", table.partition("\n## ")[0])
        if words.split()[0] in SUITES
    ]


def variants_with_recipes():
    """Rows of that table: the suites with flags, and the recipes said to train on one of them."""
    table = (ROOT / "docs" / "suites.md").read_text().partition("## As published")[2]
    for line in re.findall(r"^\| .*\|$", table.partition("\n## ")[0], flags=re.M):
        cells = re.split(r"(?<!\\)\|", line)
        variants, names = re.findall(r"`([^`]+)`", cells[6]), re.findall(r"[a-z0-9-]+", cells[7])
        yield [words.split() for words in variants], [n for n in names if n in all_recipes()]


def test_recipes_train_on_the_published_variant_that_they_are_said_to():
    from adaptax.experiment import cli

    def trained_on(algorithm, suite, *flags):
        config = cli.train_options(algorithm, suite, list(flags))[1].suite
        own = {n: 1 for n in ("num_train_tasks", "num_test_tasks") if hasattr(config, n)}
        return suite, dataclasses.replace(config, **own)  # any number of tasks

    found = set()
    for variants, names in variants_with_recipes():
        for name in names:
            about = all_recipes()[name].about
            of_recipe = [trained_on(about.algorithm, s, "--recipe", name) for s in about.suites]
            plain = [trained_on(about.algorithm, *v, "--recipe", "none") for v in variants]
            assert any(suite in plain for suite in of_recipe), name
            found.add(name)
    assert len(found) >= 8


def test_published_variants_have_settings_that_exist():
    from adaptax.experiment import cli

    variants = published_variants()
    assert len(variants) > 20
    for suite, *flags in variants:
        cli.train_options("nop", suite, flags)


def test_the_citation_is_of_this_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


def test_test_files_that_the_makefile_names_exist():
    words = (ROOT / "Makefile").read_text()
    host = re.search(r"HOST_TESTS := \$\(addprefix tests/envs/test_,(.*?)\)", words, re.S)
    named = [f"tests/envs/test_{name}" for name in re.findall(r"\w+\.py", host[1])]
    named += re.findall(r"tests/\w+/test_\w+\.py", words)
    assert len(named) > 7
    assert [name for name in named if not (ROOT / name).exists()] == []
