from __future__ import annotations

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import pytest
from toys import point_suite

import adaptax
from adaptax.algorithms.base import Algorithm, check_finite
from adaptax.algorithms.program import means
from adaptax.algorithms.registry import find_algorithm
from adaptax.core.errors import ConfigError, NotFinite
from adaptax.core.hyperparameters import Hyperparameters
from adaptax.core.spec import Continuous, EnvSpec
from adaptax.experiment.build import make_algorithm
from adaptax.networks.hypernetwork import HeadsConfig
from adaptax.networks.memory import MemoryConfig

SPEC = EnvSpec(2, Continuous(1), horizon=3)


def test_a_figure_that_is_not_finite_is_named():
    check_finite({"loss": 1.0, "kl": np.inf}, "loss")
    with pytest.raises(NotFinite, match="the update diverged: kl is inf; a smaller lr"):
        check_finite({"loss": 1.0, "kl": np.inf}, "loss", "kl")


class Given:
    """A sampler that hands out what it was given, one thing a cycle."""

    env = None

    def __init__(self, *data):
        self.data = iter(data)

    def begin_iteration(self):
        """Nothing to draw."""

    def __next__(self):
        return next(self.data)


@dataclass(frozen=True)
class Settings:
    factor: float = 2.0
    num_tasks: int = 1


class Plain(Algorithm):
    """Adds up what it is given, and does not say how it adapts."""

    def init(self, key):
        return jnp.zeros(())

    def collect(self, state, sampler):
        return next(sampler)

    def update(self, state, data):
        state = state + self.config.factor * data
        return state, {"sum": state, "data": data, "calls": jnp.array(1)}

    def actor(self, state, *, deterministic=False):
        return object()


class Cyclic(Plain):
    num_cycles = 3
    finite_metrics = ("data", "not reported")


class ByHand(Plain):
    """An update that cannot be compiled."""

    traceable = False

    def update(self, state, data):
        return state + float(data), {"sum": float(state)}


def test_an_algorithm_that_does_not_adapt_gives_the_same_actor():
    algorithm = Plain(Settings(), SPEC)
    actor = algorithm.actor({})
    assert algorithm.adapt({}, actor, []) is actor


@pytest.mark.parametrize("missing", ["init", "collect", "update", "actor"])
def test_an_algorithm_must_say_how_it_acts_and_learns(missing):
    partial = type("Partial", (Plain,), {missing: getattr(Algorithm, missing)})
    with pytest.raises(TypeError, match=f"abstract.*{missing}"):
        partial(None, SPEC)


def test_an_iteration_learns_from_what_was_collected():
    algorithm = Plain(Settings(), SPEC)
    state, metrics = algorithm.iteration(algorithm.init(None), Given(jnp.array(1.5)))
    assert float(state) == 3.0
    assert {k: float(v) for k, v in metrics.items()} == {"sum": 3.0, "data": 1.5, "calls": 1.0}


def test_a_figure_that_is_none_is_left_out_of_the_mean():
    assert means([{"a": None, "b": None}, {"a": 2.0, "b": None}]) == {"a": 2.0, "b": None}


def test_figures_of_cycles_are_means_and_counts_the_last():
    algorithm = Cyclic(Settings(), SPEC)
    state, metrics = algorithm.iteration(
        jnp.zeros(()), Given(*(jnp.array(x) for x in (1.0, 2.0, 6.0)))
    )
    assert float(state) == 18.0
    assert metrics == {"sum": pytest.approx((2 + 6 + 18) / 3), "data": 3.0, "calls": 1}


def test_an_iteration_whose_figures_are_not_finite_is_one_clear_error():
    data = Given(*(jnp.array(x) for x in (1.0, np.nan, 1.0)))
    with pytest.raises(NotFinite, match="the update diverged: data is nan"):
        Cyclic(Settings(), SPEC).iteration(jnp.zeros(()), data)


def test_an_update_that_cannot_be_compiled_runs_as_it_stands():
    state, metrics = ByHand(Settings(), SPEC).iteration(jnp.ones(()), Given(jnp.array(2.0)))
    assert (float(state), metrics) == (3.0, {"sum": 1.0})


@pytest.mark.parametrize("base", [Plain, ByHand])
@pytest.mark.parametrize(
    ("value", "what"), [("good", "a str"), ({"a": 1}, "a dict"), (np.zeros(3), r"of shape \(3,\)")]
)
def test_a_metric_that_is_no_number_is_named(base, value, what):
    class Telling(base):
        def update(self, state, data):
            return state, {"sum": 1.0, "none": None, "note": value}

    with pytest.raises(ConfigError, match=f"'note' of an update must be a number, but is {what}"):
        Telling(Settings(), SPEC).iteration(jnp.zeros(()), Given(jnp.array(2.0)))


def test_a_suite_in_place_of_its_spec_is_refused():
    with pytest.raises(ConfigError, match=r"takes a suite's spec, suite\.spec, not a Suite"):
        make_algorithm("ppo", point_suite())
    with pytest.raises(ConfigError, match=r"takes a suite's spec, suite\.spec, not a Suite"):
        adaptax.PPO(adaptax.PPOConfig(), point_suite())


def test_equal_algorithms_share_what_is_compiled_and_others_do_not():
    traced = []

    class Traced(Plain):
        def update(self, state, data):
            traced.append(self.config.factor)
            return super().update(state, data)

    one, same, other = (Traced(Settings(x), SPEC) for x in (2.0, 2.0, 3.0))
    assert one == same and hash(one) == hash(same) and one != other
    assert one != Plain(Settings(), SPEC)
    assert one != Traced(Settings(), replace(SPEC, horizon=4))
    assert one != Traced(Settings(), SPEC, networks="another")
    for algorithm in (one, same, other, one):
        algorithm.iteration(jnp.zeros(()), Given(jnp.array(1.0)))
    assert traced == [2.0, 3.0]


@dataclass(frozen=True)
class Numbers(Hyperparameters):
    factor: float = 2.0
    power: int = 1


class Powers(Plain):
    """Adds up powers of what it is given."""

    traced = 0

    def update(self, state, data):
        Powers.traced += 1
        return super().update(state, data**self.config.power)


class Keeping(Powers):
    """Keeps a number of its config, which programs then do not take as an argument."""

    def __init__(self, config, spec):
        super().__init__(config, spec)
        self.kept = np.full(2, config.factor)

    def update(self, state, data):
        return super().update(state, self.kept[0] * data)


@pytest.mark.parametrize(
    ("kind", "traced", "sums"), [(Powers, 2, [4.0, 6.0, 8.0]), (Keeping, 3, [8.0, 18.0, 32.0])]
)
def test_algorithms_that_differ_in_numbers_share_what_is_compiled(kind, traced, sums):
    """Unless `__init__` made something of the numbers."""
    Powers.traced, found = 0, []
    for settings in (Numbers(2.0), Numbers(3.0), Numbers(2.0, power=2)):
        data = Given(jnp.array(2.0))
        found.append(float(kind(settings, SPEC).iteration(jnp.zeros(()), data)[0]))
    assert (Powers.traced, found) == (traced, sums)


def test_settings_that_no_task_count_fits_are_refused():
    with pytest.raises(ConfigError, match="num_tasks must be a multiple of the suite's 2 classes"):
        Plain(Settings(num_tasks=3), replace(SPEC, num_classes=2))
    with pytest.raises(ConfigError, match="factor"):
        Plain(Settings(factor=float("nan")), SPEC)


@pytest.mark.parametrize(
    ("algorithm", "settings", "message"),
    [
        ("ppo", {"memory": "gru"}, "PPOConfig.memory: expected a MemoryConfig, not 'gru'"),
        ("rl2-ppo", {"heads": "state"}, "RL2PPOConfig.heads: expected a HeadsConfig, not 'state'"),
        ("pearl", {"hidden_sizes": 300}, "PEARLConfig.hidden_sizes: expected a list, not 300"),
        ("ppo", {"num_tasks": None}, "PPOConfig.num_tasks: expected int, not None"),
        ("ppo", {"num_lanes": 8.5}, "PPOConfig.num_lanes: expected int, not 8.5"),
        ("cem", {"elite_fraction": None}, "CEMConfig.elite_fraction: expected float, not None"),
        ("svpg", {"particle": 3}, "SVPGConfig.particle: expected an A2CConfig, not 3"),
    ],
)
def test_a_config_made_directly_says_which_value_is_of_another_type(algorithm, settings, message):
    """Before anything is computed with it."""
    _, kind = find_algorithm(algorithm).load()
    with pytest.raises(ConfigError) as refused:
        kind(**settings)
    assert str(refused.value) == message


def test_memories_and_heads_made_directly_are_of_the_types_of_their_fields():
    for make, message in (
        (lambda: MemoryConfig(size=2.5), "memory.size: expected int, not 2.5"),
        (lambda: HeadsConfig(hidden_sizes=8), "heads.hidden_sizes: expected a list, not 8"),
    ):
        with pytest.raises(ConfigError) as refused:
            make()
        assert str(refused.value) == message
