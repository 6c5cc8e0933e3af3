from __future__ import annotations

import pickle

import metaworld
import numpy as np
import pytest

from adaptax.envs.suites.metaworld.goals import NUM_GOALS, benchmark_goals

SEED = 5


def check_same(tasks, classes, seed):
    """Our goals of `classes` are those in a benchmark's pickled tasks."""
    ours = benchmark_goals(list(classes), seed)
    assert len(tasks) == NUM_GOALS * len(ours)
    for name, goals in ours.items():
        theirs = [pickle.loads(t.data)["rand_vec"] for t in tasks if t.env_name == name]
        np.testing.assert_array_equal(goals, theirs, err_msg=name)


def test_goals_of_ml1_are_the_benchmarks_in_training_and_test():
    benchmark = metaworld.ML1("reach-v3", seed=SEED)
    check_same(benchmark.train_tasks, benchmark.train_classes, SEED)
    check_same(benchmark.test_tasks, benchmark.test_classes, SEED + 1)


def test_goals_of_several_classes_come_from_one_stream():
    classes = ["door-open-v3", "peg-insert-side-v3"]
    benchmark = metaworld.CustomML(classes, ["lever-pull-v3"], seed=SEED)
    check_same(benchmark.train_tasks, benchmark.train_classes, SEED)
    check_same(benchmark.test_tasks, benchmark.test_classes, SEED)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ML10", "ML45"])
def test_goals_are_those_of_the_whole_benchmark(name):
    benchmark = getattr(metaworld, name)(seed=SEED)
    check_same(benchmark.train_tasks, benchmark.train_classes, SEED)
    check_same(benchmark.test_tasks, benchmark.test_classes, SEED)


def test_drawing_goals_leaves_the_global_generator_alone():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    benchmark_goals(["reach-v3"], SEED)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
