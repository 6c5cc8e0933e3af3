"""A stored next observation is what the step led to, never a reset's."""

from dataclasses import dataclass, replace

import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.core.errors import EnvironmentFault
from adaptax.core.spec import Continuous, Discrete, EnvSpec
from adaptax.core.step import Step
from adaptax.envs.suites.compiled import compiled_suite
from adaptax.envs.task import TaskList
from adaptax.sampling.actors import UniformActor
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class CountingEnv:
    """Observes how many steps the episode has; terminates where `task["end"]` says."""

    @property
    def spec(self):
        return EnvSpec(1, Discrete(2), horizon=4)

    def reset(self, key, task):
        return jnp.zeros(1), jnp.zeros(1)

    def step(self, key, state, action, task):
        after = state + 1
        return after, Step(reward=after[0], next_obs=after, terminated=after[0] >= task["end"])


TASKS = TaskList("count", [{"end": 3}, {"end": 9}])
SUITE = compiled_suite("count", CountingEnv(), TASKS, TASKS)


@pytest.mark.parametrize("whole", [True, False], ids=["episodes", "steps"])
@pytest.mark.parametrize("engine", ["compiled", "host"])
def test_next_obs_is_one_more_at_every_kind_of_end(whole, engine):
    collector = Sampler(replace(SUITE, engine=engine), TASKS, 0, "train")
    actor = UniformActor(Discrete(2))
    collect = collector.episodes if whole else collector.steps
    rollout = collect(actor, TASKS.tasks, 2, 3 if whole else 10)
    valid = np.asarray(rollout.valid)
    np.testing.assert_array_equal(np.asarray(rollout.next_obs - rollout.obs)[valid], 1.0)
    np.testing.assert_array_equal(rollout.terminated[0].sum(-1), [3, 3])
    np.testing.assert_array_equal(rollout.truncated[1].sum(-1), [3 if whole else 2] * 2)
    after_end = np.asarray(rollout.obs)[0, :, 3, 0]
    np.testing.assert_array_equal(after_end, [0.0, 0.0])


@dataclass(frozen=True)
class Wide:
    """Observations of many numbers, NaN in the one after step 3 of the second task."""

    @property
    def spec(self):
        return EnvSpec(100, Continuous(1), 5)

    def reset(self, key, task):
        return jnp.int32(0), jnp.arange(100.0)

    def step(self, key, state, action, task):
        bad = (state == 3) & (task["number"] == 1)
        obs = jnp.where(bad, jnp.nan, state + jnp.arange(100.0))
        return state + 1, Step(reward=action[0], next_obs=obs)


@pytest.mark.parametrize("engine", ["host", "compiled"])
def test_observations_of_many_numbers_are_kept_step_by_step_and_looked_at(engine):
    tasks = TaskList("wide", [{"number": i} for i in range(2)])
    suite = replace(compiled_suite("wide", Wide(), tasks, tasks), engine=engine)
    sampler, actor = Sampler(suite, tasks, 0, "train"), UniformActor(suite.spec.action)
    rollout = sampler.episodes(actor, tasks.tasks[:1] * 2, 3, 2)
    seen = np.asarray(rollout.next_obs)[..., 0]
    np.testing.assert_array_equal(seen, np.tile([0, 1, 2, 3, 4], (2, 3, 2)))
    np.testing.assert_array_equal(
        np.asarray(rollout.obs)[..., 99], np.tile([0, 0, 1, 2, 3], (2, 3, 2)) + 99
    )
    if engine == "compiled":  # the other leaves it to pools
        with pytest.raises(
            EnvironmentFault, match="slot 3, step 3, task 'wide-1': the observation"
        ):
            sampler.episodes(actor, tasks.tasks, 3, 2)
