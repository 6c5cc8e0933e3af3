"""What is exported acts as what was trained; what comes from a stranger is not trusted."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from pathlib import Path

import flax.linen as nn
import jax
import numpy as np
import pytest
import yaml
from small import SMALL
from toys import cliff_suite

import adaptax
from adaptax.core.errors import AdaptaxError, ConfigError
from adaptax.core.snapshot import Snapshots
from adaptax.experiment import cli
from adaptax.experiment.card import card
from adaptax.experiment.evaluation import Evaluation
from adaptax.experiment.logger import read_rows
from adaptax.experiment.pretrained import FOLDER
from adaptax.experiment.reproduce import command_of
from adaptax.experiment.run_dir import read_config
from adaptax.networks.heads import ActionHead

ROOT = Path(__file__).parents[2]
ALGORITHM = SMALL["rl2-ppo"]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run of four iterations, evaluated at the second and the fourth."""
    run_dir = tmp_path_factory.mktemp("share") / "run"
    settings = {"num_iterations": 4, "evaluation_interval": 2, "snapshot_interval": 1}
    adaptax.train(
        "rl2-ppo", "point-goal", algorithm=ALGORITHM, run_dir=run_dir, quiet=True, **settings
    ).close()
    return run_dir


@pytest.fixture(scope="module")
def exported(run_dir):
    return adaptax.export_run(run_dir, run_dir.parent / "export")


@pytest.fixture
def export(exported, tmp_path):
    """An export that a test may change."""
    return shutil.copytree(exported, tmp_path / "export")


@pytest.fixture(scope="module")
def imported(exported):
    return adaptax.import_run(exported, exported.parent / "imported")


def acted(agent, num_steps=5):
    carry, actions = agent.begin(jax.random.key(0)), []
    for i in range(num_steps):
        obs = np.full(2, 0.1 * i, np.float32)
        action, carry = agent.act(carry, obs)
        step = adaptax.Step(reward=-1.0, next_obs=obs + 0.1, terminated=False, truncated=False)
        carry = agent.observe(carry, step)
        actions.append(action)
    return np.stack(actions)


def test_an_imported_agent_acts_as_the_one_that_was_trained(run_dir, imported):
    np.testing.assert_array_equal(acted(adaptax.load(imported)), acted(adaptax.load(run_dir)))


def test_an_imported_run_evaluates_as_the_one_that_was_trained(run_dir, imported, capsys):
    cli.main(["evaluate", str(run_dir), "--json"])
    theirs = json.loads(capsys.readouterr().out)
    cli.main(["evaluate", str(imported), "--json", "--best"])
    ours = json.loads(capsys.readouterr().out)
    assert ours["episodes"] == theirs["episodes"]
    assert ours["untrained"] == theirs["untrained"]
    assert ours["iteration"] == 4


def test_an_imported_run_can_be_plotted_and_begun_from(imported, tmp_path, capsys):
    cli.main(["plot", str(imported), "--out", str(tmp_path / "curve.png")])
    assert {path.name for path in tmp_path.iterdir()} == {"curve.png", "curve-adaptation.png"}
    trainer = adaptax.load_run(imported, init_from=str(imported), seed=3)
    begun = trainer._first_state().params
    trainer.close()
    jax.tree.map(np.testing.assert_array_equal, begun, adaptax.load(imported).state.params)


def test_an_imported_run_cannot_be_resumed_and_says_so_in_one_line(imported, capsys):
    before = {p: p.read_bytes() for p in imported.rglob("*") if p.is_file()}
    with pytest.raises(SystemExit) as stop:
        cli.main(["resume", str(imported), "--num-iterations", "9"])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert f"adaptax: {imported} holds weights only" in err
    assert "--init-from" in err
    assert err.count("\n") == 1
    assert {p: p.read_bytes() for p in imported.rglob("*") if p.is_file()} == before


def test_an_export_has_no_optimizer_no_paths_and_no_trackers(run_dir, export):
    tree = Snapshots(export / "snapshots").load(4)
    assert tree["state"].keys() < Snapshots(run_dir / "snapshots").load(4)["state"].keys()
    assert not [name for name in tree["state"] if "opt" in name or "key" in name]
    config = json.loads((export / "config.json").read_text())
    assert config["trainer"]["run_dir"] == "run"
    assert config["trainer"]["trackers"] == []
    assert str(run_dir.parent) not in (export / "README.md").read_text()
    read_rows(export / "progress.jsonl")


def test_the_card_has_the_evaluation_of_the_weights_as_the_hub_reads_it(export):
    text = (export / "README.md").read_text()
    _, front, rest = text.split("---\n", 2)
    about = yaml.safe_load(front)
    assert "| episode | return | before training |" in rest
    (entry,) = about["model-index"]
    (result,) = entry["results"]
    assert about["library_name"] == "adaptax"
    assert {"rl2-ppo", "point-goal"} <= set(about["tags"])
    assert result["task"]["type"] == "reinforcement-learning"
    assert result["dataset"] == {"type": "point-goal", "name": "point-goal"}
    row = read_rows(export / "evaluations.jsonl")[-1]
    assert row["iteration"] == 4
    metrics = {metric["name"]: metric for metric in result["metrics"]}
    for name, which in (("1", 0), ("2", -1)):
        metric = metrics[f"mean return in episode {name}"]
        assert metric["type"] == "mean_reward"
        assert metric["value"] == pytest.approx(row["episodes"][which]["return_mean"], abs=1e-4)
    assert f"| 2 | {row['episodes'][-1]['return_mean']:.2f} [" in rest
    assert "adaptax train rl2-ppo point-goal" in rest


@pytest.mark.parametrize(
    "change", [lambda row: row["episodes"].pop(), lambda row: row.update(num_tasks=2)]
)
def test_a_card_has_no_column_of_before_by_another_protocol(run_dir, tmp_path, change):
    """As evaluations have after a `resume` with other episodes or tasks."""
    copy = shutil.copytree(run_dir, tmp_path / "copy")
    rows = [json.loads(line) for line in (copy / "evaluations.jsonl").read_text().splitlines()]
    change(rows[0])
    (copy / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    text = (adaptax.export_run(copy, tmp_path / "my export") / "README.md").read_text()
    assert "| episode | return |" in text and "before training" not in text
    assert "adaptax import 'my export' 'runs/my export'\n" in text


def test_the_card_has_the_test_episodes_where_there_are_any(run_dir):
    config = json.loads((run_dir / "config.json").read_text())
    evaluations, progress = (
        read_rows(run_dir / name) for name in ("evaluations.jsonl", "progress.jsonl")
    )
    figures = evaluations[-1]["episodes"][-1]
    for row, value in ((evaluations[0], -9.0), (evaluations[-1], -1.5)):
        row["test"] = {**figures, "return_mean": value, "return_ci": None, "num_episodes": 3}
    text = card(config, evaluations, progress, "agent", ())
    assert "value: -1.5000\n      name: mean return in test episodes" in text
    assert "mean return in episode 2" not in text
    assert "| test episodes | -1.50 | -9.00 |" in text
    del evaluations[0]["test"]
    assert "before training" not in card(config, evaluations, progress, "agent", ())


def test_the_card_says_what_no_command_trains(run_dir, tmp_path):
    config = json.loads((run_dir / "config.json").read_text())
    config["algorithm"]["networks"] = "mine:MyNet"
    rows = [read_rows(run_dir / name) for name in ("evaluations.jsonl", "progress.jsonl")]
    text = card(config, *rows, "agent", ())
    assert "seed 0.\nTrained from Python, which no command does: the networks mine:MyNet." in text
    assert "adaptax train rl2-ppo" not in text
    assert "```sh\nadaptax import agent runs/agent\n```" in text
    assert 'agent = adaptax.load("runs/agent", networks)\n' in text
    assert "trainer = adaptax.load_run('runs/agent', networks=networks)" in text
    config["suite"] = {"name": "mine"}
    text = card(config, *rows, "agent", ())
    assert "adaptax.load_run('runs/agent', suite=suite, networks=networks)" in text


class Net(nn.Module):
    space: object

    @nn.compact
    def __call__(self, obs):
        return ActionHead(self.space)(obs), nn.Dense(1)(obs)[..., 0]


def test_what_was_trained_with_parts_of_ones_own_is_shared_with_them(tmp_path, capsys):
    suite = cliff_suite(num_test_tasks=2)
    own = {"suite": suite, "networks": Net(suite.spec.action)}
    settings = {"run_dir": tmp_path / "run", "num_iterations": 1, "evaluation_interval": None}
    algorithm = adaptax.make_algorithm("reinforce", suite.spec, own["networks"], num_lanes=2)
    adaptax.train(algorithm, suite, quiet=True, **settings)
    for wrong, words in (
        ({}, "no suite that is known here"),
        ({"suite": suite}, "networks of one's own"),
        ({**own, "suite": cliff_suite(num_test_tasks=3)}, "is tested on other tasks"),
    ):
        with pytest.raises(AdaptaxError, match=words):
            adaptax.export_run(tmp_path / "run", tmp_path / "out", **wrong)
        assert not (tmp_path / "out").exists()
    adaptax.export_run(tmp_path / "run", tmp_path / "out", **own)
    cli.main(["import", str(tmp_path / "out"), str(tmp_path / "new")])
    said = f"next: from Python adaptax.load_run('{tmp_path / 'new'}', suite=suite, networks=net"
    assert said in capsys.readouterr().out
    theirs = adaptax.load_run(tmp_path / "new", **own)
    theirs.load()
    row = read_rows(tmp_path / "out" / "evaluations.jsonl")[-1]
    assert theirs.evaluate().row()["episodes"] == row["episodes"]
    with pytest.raises(AdaptaxError, match=r"begins with them by `adaptax\.train\(algorithm, suit"):
        theirs.resume()


def test_an_agent_of_ones_own_algorithm_is_exported_from_a_package(run_dir, tmp_path):
    copy = shutil.copytree(run_dir, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    config["algorithm"]["name"] = "mine"
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(AdaptaxError, match=r"is exported where an installed package offers it$"):
        adaptax.export_run(copy, tmp_path / "out")


def test_logs_are_thinned_with_their_ends_kept(run_dir, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run_dir, copy)
    rows = [json.loads(line) for line in (copy / "progress.jsonl").read_text().splitlines()]
    many = [{**rows[0], "iteration": 1 + i // 100} for i in range(300)] + rows[3:]
    (copy / "progress.jsonl").write_text("".join(json.dumps(row) + "\n" for row in many))
    export = adaptax.export_run(copy, tmp_path / "export")
    kept = read_rows(export / "progress.jsonl")
    assert len(kept) == 100
    assert (kept[0], kept[-1]) == (many[0], many[-1])


def test_the_best_snapshot_is_evaluated_where_it_was_not(run_dir, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(run_dir, copy)
    kept = Snapshots(copy / "snapshots", keep=9)
    tree = kept.load(3)
    kept.owner = {"run": json.loads((copy / "config.json").read_text())["run"], "seed": 0}
    kept.save(3, tree, score=1e6)
    export = adaptax.export_run(copy, tmp_path / "export", best=True)
    row = read_rows(export / "evaluations.jsonl")[-1]
    assert row["iteration"] == 3
    trainer = adaptax.load_run(export)
    trainer.load()
    evaluation = trainer.evaluate()
    trainer.close()
    assert isinstance(evaluation, Evaluation)
    assert evaluation.row()["episodes"] == row["episodes"]


def test_figures_are_of_the_weights_that_are_exported_where_the_run_goes_on(
    run_dir, tmp_path, monkeypatch
):
    copy, later = tmp_path / "copy", tmp_path / "later"
    shutil.copytree(run_dir, copy)
    (copy / "evaluations.jsonl").unlink()
    later.mkdir()
    newest = ["iteration-00000004", "iteration-00000004.json"]
    for name in newest:
        (copy / "snapshots" / name).rename(later / name)
    read = Snapshots.read

    def read_before_another_is_saved(snapshots, **settings):
        found = read(snapshots, **settings)
        for name in newest:
            if (later / name).exists():
                (later / name).rename(copy / "snapshots" / name)
        return found

    monkeypatch.setattr(Snapshots, "read", read_before_another_is_saved)
    export = adaptax.export_run(copy, tmp_path / "export")
    monkeypatch.undo()
    row = read_rows(export / "evaluations.jsonl")[-1]
    assert row["iteration"] == 3
    assert row["num_steps"] == read_rows(export / "progress.jsonl")[-1]["num_steps"]
    trainer = adaptax.load_run(export)
    trainer.load()
    assert trainer.evaluate().row()["episodes"] == row["episodes"]
    trainer.close()


def test_an_export_of_what_began_with_another_run_has_no_row_of_fresh_networks(run_dir, tmp_path):
    settings = {"num_iterations": 1, "evaluation_interval": None, "quiet": True}
    begun = tmp_path / "begun"
    adaptax.train(
        "rl2-ppo", "point-goal", algorithm=ALGORITHM, run_dir=begun, init_from=run_dir, **settings
    ).close()
    export = adaptax.export_run(begun, tmp_path / "export")
    assert [row["iteration"] for row in read_rows(export / "evaluations.jsonl")] == [1]


@pytest.mark.parametrize("command", ["export", "import"])
def test_a_folder_that_is_in_use_is_left_as_it_is(run_dir, export, tmp_path, capsys, command):
    there = tmp_path / "there"
    there.mkdir()
    (there / "mine").write_text("mine")
    source = run_dir if command == "export" else export
    with pytest.raises(SystemExit) as stop:
        cli.main([command, str(source), str(there)])
    assert stop.value.code == 2
    assert capsys.readouterr().err == f"adaptax: {there} is not empty; choose a new folder\n"
    assert [path.name for path in there.iterdir()] == ["mine"]


def test_a_folder_whose_name_is_no_text_is_filled(run_dir, tmp_path):
    out = adaptax.export_run(run_dir, tmp_path / "agent-\udcff")
    assert "import 'agent-\\udcff'" in (out / "README.md").read_text()


def test_an_empty_folder_is_filled(run_dir, tmp_path):
    (tmp_path / "there").mkdir()
    adaptax.import_run(adaptax.export_run(run_dir, tmp_path / "there"), tmp_path / "run")
    assert (tmp_path / "run" / "config.json").exists()


def test_the_folder_that_one_is_in_is_filled_and_stays(run_dir, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir((tmp_path / "here").mkdir() or tmp_path / "here")
    cli.main(["export", str(run_dir), "."])
    assert "adaptax import here runs/" in Path("README.md").read_text()
    cli.main(["import", ".", str(tmp_path / "run")])
    assert (tmp_path / "run" / "config.json").exists()


SNAPSHOT = "snapshots/iteration-00000004"


def remade(export, name, data):
    """A file of an export exchanged, with its digest."""
    path = export / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    about = json.loads((export / "export.json").read_text())
    about["files"][name] = hashlib.sha256(data).hexdigest()
    (export / "export.json").write_text(json.dumps(about))


def linked(export, name):
    (export / name).rename(export / "elsewhere")
    (export / name).symlink_to(export / "elsewhere")


def piped(export, name):
    (export / name).unlink()
    os.mkfifo(export / name)


def other_manifest(export, **changes):
    about = json.loads((export / "export.json").read_text())
    (export / "export.json").write_text(json.dumps({**about, **changes}))


HOSTILE = {
    "changed": (lambda e: (e / "config.json").write_text("{}"), "config.json has changed"),
    "missing": (lambda e: (e / SNAPSHOT / "arrays.npz").unlink(), "arrays.npz is missing"),
    "link": (lambda e: linked(e, "config.json"), "is a link"),
    "linked log": (lambda e: linked(e, "progress.jsonl"), "is a link"),
    "linked folder": (lambda e: linked(e, "snapshots"), "is a link"),
    "linked snapshot": (lambda e: linked(e, SNAPSHOT), "is a link"),
    "linked list": (lambda e: linked(e, "export.json"), "is a link"),
    "pipe": (lambda e: piped(e, "config.json"), "is a special file"),
    "huge": (lambda e: os.truncate(e / "config.json", 2**40), "larger than"),
    "no list": (lambda e: (e / "export.json").unlink(), "is no export"),
    "no JSON": (lambda e: (e / "export.json").write_text("["), "cannot read"),
    "a list": (lambda e: (e / "export.json").write_text("[]"), "does not tell"),
    "format": (lambda e: other_manifest(e, format=2), "of format 2"),
    "above": (lambda e: remade(e, "../x", b"x"), "'../x', which is no file of an export"),
    "code": (lambda e: remade(e, "x.py", b"x"), "'x.py', which is no file of an export"),
    "empty": (lambda e: other_manifest(e, files={}), "holds no run"),
    "no run": (lambda e: remade(e, "config.json", b"{}"), "is not the config of a run"),
    "arrays": (lambda e: remade(e, f"{SNAPSHOT}/arrays.npz", b"x"), "is damaged"),
    "digest": (lambda e: remade(e, f"{SNAPSHOT}.json", b"{}"), "is damaged"),
    "two": (lambda e: remade(e, "snapshots/iteration-00000005.json", b"{}"), "2 snapshots"),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_an_export_that_is_not_as_it_was_written_is_refused_in_one_line(
    export, tmp_path, capsys, how
):
    change, message = HOSTILE[how]
    change(export)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as stop:
        cli.main(["import", str(export), str(tmp_path / "new")])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert ".new." not in err  # where it is while it is not whole
    assert sorted(tmp_path.rglob("*")) == before


def test_a_whole_snapshot_is_no_exports(run_dir, export, tmp_path):
    for path in (run_dir / "snapshots").rglob("*-00000004*/*"):
        remade(export, str(path.relative_to(run_dir)), path.read_bytes())
    whole = run_dir / f"{SNAPSHOT}.json"
    remade(export, f"{SNAPSHOT}.json", whole.read_bytes())
    with pytest.raises(AdaptaxError, match="is not of weights only"):
        adaptax.import_run(export, tmp_path / "new")


def test_trackers_that_a_stranger_names_are_not_told(export, tmp_path):
    config = json.loads((export / "config.json").read_text())
    config["trainer"] |= {"trackers": ["wandb"], "callbacks": ["theirs"], "run_dir": "/etc"}
    remade(export, "config.json", json.dumps(config).encode())
    imported = adaptax.import_run(export, tmp_path / "new")
    taken = json.loads((imported / "config.json").read_text())["trainer"]
    assert taken["trackers"] == taken["callbacks"] == []
    assert taken["run_dir"] == "etc"


def test_a_weight_that_is_missing_is_not_made_up(export):
    snapshots = Snapshots(export / "snapshots")
    about = json.loads((export / f"{SNAPSHOT}.json").read_text())
    tree, snapshots.owner = snapshots.load(4), about["owner"]
    name = sorted(tree["state"])[0]
    snapshots.save(4, {**tree, "state": {k: v for k, v in tree["state"].items() if k != name}})
    with pytest.raises(AdaptaxError, match="snapshot and configuration differ at"):
        adaptax.load(export)


PRETRAINED = {"bandit": (6.0, 7.0), "half-cheetah-vel": (-15.0, -11.0), "point-goal": (-7.0, -5.5)}
"""Of each agent that comes along, the least and the highest return of its last episode."""


def test_the_agents_that_come_along_are_listed_and_small(capsys):
    cli.main(["list", "--json"])
    listed = json.loads(capsys.readouterr().out)["pretrained"]
    assert {entry["name"] for entry in listed} == {f"pretrained:{name}" for name in PRETRAINED}
    files = [path for path in FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 2_000_000


@pytest.mark.parametrize("name", PRETRAINED)
def test_an_agent_that_comes_along_is_whole_and_says_what_it_comes_to(name, tmp_path):
    imported = adaptax.import_run(f"pretrained:{name}", tmp_path / "run")
    row = read_rows(imported / "evaluations.jsonl")[-1]
    low, high = PRETRAINED[name]
    assert low < row["episodes"][-1]["return_mean"] < high
    # Defaults and recipes of today are others than when it was trained.
    assert command_of(read_config(imported), [0]) in (FOLDER / name / "README.md").read_text()
    agent = adaptax.load(f"pretrained:{name}")
    size = agent.algorithm.spec.observation_size
    action, _ = agent.act(agent.begin(jax.random.key(0)), np.zeros(size, np.float32))
    assert np.isfinite(action).all()
    recorded = json.loads((ROOT / "results" / "pretrained.json").read_text())[name]
    assert recorded["episodes"] == row["episodes"]
    assert recorded["command"] in (FOLDER / name / "README.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", PRETRAINED)
def test_an_agent_that_comes_along_does_as_its_card_says(name, capsys):
    cli.main(["evaluate", f"pretrained:{name}", "--json"])
    found = json.loads(capsys.readouterr().out)
    told = read_rows(FOLDER / name / "evaluations.jsonl")[-1]["episodes"]
    for ours, theirs in zip(found["episodes"], told, strict=True):
        low, high = theirs["return_ci"]
        assert low <= ours["return_mean"] <= high


def test_what_is_drawn_of_an_agent_that_comes_along_is_here(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    before = sorted(FOLDER.rglob("*"))
    cli.main(["plot", "pretrained:point-goal"])
    assert {path.name for path in tmp_path.iterdir()} == {"learning.png", "adaptation.png"}
    assert sorted(FOLDER.rglob("*")) == before


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate", "pretrained:pont-goal"], "did you mean 'point-goal'"),
        (
            ["resume", "pretrained:point-goal"],
            "holds weights only, without optimizer and sampler, and cannot be resumed",
        ),
        (["import", "nowhere", "new"], "is no export"),
        (["export", "nowhere", "new"], "holds no run"),
        (["import", "nowhere", "pretrained:new"], "names what comes with adaptax: choose another"),
        (
            ["train", "nop", "point-goal", "--run-dir", "pretrained:point-goal"],
            "names what comes with adaptax: choose another directory",
        ),
    ],
)
def test_what_cannot_be_done_is_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        cli.main(words)
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_video_that_no_import_takes_is_refused_before_anything_is_written(run_dir, tmp_path):
    with pytest.raises(ConfigError, match=r"video must be one of \('gif', 'mp4'\), not 'webp'"):
        adaptax.export_run(run_dir, tmp_path / "out", video="webp")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("what", [adaptax.load, adaptax.load_run])
@pytest.mark.parametrize("given", [3, None, "a\0"])
def test_what_is_no_directory_is_one_clear_line(what, given):
    with pytest.raises(
        ConfigError, match=f"expected the directory of a run, not {re.escape(repr(given))}"
    ):
        what(given)


def test_an_algorithm_that_names_nothing_as_learned_is_not_exported(run_dir, tmp_path, monkeypatch):
    monkeypatch.setattr(adaptax.RL2PPO, "learned", ())
    with pytest.raises(AdaptaxError, match=r"names none of its state as learned.*in the class's"):
        adaptax.export_run(run_dir, tmp_path / "out")
    assert not (tmp_path / "out").exists()
