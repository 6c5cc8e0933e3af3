"""An environment as slow as a simulator in Python; in a module that worker processes can import."""

import time

import gymnasium
import numpy as np

STEP_SECONDS = 1e-3


class SlowEnv(gymnasium.Env):
    """Computes for a millisecond a step: of CPU time, so that sharing a core does not hide it."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (8,))
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,))

    def reset(self, *, seed=None, options=None):
        """Start with an observation drawn from the seed."""
        super().reset(seed=seed)
        return self.np_random.uniform(-1.0, 1.0, 8).astype(np.float32), {}

    def step(self, action):
        """Compute, and draw the next observation."""
        begun = time.thread_time()
        obs = self.np_random.uniform(-1.0, 1.0, 8).astype(np.float32)
        while time.thread_time() - begun < STEP_SECONDS:
            pass
        return obs, float(obs[0]), False, False, {}
