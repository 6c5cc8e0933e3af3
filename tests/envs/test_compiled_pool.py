"""What a CompiledPool does with tasks and environments that do not fit, or that differ in kind."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.core.errors import ConfigError, EnvironmentFault
from adaptax.core.spec import Continuous, EnvSpec
from adaptax.core.step import Step
from adaptax.envs.pools.compiled import CompiledPool
from adaptax.envs.task import Task


@dataclass(frozen=True)
class Drifting:
    """Moves by its task's drift [2], which it observes."""

    @property
    def spec(self):
        return EnvSpec(2, Continuous(1), horizon=4)

    def reset(self, key, task):
        return jnp.zeros(2), jnp.zeros(2)

    def step(self, key, state, action, task):
        after = state + jnp.zeros(2).at[:].set(task["drift"])
        return after, Step(reward=after[0], next_obs=after)


def begun(*tasks: dict, pool: CompiledPool | None = None) -> CompiledPool:
    pool = CompiledPool(Drifting(), len(tasks)) if pool is None else pool
    slots = np.arange(len(tasks))
    named = [Task(f"t{i}", i, params) for i, params in enumerate(tasks)]
    pool.reset(slots, slots.astype(np.uint32), named)
    return pool


def moved(pool: CompiledPool) -> list[float]:
    num = pool.num_slots
    return pool.step(np.arange(num), np.zeros((num, 1), np.float32)).next_obs[:, 0].tolist()


@pytest.mark.parametrize("params", [{}, {"drfit": 1.0}])
def test_a_missing_parameter_is_named(params):
    with pytest.raises(ConfigError, match=r"task 't0' has .*; the environment takes 'drift'") as e:
        begun(params)
    assert "\n" not in str(e.value)


def test_a_parameter_of_a_wrong_shape_is_one_line_with_its_shape():
    with pytest.raises(ConfigError, match=r"task 't0', .* shapes \{'drift': \(3,\)\}") as e:
        begun({"drift": np.zeros(3)})
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("params", [{}, {"drift": 1.0, "wind": 2.0}, {"drift": np.ones(2)}])
def test_a_task_unlike_those_before_it_is_refused(params):
    with pytest.raises(ConfigError, match=r"task 't1' has parameters of the shapes"):
        begun({"drift": 1.0}, params)
    with pytest.raises(ConfigError, match=r"task 't0' has parameters of the shapes"):
        begun(params, pool=begun({"drift": 1.0}))


def test_a_whole_number_in_one_task_cuts_no_fraction_off_another():
    assert moved(begun({"drift": 0}, {"drift": 0.5})) == [0.0, 0.5]
    assert moved(begun({"drift": 0.5}, pool=begun({"drift": 0}))) == [0.5]
    assert moved(begun({"drift": 2}, pool=begun({"drift": 0.5}))) == [2.0]


@pytest.mark.parametrize(("num_seeds", "num_tasks"), [(1, 3), (3, 1), (3, 4)])
def test_a_reset_needs_a_seed_and_a_task_for_every_slot(num_seeds, num_tasks):
    pool, task = CompiledPool(Drifting(), 3), Task("t", 0, {"drift": 1.0})
    with pytest.raises(EnvironmentFault, match=f"{num_seeds} seeds and {num_tasks} tasks"):
        pool.reset(np.arange(3), np.zeros(num_seeds, np.uint32), [task] * num_tasks)
