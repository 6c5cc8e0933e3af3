"""Runs on Meta-World: what they leave behind, that they resume exactly, and what they refuse."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest

from adaptax.core.errors import ConfigError
from adaptax.experiment import cli
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.experiment.evaluator import EvaluatorConfig
from adaptax.experiment.logger import read_rows
from adaptax.experiment.trainer import Trainer, TrainerConfig

SMALL = {
    "hidden_sizes": (4,),
    "memory": {"kind": "gru", "size": 4},
    "num_epochs": 1,
    "num_minibatches": 1,
}
pytestmark = pytest.mark.slow
EVALUATION = EvaluatorConfig(num_tasks=5, num_episodes=1, num_test_episodes=1)


@pytest.fixture(scope="module")
def ml10_run(tmp_path_factory):
    """RL2-PPO on ML10, one task a class, T = 20 and K = 2."""
    suite = make_suite("ml10", horizon=20, num_workers=2)
    settings = {**SMALL, "meta_batch_size": 10, "num_episodes": 2}
    algorithm = make_algorithm("rl2-ppo", suite.spec, **settings)
    run_dir = tmp_path_factory.mktemp("ml10") / "run"
    config = TrainerConfig(str(run_dir), num_iterations=1, evaluation=EVALUATION, quiet=True)
    trainer = Trainer(config, algorithm, suite)
    trainer.run()
    trainer.close()
    return run_dir


def test_rl2_on_ml10_logs_finite_losses_and_success_by_class(ml10_run):
    (row,) = read_rows(ml10_run / "progress.jsonl")
    assert row["num_steps"] == 10 * 2 * 20
    for name in ("policy_loss", "value_loss", "entropy", "return", "success"):
        assert math.isfinite(row[f"train/{name}"]), name
    classes = [name for name in row if name.startswith("train/success/")]
    assert len(classes) == 10
    assert np.mean([row[name] for name in classes]) == pytest.approx(row["train/success"])


def test_the_evaluation_is_on_other_classes_with_success_by_class(ml10_run):
    row = read_rows(ml10_run / "evaluations.jsonl")[-1]
    trained = {n.rpartition("/")[2] for n in read_rows(ml10_run / "progress.jsonl")[0]}
    assert len(row["classes"]) == 5
    assert not trained & row["classes"].keys()
    assert (row["num_tasks"], row["num_available"]) == (5, 250)
    assert row["test"]["num_episodes"] == 1
    for figures in (row, *row["classes"].values()):
        assert 0.0 <= figures["test"]["success_mean"] <= 1.0
        assert figures["test"]["success_ci"] is None  # one goal of a class tells no interval
    assert row["packaged_protocol"]["classes"].keys() == row["classes"].keys()
    assert row["tasks"][0]["params"]["class"] in row["classes"]


def test_the_run_is_plotted_by_class_and_evaluated(ml10_run, capsys):
    cli.main(["plot", str(ml10_run)])
    assert f"wrote {ml10_run / 'classes.png'}" in capsys.readouterr().out
    assert (ml10_run / "classes.png").stat().st_size > 10_000
    cli.main(["evaluate", str(ml10_run)])
    out = capsys.readouterr().out
    assert "5 held-out tasks, the first of 250" in out
    assert "packaged evaluator" in out


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("rl2-ppo", {"meta_batch_size": 32}, "meta_batch_size must be a multiple of the suite's"),
        ("ppo", {}, "num_tasks must be a multiple of the suite's 10 classes of tasks, not 1"),
    ],
)
def test_a_number_of_tasks_that_leaves_classes_out_is_refused_before_training(
    name, settings, message
):
    spec = make_suite("ml10", num_workers=0).spec
    with pytest.raises(ConfigError, match=message):
        make_algorithm(name, spec, **settings)


def test_an_evaluation_that_leaves_classes_out_is_refused(ml10_run, capsys):
    with pytest.raises(SystemExit):
        cli.main(["evaluate", str(ml10_run), "--num-tasks", "7"])
    assert "num_tasks must be a multiple of the suite's 5 classes" in capsys.readouterr().err


def run_ppo(run_dir, num_iterations, resume=False):
    """PPO whose iterations end in the middle of episodes."""
    suite = make_suite("ml1-push-v3", horizon=30, num_workers=2)
    settings = {"num_lanes": 4, "num_steps": 80, "hidden_sizes": (4,), "num_minibatches": 2}
    algorithm = make_algorithm("ppo", suite.spec, **settings)
    config = TrainerConfig(
        str(run_dir),
        num_iterations=num_iterations,
        evaluation_interval=None,
        snapshot_interval=1,
        quiet=True,
    )
    trainer = Trainer(config, algorithm, suite)
    _ = trainer.resume() if resume else trainer.run()
    trainer.close()
    rows = read_rows(run_dir / "progress.jsonl")
    return trainer.state, [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def test_a_run_goes_on_exactly_in_the_middle_of_episodes(tmp_path):
    state, rows = run_ppo(tmp_path / "whole", 4)
    run_ppo(tmp_path / "parts", 2)
    resumed, resumed_rows = run_ppo(tmp_path / "parts", 4, resume=True)
    assert resumed_rows == rows
    for one, other in zip(jax.tree.leaves(resumed), jax.tree.leaves(state), strict=True):
        if jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
            one, other = jax.random.key_data(one), jax.random.key_data(other)
        np.testing.assert_array_equal(one, other)
