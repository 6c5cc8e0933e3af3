"""A small environment whose episodes end at random, and an actor with a memory for it."""

from dataclasses import dataclass, field, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from adaptax.core.experience import Step
from adaptax.core.spec import ActionSpace, Continuous, EnvSpec
from adaptax.envs.suite import Suite
from adaptax.envs.suites.compiled import compiled_suite
from adaptax.envs.task import TaskList
from adaptax.networks.actor_critic import ActorCritic, init_params
from adaptax.networks.memory import GRU
from adaptax.sampling.memory_actors import MemoryActor, TrialInputs, trial_input_size

DRIFTS = (-1.0, 0.0, 1.0)


@dataclass(frozen=True)
class RandomEndEnv:
    """A point in the plane that drifts along x as its task says, and ends with a probability."""

    action: ActionSpace = field(default_factory=lambda: Continuous(2))
    horizon: int = 5
    end_probability: float = 0.2

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(2, self.action, self.horizon, trial_episodes=2, has_success=True)

    def reset(self, key, task):
        start = jax.random.uniform(key, (2,))
        return start, start

    def step(self, key, state, action, task):
        push = jnp.mean(action) if isinstance(self.action, Continuous) else 0.1 * action
        chance = jax.random.uniform(key, (3,))
        position = state + 0.02 * (chance[:2] - 0.5) + jnp.array([task["drift"], push])
        ends = chance[2] < self.end_probability
        return position, Step(
            reward=jnp.sum(position),
            next_obs=position,
            terminated=ends,
            info={"success": position[1] > 0.5},
        )


def trial_actor(space: ActionSpace) -> TrialInputs:
    """An actor with random parameters, drawn rather than initialised to save compile time."""
    network = ActorCritic(space, (3,), GRU(4), shared=True)
    size = trial_input_size(2, space)
    shapes = jax.eval_shape(partial(init_params, network, observation_size=size), jax.random.key(0))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda x: 0.5 * rng.normal(size=x.shape).astype(np.float32), shapes)
    return TrialInputs(MemoryActor(params, network), space)


def random_end(env: RandomEndEnv, *, stepped: bool = False) -> Suite:
    """Three tasks, for the compiled engine, or for the host engine if `stepped`."""
    tasks = TaskList("drift", [{"drift": drift} for drift in DRIFTS])
    suite = compiled_suite("random-end", env, tasks, tasks)
    return replace(suite, engine="host") if stepped else suite
