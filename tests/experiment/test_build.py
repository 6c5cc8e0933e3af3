"""`adaptax.train` and `adaptax.load_run`: what they take, and what they say where it is wrong."""

from __future__ import annotations

import inspect
import shlex
import subprocess
from dataclasses import replace
from importlib.metadata import EntryPoint
from typing import get_overloads

import pytest
from small import SMALL
from test_callbacks import Told
from test_trainer import cliff_suite, column, trainer
from toys import fingerprint

import adaptax
from adaptax.core.errors import AdaptaxError, ConfigError
from adaptax.envs.placement import placed
from adaptax.experiment import callbacks as callbacks_module
from adaptax.experiment import provenance
from adaptax.experiment.build import train
from adaptax.experiment.evaluator import EvaluatorConfig
from adaptax.experiment.group import write_group
from adaptax.experiment.own_parts import WHERE_HANDED_IN
from adaptax.experiment.trainer import whats_next

QUICK = {"num_iterations": 2, "evaluation_interval": None, "quiet": True}
NAMED = []


class Named(Told):
    """As an installed package's."""

    def __init__(self):
        super().__init__()
        NAMED.append(self)


@pytest.fixture
def by_name(monkeypatch):
    """An installed package's callback."""
    point = EntryPoint("good-enough", f"{__name__}:Named", callbacks_module.ENTRY_POINTS)
    found = {point.name: point}
    monkeypatch.setattr(callbacks_module, "plugins", lambda *words: found)
    NAMED.clear()
    return point.name


@pytest.mark.parametrize("seeds", [None, (0, 1)])
def test_callbacks_are_objects_or_names(tmp_path, by_name, seeds):
    own = Told()
    settings = {"run_dir": tmp_path / "run", "algorithm": SMALL["nop"], **QUICK}
    made = adaptax.train("nop", "point-goal", seeds=seeds, callbacks=[own, by_name], **settings)
    members = [made] if seeds is None else made.members
    assert len(NAMED) >= len(members)
    for member, named in zip(members, NAMED[-len(members) :], strict=True):
        assert member.config.callbacks == (by_name,)
        assert named.calls[1:] == [("row", 1, 1), ("row", 2, 2), ("end", 2)]
    if seeds is None:
        assert own.calls == named.calls


def test_callbacks_may_be_what_can_be_gone_through_once(tmp_path, by_name):
    own = Told()
    settings = {"run_dir": tmp_path / "run", "algorithm": SMALL["nop"], **QUICK}
    made = adaptax.train("nop", "point-goal", callbacks=iter([own, by_name]), **settings)
    assert made.config.callbacks == (by_name,)
    assert own.calls[1:] == [("row", 1, 1), ("row", 2, 2), ("end", 2)]


@pytest.mark.parametrize("given", [{}, {"callbacks": ["good-enough"]}])
def test_a_run_that_is_loaded_has_its_callbacks_by_name_once(tmp_path, by_name, given):
    settings = {"run_dir": tmp_path / "run", "algorithm": SMALL["nop"], **QUICK}
    adaptax.train("nop", "point-goal", callbacks=[by_name], **settings)
    again = adaptax.load_run(tmp_path / "run", num_iterations=3, **given)
    NAMED.clear()
    again.resume()
    assert again.config.callbacks == (by_name,)
    assert [named.calls for named in NAMED] == [[("start", 2), ("row", 3, 3), ("end", 3)]]


def test_a_run_that_is_loaded_keeps_what_is_not_said_of_its_protocol(tmp_path):
    settings = {"run_dir": tmp_path / "run", "algorithm": SMALL["nop"], **QUICK}
    adaptax.train("nop", "point-goal", evaluation={"num_lanes": 7, "num_tasks": 3}, **settings)
    again = adaptax.load_run(tmp_path / "run", evaluation={"num_tasks": 1})
    assert again.config.evaluation == EvaluatorConfig(num_tasks=1, num_lanes=7)
    whole = EvaluatorConfig(num_tasks=2)
    assert adaptax.load_run(tmp_path / "run", evaluation=whole).config.evaluation == whole


def test_what_a_run_began_with_cannot_change_when_it_goes_on(tmp_path):
    """Nothing would come of it but a false record."""
    settings = {"run_dir": tmp_path / "run", "algorithm": SMALL["nop"], **QUICK}
    adaptax.train("nop", "point-goal", **settings)
    before = (tmp_path / "run" / "config.json").read_text()
    for change, words in (
        ({"seed": 5}, "began with seed 0, and goes on with it, not 5: train another run"),
        ({"init_from": "other"}, "began with init_from None, and goes on with it, not other"),
    ):
        with pytest.raises(ConfigError, match=words):
            adaptax.load_run(tmp_path / "run", num_iterations=3, **change).resume()
    assert (tmp_path / "run" / "config.json").read_text() == before


def test_an_algorithm_for_other_environments_is_refused(tmp_path):
    suite = adaptax.make_suite("point-goal")
    other = adaptax.make_algorithm("nop", replace(suite.spec, horizon=7), **SMALL["nop"])
    message = r"^the algorithm was made for other environments than point-goal's: horizon 7, not 20"
    with pytest.raises(ConfigError, match=message):
        adaptax.train(other, suite, run_dir=tmp_path / "run", **QUICK)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda spec: adaptax.make_suite(3), "^suite: expected a name, not 3"),
        (lambda spec: adaptax.make_algorithm(3, spec), "^algorithm: expected a name, not 3"),
        (lambda spec: adaptax.sweep(3, "cartpole", {}), "^algorithm: expected a name, not 3"),
        (lambda spec: adaptax.sweep("ppo", 3, {}), "^suite: expected a name, not 3"),
        (lambda spec: adaptax.sweep("ppo", "cartpole", [1]), "^space: expected a dict or the path"),
        (lambda spec: adaptax.EarlyStopping("5"), "^patience must be a whole number greater than"),
        (lambda spec: adaptax.EarlyStopping(2.5), "^patience must be a whole number greater than"),
        (
            lambda spec: adaptax.train("nop", "point-goal", callbacks=adaptax.EarlyStopping()),
            "^callbacks: expected a list, not <",
        ),
    ],
)
def test_what_is_no_name_and_no_list_is_one_line(call, words):
    with pytest.raises(ConfigError, match=words):
        call(adaptax.make_suite("point-goal").spec)


def test_an_unknown_name_of_a_callback_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="unknown callback 'good-enuff'"):
        adaptax.train("nop", "point-goal", callbacks=["good-enuff"], run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "settings", "message"),
    [
        ((adaptax.PPO, "point-goal"), {}, "algorithm or an adaptax.Algorithm, not the class PPO:"),
        (("ppo", 3), {}, "expected the name of a suite or an adaptax.Suite, not 3"),
        (("ppo", "point-goal"), {"callbacks": "x"}, "callbacks: expected a list, not 'x'"),
        (("ppo", "point-goal"), {"seed": 1, "seeds": [1]}, "train takes seed or seeds, not both"),
        (("ppo", "point-goal"), {"algorithm": "x"}, "algorithm: expected its settings, .*not 'x'"),
        (("ppo", "point-goal"), {"suite": ["a"]}, r"suite: expected its settings, .*not \['a'\]"),
        (("ppo", "point-goal"), {"lr": 1e-3}, "'lr' is a setting of the algorithm, not of the"),
        (("ppo", "point-goal"), {"horizon": 5}, r"suite, not of the trainer: suite={'horizon': 5}"),
        (("ppo", "point-goal"), {"algorithm": {"memory": "gru"}}, r"such as {'kind': 'gru'}, not"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, words, settings, message):
    with pytest.raises(ConfigError, match=message) as caught:
        adaptax.train(*words, run_dir=tmp_path / "run", **settings)
    assert "\n" not in str(caught.value)


def test_a_setting_of_an_algorithm_that_is_made_is_led_to_its_config(tmp_path):
    suite = cliff_suite()
    algorithm = adaptax.make_algorithm("nop", suite.spec)
    with pytest.raises(
        ConfigError, match="a setting of the algorithm, not of the trainer: it goes"
    ):
        adaptax.train(algorithm, suite, num_lanes=3, run_dir=tmp_path / "run")


def test_what_types_know_of_train_is_all_that_it_takes():
    taken = set(inspect.signature(train).parameters)
    assert [set(inspect.signature(each).parameters) for each in get_overloads(train)] == 2 * [taken]


def test_commands_are_only_named_where_they_can_be_given(tmp_path, capsys):
    own, named = cliff_suite(), adaptax.make_suite("point-goal")
    algorithm = adaptax.make_algorithm("nop", own.spec, **SMALL["nop"])
    settings = {**QUICK, "quiet": False}
    run = adaptax.train(algorithm, own, run_dir=tmp_path / "own", **settings)
    said = f"own is done; next: adaptax plot {tmp_path / 'own'}; from Python trainer.evaluate()\n"
    assert capsys.readouterr().out.endswith(said)
    assert run.evaluate().returns.shape[0] > 0
    adaptax.train(algorithm, named, run_dir=tmp_path / "named", **settings)
    assert f"next: adaptax evaluate {tmp_path / 'named'}, adaptax" in capsys.readouterr().out
    adaptax.train(algorithm, own, run_dir=tmp_path / "group", seeds=[0, 1], **settings)
    said = f"adaptax plot {tmp_path / 'group'}; from Python evaluate() of each of group.members\n"
    assert capsys.readouterr().out.endswith(said)
    plain = trainer(tmp_path / "walker", suite=named)  # of an algorithm without a name here
    assert not plain.has_commands


def test_commands_that_are_told_are_those_of_a_shell(tmp_path):
    place = tmp_path / "my runs" / "it's"
    *_, evaluate, plot = whats_next(place).replace("next: ", ", ").split(", ")
    assert shlex.split(evaluate) == ["adaptax", "evaluate", str(place)]
    assert shlex.split(plot) == ["adaptax", "plot", str(place)]
    place.mkdir(parents=True)
    write_group(place, (0,))
    (place / "seed-0").mkdir()
    (place / "seed-0" / "config.json").write_text("{}")
    with pytest.raises(AdaptaxError) as held:
        adaptax.train("nop", "point-goal", run_dir=place, seeds=[0])
    assert shlex.split(str(held.value).split("`")[1]) == ["adaptax", "resume", str(place)]


def own_run(run_dir, num_iterations, name="cliff", **settings):
    suite = replace(cliff_suite(), name=name)
    algorithm = adaptax.make_algorithm("reinforce", suite.spec, **SMALL["reinforce"])
    settings = {**QUICK, "run_dir": run_dir, "num_iterations": num_iterations, **settings}
    return adaptax.train(algorithm, suite, **settings)


@pytest.mark.parametrize("name", ["cliff", "cartpole"])
def test_a_run_goes_on_with_a_suite_of_ones_own_that_is_handed_in_again(name, tmp_path):
    """Also where one of ours has that name."""
    whole = own_run(tmp_path / "whole", 4, name)
    own_run(tmp_path / "run", 2, name)
    with pytest.raises(AdaptaxError) as caught:
        adaptax.load_run(tmp_path / "run")
    assert f"handed in again from Python, suite=... of {WHERE_HANDED_IN}" in str(caught.value)
    assert "allowed" not in str(caught.value)
    own_suite = replace(cliff_suite(), name=name)
    again = adaptax.load_run(tmp_path / "run", suite=own_suite, num_iterations=4)
    again.resume()
    assert fingerprint(again.state) == fingerprint(whole.state)


def in_workers(suite):
    return placed(replace(suite, engine="host"), num_workers=2)


@pytest.mark.parametrize(
    ("suite", "more", "words"),
    [
        (lambda: "cliff", {}, r"load_run\(run_dir, suite=...\) takes a Suite, not 'cliff'"),
        (lambda: adaptax.make_suite("point-goal"), {}, "with suite.name cliff, and goes on with"),
        (lambda: cliff_suite(horizon=19), {}, "trained with spec.horizon 20, and goes on with it,"),
        (lambda: cliff_suite(num_test_tasks=3), {}, "is tested on other tasks than this cliff has"),
        (cliff_suite, {"num_workers": 2}, "num_workers: make cliff with them and hand it in so"),
        (lambda: in_workers(cliff_suite()), {"in_process": True}, "hand it in without workers"),
    ],
)
def test_a_suite_that_is_not_the_runs_is_refused(tmp_path, suite, more, words):
    own_run(tmp_path / "run", 1)
    with pytest.raises(ConfigError, match=words):
        adaptax.load_run(tmp_path / "run", suite=suite(), **more)


def test_a_group_goes_on_from_its_folder(tmp_path):
    run_dir, own = tmp_path / "group", Told()
    whole = own_run(tmp_path / "whole", 4, seeds=(0, 1))
    own_run(run_dir, 2, seeds=(0, 1))
    with pytest.raises(AdaptaxError, match=r"seed-0; in Python adaptax\.load_group has all$"):
        adaptax.load_run(run_dir)
    group = adaptax.load_group(
        run_dir, suite=cliff_suite(), callbacks=[own], num_iterations=4, quiet=True
    )
    group.resume()
    for member, expected in zip(group.members, whole.members, strict=True):
        assert fingerprint(member.state) == fingerprint(expected.state)
        assert [call for call in member.callbacks._all[0].calls if call[0] == "row"] == [
            ("row", 3, 3),
            ("row", 4, 4),
        ]
    with pytest.raises(ConfigError, match=r"seed-1 is one run and no group: adaptax\.load_run has"):
        adaptax.load_group(run_dir / "seed-1")
    with pytest.raises(AdaptaxError, match="none holds no run"):
        adaptax.load_group(tmp_path / "none")


def test_what_holds_a_directory_is_led_on_as_it_can_be(tmp_path):
    run_dir = str(tmp_path / "run")
    own_run(tmp_path / "run", 1)
    own_run(tmp_path / "group", 1, seeds=(0,))
    with pytest.raises(AdaptaxError) as caught:
        own_run(tmp_path / "run", 1)
    assert f"with `adaptax.load_run({run_dir!r}, suite=suite).resume()`" in str(caught.value)
    with pytest.raises(AdaptaxError, match=r"`adaptax\.load_group\(.*, suite=suite\)\.resume\(\)`"):
        own_run(tmp_path / "group", 1, seeds=(0,))
    trainer(tmp_path / "walker", num_iterations=1).run()
    with pytest.raises(AdaptaxError, match=r"`Trainer\(config, algorithm, suite\)\.resume\(\)`"):
        trainer(tmp_path / "walker", num_iterations=1).run()


def test_a_trainer_of_ones_own_parts_loads_and_goes_on(tmp_path):
    trainer(tmp_path / "run", num_iterations=1).run()
    again = trainer(tmp_path / "run", num_iterations=2)
    again.load()
    assert again.evaluate().returns.shape == (1, 2)
    again.resume()
    assert column(again) == [1, 2]


def test_the_revision_of_a_checkout_is_on_record_and_whether_its_files_have_changed(
    tmp_path, monkeypatch
):
    """Of the checkout that the package is of, not of one around it or that variables name."""
    root = tmp_path / "around" / "checkout"
    module = root / "adaptax" / "experiment" / "provenance.py"
    module.parent.mkdir(parents=True)
    module.write_text("")
    monkeypatch.setattr(provenance, "__file__", str(module))
    revision = provenance._revision.__wrapped__

    def git(folder, *words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        done = subprocess.run(
            ["git", "-C", folder, *who, *words], check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git(root.parent, "init")
    assert revision() is None
    git(root, "init")
    assert revision() is None
    git(root, "add", ".")
    git(root, "commit", "-m", "first")
    git(root, "tag", "-a", "v1", "-m", "a name that says less")
    monkeypatch.setenv("GIT_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    expected = revision()
    monkeypatch.delenv("GIT_DIR")
    assert expected == git(root, "rev-parse", "--short=12", "HEAD")
    module.write_text("changed")
    assert revision() == f"{expected}-dirty"
