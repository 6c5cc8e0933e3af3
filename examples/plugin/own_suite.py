"""A suite of your own: a radio and a station that must be found from the reward."""

from dataclasses import dataclass

import gymnasium
import numpy as np

import adaptax
from adaptax.core.config import check_positive


class Radio(gymnasium.Env):
    """Turn a dial; the reward is minus its distance from a station."""

    observation_space = action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        """The dial at 0; `options` are the task's parameters."""
        self.station = options["station"]
        return np.zeros(1, np.float32), {}

    def step(self, action):
        """The dial where it was turned to."""
        return action, -abs(float(action[0]) - self.station), False, False, {}


@dataclass(frozen=True)
class RadioConfig:
    """Settings; each is a flag too, such as `--suite.spread 0.3`."""

    horizon: int = 5
    """Steps of an episode."""
    spread: float = 0.2
    """Standard deviation of the stations around 0.6."""

    def __post_init__(self):
        check_positive(self, "horizon", "spread")


def radio(config: RadioConfig) -> adaptax.Suite:
    """A radio and a station that is not shown."""
    stations = np.clip(np.random.default_rng(0).normal(0.6, config.spread, 120), -1, 1)
    tasks = [{"station": float(x)} for x in stations]
    return adaptax.gym_suite(
        "radio", Radio, train=tasks[:100], test=tasks[100:], horizon=config.horizon
    )
