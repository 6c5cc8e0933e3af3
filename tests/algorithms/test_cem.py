"""CEM as an agent; its parts are in tests/functional/test_search.py."""

from dataclasses import replace

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import ChangingSampler, cliff_suite, point_suite, train_sampler, trained

from adaptax.algorithms.program import updated
from adaptax.algorithms.search.cem import CEM, CEMConfig, draw
from adaptax.algorithms.search.cma_es import CMAES, CMAESConfig
from adaptax.algorithms.search.family import evaluated, mean_actor
from adaptax.core.errors import ConfigError
from adaptax.experiment.build import make_algorithm, make_suite
from adaptax.experiment.trainer import Trainer, TrainerConfig
from adaptax.functional.distributions import DiagonalGaussian
from adaptax.sampling.sampler import Sampler

SMALL = {"population_size": 8, "elite_fraction": 0.25, "num_episodes": 2}
SUITE = point_suite()


def small_cem(**settings):
    return make_algorithm("cem", SUITE.spec, **SMALL | settings)


def drawn(algorithm, generation: int):
    state = algorithm.init(jax.random.key(0))
    state = replace(state, generation=jnp.array(generation))
    return state.mean, draw(algorithm.config, state)


def test_the_first_candidate_of_all_is_the_mean():
    mean, first = drawn(small_cem(), 0)
    _, later = drawn(small_cem(), 1)
    np.testing.assert_array_equal(first[0], mean)
    assert np.all(np.abs(first[1:] - mean).max(1) > 0.1)
    assert np.abs(later[0] - mean).max() > 0.1


def test_every_generation_has_noise_of_its_own():
    _, one = drawn(small_cem(extra_std=0.0), 1)
    _, two = drawn(small_cem(extra_std=0.0), 2)
    assert np.all(np.abs(one - two).max(1) > 0.1)


def test_generations_are_drawn_with_the_scheduled_deviation():
    algorithm = small_cem(population_size=4096, init_std=0.5, extra_std_generations=100)
    for generation, expected in [(0, 1.118034), (50, 0.866025), (100, 0.5)]:
        mean, candidates = drawn(algorithm, generation)
        assert np.std(candidates - mean) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize("num_tasks", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_candidates_score_is_the_mean_return_of_its_episodes(num_tasks):
    suite = cliff_suite()
    algorithm = make_algorithm("cem", suite.spec, **SMALL, num_tasks=num_tasks)
    candidates = jax.random.normal(jax.random.key(0), (8, algorithm.policy.size))
    data = evaluated(algorithm.config, algorithm.policy, candidates, train_sampler(suite))
    sampler = train_sampler(suite)
    tasks = sampler.sample_tasks(num_tasks)
    for i in (0, 5):  # the first and another candidate, alone on what each of them met
        rollout = played(sampler, algorithm.policy, candidates, tasks, i)
        totals = np.sum(rollout.reward * rollout.valid, axis=-1)
        np.testing.assert_allclose(data.scores[i], totals.mean(), rtol=1e-5)
    _, metrics = updated(algorithm, algorithm.init(jax.random.key(0)), data)
    np.testing.assert_allclose(metrics["return"], np.mean(data.scores), rtol=1e-6)


def played(sampler, policy, candidates, tasks, i):
    """The rollout of candidate i, [tasks, N, T], where all others act as it does."""
    sampler.restart()
    sampler.sample_tasks(len(tasks))
    rollout = sampler.episodes(mean_actor(policy, candidates[i]), tasks * len(candidates), 2, 1)
    own = slice(i * len(tasks), (i + 1) * len(tasks))
    return jax.tree.map(lambda x: np.asarray(x)[own], rollout)


def test_a_nan_return_scores_minus_infinity():
    """The sampler refuses what an environment answers so; a sum of rewards may overflow yet."""
    suite = cliff_suite()
    algorithm = make_algorithm("cem", suite.spec, **SMALL)
    with_nan = ChangingSampler(
        suite, lambda rollout, _: replace(rollout, reward=rollout.reward.at[3].set(jnp.nan))
    )
    data = algorithm.collect(algorithm.init(jax.random.key(0)), with_nan)
    assert data.scores[3] == -np.inf
    assert np.isfinite(data.scores).sum() == 7


def test_the_policy_that_is_evaluated_and_kept_is_the_mean(tmp_path):
    config = TrainerConfig(
        str(tmp_path / "run"), num_iterations=2, evaluation_interval=None, quiet=True
    )
    trainer = Trainer(config, small_cem(), SUITE)
    trainer.run()
    mean = np.asarray(trainer.state.mean)
    np.testing.assert_array_equal(trainer.algorithm.actor(trainer.state).params, mean)
    again = Trainer(config, small_cem(), SUITE)
    again.load()
    np.testing.assert_array_equal(again.algorithm.actor(again.state).params, mean)
    assert np.abs(mean).max() > 0.1


def test_the_best_ever_is_kept_beside_the_mean():
    state, metrics = trained(small_cem(), train_sampler(SUITE), 3)
    assert state.best.score == metrics["return_best_ever"] >= metrics["return_max"]
    assert state.best.params.shape == state.mean.shape
    assert not np.array_equal(state.best.params, state.mean)


def test_a_share_of_less_than_one_candidate_is_refused():
    with pytest.raises(ConfigError, match=r"elite_fraction 0.05 of population_size 19"):
        small_cem(population_size=19, elite_fraction=0.05)


@pytest.mark.parametrize(
    ("settings", "generation"), [({"extra_std": 0.0}, 1), ({"extra_std_generations": 2}, 2)]
)
def test_a_standstill_is_foretold(settings, generation):
    with pytest.warns(UserWarning, match=f"cem: .* from generation {generation} on"):
        algorithm = small_cem(elite_fraction=0.125, **settings)
    sampler, state, means = train_sampler(SUITE), algorithm.init(jax.random.key(0)), []
    for _ in range(generation + 2):
        state, _ = algorithm.iteration(state, sampler)
        means.append(np.asarray(state.mean))
    np.testing.assert_array_equal(means[-1], means[-2])
    assert not np.array_equal(means[0], algorithm.init(jax.random.key(0)).mean)


def test_two_elites_warn_of_nothing(recwarn):
    small_cem(extra_std=0.0)
    assert [str(w.message) for w in recwarn if "cem:" in str(w.message)] == []


class Saturated(nn.Module):
    """A policy of one's own, whose mode stays within bounds."""

    @nn.compact
    def __call__(self, obs):
        mean = nn.tanh(nn.Dense(2)(obs))
        return DiagonalGaussian(mean, jnp.zeros_like(mean))


@pytest.mark.parametrize(
    ("search", "config"), [(CEM, CEMConfig(**SMALL)), (CMAES, CMAESConfig(population_size=8))]
)
def test_the_parameters_of_a_policy_of_ones_own_are_searched(search, config):
    algorithm = search(config, SUITE.spec, Saturated())
    state, metrics = trained(algorithm, train_sampler(SUITE), 3)
    assert state.best.params.shape == (6,)
    assert metrics["return"] < metrics["return_max"] <= metrics["return_best_ever"]


def generations_until_solved(algorithm, suite, seed: int, limit: int) -> int:
    """Generations until the mean policy's return over 20 episodes is 475."""
    sampler = Sampler(suite, suite.train, seed, "train")
    evaluation = Sampler(suite, suite.test, seed, "evaluation")
    state = algorithm.init(jax.random.key(seed))
    for generation in range(1, limit + 1):
        state, _ = algorithm.iteration(state, sampler)
        rollout = evaluation.episodes(algorithm.actor(state), suite.test.tasks, 20, 1)
        if np.sum(rollout.reward) / 20 >= 475:
            return generation
    return limit + 1


@pytest.mark.slow
def test_a_linear_policy_solves_cartpole_within_15_generations():
    suite = make_suite("cartpole")
    algorithm = make_algorithm(
        "cem",
        suite.spec,
        population_size=32,
        elite_fraction=6 / 32,
        init_std=1.0,
        extra_std=0.5,
        extra_std_generations=10,
    )
    needed = [generations_until_solved(algorithm, suite, seed, 15) for seed in range(3)]
    # Of 20 seeds 16 do in 10, the median in 5; of 6 where scores are of other candidates none does.
    assert sorted(needed)[1] <= 15
