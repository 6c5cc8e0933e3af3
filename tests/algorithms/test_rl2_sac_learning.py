"""RL2-SAC learns from few trials to do better in the later episodes of a trial."""

import numpy as np
import pytest
from toys import train_sampler, trained

from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.experiment.evaluator import Evaluator, EvaluatorConfig

SETTINGS = {
    "num_updates": 32,
    "batch_size": 16,
    "head_hidden_sizes": (64, 64),
    "lr": 1e-3,
    "tau": 0.01,
    "discount": 0.95,
}
UNTRAINED = -20.0
"""Return of an episode by uniform actions, about."""


@pytest.mark.slow
@pytest.mark.parametrize("encoders", ["separate", "shared"])
def test_it_finds_goals_that_it_is_not_told(encoders):
    suite = make_suite("point-goal")
    algorithm = make_algorithm("rl2-sac", suite.spec, **SETTINGS, encoders=encoders)
    state, _ = trained(algorithm, train_sampler(suite), 60)
    evaluator = Evaluator(
        EvaluatorConfig(num_tasks=20, num_lanes=2, deterministic=True), suite, seed=0
    )
    first, *_, last = evaluator.evaluate(algorithm, state).returns.mean(axis=0)
    assert last > UNTRAINED + 8
    assert last > first + 1


@pytest.mark.slow
def test_choices_are_learned_too():
    suite = make_suite("gridworld", size=3, horizon=6, num_episodes=2)
    algorithm = make_algorithm("rl2-sac", suite.spec, **SETTINGS, target_entropy=0.3)
    sampler = train_sampler(suite)
    untrained, _ = trained(algorithm, sampler, 0)
    state, _ = trained(algorithm, train_sampler(suite), 60)
    evaluator = Evaluator(EvaluatorConfig(num_tasks=5, num_lanes=20), suite, seed=0)
    before, after = (
        float(np.sum(evaluator.evaluate(algorithm, s).returns.mean(axis=0)))
        for s in (untrained, state)
    )
    assert after > before + 3
