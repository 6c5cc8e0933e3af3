"""What a CompiledPool does with tasks and environments that do not fit, or that differ in kind."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from families import family, some_tasks

from adaptax.core.errors import ConfigError, EnvironmentFault
from adaptax.core.spec import Continuous, EnvSpec
from adaptax.core.step import Step
from adaptax.envs.placement import placed
from adaptax.envs.pools.compiled import CompiledPool
from adaptax.envs.pools.pool import SlotFault, SlotNotFinite
from adaptax.envs.suites.compiled import compiled_suite
from adaptax.envs.task import Task, TaskList
from adaptax.sampling.actors import UniformActor
from adaptax.sampling.sampler import Sampler


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


class Misspelt(Drifting):
    """Has a fault that Python finds when the line is run."""

    def step(self, key, state, action, task):
        return super().step(key, state, action, tsk)  # noqa: F821


class Keyed(Drifting):
    """Keeps a typed key."""

    def reset(self, key, task):
        return {"key": key}, jnp.zeros(2)

    def step(self, key, state, action, task):
        return state, Step(reward=0.0, next_obs=jnp.zeros(2))


class Searching(Drifting):
    """Ends its episodes apart, and looks for its action in steps of a tenth."""

    def step(self, key, state, action, task):
        found = jax.lax.while_loop(lambda x: ~(x >= action[0]), lambda x: x + 0.1, -1.0)
        after = state + task["drift"]
        return after, Step(reward=found, next_obs=after, terminated=after[0] > 2)


def begun(*tasks: dict, pool: CompiledPool | None = None) -> CompiledPool:
    pool = CompiledPool(Drifting(), len(tasks)) if pool is None else pool
    slots = np.arange(len(tasks))
    named = [Task(f"t{i}", i, params) for i, params in enumerate(tasks)]
    pool.reset(slots, slots.astype(np.uint32), named)
    return pool


def moved(pool: CompiledPool) -> list[float]:
    num = pool.num_slots
    return pool.step(np.arange(num), np.zeros((num, 1), np.float32)).next_obs[:, 0].tolist()


def collected(env, engine: str):
    tasks = TaskList("t", [{"drift": 1.0}])
    suite = replace(compiled_suite("s", env, tasks, tasks), engine=engine)
    sampler = Sampler(suite, tasks, 0, "train")
    return sampler.episodes(UniformActor(env.spec.action), tasks.tasks, 2, 1)


@dataclass(frozen=True)
class Telling(Drifting):
    """Tells where it is, and whether it has come beyond 2."""

    @property
    def spec(self):
        return EnvSpec(2, Continuous(1), horizon=4, has_success=True, info_names=("place",))

    def step(self, key, state, action, task):
        after, step = super().step(key, state, action, task)
        info = {"place": after[0], "success": after[0] > 2, "more": after[1]}
        return after, replace(step, info=info)


@dataclass(frozen=True)
class Silent(Drifting):
    """Says that it will tell whether it had success, and does not."""

    @property
    def spec(self):
        return EnvSpec(2, Continuous(1), horizon=4, has_success=True)


@dataclass(frozen=True)
class Unrewarding(Drifting):
    def step(self, key, state, action, task):
        return state, Step(next_obs=state)


@pytest.mark.parametrize("engine", ["compiled", "host"])
def test_without_an_end_of_its_own_an_episode_ends_at_its_horizon(engine):
    rollout = collected(Drifting(), engine)
    assert rollout.terminated.dtype == rollout.truncated.dtype == bool
    assert not np.any(rollout.terminated)
    np.testing.assert_array_equal(rollout.truncated[0], [[False] * 3 + [True]] * 2)


@pytest.mark.parametrize("engine", ["compiled", "host"])
def test_what_the_spec_names_of_a_steps_info_is_recorded_and_nothing_else(engine):
    rollout = collected(Telling(), engine)
    assert rollout.extras.keys() == {"success", "info/place"}
    np.testing.assert_array_equal(rollout.extras["info/place"][0], [[1, 2, 3, 4]] * 2)
    np.testing.assert_array_equal(rollout.extras["success"][0], [[False, False, True, True]] * 2)


@dataclass(frozen=True)
class Cutting(Drifting):
    """Cuts an episode once it is at 2."""

    def step(self, key, state, action, task):
        after, step = super().step(key, state, action, task)
        return after, replace(step, truncated=after[0] >= 2)


@pytest.mark.parametrize("engine", ["compiled", "host"])
def test_an_episode_that_the_environment_cuts_is_truncated_there(engine):
    rollout = collected(Cutting(), engine)
    np.testing.assert_array_equal(rollout.truncated[0, :, :2], [[False, True]] * 2)
    assert not rollout.terminated.any() and rollout.valid.sum(-1).tolist() == [[2, 2]]


def test_info_that_the_spec_names_and_a_step_lacks_is_named():
    with pytest.raises(EnvironmentFault, match=r"steps report 'success'; this one reports \[\]"):
        collected(Silent(), "compiled")


def test_a_step_without_a_reward_is_refused():
    with pytest.raises(EnvironmentFault, match="gives reward and next_obs"):
        collected(Unrewarding(), "compiled")


def test_the_suite_says_its_engine_and_an_unknown_one_is_named():
    with pytest.raises(ConfigError, match="unknown engine 'scan'"):
        collected(Drifting(), "scan")


def test_workers_run_a_compiled_environment_by_the_host_engine():
    tasks = TaskList("t", [{"drift": 1.0}])
    suite = compiled_suite("s", Drifting(), tasks, tasks)
    assert (suite.engine, placed(suite, num_workers=1).engine) == ("compiled", "workers")


def test_the_environment_of_the_docs_is_complete():
    page = (Path(__file__).parents[2] / "docs" / "concepts.md").read_text()
    (source,) = re.findall(r"^```python\n(.*?)^```", page, flags=re.M | re.S)
    names = {"__name__": "dial"}
    exec(compile(source, "dial.py", "exec", dont_inherit=True), names)
    suite = names["suite"]
    sampler = Sampler(suite, suite.train, 0, "train")
    rollout = sampler.episodes(UniformActor(suite.spec.action), suite.train.tasks, 2, 1)
    expected = -np.abs(np.asarray(rollout.action)[..., 0] - np.array([-0.5, 0, 0.5])[:, None, None])
    np.testing.assert_allclose(rollout.reward, expected, rtol=1e-6)


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
    with pytest.raises(ConfigError, match=r"task .t0. has (the )?parameters"):
        begun(params, pool=begun({"drift": 1.0}))


def test_a_whole_number_in_one_task_cuts_no_fraction_off_another():
    assert moved(begun({"drift": 0}, {"drift": 0.5})) == [0.0, 0.5]
    assert moved(begun({"drift": 0.5}, pool=begun({"drift": 0}))) == [0.5]
    assert moved(begun({"drift": 2}, pool=begun({"drift": 0.5}))) == [2.0]


@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 2**63, 1e39, "12", "left"])
def test_a_parameter_that_32_bits_cannot_hold_is_refused(value):
    with pytest.raises(ConfigError, match=re.escape(f"'drift' is {value!r}")):
        begun({"drift": value})


def test_the_name_of_a_tasks_class_is_no_parameter_of_a_step():
    assert moved(begun({"class": "left", "drift": 1.0})) == [1.0]


class Fixed:
    """A value that is hashed as an object: environments are static arguments."""

    def __init__(self, value):
        self.value = value


@dataclass(frozen=True)
class Answering(Drifting):
    """Gives one part of a step otherwise."""

    part: str
    fixed: Fixed

    @property
    def spec(self):
        return replace(super().spec, has_success=True)

    def step(self, key, state, action, task):
        after, step = super().step(key, state, action, task)
        step = replace(step, info={"success": jnp.asarray(True)})
        value = jnp.asarray(self.fixed.value)
        if self.part == "success":
            return after, replace(step, info={"success": value})
        if self.part == "state":
            return value, step
        return after, replace(step, **{self.part: value})


@pytest.mark.parametrize(
    ("part", "value", "told"),
    [
        ("next_obs", np.zeros(1), r"next_obs .* shape \(1,\); by its spec it is \(2,\)"),
        ("next_obs", np.zeros(3), r"next_obs .* shape \(3,\)"),
        ("reward", np.zeros(1), r"reward .* shape \(1,\); by its spec it is \(\)"),
        ("terminated", np.zeros(1, bool), r"terminated .* shape \(1,\)"),
        ("success", np.zeros(2, bool), r"success .* shape \(2,\)"),
        ("state", np.zeros(3, np.float32), r"float32\[3\] in place of float32\[2\]"),
        ("state", np.zeros(2, np.int32), r"int32\[2\] in place of float32\[2\]"),
    ],
)
def test_a_step_of_another_shape_than_the_specs_is_refused(part, value, told):
    env = Answering(part, Fixed(value))
    with pytest.raises(EnvironmentFault, match=told):
        begun({"drift": 1.0}, pool=CompiledPool(env, 1))


@pytest.mark.parametrize("engine", ["compiled", "host"])
@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("reward", 1),
        ("reward", True),
        ("terminated", 0.0),
        ("terminated", 1),
        ("truncated", 0),
        ("success", 1.0),
        ("success", 0),
    ],
)
def test_numbers_of_a_step_may_be_of_any_kind(part, value, engine):
    rollout = collected(Answering(part, Fixed(value)), engine)
    named = {**vars(rollout), **rollout.extras}
    found = np.asarray(named[part])[0, 0, 0]
    assert found.dtype == (np.float32 if part == "reward" else bool)
    assert found == value


def test_some_slots_of_a_new_pool_can_be_reset_before_others():
    suite = family("half-cheetah-vel")
    task, slot = some_tasks(suite, 1), np.array([1])
    pool, alone = suite.make_pool(2), suite.make_pool(1)
    first = pool.reset(slot, np.array([3], np.uint32), task)
    np.testing.assert_array_equal(first, alone.reset(np.array([0]), np.array([3], np.uint32), task))


@pytest.mark.parametrize(("num_seeds", "num_tasks"), [(1, 3), (3, 1), (3, 4)])
def test_a_reset_needs_a_seed_and_a_task_for_every_slot(num_seeds, num_tasks):
    pool, task = CompiledPool(Drifting(), 3), Task("t", 0, {"drift": 1.0})
    with pytest.raises(EnvironmentFault, match=f"{num_seeds} seeds and {num_tasks} tasks"):
        pool.reset(np.arange(3), np.zeros(num_seeds, np.uint32), [task] * num_tasks)


def test_steps_without_a_running_episode_and_numbers_that_are_none_name_slot_step_and_task():
    pool = CompiledPool(Drifting(), 2)
    with pytest.raises(SlotFault, match="slot 0, step 0, task none: no running episode"):
        moved(pool)
    begun({"drift": 1.0}, {"drift": 3e38}, pool=pool)
    with pytest.raises(SlotNotFinite, match="slot 0, step 0, task 't0': the action is not finite"):
        pool.step(np.arange(1), np.full((1, 1), np.nan, np.float32))
    moved(pool)
    with pytest.raises(SlotNotFinite, match="slot 1, step 1, task 't1': the observation is not"):
        moved(pool)
    for _ in range(3):
        pool.step(np.arange(1), np.zeros((1, 1), np.float32))
    with pytest.raises(SlotFault, match="slot 0, step 4, task 't0': no running episode"):
        pool.step(np.arange(1), np.zeros((1, 1), np.float32))


def test_tasks_may_be_plain_lists():
    suite = compiled_suite("s", Drifting(), [{"drift": 0.1}], [0.5, 0.25])
    assert [task.params for task in suite.train.tasks] == [{"drift": 0.1}]
    assert [task.plain() for task in suite.test.tasks][1] == ["s-test-1", 1, {"value": 0.25}]


def test_an_environment_whose_changes_would_not_be_seen_is_refused():
    class Plain:
        def __init__(self):
            self.spec = Drifting().spec

    with pytest.raises(ConfigError, match="Plain has to be a frozen dataclass"):
        compiled_suite("s", Plain(), [{}], [{}])


def test_a_fault_in_an_environments_step_is_one_line():
    with pytest.raises(ConfigError, match=r"cannot take a step .*name 'tsk' is not defined"):
        begun({"drift": 1.0}, pool=CompiledPool(Misspelt(), 1))


def test_a_typed_key_in_the_state_is_refused():
    with pytest.raises(EnvironmentFault, match=r"a typed key.*: keep jax.random.key_data\(key\)"):
        begun({"drift": 1.0}, pool=CompiledPool(Keyed(), 1))


def test_lanes_that_wait_get_actions_that_are_numbers():
    """Or a loop that looks for one would not end."""
    drifts = [{"drift": np.float32(0.5)}, {"drift": np.float32(1.5)}]
    suite = compiled_suite("searching", Searching(), drifts, drifts)
    sampler = Sampler(suite, suite.train, 0, "test")
    rollout = sampler.episodes(UniformActor(suite.spec.action), suite.train.tasks, 1, 1)
    assert sorted(np.asarray(rollout.valid).sum(-1).ravel().tolist()) == [2, 4]
