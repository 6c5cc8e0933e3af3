"""Evaluation changes nothing in training."""

from __future__ import annotations

from entries import quick_for
from toys import EVALUATION, fingerprint, point_suite, small_agent

from adaptax.experiment.logger import read_rows
from adaptax.experiment.trainer import Trainer, TrainerConfig


@quick_for("nop", "cem", "ppo")
def test_evaluation_after_every_iteration_leaves_training_unchanged(entry, tmp_path):
    states, rows = [], []
    for interval in (None, 1):
        suite = point_suite(entry)
        config = TrainerConfig(
            str(tmp_path / str(interval)),
            num_iterations=3,
            evaluation_interval=interval,
            evaluation=EVALUATION,
            quiet=True,
        )
        trainer = Trainer(config, small_agent(entry, suite), suite)
        trainer.run()
        states.append(fingerprint((trainer.state, trainer.sampler.save())))
        found = read_rows(trainer.run_dir / "progress.jsonl")
        rows.append([{**row, "seconds": None} for row in found])
        assert (trainer.run_dir / "evaluations.jsonl").exists() == (interval is not None)
    assert states[0] == states[1]
    assert rows[0] == rows[1]
