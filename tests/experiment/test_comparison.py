"""`adaptax compare`: its figures against hand computation, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scored_runs import make_group, make_run

from adaptax.core.errors import AdaptaxError, ConfigError
from adaptax.experiment import cli
from adaptax.experiment.comparison import compare
from adaptax.experiment.curves import groups_of, load_groups, load_runs
from adaptax.experiment.plot import plot_adaptation, plot_learning
from adaptax.experiment.plot_classes import has_classes, plot_classes
from adaptax.experiment.plot_comparison import plot_comparison
from adaptax.experiment.report import write_report

GOOD = np.array([[3.0, 4.0, 5.0], [3.5, 4.5, 6.0], [2.5, 4.0, 5.5], [3.0, 5.0, 5.0], [2.0, 4, 6]])
POOR = GOOD - 2.0


@pytest.fixture
def groups(tmp_path):
    make_group(tmp_path / "good", GOOD, name="rl2-ppo")
    make_group(tmp_path / "poor", POOR)
    return [tmp_path / "good", tmp_path / "poor"]


def record(*paths, **settings):
    return compare(load_groups(paths), **settings)


@pytest.mark.parametrize("kind", [str, Path])
@pytest.mark.parametrize(
    "take",
    [
        compare,
        load_groups,
        load_runs,
        has_classes,
        lambda folder: plot_learning(folder, Path("learning.png")),
        lambda folder: plot_adaptation(folder, Path("adaptation.png")),
        lambda folder: plot_classes(folder, Path("classes.png")),
        lambda folder: write_report([], Path("page.html"), sweeps=folder),
    ],
)
def test_a_folder_that_stands_alone_is_no_list(groups, take, kind):
    with pytest.raises(ConfigError, match=r"^expected a list of folders, not .*good"):
        take(kind(groups[0]))


def test_figures_of_a_group_are_those_of_its_scores(groups):
    found = record(*groups)
    good = found["groups"][0]
    assert (good["name"], good["seeds"], good["scores"]) == (
        "rl2-ppo",
        [0, 1, 2, 3, 4],
        GOOD.tolist(),
    )
    assert found["score"] == "return of the last episode on 3 held-out tasks"
    values = {name: good[name]["value"] for name in ("iqm", "mean", "median")}
    assert values["mean"] == pytest.approx(GOOD.mean())
    assert values["median"] == pytest.approx(np.median(GOOD.mean(axis=0)))
    assert values["iqm"] == pytest.approx(np.sort(GOOD.ravel())[3:12].mean())
    for name in values:
        low, high = good[name]["ci"]
        assert low < values[name] < high
        wide = good[name]["ci_runs_and_tasks"]
        assert wide[0] < low and high < wide[1]  # tasks differ more than seeds do
    assert good["seconds"] == {"median": 6.0, "known": 5, "of_runs": [6.0] * 5}
    assert found["warnings"] == []


def test_the_pair_tells_how_likely_one_beats_the_other(groups):
    (pair,) = record(*groups)["pairs"]
    wins = [
        np.mean(x[:, None] > y) + np.mean(x[:, None] == y) / 2
        for x, y in zip(GOOD.T, POOR.T, strict=True)
    ]
    probability = pair["probability_of_improvement"]
    assert (pair["group"], pair["other"]) == ("rl2-ppo", "ppo")
    assert probability["value"] == pytest.approx(np.mean(wins))
    assert probability["ci"][0] <= probability["value"] <= probability["ci"][1] <= 1.0


def test_steps_to_a_threshold_are_those_of_the_first_evaluation_there(groups):
    found = record(*groups, threshold=2.0)
    good, poor = (group["steps_to_threshold"] for group in found["groups"])
    # A third of the way at 1,000 steps, two thirds at 2,000.
    means = GOOD.mean(axis=1)
    assert good["of_runs"] == [1000 * int(np.ceil(3 * 2.0 / mean)) for mean in means]
    assert poor["of_runs"] == [3000] * 5
    reached = record(*groups, threshold=2.4)["groups"][1]["steps_to_threshold"]
    assert reached == {"median": None, "known": 1, "of_runs": [None, 3000, None, None, None]}


def test_the_threshold_is_nine_tenths_of_the_way_to_the_best_group(groups):
    assert record(*groups)["threshold"] == pytest.approx(0.9 * GOOD.mean())


def test_what_began_with_another_run_is_no_start_of_the_threshold(groups, tmp_path):
    trainer = {"seed": 0, "init_from": "runs/other"}
    begun = make_run(tmp_path / "begun", 0, np.full(3, 40.0), trainer=trainer)
    log = begun / "evaluations.jsonl"
    last = log.read_text().splitlines()[-1]
    first = last.replace('"iteration": 3', '"iteration": 0')
    log.write_text(f"{first}\n{last}\n")
    assert record(*groups, begun)["threshold"] == pytest.approx(0.9 * 40.0)
    assert record(begun)["threshold"] is None


def test_a_profile_falls_from_one_to_zero(groups):
    found = record(*groups)
    assert (found["levels"][0], found["levels"][-1]) == (POOR.min(), GOOD.max())
    shares = np.array([group["profile"]["value"] for group in found["groups"]])
    assert np.all(np.diff(shares) <= 0) and np.all(shares[0] >= shares[1])
    assert shares[0, 0] == 1.0 and shares[0, -1] == 0.0


def test_success_is_compared_on_request(groups):
    found = record(*groups, metric="success")
    assert found["groups"][1]["mean"]["value"] == np.mean(POOR > 1.0)
    assert found["score"].startswith("success of the last episode")


def test_runs_that_differ_in_their_seed_are_one_group(tmp_path):
    runs = [make_run(tmp_path / f"a{seed}", seed, GOOD[seed]) for seed in range(5)]
    other = make_run(tmp_path / "b", 0, POOR[0], algorithm={"name": "ppo", "lr": 0.01})
    found = record(*runs, other)
    assert [(g["name"], len(g["seeds"])) for g in found["groups"]] == [
        ("ppo, lr=0.001", 5),
        ("ppo, lr=0.01", 1),
    ]
    assert found["groups"][1]["iqm"]["ci"] is None
    assert found["warnings"] == ["ppo, lr=0.01 is one seed, of which no interval can be told"]


def test_the_order_in_which_seeds_are_named_changes_nothing(groups):
    members = sorted((groups[0]).glob("seed-*"))
    assert len(members) == len(GOOD)
    assert record(*members)["groups"][0]["seeds"] == [0, 1, 2, 3, 4]
    assert record(*reversed(members)) == record(*members)


def test_groups_of_the_same_settings_go_by_their_folders(tmp_path):
    paths = [make_group(tmp_path / name, GOOD) for name in ("before", "after")]
    assert [g["name"] for g in record(*paths)["groups"]] == ["ppo (before)", "ppo (after)"]


def test_a_group_whose_members_differ_in_more_than_their_seed_is_a_warning(groups):
    config = groups[0] / "seed-1" / "config.json"
    recorded = json.loads(config.read_text())
    recorded["algorithm"]["lr"] = 0.5
    config.write_text(json.dumps(recorded))
    (warning,) = record(*groups)["warnings"]
    assert warning.startswith("rl2-ppo is not one training from several seeds: algorithm.lr is ")
    assert warning.endswith(" 0.001 in seed-4, 0.5 in seed-1")


def test_runs_that_differ_in_where_their_environments_are_are_seeds_of_one_group(tmp_path):
    runs = []
    for seed, place in enumerate(({}, {"num_workers": 2}, {"num_ray_actors": 3})):
        about = {"name": "point-goal", "radius": 1.0, "num_workers": 0, "num_ray_actors": 0}
        runs.append(make_run(tmp_path / str(seed), seed, GOOD[seed], suite=about | place))
    assert [(g["name"], g["seeds"]) for g in record(*runs)["groups"]] == [("ppo", [0, 1, 2])]
    ((name, group),) = groups_of(load_runs(runs))
    assert (name, len(group)) == ("ppo on point-goal, 3 seeds", 3)


def test_runs_that_differ_in_what_they_begin_with_are_no_seeds_of_one_group(groups, tmp_path):
    runs = []
    for seed, source in enumerate((None, None, "runs/a", "runs/b")):
        trainer = {"seed": seed, "init_from": source}
        runs.append(make_run(tmp_path / str(seed), seed, GOOD[seed], trainer=trainer))
    assert [(g["name"], g["seeds"]) for g in record(*runs)["groups"]] == [
        ("ppo, init_from=None", [0, 1]),
        ("ppo, init_from=runs/a", [2]),
        ("ppo, init_from=runs/b", [3]),
    ]
    assert len(groups_of(load_runs(runs))) == 3
    config = groups[0] / "seed-1" / "config.json"
    config.write_text(config.read_text().replace('"trainer": {', '"trainer": {"init_from": "a", '))
    (warning,) = record(*groups)["warnings"]
    assert warning.endswith("seeds: trainer.init_from is None in seed-4, a in seed-1")


def test_scores_are_of_the_test_episodes_where_there_are_some(tmp_path):
    run = make_run(tmp_path / "a", 0, GOOD[0])
    path = run / "evaluations.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        row["test"] = {
            "return_mean": 7.5,
            "return_ci": None,
            "success_mean": 1.0,
            "success_ci": None,
        }
        for task in row["tasks"]:
            task["test"] = {"returns": [7.0, 8.0], "success": [1.0, 1.0]}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = record(run)
    assert found["groups"][0]["scores"] == [[7.5, 7.5, 7.5]]
    assert found["score"] == "return of the test episodes on 3 held-out tasks"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"suite": {"name": "bandit"}}, "take one at a time: ppo.*bandit in .*/b"),
        ({"task_set": "xyz"}, "not evaluated alike: task_set of point-goal is abc in .*, xyz in"),
        ({"protocol": {"num_tasks": 5}}, r"not evaluated alike: .*protocol\.num_tasks is 3 in"),
        ({"params": ({"target": 9.0},) * 3}, "different tasks in their last evaluations"),
    ],
)
def test_what_was_not_evaluated_alike_is_refused(tmp_path, changes, message):
    message = message.replace("ppo.*", "point-goal in .*, ")
    paths = [make_run(tmp_path / "a", 0, GOOD[0]), make_run(tmp_path / "b", 1, GOOD[1], **changes)]
    with pytest.raises(AdaptaxError, match=message) as caught:
        record(*paths)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"versions": {"adaptax": "0.2.0", "jax": "1"}}, "versions.adaptax is 0.1.0 in"),
        ({"device": "gpu"}, "device is cpu in"),
        ({"num_cores": 8}, "num_cores is 2 in"),
        ({"suite": {"name": "point-goal", "radius": 2.0}}, "suite.radius is 1.0 in"),
    ],
)
def test_what_may_not_compare_is_warned_of(tmp_path, changes, words):
    make_group(tmp_path / "a", GOOD)
    make_group(tmp_path / "b", POOR, **changes)
    (warning,) = record(tmp_path / "a", tmp_path / "b")["warnings"]
    assert warning.startswith(f"these runs may not compare: {words}")


def test_few_seeds_and_repeated_ones_are_warned_of(tmp_path):
    runs = [make_run(tmp_path / name, 3, GOOD[0]) for name in ("a", "b")]
    (twice,) = record(*runs)["groups"]
    assert (
        twice["iqm"]["ci"] is twice["mean"]["ci_runs_and_tasks"] is twice["profile"]["ci"] is None
    )
    assert record(*runs)["warnings"] == [
        "ppo is one seed, of which no interval can be told",
        "ppo has a seed more than once, which tells nothing new",
    ]
    group = make_group(tmp_path / "g", GOOD[:3])
    (warning,) = record(group)["warnings"]
    assert warning == "ppo is 3 seeds: of fewer than 5 the intervals are too narrow"


def change_last(run, change):
    """Change the last evaluation of a run."""
    path = run / "evaluations.jsonl"
    *rows, last = path.read_text().splitlines()
    last = json.loads(last)
    change(last)
    path.write_text("\n".join([*rows, json.dumps(last)]) + "\n")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: row.pop("tasks"), "does not tell the tasks one by one"),
        (lambda row: row["tasks"].append(3), "does not tell the tasks one by one"),
        (lambda row: row["tasks"][0].update(returns=["x"]), "does not tell the tasks one by one"),
        (lambda row: row["tasks"][1].update(returns=[1.0, None]), "'task-1' is not finite"),
        (lambda row: row["episodes"][1].update(return_mean=None), "iteration 3, tells no return"),
        (lambda row: row["episodes"][0].update(return_mean=None), "iteration 3, tells no return"),
        (lambda row: row.update(test=3), "iteration 3, tells no return"),
    ],
)
def test_a_row_that_tells_no_scores_is_named_in_one_line(tmp_path, change, message):
    run = make_run(tmp_path / "a", 0, GOOD[0])
    change_last(run, change)
    with pytest.raises(AdaptaxError, match=message):
        record(run)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trainer": None}, "it lacks one of algorithm, suite, trainer"),
        ({"suite": {"name": ["point-goal"]}}, "its suite has no name"),
        ({"protocol": None}, "its protocol is no object"),
        ({"versions": None}, "its versions is no object"),
    ],
)
def test_a_config_that_no_run_wrote_is_one_line(tmp_path, capsys, changes, message):
    run = make_run(tmp_path / "a", 0, GOOD[0], **changes)
    with pytest.raises(SystemExit):
        cli.main(["compare", str(run), "--json"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"adaptax: {run / 'config.json'}") and message in line


@pytest.mark.parametrize(
    ("size", "words"),
    [(1, ""), (2, "shaded: range of two seeds"), (3, "shaded: 95 % interval over seeds")],
)
def test_the_picture_says_what_is_shaded_around_curves(tmp_path, size, words):
    loaded = load_groups([make_group(tmp_path / "a", GOOD[:size])])
    figure = plot_comparison(loaded, compare(loaded), tmp_path / "a.png")
    assert figure.axes[1].get_title() == words


def test_the_picture_has_a_panel_of_pairs_where_there_are_some(groups, tmp_path):
    loaded = load_groups(groups)
    figure = plot_comparison(loaded, compare(loaded), tmp_path / "new" / "a.png")
    labels = [axes.get_xlabel() for axes in figure.axes]
    assert labels == [
        "return",
        "environment steps",
        "return x",
        "probability of a higher score on a task",
    ]
    assert (tmp_path / "new" / "a.png").read_bytes()[:4] == b"\x89PNG"
    assert figure.axes[3].get_yticklabels()[0].get_text() == "rl2-ppo\nbeats ppo"
    alone = plot_comparison(loaded[:1], compare(loaded[:1]), tmp_path / "a.png")
    assert len(alone.axes) == 3


def test_the_command_prints_a_table_and_writes_a_picture(groups, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cli.main(["compare", *map(str, groups)])
    out = capsys.readouterr().out
    assert "point-goal: return of the last episode on 3 held-out tasks [95 % interval over" in out
    assert f"│ {GOOD.mean():.2f} [" in out
    assert "probability that rl2-ppo beats ppo on a task: 1.00 [1.00, 1.00]" in out
    assert out.endswith("wrote comparison.png\n")
    assert (tmp_path / "comparison.png").exists()


def test_json_is_all_that_the_command_prints(groups, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    cli.main(["compare", *map(str, groups), "--json", "--threshold", "2.4"])
    found = json.loads(capsys.readouterr().out)
    assert found == record(*groups, threshold=2.4)
    assert not (tmp_path / "comparison.png").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "compare takes one or more folders of groups or runs"),
        (["absent"], "absent holds no run"),
        (["good", "--out", "a.txt2"], "its name must end in .png, .pdf or .svg"),
        (["good", "--metric", "reward"], "metric"),
    ],
)
def test_wrong_words_are_one_line(groups, tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as caught:
        cli.main(["compare", *words])
    (line,) = capsys.readouterr().err.splitlines()
    assert caught.value.code == 2 and line.startswith("adaptax: ") and message in line
