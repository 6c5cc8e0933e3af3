"""VariBAD on a small grid, between chance and the exact optimum."""

import numpy as np
import pytest
from players.gridworld_players import Grid, optimal_path, path_returns, random_returns
from toys import train_sampler, trained

from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.experiment.evaluator import Evaluator, EvaluatorConfig

SETTINGS = {
    "meta_batch_size": 64,
    "num_epochs": 4,
    "num_minibatches": 4,
    "lr": 3e-3,
    "hidden_sizes": (32,),
    "memory": {"kind": "gru", "size": 32},
    "decoder_hidden_sizes": (32,),
    "reward_from": "next_obs",
    "kl_coeff": 0.1,
    "elbo_batch_size": 32,
    "elbo_lr": 3e-3,
    "buffer_size": 640,
}
MARGIN = 0.5
"""Share of what the optimum is above chance that must be reached."""


@pytest.mark.slow
def test_a_small_grid_is_played_far_above_chance():
    suite, grid = make_suite("gridworld", size=3, horizon=6, num_episodes=2), Grid(3, 6, 2)
    algorithm = make_algorithm("varibad", suite.spec, **SETTINGS)
    state, _ = trained(algorithm, train_sampler(suite), 60)
    evaluator = Evaluator(EvaluatorConfig(num_tasks=5, num_lanes=20), suite, seed=0)
    found = float(np.sum(evaluator.evaluate(algorithm, state).returns.mean(axis=0)))
    chance, optimum = random_returns(grid).sum(), path_returns(grid, optimal_path(grid)).sum()
    assert found > chance + MARGIN * (optimum - chance)
