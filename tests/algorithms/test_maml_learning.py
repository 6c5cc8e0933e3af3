"""The MAML family learns to adapt to a goal at one of four corners."""

import numpy as np
import pytest
from toys import train_sampler

from adaptax.core.rng import named_key
from adaptax.experiment.build import make_algorithm, make_suite

SETTINGS = {"meta_batch_size": 4, "num_episodes": 16, "hidden_sizes": (32, 32)}
PUBLISHED = {"init_std": 1.0, "clip_range": 0.3, "init_kl_coeff": 5e-4, "adaptive_kl": False}


def returns(name: str, seed: int, num_iterations: int = 25, **settings) -> tuple[float, float]:
    """Mean over the last five iterations before and after adaptation."""
    suite = make_suite("point-corners")
    algorithm = make_algorithm(name, suite.spec, **SETTINGS, **settings)
    sampler, rows = train_sampler(suite, seed), []
    state = algorithm.init(named_key(seed, "init"))
    for _ in range(num_iterations):
        state, metrics = algorithm.iteration(state, sampler)
        rows.append((metrics["return/episode_1"], metrics["return/episode_2"]))
    before, after = np.mean(rows[-5:], axis=0)
    return float(before), float(after)


@pytest.mark.slow
def test_promp_learns_to_adapt_to_a_corner_in_two_of_three_seeds():
    """Measured: after adaptation -7.1, -6.5 and -6.2, gains of 7.6, 8.0 and 8.6.

    With `init_std` 0.3: -11.7, -5.2 and -8.4, gains of 2.5, 9.1 and 6.2.
    """
    pairs = [returns("promp", seed, lr=3e-3, **PUBLISHED) for seed in range(3)]
    assert sum(after >= -8.0 and after - before >= 6.5 for before, after in pairs) >= 2, pairs


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings"),
    [("trpo-maml", {}), ("vpg-maml", {"lr": 0.01}), ("dice-maml", {"lr": 5e-3})],
)
def test_others_learn_to_adapt_to_a_corner_in_two_of_three_seeds(name, settings):
    """No threshold is set for them; they get more than twice the iterations."""
    pairs = [returns(name, seed, 60, **settings) for seed in range(3)]
    assert sum(after >= -8.0 and after - before >= 6.0 for before, after in pairs) >= 2, pairs
