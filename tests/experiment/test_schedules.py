from __future__ import annotations

import json

import numpy as np
import optax
import pytest
from small import SMALL
from test_trainer import left_behind

import adaptax
from adaptax.core.errors import ConfigError
from adaptax.core.snapshot import Snapshots
from adaptax.experiment import cli
from adaptax.experiment.trainer import Trainer

SIZES = ["--algorithm.hidden-sizes", "8", "--algorithm.num-lanes", "2", "--suite.horizon", "5"]
TRAIN = ["train", "reinforce", "point-goal", "--evaluation-interval=None", "--quiet", *SIZES]
LINEAR = ["--algorithm.lr-schedule", "linear"]


def recorded(run_dir):
    return json.loads((run_dir / "config.json").read_text())["algorithm"]


def params(run_dir, iteration):
    state = Snapshots(run_dir / "snapshots").load(iteration)["state"]
    return {name: x for name, x in state.items() if name.startswith(".params")}


def equal(one, other):
    return all(np.array_equal(one[name], other[name]) for name in one)


def test_a_schedule_is_over_the_run_and_stays_so_when_it_is_prolonged(tmp_path, capsys):
    run_dir = tmp_path / "run"
    cli.main([*TRAIN, *LINEAR, "--run-dir", str(run_dir), "--num-iterations=4"])
    assert recorded(run_dir)["lr_schedule_steps"] == 4
    done = params(run_dir, 4)
    capsys.readouterr()
    cli.main(["resume", str(run_dir), "--num-iterations=6", "--quiet"])
    assert "warning: the step size falls to 0 by about iteration 4, " in capsys.readouterr().err
    assert recorded(run_dir)["lr_schedule_steps"] == 4
    assert equal(done, params(run_dir, 6)), "the step size is at 0 after the run"


@pytest.mark.parametrize(
    ("limit", "warned"),
    [
        (["--num-iterations=4"], None),
        (["--num-iterations=6"], "falls to 0 by about iteration 4, after which nothing is learned"),
        (["--num-steps=40"], None),
        (["--num-steps=4000"], "is 0 in iteration 10, and nothing is learned any more"),
    ],
)
def test_a_run_whose_step_size_is_0_before_its_end_says_so(tmp_path, capsys, limit, warned):
    own = ["--algorithm.lr-schedule-steps=4", "--run-dir", str(tmp_path / "run"), "--quiet"]
    cli.main([*TRAIN, *LINEAR, *own, *limit])
    said = capsys.readouterr().err
    assert said.count("warning: the step size") == said.count("nothing is learned") == bool(warned)
    assert warned is None or warned in said


def test_a_schedule_is_over_a_run_in_steps_where_an_iteration_is_a_number_of_them(tmp_path):
    words = ["train", "ppo2", *TRAIN[2:], *LINEAR, "--algorithm.num-steps=6", "--num-steps=20"]
    cli.main([*words, "--algorithm.num-minibatches=1", "--run-dir", str(tmp_path / "run")])
    assert recorded(tmp_path / "run")["lr_schedule_steps"] == 4 * 10  # passes of an iteration


@pytest.mark.parametrize("limit", ["--num-steps=100", "--max-seconds=1"])
def test_a_run_of_unknown_length_is_to_say_how_long_its_schedule_is(tmp_path, capsys, limit):
    with pytest.raises(SystemExit) as stop:
        cli.main([*TRAIN, *LINEAR, limit, "--run-dir", str(tmp_path / "run")])
    assert stop.value.code == 2
    expected = (
        "adaptax: a schedule over the run needs num_iterations, or num_steps where an iteration "
        "has a fixed number of them; or give its length in lr_schedule_steps\n"
    )
    assert capsys.readouterr().err == expected
    assert list(tmp_path.iterdir()) == []
    words = [*LINEAR, "--algorithm.lr-schedule-steps=9", limit, "--run-dir", str(tmp_path / "run")]
    cli.main([*TRAIN, *words])
    assert recorded(tmp_path / "run")["lr_schedule_steps"] == 9


def run_with(schedule, run_dir, **settings):
    suite = adaptax.make_suite("point-goal", horizon=5)
    own = {**SMALL["reinforce"], "lr_schedule": schedule}
    algorithm = adaptax.make_algorithm("reinforce", suite.spec, **own)
    defaults = {"evaluation_interval": None, "quiet": True, "snapshot_interval": 2}
    config = adaptax.TrainerConfig(str(run_dir), **{**defaults, **settings})
    return Trainer(config, algorithm, suite)


@pytest.mark.slow
def test_a_function_of_optax_is_a_schedule_from_python_and_resume_is_exact(tmp_path):
    def schedule():
        return optax.polynomial_schedule(1.0, 0.1, 2.0, 6)

    whole = run_with(schedule(), tmp_path / "whole", num_iterations=4)
    whole.run()
    run_with(schedule(), tmp_path / "run", num_iterations=2).run()
    resumed = run_with(schedule(), tmp_path / "run", num_iterations=4)
    resumed.resume()
    assert left_behind(resumed) == left_behind(whole)
    constant = run_with("constant", tmp_path / "constant", num_iterations=4)
    constant.run()
    assert not equal(params(tmp_path / "whole", 4), params(tmp_path / "constant", 4))


def test_a_run_with_a_function_acts_anywhere_and_says_what_it_takes_to_go_on(tmp_path):
    run_dir = tmp_path / "run"
    run_with(optax.constant_schedule(0.5), run_dir, num_iterations=2).run()
    name = recorded(run_dir)["lr_schedule"]["function"]
    assert name.startswith("optax.")
    adaptax.load(run_dir)
    again = adaptax.load_run(run_dir, num_iterations=3)
    with pytest.raises(ConfigError, match=r"constant_schedule.* is not known here: go on from Py"):
        again.resume()


def test_what_is_neither_a_name_nor_a_function_is_refused():
    suite = adaptax.make_suite("point-goal")
    for wrong in ("linaer", 3):
        with pytest.raises(ConfigError, match="lr_schedule: "):
            adaptax.make_algorithm("reinforce", suite.spec, lr_schedule=wrong)
    with pytest.raises(ConfigError, match="shuffle: "):
        adaptax.make_algorithm("ppo", suite.spec, shuffle=print)


def test_seeds_of_a_group_have_the_schedule_in_one_program(tmp_path):
    cli.main(
        [*TRAIN, *LINEAR, "--run-dir", str(tmp_path / "g"), "--seeds=0:2", "--num-iterations=3"]
    )
    cli.main(
        [*TRAIN, *LINEAR, "--run-dir", str(tmp_path / "one"), "--seed=1", "--num-iterations=3"]
    )
    assert recorded(tmp_path / "g" / "seed-1") == recorded(tmp_path / "one")
    assert equal(params(tmp_path / "g" / "seed-1", 3), params(tmp_path / "one", 3))
