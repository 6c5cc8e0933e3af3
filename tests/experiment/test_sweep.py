"""Sweeps, mostly of trials that are not trained: a fake writes what their runs would leave."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import signal
import sqlite3
import sys
import tomllib
from html import escape
from pathlib import Path

import pytest
from scored_runs import make_run
from sweep_kills import killed_and_whole

import adaptax
from adaptax.core.config import to_dict
from adaptax.core.errors import AdaptaxError, ConfigError, DiskError
from adaptax.experiment import cli, sweep
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.experiment.curves import load_groups
from adaptax.experiment.group import write_group
from adaptax.experiment.job import job_of
from adaptax.experiment.jobs import Ended
from adaptax.experiment.report import write_report
from adaptax.experiment.sweep_record import Plan, read_sweep
from adaptax.experiment.sweep_space import (
    checked_space,
    distributions,
    read_space,
    with_settings,
)
from adaptax.experiment.trainer_config import TrainerConfig

PPO = {"name": "ppo", **to_dict(adaptax.PPOConfig())}
SPACE = {
    "algorithm.lr": {"low": 1e-4, "high": 1.0, "log": True},
    "algorithm.num_epochs": {"low": 1, "high": 8},
    "algorithm.hidden_sizes": [[8], [16, 16]],
}


def score(settings: dict, seed: int) -> float:
    """What a seed scores on every task: best at a step size of 0.01."""
    return -abs(math.log10(settings["lr"]) + 2) - 0.1 * settings["num_epochs"] + 0.01 * seed


class FakeJobs:
    """Programs that are done at once; one whose name is in `ends` ends otherwise."""

    def __init__(
        self, size: int = 1, ends: dict[str, int] | None = None, warned: tuple[str, ...] = ()
    ) -> None:
        self.size, self.ends, self.running, self.specs = size, ends or {}, [], {}
        self.warned = warned

    def start(self, name, words):
        self.running.append(name)
        self.specs[name] = spec = json.loads(words[2])
        if name not in self.ends:
            write_runs(spec)

    def ended(self):
        done, self.running = self.running, []
        for name in done:
            yield Ended(name, self.ends.get(name, 0), "adaptax: NaN in loss", self.warned)

    def stop(self, name):
        pass

    stop_all = __enter__ = lambda self: self

    def __exit__(self, *_):
        pass


def write_runs(spec: dict, rows: int | None = None) -> None:
    """What the runs of a training leave behind: evaluations at iterations 0 to 3."""
    folder, own = Path(spec["trainer"]["run_dir"]), spec["algorithm"]
    for seed in spec["seeds"]:
        scores = [score(own, seed)] * 3
        run = make_run(folder / f"seed-{seed}", seed, scores, "ppo")
        log = run / "evaluations.jsonl"
        log.write_text("".join(log.read_text().splitlines(keepends=True)[:rows]))
    write_group(folder, spec["seeds"])


def use_fakes(monkeypatch, places: FakeJobs) -> None:
    """Have sweeps train nothing."""

    def train_group(group, where, *, go_on):
        spec = {"trainer": {"run_dir": str(group.run_dir)}, "seeds": group.seeds}
        write_runs({**spec, "algorithm": vars(group.members[0].algorithm.config)})
        return True

    monkeypatch.setattr(sweep, "train_group", train_group)
    monkeypatch.setattr(sweep, "jobs", lambda *_: places)
    monkeypatch.setattr(sweep, "POLL", 0.0)


@pytest.fixture
def fake(monkeypatch):
    """Sweeps with fake jobs, which it makes."""

    def use(**settings):
        places = FakeJobs(**settings)
        use_fakes(monkeypatch, places)
        return places

    use()
    return use


def searched(run_dir: Path, trials: int = 8, **settings) -> dict:
    settings = {"seeds": (0, 1), "quiet": True, **settings}
    return adaptax.sweep("ppo", "point-goal", SPACE, trials=trials, run_dir=run_dir, **settings)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a sweep, and what it found."""
    run_dir = tmp_path_factory.mktemp("sweep") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        use_fakes(patch, FakeJobs())
        return run_dir, searched(run_dir)["found"]


def test_the_winner_is_trained_anew_on_seeds_that_no_trial_had(whole):
    run_dir, found = whole
    trials, winner = found["trials"], found["winner"]
    assert [trial["number"] for trial in trials] == list(range(8))
    ended = [trial for trial in trials if trial["state"] == "complete"]
    best = max(ended, key=lambda trial: trial["value"])
    assert (winner["trial"], winner["settings"]) == (best["number"], best["settings"])
    own = {name.partition(".")[2]: value for name, value in winner["settings"].items()}
    assert winner["searched"]["of_seeds"] == pytest.approx([score(own, s) for s in (0, 1)])
    assert winner["fresh"]["of_seeds"] == pytest.approx([score(own, s) for s in range(2, 7)])
    low, high = winner["fresh"]["ci"]
    assert low < winner["fresh"]["mean"] < high
    assert set(found["importance"]) == set(SPACE)
    assert json.loads((run_dir / "sweep.json").read_text())["found"] == found


def test_a_trial_is_pruned_by_the_mean_over_seeds_not_before_five_have_ended(whole, fake, tmp_path):
    trials = whole[1]["trials"]
    states = [trial["state"] for trial in trials]
    assert states[:5] == ["complete"] * 5 and "pruned" in states
    pruned = trials[states.index("pruned")]
    assert pruned["iteration"] == 1  # the first evaluation after training has begun
    own = {name.partition(".")[2]: value for name, value in pruned["settings"].items()}
    assert pruned["value"] == pytest.approx((score(own, 0) + score(own, 1)) / 2 / 3)
    unpruned = searched(tmp_path / "whole", prune=False)["found"]["trials"]
    assert [trial["state"] for trial in unpruned] == ["complete"] * 8


def test_the_seed_decides_on_the_first_settings(whole, fake, tmp_path):
    again = searched(tmp_path / "again", seed=1, trials=1)["found"]
    assert again["trials"][0]["settings"] != whole[1]["trials"][0]["settings"]


def test_a_trial_that_was_cut_off_goes_on_and_is_counted_once(whole, fake, tmp_path):
    """And what one process finds is what another found."""
    run_dir = tmp_path / "lost"
    fake(ends={"trial 5": -signal.SIGKILL})
    with pytest.raises(AdaptaxError, match="trial 5: killed by SIGKILL; go on with `adaptax resum"):
        searched(run_dir, trials=6)
    plan, found = read_sweep(run_dir)
    assert found is None
    fake()
    plan = Plan(**{**vars(plan), "num_trials": 8})
    assert sweep.Sweep(run_dir, plan).resume()["found"] == whole[1]


OF_TRIALS = ("trial_params", "trial_values", "trial_intermediate_values", "trial_user_attributes")


def test_what_was_decided_and_not_written_down_is_decided_again(whole, fake, tmp_path):
    """As after a kill between a hopeless evaluation and the note that the trial is pruned."""
    run_dir, found = tmp_path / "sweep", whole[1]
    number = next(t["number"] for t in found["trials"] if t["state"] == "pruned")
    shutil.copytree(whole[0], run_dir)
    for folder in ("winner", *(f"trial-{later:03d}" for later in range(number + 1, 8))):
        shutil.rmtree(run_dir / folder)
    with contextlib.closing(sqlite3.connect(run_dir / "study.db")) as study, study:
        study.execute("UPDATE trials SET state = 'RUNNING' WHERE number = ?", [number])
        for table in OF_TRIALS:
            study.execute(f"DELETE FROM {table} WHERE trial_id > ?", [number + 1])
        study.execute("DELETE FROM trial_values WHERE trial_id = ?", [number + 1])
        study.execute("DELETE FROM trials WHERE number > ?", [number])
    places, going_on = fake(), sweep.Sweep(run_dir, read_sweep(run_dir)[0])
    going_on._write()
    assert going_on.resume()["found"] == found
    assert f"trial {number}" not in places.specs


def test_the_winner_goes_on_though_some_of_its_seeds_had_not_begun(
    whole, fake, tmp_path, monkeypatch
):
    """As after a kill where its seeds are processes, of which a few run at a time."""
    run_dir, asked = tmp_path / "sweep", []
    shutil.copytree(whole[0], run_dir)
    for seed in (5, 6):
        shutil.rmtree(run_dir / "winner" / f"seed-{seed}")

    def train_group(group, where, *, go_on):
        asked.append(go_on)
        return False

    monkeypatch.setattr(sweep, "train_group", train_group)
    going_on = sweep.Sweep(run_dir, sweep.read_sweep(run_dir)[0])
    going_on._write()
    going_on.resume()
    for seed in (2, 3, 4):
        shutil.rmtree(run_dir / "winner" / f"seed-{seed}")
    going_on.resume()
    assert asked == [True, False]


def test_trials_that_fail_are_told_and_the_others_go_on(fake, tmp_path, capsys):
    fake(ends={"trial 1": 2}, size=3)
    found = searched(tmp_path / "some", trials=4, quiet=False)["found"]
    assert [trial["state"] for trial in found["trials"]].count("complete") == 3
    assert found["trials"][1]["why"] == "NaN in loss"
    assert "trial 1 failed: NaN in loss" in capsys.readouterr().out
    fake(ends={f"trial {i}": 2 for i in range(3)})
    with pytest.raises(AdaptaxError, match=r"no trial of .* came to its end; the first: NaN"):
        searched(tmp_path / "none", trials=3)


def test_what_trials_warn_of_is_told_once(fake, tmp_path):
    fake(warned=("the disk is full",))
    with pytest.warns(UserWarning, match=r"^trial 0: the disk is full$") as caught:
        searched(tmp_path / "sweep", trials=2)
    assert len(caught) == 1


def test_a_finished_sweep_is_a_recipe(fake, tmp_path):
    more = {"algorithm": {"discount": 0.9}, "suite": {"num_test_tasks": 7}, "num_steps": 5000}
    winner = searched(tmp_path / "sweep", trials=2, **more)["found"]["winner"]
    recipe = tomllib.loads((tmp_path / "sweep" / "recipe.toml").read_text())
    assert recipe["recipe"]["algorithm"] == "ppo" and recipe["recipe"]["suites"] == ["point-goal"]
    expected = {name.partition(".")[2]: value for name, value in winner["settings"].items()}
    usual = adaptax.PPOConfig()
    expected = {k: v for k, v in expected.items() if getattr(usual, k) != v}
    assert recipe["algorithm"] == {**expected, "discount": 0.9}
    assert recipe["suite"] == {"num_test_tasks": 7}
    assert recipe["trainer"] == {"num_steps": 5000}


def plan_of(job, space, **others):
    """A plan of two trials."""
    settings = {"seeds": (0, 1), "winner_seeds": None, "num_trials": 2, "metric": "return"}
    return sweep.make_plan(job, space, **settings, prune=True, num_processes=1, **others)


@pytest.mark.parametrize("name", ["dqn", "sac"])
def test_the_recipe_of_a_sweep_trains_without_a_bound_where_its_trials_had_none(name, tmp_path):
    suite = make_suite("point-goal" if name == "sac" else "cartpole")
    algorithm = make_algorithm(name, suite.spec, max_grad_norm=None)
    config = TrainerConfig(run_dir=".", num_iterations=3)
    plan = plan_of(job_of(algorithm, suite, config), {"algorithm.lr": {"low": 1e-4, "high": 1e-2}})
    path = tmp_path / "recipe.toml"
    path.write_text(sweep.recipe_toml(plan, {"algorithm.lr": 3e-3}))
    recipe, options = cli.train_options(name, suite.name, ["--recipe", str(path)])
    assert recipe.trainer == {"num_iterations": 3}
    assert type(algorithm.config)().max_grad_norm is not None
    assert (options.algorithm.max_grad_norm, options.algorithm.lr) == (None, 3e-3)


def test_every_trial_has_a_schedule_over_its_own_passes():
    suite = make_suite("point-goal")
    algorithm = make_algorithm("rl2-ppo", suite.spec, lr_schedule="linear")
    job = job_of(algorithm, suite, TrainerConfig(run_dir=".", num_steps=5000))
    space = {"algorithm.num_epochs": {"low": 1, "high": 9}}
    plan = plan_of(job, space, expected_iterations=30)
    for epochs in (2, 9):
        text = sweep.recipe_toml(plan, {"algorithm.num_epochs": epochs})
        assert tomllib.loads(text)["algorithm"]["lr_schedule_steps"] == 30 * epochs


def test_settings_within_a_setting_have_a_table_of_their_own():
    found = with_settings({"memory": {"kind": "none", "size": 8}}, {"algorithm.memory.kind": "gru"})
    assert found == {"memory": {"kind": "gru", "size": 8}}


def test_the_report_tells_both_figures_and_all_trials(whole, tmp_path):
    run_dir, found = whole
    groups = load_groups([run_dir / "winner"])
    write_report(groups, tmp_path / "report.html", [run_dir])
    text = (tmp_path / "report.html").read_text()
    assert '<h2 id="section-0">Sweep whole</h2>' in text
    for figure in (found["winner"]["searched"], found["winner"]["fresh"]):
        assert f"{figure['mean']:.2f} [{figure['ci'][0]:.2f}, {figure['ci'][1]:.2f}]" in text
    assert all(f'<th scope="row">trial {i}</th>' in text for i in range(8))
    assert all(f"return of each trial over {name}<" in text for name in SPACE)


def test_every_sweep_has_a_section_whose_heading_is_text(whole, tmp_path):
    name = 'a & <b>bold "q'
    copies = [shutil.copytree(whole[0], tmp_path / place / name) for place in ("one", "two")]
    out = tmp_path / "report.html"
    cli.main(["report", *map(str, copies), str(copies[0]), "--out", str(out)])
    text = out.read_text()
    for i, path in enumerate(copies):
        assert f'<h2 id="section-{i}">Sweep {escape(str(path))}</h2>' in text
        assert f'<a href="#section-{i}">Sweep {escape(str(path))}</a>' in text
    assert text.count("<h2 ") == 8 and "<b>bold" not in text
    write_report(load_groups([copies[0] / "winner"]), out, copies[:1])
    assert f">Sweep {escape(name)}</h2>" in out.read_text()


def test_a_sweep_that_was_moved_is_told_where_it_is(whole, tmp_path, capsys):
    moved = shutil.copytree(whole[0], tmp_path / "moved")
    cli.main(["resume", str(moved)])
    said = f"wrote {moved / 'sweep.json'} and {moved / 'recipe.toml'}; next: adaptax report {moved}"
    assert capsys.readouterr().out.splitlines()[-1] == said


@pytest.mark.parametrize(
    "change",
    [
        lambda found: found.pop("winner"),
        lambda found: found.pop("importance"),
        lambda found: found.update(trials=3),
        lambda found: found.update(importance=[1]),
        lambda found: found["winner"].pop("fresh"),
        lambda found: found["winner"]["fresh"].update(ci=[1.0]),
        lambda found: found["winner"].update(settings={}),
        lambda found: found["trials"].append({}),
        lambda found: found["trials"].append(3),
        lambda found: found["trials"][0].update(value="x"),
        lambda found: found["trials"][0].update(value=None),
        lambda found: found["trials"][0].update(state="lost"),
        lambda found: found["trials"][0].update(settings=None),
    ],
)
def test_what_no_sweep_has_found_is_one_line(whole, tmp_path, capsys, change):
    moved = shutil.copytree(whole[0], tmp_path / "moved")
    record = json.loads((moved / "sweep.json").read_text())
    change(record["found"])
    (moved / "sweep.json").write_text(json.dumps(record))
    for words in (
        ["report", str(moved), "--out", str(tmp_path / "a.html")],
        ["resume", str(moved)],
    ):
        with pytest.raises(SystemExit):
            cli.main(words)
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"adaptax: {moved / 'sweep.json'} is not what a sweep writes")


def test_a_sweep_is_a_command_that_goes_on_and_is_reported(fake, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("space.toml").write_text('"algorithm.lr" = {low = 1e-4, high = 1.0, log = true}')
    words = ["--space", "space.toml", "--trials", "2", "--seeds", "3,4", "--algorithm.num-epochs"]
    cli.main(["sweep", "ppo", "point-goal", *words, "2"])
    out = capsys.readouterr().out
    assert "2 trials: 2 complete\nwinner: trial " in out
    assert "(95 % interval over 5 seeds)" in out
    run_dir = "runs/ppo-point-goal-sweep"
    cli.main(["resume", run_dir])
    assert capsys.readouterr().out == out[out.index("2 trials") :]
    cli.main(["report", run_dir])
    assert Path("report.html").exists()
    with pytest.raises(SystemExit):
        cli.main(["sweep", "ppo", "point-goal", *words, "2"])
    assert (
        f"holds a sweep already; go on with `adaptax resume {run_dir}`" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"seeds": (0,)}, "one seed never decides"),
        ({"winner_seeds": (1, 2)}, r"fresh seeds, but trials have \[1\] too"),
        ({"metric": "loss"}, r"metric must be one of \('return', 'success'\), not 'loss'"),
        ({"on": "moon"}, r"on must be one of \('here', 'ray'\), not 'moon'"),
        ({"trials": 0}, "trials must be greater than 0, not 0"),
        ({"trials": 2.5}, "num_trials: expected int, not 2.5"),
        ({"num_processes": "2"}, "num_processes: expected int, not '2'"),
        ({"prune": "no"}, "prune: expected bool, not 'no'"),
        ({"recipe": 5}, "recipe: expected a name or a file, not 5"),
        ({"num_processes": 0}, "num_processes must be greater than 0, not 0"),
        ({"evaluation_interval": None}, "needs an evaluation_interval"),
        ({"overwrite": True}, "a sweep replaces nothing"),
        ({"algorithm": {"lrr": 1}}, "did you mean 'algorithm.lr'"),
    ],
)
def test_a_plan_that_cannot_be_is_one_line_before_anything_is_written(tmp_path, settings, problem):
    with pytest.raises(ConfigError, match=problem):
        searched(tmp_path / "none", **settings)
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"init_from": "nope"}, "nope holds no run"),
        ({"callbacks": ("zz",)}, "unknown callback 'zz'"),
        ({"evaluation": {"num_tasks": 1000}}, "num_tasks 1000 is more than"),
    ],
)
def test_what_no_trial_can_begin_with_is_one_line_before_anything_is_written(
    fake, tmp_path, settings, problem
):
    with pytest.raises(AdaptaxError, match=problem):
        searched(tmp_path / "none", **settings)
    assert not (tmp_path / "none").exists()


def test_a_sweep_begins_where_some_of_its_trials_can(fake, tmp_path):
    space = {**SPACE, "algorithm.hidden_sizes": [[10**7, 10**7], [8]]}
    more = {"seeds": (0, 1), "quiet": True, "run_dir": tmp_path / "sweep"}
    assert adaptax.sweep("ppo", "point-goal", space, trials=1, **more)["found"]["winner"]
    space["algorithm.hidden_sizes"] = [[10**7, 10**7], [10**7, 10**6]]
    more["run_dir"] = tmp_path / "none"
    with pytest.raises(ConfigError, match="smaller networks fit"):
        adaptax.sweep("ppo", "point-goal", space, trials=1, **more)


def test_without_optuna_one_line_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(AdaptaxError, match=r"sweeps need optuna: pip install 'adaptax\[sweep\]'"):
        searched(tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_commands_for_runs_say_what_a_sweep_has(whole, capsys):
    with pytest.raises(AdaptaxError, match=r"is a sweep: take .*winner"):
        adaptax.load(whole[0])
    with pytest.raises(SystemExit):
        cli.main(["resume", str(whole[0]), "--num-iterations", "9"])
    assert "which goes on as it was planned" in capsys.readouterr().err


def test_a_folder_that_holds_something_else_is_left_alone(fake, tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(AdaptaxError, match="is not empty and holds no sweep"):
        searched(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        '"algorithm.lr" = {low = 1e-4, high = 1, log = true}',
        '"--algorithm.lr" = {low = 1e-4, high = 1, log = true}',
        "algorithm.lr = {low = 1e-4, high = 1, log = true}",
        "[algorithm]\nlr = {low = 1e-4, high = 1, log = true}",
    ],
)
def test_names_are_those_of_the_command_line_or_tables(tmp_path, text):
    path = tmp_path / "space.toml"
    path.write_text(text)
    space = checked_space(read_space(path), PPO, str(path))
    assert space == {"algorithm.lr": {"low": 1e-4, "high": 1.0, "log": True}}


def test_kinds_are_those_of_the_settings():
    space = {
        "algorithm.num-epochs": {"low": 1, "high": 8},
        "algorithm.discount": {"low": 0, "high": 1},
    }
    found = checked_space({**space, "algorithm.memory": ["none", "gru"]}, PPO, "it")
    kinds = {name: type(distributions({name: d})[name]).__name__ for name, d in found.items()}
    assert kinds == {
        "algorithm.num_epochs": "IntDistribution",
        "algorithm.discount": "FloatDistribution",
        "algorithm.memory.kind": "CategoricalDistribution",
    }


@pytest.mark.parametrize(
    ("space", "problem"),
    [
        ({}, "it names no setting"),
        ({"algorithm.lrr": [1, 2]}, "unknown setting 'algorithm.lrr'; did you mean 'algorithm.lr'"),
        ({"lr": [1, 2]}, "unknown setting 'lr'; did you mean 'algorithm.lr'"),
        ({"suite.high": [1, 2]}, "only settings of the algorithm are searched"),
        ({"algorithm.lr": 0.1}, "expected a range, for example"),
        (
            {"algorithm.lr": {"low": 1.0, "hihg": 2.0}},
            "key of algorithm.lr: 'hihg'; did you me",
        ),
        ({"algorithm.lr": {"low": 1.0}}, "a range has low and high"),
        (
            {"algorithm.lr": {"low": 2.0, "high": 1.0}},
            "low must be less than high, not 2.0 ",
        ),
        ({"algorithm.lr": {"low": 0.0, "high": 1.0, "log": True}}, "with log must have low > 0"),
        ({"algorithm.lr": {"low": -1.0, "high": 1.0}}, "lr must be greater than 0, not -1.0"),
        ({"algorithm.lr": {"low": "a", "high": 1.0}}, "expected a finite number, not 'a'"),
        ({"algorithm.num_epochs": {"low": 1.5, "high": 3}}, "num_epochs: expected int, not 1.5"),
        ({"algorithm.hidden_sizes": {"low": 1, "high": 3}}, "hidden_sizes: expected a list, not 1"),
        ({"algorithm.lr": [0.1]}, "a list of two or more"),
        (
            {"algorithm.lr": {"low": 0.1, "high": 1.0}, "algorithm": {"lr": [0.1, 0.2]}},
            "algorithm.lr comes twice",
        ),
        ({"algorithm.lr": [0.1, 0.1]}, "a choice comes twice"),
        ({"algorithm.lr": ["a", "b"]}, "lr: expected float, not 'a'"),
        ({"algorithm.memory.kind": ["gru", "grru"]}, "unknown memory 'grru'"),
    ],
)
def test_a_space_that_cannot_be_is_one_line(space, problem):
    with pytest.raises(ConfigError, match=f"^space.toml: .*{problem}"):
        checked_space(space, PPO, "space.toml")


@pytest.mark.parametrize(
    ("text", "problem"), [(None, "cannot read the space"), ("a = ", "is not TOML: Invalid value")]
)
def test_a_file_that_is_no_space_is_one_line(tmp_path, text, problem):
    if text is not None:
        (tmp_path / "space.toml").write_text(text)
    with pytest.raises(ConfigError, match=problem):
        read_space(tmp_path / "space.toml")


@pytest.mark.slow
def test_a_sweep_that_is_killed_twice_finds_what_one_that_is_not_finds(tmp_path):
    killed, whole = killed_and_whole(tmp_path, 7, (1, 5))
    assert killed == whole


@pytest.mark.slow
def test_on_a_cluster_of_two_nodes_one_that_is_killed_finds_the_same_as_one_here(tmp_path):
    pytest.importorskip("ray")
    killed, whole = killed_and_whole(tmp_path, 4, (2,), on="ray")
    assert killed == whole


@pytest.mark.parametrize("at_once", [True, False])
def test_a_study_that_cannot_be_written_is_one_line(fake, tmp_path, monkeypatch, at_once):
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import OperationalError

    def full(self):
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorname = "SQLITE_FULL"
        if at_once:  # where the tables are made
            raise OperationalError("CREATE TABLE", {}, error)
        raise StorageInternalError("An exception is raised during the commit.")

    monkeypatch.setattr(sweep.Sweep, "_to_its_end", full)
    with pytest.raises(DiskError, match=r"cannot write .*study.*; go on with `adaptax resume"):
        searched(tmp_path / "sweep")


@pytest.mark.parametrize("name", ["study.db", "trial-001", "trial-000/seed-1", "winner"])
def test_what_leads_out_of_a_sweep_is_refused(whole, fake, tmp_path, name):
    run_dir = shutil.copytree(whole[0], tmp_path / "sweep")
    going_on = sweep.Sweep(run_dir, read_sweep(run_dir)[0])
    going_on._write()
    (run_dir / "study.db").unlink()
    outside = tmp_path / "outside"
    if name != "study.db":
        shutil.move(run_dir / name, outside)
    (run_dir / name).symlink_to(outside)
    with pytest.raises(AdaptaxError, match=f"{name} is a link"):
        going_on.resume()


@pytest.mark.parametrize("damage", ["garbage", "half", "directory"])
def test_a_study_that_cannot_be_read_is_one_line(whole, fake, tmp_path, damage):
    run_dir = shutil.copytree(whole[0], tmp_path / "sweep")
    going_on, study = sweep.Sweep(run_dir, read_sweep(run_dir)[0]), run_dir / "study.db"
    going_on._write()
    data = study.read_bytes()
    study.unlink()
    if damage == "directory":
        study.mkdir()
    else:
        study.write_bytes(b"garbage" * 1000 if damage == "garbage" else data[: len(data) // 2])
    with pytest.raises(AdaptaxError, match=r"cannot read .*study.db: remove it"):
        going_on.resume()


def test_a_space_says_none_as_a_recipe_does(tmp_path):
    (tmp_path / "space.toml").write_text('"algorithm.max_grad_norm" = ["None", 0.5]\n')
    assert read_space(tmp_path / "space.toml") == {"algorithm.max_grad_norm": [None, 0.5]}
