"""V2 of the catalogue: a stored next observation is what the step led to, never a reset's."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.core.spec import Discrete, EnvSpec
from adaptax.envs.pools.compiled import JaxPool, JaxStep
from adaptax.envs.suite import Suite
from adaptax.envs.task import TaskList
from adaptax.sampling import sampler as sampler_module
from adaptax.sampling.actors import UniformActor
from adaptax.sampling.host_engine import host_loop
from adaptax.sampling.sampler import Sampler


@dataclass(frozen=True)
class CountingEnv:
    """Observes how many steps the episode has; terminates where `params["end"]` says."""

    @property
    def spec(self):
        return EnvSpec(1, Discrete(2), horizon=4)

    def reset(self, key, params):
        return jnp.zeros(1), jnp.zeros(1)

    def step(self, state, action, key, params):
        after = state + 1
        return JaxStep(after, after, after[0], after[0] >= params["end"], jnp.array(False))


TASKS = TaskList("count", [{"end": 3}, {"end": 9}])
SUITE = Suite("count", CountingEnv().spec, TASKS, TASKS, lambda num: JaxPool(CountingEnv(), num))


@pytest.mark.parametrize("whole", [True, False], ids=["episodes", "steps"])
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "host"])
def test_next_obs_is_one_more_at_every_kind_of_end(whole, compiled, monkeypatch):
    if not compiled:
        monkeypatch.setattr(sampler_module, "scan_loop", host_loop)
    collector, actor = Sampler(SUITE, TASKS, 0, "train"), UniformActor(Discrete(2))
    collect = collector.episodes if whole else collector.steps
    rollout = collect(actor, TASKS.tasks, 2, 3 if whole else 10)
    valid = np.asarray(rollout.valid)
    np.testing.assert_array_equal(np.asarray(rollout.next_obs - rollout.obs)[valid], 1.0)
    np.testing.assert_array_equal(rollout.terminated[0].sum(-1), [3, 3])
    np.testing.assert_array_equal(rollout.truncated[1].sum(-1), [3 if whole else 2] * 2)
    after_end = np.asarray(rollout.obs)[0, :, 3, 0]
    np.testing.assert_array_equal(after_end, [0.0, 0.0])
