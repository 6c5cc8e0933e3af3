"""CMA-ES: the strategy against pycma itself, and as an agent."""

from dataclasses import replace

import cma
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cma.sigma_adaptation import CMAAdaptSigmaCSA
from said import warnings_within
from test_cem import generations_until_solved
from toys import ChangingSampler, fingerprint, point_suite, train_sampler, trained

from adaptax.algorithms.search import cma_es
from adaptax.algorithms.search.cma_es import STOPS, CMAESConfig
from adaptax.core.errors import ConfigError
from adaptax.core.snapshot import Snapshots, flatten, unflatten
from adaptax.experiment.build import make_algorithm, make_suite

SUITE = point_suite()


def sphere(x):
    return float(np.sum(np.square(x)))


def ellipsoid(x):
    return float(np.sum(10 ** (6 * np.arange(len(x)) / (len(x) - 1)) * np.square(x)))


def rosenbrock(x):
    return float(np.sum(100 * np.square(x[1:] - x[:-1] ** 2) + np.square(1 - x[:-1])))


def flat(x):
    return 1.0


def noise_stream(size: int, num: int):
    rng = np.random.default_rng(0)
    while True:
        yield rng.standard_normal((num, size))


def searched(cost, start, config, num_generations):
    """For each generation: the strategy after it, and the stop conditions that hold."""
    start = np.asarray(start, np.float64)
    blank = cma_es.blank(len(start), config)
    strategy = cma_es.fresh(blank, start)
    noise = noise_stream(len(start), config.population_size)
    for _ in range(num_generations):
        candidates = cma_es.draw(strategy, next(noise))
        scores = np.array([-cost(x) for x in candidates])
        strategy, stopped = cma_es.tell(blank, strategy, candidates, scores)
        yield strategy, {name for name, holds in zip(STOPS, stopped, strict=True) if holds}


def uninterrupted(cost, start, config, num_generations):
    """The same by one pycma object that lives through all generations, told the costs."""
    noise = noise_stream(len(start), config.population_size)
    es = cma.CMAEvolutionStrategy(
        start,
        config.init_std,
        {
            "popsize": config.population_size,
            "CMA_diagonal": len(start) > config.max_full_covariance,
            "AdaptSigma": CMAAdaptSigmaCSA,
            "conditioncov_alleviate": [1e8, 0],
            "maxiter": np.inf,
            "tolstagnation": 0,
            "randn": lambda *shape: next(noise),
            "seed": np.nan,
            "verbose": -10,
        },
    )
    for _ in range(num_generations):
        candidates = es.ask()
        es.tell(candidates, [cost(x) for x in candidates])
        yield es, set(es.stop())


@pytest.mark.parametrize(
    ("cost", "size", "num_generations", "max_full_covariance"),
    [
        (sphere, 10, 200, 2000),
        (ellipsoid, 6, 350, 2000),
        (ellipsoid, 6, 200, 5),
        (rosenbrock, 80, 12, 2000),  # where pycma decomposes the covariance now and then only
    ],
)
def test_arrays_hold_all_that_pycma_remembers(cost, size, num_generations, max_full_covariance):
    config = CMAESConfig(population_size=8, init_std=0.5, max_full_covariance=max_full_covariance)
    start = np.ones(size) * np.linspace(-1, 2, size)
    ours = searched(cost, start, config, num_generations)
    theirs = uninterrupted(cost, start, config, num_generations)
    for (strategy, stops), (es, es_stops) in zip(ours, theirs, strict=True):
        assert strategy["mean"].tobytes() == es.mean.tobytes()
        assert strategy["sigma"] == es.sigma
        assert stops == es_stops


@pytest.mark.parametrize(
    ("cost", "start", "init_std", "population_size", "goal", "limit"),
    [(sphere, 3 * np.ones(10), 1.0, 10, 1e-10, 300), (rosenbrock, np.zeros(5), 0.5, 8, 1e-8, 600)],
)
def test_minima_are_found_within_so_many_generations(
    cost, start, init_std, population_size, goal, limit
):
    config = CMAESConfig(population_size=population_size, init_std=init_std)
    costs = (cost(strategy["mean"]) for strategy, _ in searched(cost, start, config, limit))
    assert any(found < goal for found in costs)  # others measured 171 to 181, and 198 to 265


def test_a_rank_preserving_change_of_costs_changes_nothing():
    config = CMAESConfig(population_size=8)
    plain = searched(rosenbrock, np.zeros(5), config, 40)
    bent = searched(lambda x: np.log1p(rosenbrock(x)) - 7, np.zeros(5), config, 40)
    for (one, _), (other, _) in zip(plain, bent, strict=True):
        assert one["mean"].tobytes() == other["mean"].tobytes()
        assert one["C"].tobytes() == other["C"].tobytes()


def test_a_translation_of_the_costs_translates_the_search():
    config, shift = CMAESConfig(population_size=8), np.linspace(-2, 2, 5)
    plain = searched(rosenbrock, np.zeros(5), config, 40)
    moved = searched(lambda x: rosenbrock(x - shift), shift, config, 40)
    for (one, _), (other, _) in zip(plain, moved, strict=True):
        np.testing.assert_allclose(one["mean"], other["mean"] - shift, atol=1e-9)
        np.testing.assert_allclose(one["sigma"], other["sigma"], rtol=1e-9)


def test_candidates_without_a_score_rank_last():
    config = CMAESConfig(population_size=8)
    blank = cma_es.blank(3, config)
    start = cma_es.fresh(blank, np.zeros(3))
    candidates = cma_es.draw(start, np.eye(8, 3))
    worst, missing = np.arange(8.0), np.arange(8.0)
    worst[:2], missing[:2] = [-8, -9], -np.inf
    one, other = (cma_es.tell(blank, start, candidates, x)[0] for x in (worst, missing))
    np.testing.assert_array_equal(one["mean"], other["mean"])


def test_a_flat_landscape_is_reported():
    *_, (_, stops) = searched(flat, np.zeros(3), CMAESConfig(population_size=8), 3)
    assert stops == {"tolflatfitness", "tolfun"}


def test_above_so_many_parameters_only_the_diagonal_is_learned():
    config = CMAESConfig(population_size=4, init_std=0.01)
    full, diagonal = (cma_es.fresh(cma_es.blank(n, config), np.zeros(n)) for n in (20, 2001))
    assert full["C"].shape == full["B"].shape == (20, 20)
    assert max(x.size for x in diagonal.values()) < 16_000
    start = np.ones(2001)
    *_, (strategy, _) = searched(sphere, start, config, 30)
    assert sphere(strategy["mean"]) < sphere(start)
    assert np.ptp(strategy["scaling"]) > 0


def test_a_full_covariance_of_many_parameters_is_warned_of():
    with pytest.warns(UserWarning, match="full covariance of 2001 parameters"):
        cma_es.blank(2001, CMAESConfig(population_size=4, max_full_covariance=3000))


def test_too_few_candidates_are_refused():
    with pytest.raises(ConfigError, match="population_size must be at least 4, not 3"):
        CMAESConfig(population_size=3)


def small_cma_es():
    return make_algorithm("cma-es", SUITE.spec, population_size=6)


def test_every_generation_has_noise_of_its_own():
    algorithm, sampler = small_cma_es(), train_sampler(SUITE)
    state = algorithm.init(jax.random.key(0))
    one, two = (
        algorithm.collect(
            replace(state, strategy={**state.strategy, "generation": np.array(n)}), sampler
        ).candidates
        for n in (1, 2)
    )
    assert np.all(np.abs(one - two).max(1) > 0.1)


def test_a_snapshot_holds_the_strategy_to_the_last_bit(tmp_path):
    algorithm, sampler = small_cma_es(), train_sampler(SUITE)
    state, _ = trained(algorithm, sampler, 3)
    snapshots = Snapshots(tmp_path)
    snapshots.save(3, {"state": flatten(state)})
    again = unflatten(algorithm.init(jax.random.key(1)), snapshots.load(3)["state"])
    assert fingerprint(again) == fingerprint(state)
    saved = sampler.save()
    one, _ = algorithm.iteration(state, sampler)
    sampler.restore(saved)
    other, _ = algorithm.iteration(again, sampler)
    assert fingerprint(other) == fingerprint(one)


def test_the_policy_that_is_evaluated_is_the_mean():
    algorithm = small_cma_es()
    state, metrics = trained(algorithm, train_sampler(SUITE), 2)
    params = algorithm.actor(state).params
    np.testing.assert_array_equal(params, state.strategy["mean"].astype(np.float32))
    assert not np.array_equal(params, state.best.params)
    assert metrics["return_best_ever"] == state.best.score


def test_numpys_global_generator_is_left_alone():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    trained(small_cma_es(), train_sampler(SUITE), 2)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_a_stop_is_counted_and_told_once_and_training_goes_on():
    def without_reward(rollout, actor):
        return replace(rollout, reward=jnp.zeros_like(rollout.reward))

    algorithm, sampler = small_cma_es(), ChangingSampler(SUITE, without_reward)
    state = algorithm.init(jax.random.key(0))
    told, stops = [], []
    for _ in range(4):
        with warnings_within() as messages:
            state, metrics = algorithm.iteration(state, sampler)
        told.append(messages)
        stops.append((metrics["stop"], metrics.get("stop/tolflatfitness")))
    assert stops == [(1, None), (2, 1), (2, 1), (2, 1)]
    assert [len(lines) for lines in told] == [1, 1, 0, 0]
    assert "after generation 2: tolflatfitness" in told[1][0]
    assert state.strategy["generation"] == 4


@pytest.mark.slow
def test_a_linear_policy_solves_cartpole_within_20_generations():
    suite = make_suite("cartpole")
    algorithm = make_algorithm("cma-es", suite.spec, population_size=16)
    needed = [generations_until_solved(algorithm, suite, seed, 20) for seed in range(3)]
    assert sorted(needed)[1] <= 20  # of 12 seeds all do, in 5 to 20
