"""The page of `adaptax report`: parsed, and in a real browser where there is one."""

from __future__ import annotations

import base64
import dataclasses
import json
import re
import shlex
import sys
from html.parser import HTMLParser

import browser
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image
from scored_runs import make_group, make_run

from adaptax.core.config import to_dict
from adaptax.core.errors import AdaptaxError
from adaptax.experiment import cli, report, report_figures, report_page, video
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.experiment.curves import Curve, load_groups
from adaptax.experiment.report import write_report
from adaptax.experiment.reproduce import command_of, from_python
from adaptax.experiment.trainer_config import TrainerConfig

SCORES = np.array([[3.0, 4.0, 5.0], [3.5, 4.5, 6.0], [2.5, 4.0, 5.5]])
EVIL = "<b onclick=x>\"&'</script>"
GIF = b"GIF89a\x01\x00\x01\x00\x00\x00\x00;"


class Page(HTMLParser):
    """Elements of a page with their attributes, and the text in each kind."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "input", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.setdefault(self.open[-1] if self.open else "", []).append(data)

    def all(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]

    def figures(self):
        (text,) = [t for t in self.texts["script"] if t.startswith("{")]
        return json.loads(text)


def with_classes(group):
    """Tasks of two classes in every run's last evaluation."""
    for path in group.glob("seed-*/evaluations.jsonl"):
        *rows, last = path.read_text().splitlines()
        row = json.loads(last)
        for i, task in enumerate(row["tasks"]):
            task["params"]["class"] = f"kind-{min(i, 1)}"
        figures = {"success_mean": 0.5, "success_ci": [0.25, 0.75]}
        row["classes"] = {f"kind-{i}": {"episodes": [figures]} for i in range(2)}
        path.write_text("\n".join([*rows, json.dumps(row)]) + "\n")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A page of two groups with goals, classes, two videos, and names that are HTML."""
    place = tmp_path_factory.mktemp("report")
    params = [{"speed": float(i), "goal": [float(i), 1.0 - i], "id": EVIL} for i in range(3)]
    good = make_group(place / "good", SCORES, name=EVIL, params=params)
    poor = make_group(place / "poor", SCORES - 2, params=params)
    with_classes(good)
    with_classes(poor)
    (good / "seed-0" / "video.gif").write_bytes(GIF)
    (good / "seed-0" / "video-kind-1.gif").write_bytes(GIF)
    (good / "seed-0" / "video-kind-1.txt").write_text("no film")
    frames = [Image.new("RGB", (16, 16), (40 * i, 0, 0)) for i in range(4)]
    (good / "seed-1" / "video.mp4").write_bytes(video._mp4(frames))
    out = place / "new" / "report.html"
    write_report(load_groups([good, poor]), out)
    return out


@pytest.fixture(scope="module")
def page(written):
    return Page(written.read_text())


def test_the_page_is_well_formed_with_a_language_and_one_first_heading(page):
    assert page.open == []
    assert page.all("html") == [{"lang": "en"}]
    assert len(page.all("h1")) == len(page.all("main")) == 1
    ids = [attrs["id"] for _, attrs in page.elements if "id" in attrs]
    assert len(set(ids)) == len(ids)


def test_sections_are_those_that_the_runs_have(page):
    assert page.texts["h2"] == [
        *("Scores", "Learning", "Adaptation", "Tasks"),
        *("Classes", "Videos", "Protocol", "What was run"),
    ]
    links = {attrs["href"] for attrs in page.all("a")}
    assert links == {"#content", *(f"#{attrs['id']}" for attrs in page.all("h2"))}


def test_videos_of_both_kinds_are_in_the_page(page):
    (picture, of_class), (film,) = page.all("img"), page.all("video")
    assert picture["alt"].endswith("seed 0: before and after adaptation")
    assert of_class["alt"].endswith("seed 0, kind-1: before and after adaptation")
    kind, _, data = picture["src"].partition(",")
    assert (kind, base64.b64decode(data)) == ("data:image/gif;base64", GIF)
    kind, _, data = film["src"].partition(",")
    assert (kind, base64.b64decode(data)[4:8]) == ("data:video/mp4;base64", b"ftyp")
    assert film["aria-label"].endswith("seed 1: before and after adaptation")


def test_nothing_outside_the_file_is_asked_for(page):
    sources = [a[n] for _, a in page.elements for n in ("src", "href", "action") if n in a]
    assert all(source.startswith(("#", "data:")) for source in sources)
    assert page.all("link") == [] and not any("src" in attrs for attrs in page.all("script"))
    assert "url(" not in "".join(page.texts["style"]) and "@import" not in page.texts["style"][0]
    policy = next(attrs["content"] for attrs in page.all("meta") if "http-equiv" in attrs)
    assert policy.startswith("default-src 'none'")


def test_names_are_text_and_never_html(page, written):
    assert not any("onclick" in attrs for _, attrs in page.elements)
    assert f"{EVIL} and ppo on point-goal" in "".join(page.texts["h1"])
    assert "<b onclick" not in written.read_text()
    drawn = page.figures()["learning"]["data"]
    assert {trace["name"] for trace in drawn} == {
        "&lt;b onclick=x&gt;&quot;&amp;&#x27;&lt;/script&gt;",
        "ppo",
    }


def test_figures_hold_what_the_runs_tell(page):
    figures = page.figures()
    lines = [trace for trace in figures["learning"]["data"] if trace.get("fill") is None]
    assert lines[0]["x"] == [0, 1000, 2000, 3000]
    np.testing.assert_allclose(lines[0]["y"], SCORES.mean() * np.arange(4) / 3)
    speed = next(f for f in figures.values() if f["layout"]["xaxis"]["title"]["text"] == "speed")
    np.testing.assert_allclose(speed["data"][1]["y"], SCORES.mean(axis=0) - 2)
    goals = [f for f in figures.values() if f["layout"]["xaxis"]["title"]["text"] == "goal[0]"]
    np.testing.assert_allclose(goals[0]["data"][0]["marker"]["color"], SCORES.mean(axis=0))
    assert figures["classes"]["data"][0]["y"] == ["kind-0", "kind-1"]
    names = [trace.get("name") for trace in figures["adaptation"]["data"]]
    assert [name for name in names if name.endswith("before training")] == [
        f"{group}, before training" for group in dict.fromkeys(names[: len(names) // 2])
    ]


def test_every_figure_has_a_name_and_every_curve_a_box(page):
    places = [attrs for attrs in page.all("div") if attrs.get("class") == "plot"]
    ids = {attrs.get("id") for _, attrs in page.elements}
    assert {attrs["id"] for attrs in places} == set(page.figures())
    assert all(attrs["aria-labelledby"] in ids for attrs in places)
    boxes = [a for a in page.all("input") if a["data-figure"] == "adaptation"]
    assert [a["data-curve"] for a in boxes] == ["0", "1", "2"]
    assert all(attrs["alt"] for attrs in page.all("img"))
    assert all(attrs.get("aria-label") for attrs in page.all("table"))


def test_it_says_how_it_was_run_and_evaluated(page):
    (command,) = page.texts["pre"]
    assert command.startswith("adaptax train ppo point-goal \\\n    --seeds 0:3 \\\n")
    assert (
        "--num-steps 3000" in command and "--algorithm.lr" not in command.partition("lr 0.001")[0]
    )
    text = " ".join("".join(page.texts["p"]).split())
    assert (
        "On each of 3 held-out tasks of point-goal, the first of 50, an agent that is told" in text
    )
    assert "is 3 seeds: of fewer than 5 the intervals are too narrow" in text


def trained(place, *words):
    """A run with what these words after `adaptax train` give, and its configs."""
    options = cli.train_options(*words[:2], words[2:])[1]
    names = dict(zip(("algorithm", "suite"), words[:2], strict=True))
    tables = {
        **{
            table: {"name": name} | to_dict(getattr(options, table))
            for table, name in names.items()
        },
        "trainer": to_dict(options.trainer) | {"run_dir": str(place)},
    }
    return make_run(place, 3, SCORES[0], **tables), options


OWN_RECIPE = """
[recipe]
algorithm = "ppo2"
suites = ["cartpole"]
[algorithm]
memory.kind = "gru"
"""


@pytest.mark.parametrize(
    ("words", "flags", "said"),
    [
        (["a2c", "cartpole"], [], "Trained with the recipe a2c-classic."),
        (
            ["a2c", "cartpole", "--algorithm.lr", "0.5", "--evaluation.num-lanes", "2"],
            ["--algorithm.lr 0.5", "--evaluation.num-lanes 2"],
            "Trained with the recipe a2c-classic.",
        ),
        (
            [*("a2c", "cartpole", "--recipe", "none", "--num-iterations", "7"), "--patience", "2"],
            ["--recipe none", "--num-iterations 7", "--patience 2"],
            "Trained without a recipe, from the defaults.",
        ),
        (
            ["ppo2", "cartpole", "--recipe", "own.toml", "--evaluation.deterministic"],
            ["--recipe own.toml", "--evaluation.deterministic"],
            "Trained with the recipe own.toml.",
        ),
        (
            ["rl2-ppo", "gridworld", "--algorithm.no-normalize-obs"],
            ["--algorithm.no-normalize-obs"],
            "Trained with the recipe rl2-ppo-gridworld.",
        ),
    ],
)
def test_the_command_trains_the_same_and_the_recipe_is_named(
    tmp_path, monkeypatch, words, flags, said
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.toml").write_text(OWN_RECIPE)
    run, options = trained(tmp_path / "run", *words)
    write_report(load_groups([run]), tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text())
    command = page.texts["pre"][0].replace("\\\n", " ")
    _, _, algorithm, suite, *given = shlex.split(command)
    again = cli.train_options(algorithm, suite, given)[1]
    assert (again.algorithm, again.suite) == (options.algorithm, options.suite)
    own = {"run_dir": options.trainer.run_dir, "seed": 0}
    assert dataclasses.replace(again.trainer, **own) == options.trainer
    assert again.trainer.seed == 3
    lines = [line.strip(" \\") for line in page.texts["pre"][0].splitlines()]
    limits = [line for line in lines if line.startswith(("--num-", "--max-"))]
    assert set(lines[1:]) == {"--seed 3", *flags, *limits} and said in page.texts["p"]


def test_the_command_of_a_run_without_a_limit_has_not_that_of_its_recipe():
    suite = make_suite("cartpole")
    trainer = to_dict(TrainerConfig(run_dir="run", recipe="ppo-classic"))
    algorithm = {"name": "ppo", **to_dict(make_algorithm("ppo", suite.spec).config)}
    recorded = {"name": "cartpole", **to_dict(suite.config)}
    config = {"algorithm": algorithm, "suite": recorded, "trainer": trainer}
    command = command_of(config, [0]).replace("\\\n", " ")
    assert "--num-iterations 100" in command
    again = cli.train_options("ppo", "cartpole", shlex.split(command)[4:])[1].trainer
    assert (again.num_steps, again.limits()) == (None, {"iteration": 100})


def test_the_command_has_settings_with_spaces_as_one_word():
    trainer = to_dict(TrainerConfig("run", init_from="runs/my run", trackers=("wandb", "mlflow")))
    config = {"algorithm": {"name": "ppo"}, "suite": {"name": "cartpole"}, "trainer": trainer}
    words = shlex.split(command_of(config, [0]).replace("\\\n", " "))
    again = cli.train_options("ppo", "cartpole", words[4:])[1].trainer
    assert (again.init_from, again.trackers) == ("runs/my run", ("wandb", "mlflow"))


@pytest.mark.parametrize(
    ("seeds", "text"),
    [
        ((0, 0), "--seed 0"),
        ((3, 0, 3), "--seeds 3,0"),
        ((0, 2**62), f"--seeds 0,{2**62}"),
        ((4, 5, 6), "--seeds 4:7"),
        ((1, 3, 2), "--seeds 1,3,2"),
    ],
)
def test_the_command_has_each_seed_once_however_far_apart(seeds, text):
    config = {"algorithm": {"name": "ppo"}, "suite": {"name": "cartpole"}, "trainer": {}}
    assert text in [line.strip(" \\") for line in command_of(config, seeds).splitlines()]


OF_PPO = {"name": "ppo", "lr": 0.001}


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"algorithm": OF_PPO | {"networks": "mine:MyNet"}}, "the networks mine:MyNet"),
        (
            {"algorithm": OF_PPO | {"lr_schedule": {"function": "mine.falling"}}},
            "the function mine.falling as algorithm.lr_schedule",
        ),
        ({"suite": {"name": "mine"}}, "the suite mine, which is not known here"),
        ({"algorithm": {"name": "mine"}}, "the algorithm mine, which is not known here"),
    ],
)
def test_what_no_command_trains_is_said_in_place_of_one(tmp_path, tables, words):
    run = make_run(tmp_path / "run", 0, SCORES[0], **tables)
    write_report(load_groups([run]), tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text())
    assert f"Trained from Python, which no command does: {words}." in page.texts["p"]
    assert "pre" not in page.texts


def test_a_function_of_a_config_is_found_as_it_is_written_down():
    algorithm = make_algorithm("ppo", make_suite("cartpole").spec, lr_schedule=jnp.cos)
    recorded = {"name": "ppo", "networks": None, **to_dict(algorithm.config)}
    assert "as algorithm.lr_schedule." in from_python(
        {"algorithm": recorded, "suite": {"name": "cartpole"}}
    )


def test_each_configuration_of_a_group_has_its_command_with_its_seeds(tmp_path):
    limits = (3, 300, 3, 3)
    runs = [
        make_run(
            *(tmp_path / f"run-{i}", i, SCORES[0]),
            trainer={"run_dir": f"run-{i}", "seed": i, "num_iterations": limit},
            suite={"name": "point-goal", "radius": 1.0, "num_workers": i % 2},
        )
        for i, limit in enumerate(limits)
    ]
    (group,) = load_groups(runs)
    write_report([group], tmp_path / "page.html")
    commands = Page((tmp_path / "page.html").read_text()).texts["pre"]
    lines = [[line.strip(" \\") for line in command.splitlines()] for command in commands]
    told = [[line for line in own if line.startswith(("--seed", "--num"))] for own in lines]
    assert told == [
        ["--seeds 0,2,3", "--num-iterations 3"],
        ["--seed 1", "--num-iterations 300"],
    ]


def test_figures_of_a_strangers_protocol_are_text(tmp_path):
    protocol = {"num_lanes": EVIL, "num_exploration_episodes": EVIL, "num_test_episodes": EVIL}
    run = make_run(tmp_path / "run", 0, SCORES[0], protocol=protocol)
    write_report(load_groups([run]), tmp_path / "page.html")
    assert "<b onclick" not in (tmp_path / "page.html").read_text()


def test_a_recipe_that_is_gone_is_said_and_all_settings_are_flags(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.toml").write_text(OWN_RECIPE)
    run, _ = trained(tmp_path / "run", "ppo2", "cartpole", "--recipe", "own.toml")
    (tmp_path / "own.toml").unlink()
    write_report(load_groups([run]), tmp_path / "page.html")
    page = Page((tmp_path / "page.html").read_text())
    assert "Trained with the recipe own.toml, which is not known here." in page.texts["p"]
    assert "--recipe none" in page.texts["pre"][0]
    assert "--algorithm.memory.kind gru" in page.texts["pre"][0]


def test_a_single_run_has_a_page_too(tmp_path, capsys):
    run = make_run(tmp_path / "a", 0, SCORES[0])
    cli.main(["report", str(run), "--out", str(tmp_path / "a.html")])
    captured = capsys.readouterr()
    assert captured.out == f"wrote {tmp_path / 'a.html'}\n"
    assert "one seed, of which no interval can be told" in captured.err
    page = Page((tmp_path / "a.html").read_text())
    assert "Classes" not in page.texts["h2"] and "Videos" not in page.texts["h2"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "report takes one or more folders"),
        (["absent"], "absent holds no run"),
        (["a", "--out", "a.pdf"], "cannot write a page a.pdf: its name must end in .html"),
        (["a", "b"], "take one at a time"),
    ],
)
def test_wrong_words_are_one_line_and_write_nothing(tmp_path, monkeypatch, capsys, words, message):
    make_run(tmp_path / "a", 0, SCORES[0])
    make_run(tmp_path / "b", 0, SCORES[0], suite={"name": "bandit"})
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        cli.main(["report", *words])
    (line,) = capsys.readouterr().err.splitlines()
    assert caught.value.code == 2 and message in line
    assert not (tmp_path / "report.html").exists()


def test_without_plotly_one_line_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "plotly", None)
    run = make_run(tmp_path / "a", 0, SCORES[0])
    with pytest.raises(AdaptaxError, match=r"reports need plotly: pip install 'adaptax\[report\]'"):
        write_report(load_groups([run]), tmp_path / "a.html")


@pytest.mark.parametrize(
    ("sizes", "over", "words"),
    [
        ((1,), "tasks", "95 % interval over tasks"),
        ((1,), "episodes", "95 % interval over episodes"),
        ((2, 1), "tasks", "range of two seeds, 95 % interval over tasks"),
        ((3,), "tasks", "95 % interval over seeds"),
    ],
)
def test_captions_say_what_intervals_are_over(tmp_path, sizes, over, words):
    for name, size in zip("ab", sizes, strict=False):
        make_group(tmp_path / name, SCORES[:size])
    for path in tmp_path.glob("*/*/evaluations.jsonl"):
        path.write_text(
            path.read_text().replace('"interval_over": "tasks"', f'"interval_over": "{over}"')
        )
    groups = load_groups([tmp_path / name for name in "ab"[: len(sizes)]])
    write_report(groups, tmp_path / "page.html")
    captions = Page((tmp_path / "page.html").read_text()).texts["figcaption"]
    ends = [c.partition("; shaded: ")[2] for c in captions if c.startswith("Mean return")]
    assert ends[:2] == [words, words]


def test_classes_are_those_of_all_groups(tmp_path):
    groups = [make_group(tmp_path / name, SCORES[:1]) for name in "ab"]
    for group in groups:
        with_classes(group)
    log = groups[0] / "seed-0" / "evaluations.jsonl"
    log.write_text(log.read_text().replace('"kind-1": {', '"other": {'))
    write_report(load_groups(groups), tmp_path / "page.html")
    assert {"kind-0", "kind-1", "other"} <= set(
        Page((tmp_path / "page.html").read_text()).texts["th"]
    )


def test_a_single_point_has_its_interval_as_a_bar():
    point = Curve(*(np.array([x]) for x in (1.0, 5.0, 4.0, 7.0)))
    (trace,) = report_figures.curves_figure([("a", point, {})], "x", "y")["data"]
    assert (trace["error_y"]["array"], trace["error_y"]["arrayminus"]) == ([2.0], [1.0])


def test_a_page_of_success_has_scores_and_curves_of_it(tmp_path):
    group = make_group(tmp_path / "group", SCORES)
    cli.main(["report", str(group), "--out", str(tmp_path / "page.html"), "--metric", "success"])
    text = (tmp_path / "page.html").read_text()
    assert "success of the last episode on 3 held-out tasks" in text
    figures = Page(text).figures()
    for name in ("learning", "adaptation"):
        assert figures[name]["layout"]["yaxis"]["title"]["text"] == "success"
        main = [trace for trace in figures[name]["data"] if "fill" not in trace]
        assert all(0 <= y <= 1 for trace in main for y in trace["y"])


def test_plotly_is_imported_late():
    modules = (report, report_figures, report_page)
    homes = [str(getattr(x, "__module__", "")) for m in modules for x in vars(m).values()]
    assert not any(home.startswith("plotly") for home in homes)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    if browser.PROGRAM is None:
        pytest.skip("no chromium here: apt install chromium")
    one = browser.Browser(tmp_path_factory.mktemp("profile"))
    yield one
    one.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_a_browser_draws_every_figure_in_the_width_that_it_has(chromium, written, width):
    chromium.open(written, width)
    assert chromium.value("document.documentElement.scrollWidth") == width
    drawn = "[...document.querySelectorAll('.plot .main-svg')]"
    sizes = chromium.value(f"{drawn}.map(svg => svg.getBoundingClientRect().width)")
    assert sizes and max(sizes) <= width and min(sizes) > 250
    assert chromium.value("document.querySelectorAll('.plot b, h1 b').length") == 0
    asked = [e["params"]["request"]["url"] for e in chromium.events if "request" in e["params"]]
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    said = [e["params"] for e in chromium.events if e["method"] == "Log.entryAdded"]
    thrown = [e["params"] for e in chromium.events if e["method"] == "Runtime.exceptionThrown"]
    assert (said, thrown) == ([], [])


def test_a_browser_plays_a_video(chromium, written):
    chromium.open(written, 390)
    ready = """new Promise(done => { const film = document.querySelector("video");
        film.parentElement.open = true; film.load();
        film.onerror = () => done(film.error.message);
        film.onloadeddata = () => done([film.videoWidth, film.duration > 0]); })"""
    assert chromium.value(ready) == [16, True]


def test_the_first_column_stays_in_sight_where_a_table_scrolls(chromium, written):
    chromium.open(written, 390)
    wide = "[...document.querySelectorAll('main > section > .wide')]"
    scrolled = f"{wide}.map(box => {{ box.scrollLeft = 1000; return box.scrollLeft; }})"
    first = f"{wide}.map(box => box.querySelector('tbody th').getBoundingClientRect())"
    assert max(chromium.value(scrolled)) > 50
    assert chromium.value(f"{first}.every(cell => cell.left >= 0 && cell.right < 200)")
    hits = "document.elementFromPoint(cell.left + 5, cell.top + 5)"
    on_top = f"""{wide}.map(box => {{ const th = box.querySelector('tbody th');
        th.scrollIntoView({{block: 'center', inline: 'nearest'}});
        const cell = th.getBoundingClientRect(); return th.contains({hits}); }})"""
    assert all(chromium.value(on_top))


def test_curves_are_hidden_by_the_keyboard_and_buttons_have_names(chromium, written):
    chromium.open(written, 1280)
    visible = "document.getElementById('learning').data.map(trace => trace.visible)"
    chromium.value("document.querySelector('input[data-figure=learning]').focus()")
    chromium.press(" ", " ")
    assert chromium.value(visible) == [False, False, None, None]  # a band and a line each
    chromium.press(" ", " ")
    assert chromium.value(visible)[:2] == [True, True]
    nodes = chromium.ask("Accessibility.getFullAXTree")["nodes"]
    shown = [n for n in nodes if not n.get("ignored") and "role" in n]
    names = {
        role: [n["name"]["value"] for n in shown if n["role"]["value"] == role]
        for role in ("button", "checkbox", "table", "region")
    }
    assert "Zoom in" in names["button"] and "Share chart..." not in names["button"]
    assert all(all(found) for found in names.values())
    assert re.search("kind-0|ppo", " ".join(names["checkbox"]))


def test_a_plot_is_zoomed(chromium, written):
    chromium.open(written, 1280)
    ends = "document.getElementById('learning')._fullLayout.xaxis.range.slice()"
    before = chromium.value(ends)
    chromium.value(
        "document.querySelector('#learning .modebar-btn[data-title=\"Zoom in\"]').focus()"
    )
    chromium.press(" ", " ")
    after = chromium.value(f"new Promise(done => setTimeout(() => done({ends}), 500))")
    assert before[0] < after[0] < after[1] < before[1]
