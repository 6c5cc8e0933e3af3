from __future__ import annotations

import json
import shutil
from dataclasses import replace

import jax
import numpy as np
import pytest
from small import SMALL, SMALL_SUITE

import adaptax
from adaptax.algorithms.registry import ALGORITHMS
from adaptax.core.errors import ConfigError
from adaptax.core.rng import named_key
from adaptax.core.snapshot import Snapshots, flatten
from adaptax.experiment import cli
from adaptax.experiment.group import write_group
from adaptax.experiment.transfer import learned_elsewhere

WORDS = ["--num-iterations=1", "--evaluation-interval=None", "--quiet"]
SIZES = ["--algorithm.hidden-sizes", "8", "--algorithm.num-lanes", "2"]
TRAIN = ["train", "reinforce", "point-goal", *WORDS, *SIZES]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A run of one iteration."""
    run_dir = tmp_path_factory.mktemp("transfer") / "source"
    cli.main([*TRAIN, "--run-dir", str(run_dir), "--algorithm.lr", "0.1"])
    return run_dir


def state_of(run_dir):
    return Snapshots(run_dir / "snapshots").load(1)["state"]


def test_a_run_begins_with_what_another_has_learned_and_a_fresh_optimizer(source, tmp_path):
    trainer = adaptax.load_run(source, init_from=str(source), seed=5)
    fresh = flatten(trainer.algorithm.init(named_key(5, "init")))
    begun, theirs = flatten(trainer._first_state()), state_of(source)
    taken = {name for name in begun if name.startswith(".params")}
    changed = {n for n in taken if not np.array_equal(theirs[n], fresh[n])}
    assert changed, "the source has learned nothing"
    for name, leaf in begun.items():
        np.testing.assert_array_equal(leaf, theirs[name] if name in taken else fresh[name])
    trainer.close()


def test_from_the_command_line_and_from_python(source, tmp_path):
    told = tmp_path / "told"
    cli.main([*TRAIN, "--run-dir", str(told), "--init-from", str(source)])
    settings = {"num_iterations": 1, "evaluation_interval": None, "quiet": True}
    sizes = {"hidden_sizes": (8,), "num_lanes": 2}
    asked = adaptax.train(
        "reinforce",
        "point-goal",
        algorithm=sizes,
        run_dir=tmp_path / "asked",
        init_from=source,
        **settings,
    )
    asked.close()
    one, other = state_of(told), state_of(tmp_path / "asked")
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)
    fresh = tmp_path / "fresh"
    cli.main([*TRAIN, "--run-dir", str(fresh)])
    assert any(not np.array_equal(one[name], state_of(fresh)[name]) for name in one)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--algorithm.hidden-sizes=9"],
            "float32[8, 2] there and float32[9, 2] here (and 5 more)",
        ),
        (["--algorithm.normalize-obs"], ".moments['obs']"),
    ],
)
def test_what_does_not_fit_is_named_in_one_line_before_anything_is_written(
    source, tmp_path, capsys, words, message
):
    place = ["--run-dir", str(tmp_path / "run"), "--init-from", str(source)]
    with pytest.raises(SystemExit) as stop:
        cli.main([*TRAIN, *place, *words])
    err = capsys.readouterr().err
    assert stop.value.code == 2
    assert err.startswith(f"adaptax: cannot begin with what {source} has learned: ")
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_source_that_is_no_run_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        cli.main([*TRAIN, "--run-dir", str(tmp_path / "run"), "--init-from", str(tmp_path / "no")])
    assert capsys.readouterr().err.startswith(f"adaptax: {tmp_path / 'no'} holds no run")


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "nop"])
def test_every_algorithm_has_learned_something_and_no_optimizer_or_key(name):
    suite = adaptax.make_suite("point-goal", **SMALL_SUITE.get(name, {}))
    algorithm = adaptax.make_algorithm(name, suite.spec, **SMALL[name])
    state = jax.eval_shape(algorithm.init, jax.random.key(0)) if algorithm.traceable else None
    state = algorithm.init(jax.random.key(0)) if state is None else state
    paths = [jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(state)]
    taken = [path for path in paths if path.startswith(algorithm.learned)]
    assert taken
    wrong = ("opt_state", "key", "replay", "num_", ".best", ".std")
    assert [path for path in taken if any(word in path for word in wrong)] == []


def test_a_run_of_svpg_begins_with_the_particle_that_the_other_one_acts_with(tmp_path):
    suite = adaptax.make_suite("point-goal")
    algorithm = adaptax.make_algorithm("svpg", suite.spec, **SMALL["svpg"])
    theirs = algorithm.initial_state(jax.random.key(0))
    returns = np.arange(len(theirs.returns), dtype=np.float32)
    (tmp_path / "config.json").write_text(
        json.dumps({"algorithm": {"name": "svpg"}, "suite": {"name": "point-goal"}, "trainer": {}})
    )
    tree = {"state": flatten(replace(theirs, returns=returns))}
    Snapshots(tmp_path / "snapshots").save(1, tree, None)
    begun = learned_elsewhere(tmp_path, algorithm, algorithm.initial_state(jax.random.key(1)))
    np.testing.assert_array_equal(begun.returns, returns)


def test_an_algorithm_that_learns_nothing_cannot_begin_with_it(source):
    suite = adaptax.make_suite("point-goal")
    algorithm = adaptax.make_algorithm("nop", suite.spec)
    with pytest.raises(ConfigError, match="nop has learned nothing"):
        learned_elsewhere(source, algorithm, algorithm.init(jax.random.key(0)))


@pytest.mark.parametrize("more", [[], ["--seeds", "0:2"]])
def test_what_would_be_replaced_is_nothing_to_begin_with(source, tmp_path, capsys, more):
    """Or a kill before the first snapshot would lose it for good."""
    place = tmp_path / "place"
    run_dir = place / "seed-0" if more else place
    shutil.copytree(source, run_dir)
    if more:
        write_group(place, (0, 1))
    begin = ["--init-from", f"{run_dir}/../{run_dir.name}"]
    capsys.readouterr()
    with pytest.raises(SystemExit):
        cli.main([*TRAIN, "--run-dir", str(place), "--overwrite", *begin, *more])
    err = capsys.readouterr().err
    assert "is to be replaced by the" in err and "choose another --run-dir" in err
    assert Snapshots(run_dir / "snapshots").iterations() == [1]
