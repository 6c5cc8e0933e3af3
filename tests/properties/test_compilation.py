"""Nothing is compiled after the second iteration, nor for another value of a scalar setting."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

import jax
import pytest
from entries import quick_for
from small import SMALL
from toys import EVALUATION, fingerprint, point_suite, small_agent, train_sampler

from adaptax.algorithms.registry import ALGORITHMS
from adaptax.core.rng import named_key
from adaptax.experiment.build import make_algorithm
from adaptax.experiment.trainer import Trainer, TrainerConfig

COMPILATION = "/jax/core/compile/backend_compile_duration"


@pytest.fixture
def compiled():
    """What JAX has compiled so far, whether or not the cache on disk had it."""
    events: list[str] = []

    def listen(event: str, duration: float, **about) -> None:
        if event == COMPILATION:
            events.append(about.get("fun_name", ""))

    jax.clear_caches()  # what another test compiled would count as compiled here
    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


@quick_for("ppo", "sac")
def test_nothing_is_compiled_after_the_second_iteration(entry, tmp_path, compiled):
    suite = point_suite(entry)
    config = TrainerConfig(
        str(tmp_path / "run"),
        num_iterations=4,
        evaluation_interval=1,
        snapshot_interval=1,
        evaluation=EVALUATION,
        quiet=True,
    )
    algorithm, marks = small_agent(entry, suite), []
    iterate = algorithm.iteration

    def iteration(*args):
        marks.append(len(compiled))
        return iterate(*args)

    algorithm.iteration = iteration
    Trainer(config, algorithm, suite).run()
    assert marks[1] > 0
    assert compiled[marks[2] :] == []


CLIPPED = {"max_grad_norm": 0.1}
IN_USE = {
    "reinforce": CLIPPED,
    "a2c": CLIPPED,
    "ppo": {**CLIPPED, "target_kl": 1e-3, "critic": {**CLIPPED, **SMALL["ppo"]["critic"]}},
    "ppo2": {**CLIPPED, "target_kl": 5e-3},
    "trpo": {**CLIPPED, "trust_region": {"max_kl_step": 1.0}},
    "dqn": CLIPPED,
    "ddpg": CLIPPED,
    "td3": CLIPPED,
    "sac": {**CLIPPED, "target_entropy": -1.0},
    "svpg": {"particle": {**CLIPPED, **SMALL["svpg"]["particle"]}},
    "rl2-ppo": {
        "entropy_method": "regularized",
        "entropy_coeff": 0.01,
        "critic": "two_hot",
        "num_bins": 11,
    },
    "rl2-trpo": {
        "entropy_method": "regularized",
        "entropy_coeff": 0.01,
        "trust_region": {"max_kl_step": 1.0},
    },
    # Clipped, steps of the temperature tell targets apart by their side of the entropy only.
    "rl2-sac": {**CLIPPED, "critic": "two_hot", "num_bins": 11, "target_entropy": 2.0},
    "pearl": {"target_entropy": -1.0},
    "varibad": {"entropy_method": "regularized", "critic": "two_hot", "num_bins": 11},
    "trpo-maml": {"trust_region": {"max_kl_step": 1.0}},
    "dice-maml": {"inner_objective": "likelihood_ratio", "outer_objective": "log_likelihood"},
}
"""Settings beside those of `small.SMALL` with which as many scalar ones as can be matter."""
NOT_IN_USE = {("pearl", ".config.value_lr")}
"""Scalar settings that do not matter even so."""


def numbers(tree) -> dict[str, float]:
    found, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): x for path, x in found}


def with_number(algorithm, name: str, value: float):
    def chosen(path, old):
        return value if jax.tree_util.keystr(path) == name else old

    return jax.tree_util.tree_map_with_path(chosen, algorithm)


@pytest.mark.parametrize("in_program", [True, False])
@quick_for("ppo")
def test_another_value_of_a_scalar_setting_compiles_nothing_and_counts(entry, in_program, compiled):
    suite = point_suite(entry)
    settings = {**SMALL.get(entry.name, {}), **IN_USE.get(entry.name, {})}
    first = make_algorithm(entry.name, suite.spec, **settings)
    if not first.traceable:
        pytest.skip("it has no program")
    first.collects_in_program &= in_program
    sampler = train_sampler(suite)

    def outcome(algorithm) -> dict:
        sampler.restart()
        state, rows = algorithm.initial_state(named_key(0, "init")), []
        for _ in range(3):
            state, metrics = algorithm.iteration(state, sampler)
            rows.append(metrics)
        return fingerprint((state, rows))

    before = outcome(first)
    compiled.clear()
    for name, value in numbers(first).items():
        after = outcome(with_number(first, name, 0.5 * value or 0.1))
        assert compiled == [], name
        assert (after == before) == ((entry.name, name) in NOT_IN_USE), name


STATIC = {"init_std", "min_std", "max_std", "elite_fraction", "base_eps"}
"""Scalar settings that programs are compiled for."""


@pytest.mark.parametrize("name", ALGORITHMS)
def test_all_other_scalar_settings_are_arguments_of_programs(name):
    algorithm = small_agent(ALGORITHMS[name], point_suite(ALGORITHMS[name]))
    leaves = numbers(algorithm)

    def check(config, path: str) -> None:
        for f in fields(config):
            value, place = getattr(config, f.name), f"{path}.{f.name}"
            if is_dataclass(value):
                check(value, place)
            elif isinstance(value, float) and f.name not in STATIC:
                assert place in leaves

    check(algorithm.config, ".config")
