"""Your own environment: a dial whose right setting must be found from the reward, by RL2-PPO."""

import gymnasium
import numpy as np

import adaptax


class Dial(gymnasium.Env):
    """Turn a dial; the reward is minus its distance from a setting that is not shown."""

    observation_space = action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        """The dial at 0; `options` are the task's parameters."""
        self.setting = options["setting"]
        return np.zeros(1, np.float32), {}

    def step(self, action):
        """The dial where it was turned to."""
        return action, -abs(float(action[0]) - self.setting), False, False, {}


def main(num_iterations: int = 100, run_dir: str = "runs/own-environment") -> np.ndarray:
    """Train on 100 settings; returns of the first, second and third episode on 20 others."""
    tasks = [{"setting": x} for x in np.random.default_rng(0).uniform(-1, 1, 120)]
    suite = adaptax.gym_suite(
        "dial", Dial, train=tasks[:100], test=tasks[100:], horizon=5, trial_episodes=3
    )
    settings = {"num_iterations": num_iterations, "run_dir": run_dir, "overwrite": True}
    algorithm = {"reward_scale": 1.0, "lr_schedule": "linear"}
    trainer = adaptax.train("rl2-ppo", suite, algorithm=algorithm, **settings)
    return trainer.evaluate().returns.mean(axis=0)


if __name__ == "__main__":
    print("return of each episode on a new setting:", main().round(2))
