import json
import sys

import numpy as np
import pytest
from matplotlib.collections import FillBetweenPolyCollection

from adaptax.core.errors import AdaptaxError
from adaptax.experiment import curves, plot
from adaptax.experiment.logger import RunLog
from adaptax.experiment.plot import plot_adaptation, plot_learning
from adaptax.experiment.plot_classes import has_classes, joined_bars, plot_classes

STEPS = 1_000_000


def make_run(
    directory, seed=0, *, name="rl2-ppo", suite="point-goal", episodes=3, evaluations=(0, 4), **lr
):
    """A run of four iterations whose returns are seed + 10 * iteration + episode number."""
    directory.mkdir()
    rooms = {"algorithm": {"name": name, **lr}, "suite": {"name": suite}, "trainer": {}}
    config = {**rooms, "seed": seed}
    (directory / "config.json").write_text(json.dumps(config))
    with RunLog(directory) as log:
        for i in range(1, 5):
            returns = {
                f"train/return/episode_{k}": seed + 10 * i + k for k in range(1, episodes + 1)
            }
            several = returns if episodes > 1 else {}
            total = None if i == 1 else float(np.mean(list(returns.values())))
            log.log({"iteration": i, "num_steps": i * STEPS, "train/return": total, **several})
        for i in evaluations:
            means = [seed + 10.0 * i + k for k in range(1, episodes + 1)]
            log.log_evaluation(
                {
                    "iteration": i,
                    "num_steps": i * STEPS,
                    "episodes": [
                        {"index": k, "return_mean": m, "return_ci": [m - 2.0, m + 3.0]}
                        for k, m in enumerate(means, 1)
                    ],
                }
            )
    return directory


def lines(figure):
    """Label -> (x, y) of the labelled lines."""
    _, labels = figure.axes[0].get_legend_handles_labels()
    found = {line.get_label(): line.get_xydata().T.tolist() for line in figure.axes[0].lines}
    return {label: found[label] for label in labels}


def bands(figure):
    """(lowest, highest) of each shaded interval."""
    return [
        (
            collection.get_paths()[0].vertices[:, 1].min(),
            collection.get_paths()[0].vertices[:, 1].max(),
        )
        for collection in figure.axes[0].collections
        if isinstance(collection, FillBetweenPolyCollection)
    ]


def legend_title(figure):
    return figure.legends[0].get_title().get_text()


def test_learning_names_its_axes_with_units_and_writes_a_png(tmp_path):
    out = tmp_path / "new" / "learning.png"
    figure = plot_learning([make_run(tmp_path / "a")], out)
    axes = figure.axes[0]
    assert axes.get_xlabel() == "environment steps"
    assert axes.get_ylabel() == "mean return of an episode (sum of rewards)"
    assert axes.get_title() == "rl2-ppo on point-goal"
    assert out.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert axes.xaxis.get_major_formatter()(2_500_000) == "2.5 M"


def test_picture_is_7_by_4_and_a_half_inches_at_150_dpi(tmp_path):
    figure = plot_learning([make_run(tmp_path / "a")], tmp_path / "a.png")
    assert (*figure.get_size_inches(), figure.dpi) == (7.0, 4.5, 150)


def test_learning_of_one_run_shows_training_and_held_out_first_and_last(tmp_path):
    shown = lines(plot_learning([make_run(tmp_path / "a")], tmp_path / "a.png"))
    assert shown == {
        "training, last episode on a task": [[1e6, 2e6, 3e6, 4e6], [13.0, 23.0, 33.0, 43.0]],
        "training, first episode on a task": [[1e6, 2e6, 3e6, 4e6], [11.0, 21.0, 31.0, 41.0]],
        "held-out tasks, last episode": [[0.0, 4e6], [3.0, 43.0]],
        "held-out tasks, first episode": [[0.0, 4e6], [1.0, 41.0]],
    }


def test_learning_of_one_run_shades_the_evaluations_own_interval(tmp_path):
    figure = plot_learning([make_run(tmp_path / "a")], tmp_path / "a.png")
    assert bands(figure) == [(1.0, 46.0), (-1.0, 44.0)]
    assert legend_title(figure) == "one seed; shaded: 95 % interval over tasks"


@pytest.mark.parametrize(
    ("about", "words", "shaded"),
    [
        ({"num_tasks": 20, "held_out": True}, "held-out tasks", "tasks"),
        ({"num_tasks": 2, "held_out": False}, "tasks (as in training)", "tasks"),
        ({"num_tasks": 1, "held_out": False, "interval_over": "episodes"}, "task", "episodes"),
    ],
)
def test_labels_tell_tasks_that_were_trained_on(tmp_path, about, words, shaded):
    runs = [make_run(tmp_path / name, name=name) for name in ("ppo", "sac")]
    for run in runs:
        rows = [json.loads(line) for line in (run / "evaluations.jsonl").read_text().splitlines()]
        (run / "evaluations.jsonl").write_text("".join(json.dumps(r | about) + "\n" for r in rows))
    one = plot_learning(runs[:1], tmp_path / "a.png")
    labels = [label for label in lines(one) if not label.startswith("training")]
    assert labels == [f"{words}, last episode", f"{words}, first episode"]
    assert legend_title(one) == f"one seed; shaded: 95 % interval over {shaded}"
    several = legend_title(plot_learning(runs, tmp_path / "a.png"))
    assert several.startswith(f"last episode on {words}; shaded")
    assert legend_title(plot_adaptation(runs, tmp_path / "a.png")).startswith(f"{words}; shaded")


def test_an_evaluation_without_an_interval_is_drawn_without(tmp_path):
    run = make_run(tmp_path / "a", episodes=1, evaluations=())
    episode = {"index": 1, "return_mean": 2.0, "return_ci": None}
    row = {"iteration": 1, "num_steps": 5, "episodes": [episode]}
    (run / "evaluations.jsonl").write_text(json.dumps(row) + "\n")
    assert legend_title(plot_learning([run], tmp_path / "a.png")) == "one seed"


def test_learning_works_without_evaluations_and_leaves_out_null_returns(tmp_path):
    run = make_run(tmp_path / "a", episodes=1, evaluations=())
    figure = plot_learning([run], tmp_path / "a.png")
    assert lines(figure) == {"training, all episodes": [[2e6, 3e6, 4e6], [21.0, 31.0, 41.0]]}
    assert legend_title(figure) == "one seed"


def test_learning_of_seeds_shows_mean_and_students_interval(tmp_path):
    runs = [make_run(tmp_path / str(seed), seed) for seed in (0, 1, 5)]
    figure = plot_learning(runs, tmp_path / "a.png")
    assert lines(figure) == {"rl2-ppo on point-goal, 3 seeds": [[0.0, 4e6], [5.0, 45.0]]}
    # Student's t of 2 degrees of freedom is 4.3027, the deviation of 0, 1, 5 is sqrt(7)
    np.testing.assert_allclose(bands(figure), [(5 - 6.5724, 45 + 6.5724)], atol=1e-3)
    assert legend_title(figure).endswith("shaded: 95 % interval over seeds")


def test_two_seeds_shade_their_range_and_one_its_own_interval(tmp_path):
    runs = [make_run(tmp_path / f"a{seed}", seed) for seed in (0, 4)]
    runs.append(make_run(tmp_path / "b", name="pearl", episodes=1))
    figure = plot_learning(runs, tmp_path / "a.png")
    assert bands(figure) == [(3.0, 47.0), (-1.0, 44.0)]
    assert legend_title(figure).endswith("range of two seeds, 95 % interval over tasks")


def test_seeds_are_averaged_over_the_steps_that_all_have(tmp_path):
    runs = [
        make_run(tmp_path / "a", 0, evaluations=(0, 2, 4)),
        make_run(tmp_path / "b", 2, evaluations=(0, 3)),
    ]
    shown = lines(plot_learning(runs, tmp_path / "a.png"))
    assert shown == {"rl2-ppo on point-goal, 2 seeds": [[0.0, 2e6, 3e6], [4.0, 24.0, 34.0]]}


def test_groups_are_named_by_the_settings_that_differ(tmp_path):
    runs = [
        make_run(tmp_path / "a", 0, inner_lr=0.1),
        make_run(tmp_path / "b", 0, inner_lr=0.3),
        make_run(tmp_path / "c", 1, inner_lr=0.3),
    ]
    figure = plot_learning(runs, tmp_path / "a.png")
    assert list(lines(figure)) == [
        "rl2-ppo on point-goal, inner_lr=0.1, 1 seed",
        "rl2-ppo on point-goal, inner_lr=0.3, 2 seeds",
    ]


@pytest.mark.parametrize("plot", [plot_learning, plot_adaptation])
def test_runs_on_two_suites_share_no_axis(tmp_path, plot):
    runs = [make_run(tmp_path / "a", 0), make_run(tmp_path / "b", 0, suite="bandit")]
    with pytest.raises(AdaptaxError, match=r"one at a time: point-goal in .*a, bandit in .*b"):
        plot(runs, tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()


def test_a_run_given_twice_counts_once_and_a_seed_run_twice_is_no_second_seed(tmp_path):
    runs = [make_run(tmp_path / "a", 3), make_run(tmp_path / "b", 3)]
    shown = lines(plot_learning([*runs, runs[0]], tmp_path / "a.png"))
    assert list(shown) == ["rl2-ppo on point-goal, 2 runs"]


def test_several_runs_are_compared_by_training_where_one_was_never_evaluated(tmp_path):
    runs = [make_run(tmp_path / "a"), make_run(tmp_path / "b", name="pearl", evaluations=())]
    figure = plot_learning(runs, tmp_path / "a.png")
    assert legend_title(figure) == "training, smoothed"
    assert lines(figure)["rl2-ppo on point-goal, 1 seed"][1] == [13.0, 23.0, 33.0, 43.0]


def test_smoothing_is_a_mean_over_a_centred_window():
    y = np.random.default_rng(0).normal(size=200)
    expected = [np.mean(y[max(i - 5, 0) : i + 6]) for i in range(200)]
    np.testing.assert_allclose(curves.smoothed(y), expected, atol=1e-12)


def test_adaptation_shows_the_last_evaluation_and_that_before_training_in_grey(tmp_path):
    run = make_run(tmp_path / "a", evaluations=(0, 2, 4))
    figure = plot_adaptation([run], tmp_path / "a.png")
    axes = figure.axes[0]
    assert axes.get_xlabel() == "episode on a new task"
    assert axes.get_ylabel() == "mean return of an episode (sum of rewards)"
    assert lines(figure) == {
        "rl2-ppo on point-goal, 1 seed, 4 M steps": [[1.0, 2.0, 3.0], [41.0, 42.0, 43.0]],
        "before training": [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]],
    }
    assert bands(figure) == [(39.0, 46.0), (-1.0, 6.0)]
    assert axes.lines[1].get_color() == plot.GREY


@pytest.mark.parametrize("episodes", [1, 2, 10])
def test_adaptation_ticks_are_whole_episodes(tmp_path, episodes):
    figure = plot_adaptation([make_run(tmp_path / "a", episodes=episodes)], tmp_path / "a.png")
    low, high = figure.axes[0].get_xlim()
    ticks = [t for t in figure.axes[0].get_xticks() if low <= t <= high]
    assert len(ticks) > 0
    assert all(t == round(t) for t in ticks)


def test_adaptation_of_seeds_shows_their_mean_and_how_long_they_trained(tmp_path):
    runs = [
        make_run(tmp_path / "a", 0, evaluations=(0, 4)),
        make_run(tmp_path / "b", 2, evaluations=(0, 2)),
    ]
    shown = lines(plot_adaptation(runs, tmp_path / "a.png"))
    assert shown["rl2-ppo on point-goal, 2 seeds, 2 M to 4 M steps"][1] == [32.0, 33.0, 34.0]


def test_no_colour_and_style_repeats_in_28_curves():
    styles = [tuple(plot.curve_style(i).values()) for i in range(28)]
    assert len(set(styles)) == 28


def test_a_legend_of_many_groups_leaves_the_axes_their_height(tmp_path):
    runs = [make_run(tmp_path / str(i), name=f"algorithm-{i}") for i in range(12)]
    figure = plot_adaptation(runs, tmp_path / "a.png")
    assert figure.axes[0].get_window_extent().height / figure.dpi > 2.5


def test_a_log_cut_short_by_a_kill_is_still_plotted(tmp_path):
    run = make_run(tmp_path / "a")
    with open(run / "progress.jsonl", "ab") as file:
        file.write(b'{"iteration": 5, "num_st')
    shown = lines(plot_learning([run], tmp_path / "a.png"))
    assert len(shown["training, last episode on a task"][0]) == 4


def test_pyplots_global_state_is_never_touched(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)  # importing it would now fail
    figure = plot_adaptation([make_run(tmp_path / "a")], tmp_path / "a.png")
    assert len(figure.axes) == 1


def test_matplotlib_is_imported_late():
    homes = [str(getattr(value, "__module__", "")) for value in vars(plot).values()]
    assert sum(home.startswith("matplotlib") for home in homes) == 0


def test_what_is_no_run_is_named_in_one_line(tmp_path):
    out = tmp_path / "a.png"
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "absent", tmp_path / "empty"):
        with pytest.raises(AdaptaxError, match=f"{path} holds no run") as caught:
            plot_learning([path], out)
        assert "\n" not in str(caught.value)
    (tmp_path / "empty" / "config.json").write_text('{"algorithm": {}}')
    with pytest.raises(AdaptaxError, match="is not the config of a run: it lacks one of"):
        plot_learning([tmp_path / "empty"], out)
    with pytest.raises(AdaptaxError, match="no run directory to plot"):
        plot_learning([], out)


@pytest.mark.parametrize("content", [None, b"", b'{"iteration": 1'])
def test_a_missing_or_empty_log_is_named_in_one_line(tmp_path, content):
    run = make_run(tmp_path / "a")
    for name in ("progress.jsonl", "evaluations.jsonl"):
        (run / name).unlink()
        if content is not None:
            (run / name).write_bytes(content)
    with pytest.raises(AdaptaxError, match=r"no training return to plot yet \(progress.jsonl\)"):
        plot_learning([run], tmp_path / "a.png")
    with pytest.raises(AdaptaxError, match=r"no evaluation to plot \(evaluations.jsonl\)"):
        plot_adaptation([run], tmp_path / "a.png")


def test_an_unknown_picture_format_is_named(tmp_path):
    with pytest.raises(AdaptaxError, match=r"a\.bmp2: its name must end in \.png"):
        plot_learning([make_run(tmp_path / "a")], tmp_path / "a.bmp2")


EPISODE = {"index": 1, "return_mean": 1.0, "return_ci": None}
SHARES = {"success_mean": 0.5, "success_ci": [0.25, 0.75]}


def append(path, **changes):
    """A row like the last one of a log but for the changes."""
    last = json.loads(path.read_text().splitlines()[-1])
    with path.open("a") as file:
        file.write(json.dumps(last | changes) + "\n")


@pytest.mark.parametrize(
    ("log", "change"),
    [
        *(("progress", {"num_steps": x}) for x in ("x", [1], None, 10**400)),
        *(("progress", {"train/return/episode_3": x}) for x in ("x", [1], {})),
        *(("evaluations", {"num_steps": x}) for x in ("x", None)),
        *(("evaluations", {"episodes": x}) for x in (3, None, [], [3], [{}])),
        ("evaluations", {"episodes": [EPISODE | {"return_ci": [1.0]}]}),
        ("evaluations", {"interval_over": [1]}),
        ("evaluations", {"episodes": [EPISODE | {"index": "first"}]}),
    ],
)
def test_a_row_in_other_types_is_named_in_one_line(tmp_path, log, change):
    run = make_run(tmp_path / "a")
    append(run / f"{log}.jsonl", **change)
    message = rf"{log}\.jsonl, iteration 4: not a row that a run writes"
    with pytest.raises(AdaptaxError, match=message):
        plot_learning([run], tmp_path / "a.png")


@pytest.mark.parametrize("figures", [3, {}, {"episodes": []}, {"episodes": [{"success_mean": 1}]}])
def test_classes_in_other_types_are_named_in_one_line(tmp_path, figures):
    run = make_run(tmp_path / "a")
    append(run / "evaluations.jsonl", classes={"door": figures})
    with pytest.raises(AdaptaxError, match=r"evaluations\.jsonl, iteration 4: not a row"):
        has_classes([run])


def test_a_class_that_only_some_runs_have_is_the_mean_over_these():
    runs = [{"reach": (0.5, 0.4, 0.6)}, {"push": (0.2, 0.1, 0.3), "reach": (1.0, 0.9, 1.0)}]
    for order in (runs, runs[::-1]):
        assert joined_bars(order) == {"reach": (0.75, 0.5, 1.0), "push": (0.2, 0.2, 0.2)}


def test_a_name_that_looks_like_mathematics_is_drawn_as_it_is(tmp_path):
    name = "$x^{$"
    runs = [make_run(tmp_path / seed, name=name + seed, suite=name) for seed in ("a", "b")]
    title = plot_learning(runs, tmp_path / "a.png").axes[0].get_title()
    assert title == name
    append(runs[0] / "progress.jsonl", **{f"train/success/{name}": 1.0})
    append(runs[0] / "evaluations.jsonl", classes={name: {"episodes": [SHARES]}})
    plot_classes(runs[:1], tmp_path / "classes.png")
