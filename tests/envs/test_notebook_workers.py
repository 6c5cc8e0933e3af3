"""What a notebook defines, where no other process can import it, in worker processes."""

import subprocess
import sys

CODE = """
import flax.linen as nn, gymnasium, jax, numpy as np
import adaptax
from adaptax.networks.actor_critic import ActorCritic
from adaptax.sampling.sampler import Sampler

GOAL = 0.5

class Dial(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), float(-abs(action[0] - GOAL)), False, False, {}

class Torso(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(4)(x)

found = []
for num_workers in (0, 1):
    suite = adaptax.gym_suite("dial", Dial, horizon=5, num_workers=num_workers)
    networks = ActorCritic(suite.spec.action, torso=Torso())
    algorithm = adaptax.make_algorithm("a2c", suite.spec, networks)
    sampler = Sampler(suite, suite.train, 0, "train")
    actor = algorithm.actor(algorithm.init(jax.random.key(0)))
    rollout = sampler.episodes(actor, sampler.sample_tasks(1), 2, 1)
    found.append(np.asarray(rollout.reward))
    sampler.close()
assert not hasattr(__import__("__main__"), "__file__")
np.testing.assert_array_equal(*found)
"""


def test_an_environment_and_networks_of_a_notebook_are_those_in_a_worker():
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=300)
