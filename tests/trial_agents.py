"""What tests of agents that learn from trials share: their settings, and what holds for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from toys import cliff_suite, fingerprint, has_padding, train_sampler, trained, trained_on_polluted

from adaptax.algorithms.base import Algorithm
from adaptax.core.experience import Rollout
from adaptax.core.spec import EnvSpec
from adaptax.experiment.trainer import Trainer, TrainerConfig

SMALL_TRIALS = {
    "meta_batch_size": 4,
    "num_episodes": 2,
    "num_epochs": 2,
    "num_minibatches": 1,
    "hidden_sizes": (4,),
    "memory": {"kind": "gru", "size": 8},
}
Make = Callable[[EnvSpec], Algorithm]


def check_padding_counts_for_nothing(make: Make) -> Sequence[Rollout]:
    """Two iterations on `cliff_suite`, whatever stands in padding; gives their rollouts."""
    suite = cliff_suite()
    algorithm = make(suite.spec)
    other, metrics, rollouts = trained_on_polluted(algorithm, suite)
    clean, expected = trained(algorithm, train_sampler(suite), 2)
    assert has_padding(rollouts)
    assert fingerprint(other) == fingerprint(clean)
    assert fingerprint(metrics) == fingerprint(expected)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(metrics))
    return rollouts


def check_goes_on_as_if_nothing_had_happened(make: Make, place: Path) -> Any:
    """A run of two iterations that is resumed for two more; gives its algorithm's config."""
    suite = cliff_suite()

    def trainer(run: str, num_iterations: int) -> Trainer:
        config = TrainerConfig(
            str(place / run),
            num_iterations=num_iterations,
            snapshot_interval=2,
            evaluation_interval=None,
            quiet=True,
        )
        return Trainer(config, make(suite.spec), suite)

    whole, part = trainer("whole", 4), trainer("part", 2)
    row = whole.run()
    part.run()
    again = trainer("part", 4)
    assert {**again.resume(), "seconds": None} == {**row, "seconds": None}
    assert fingerprint(again.state) == fingerprint(whole.state)
    assert fingerprint(part.state) != fingerprint(whole.state)
    return again.algorithm.config
