from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from adaptax.algorithms.meta.pearl import PEARLConfig
from adaptax.algorithms.meta.rl2_ppo import RL2PPOConfig
from adaptax.algorithms.off_policy.sac import SACConfig
from adaptax.algorithms.on_policy.ppo import CriticConfig, PPOConfig
from adaptax.core.errors import ConfigError
from adaptax.learning.schedules import falling, iterations_within, over_the_run


@dataclass(frozen=True)
class Settings:
    lr_schedule: str = "constant"
    lr_schedule_steps: int = 4


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("linear", [0.5, 0.5, 0.375, 0.375, 0.25]),
        ("exponential", [0.5, 0.5, 0.28117, 0.28117]),
        ("cosine", [0.5, 0.5, 0.42678, 0.42678, 0.25, 0.25, 0.07322, 0.07322, 0, 0, 0, 0]),
        (optax.linear_schedule(1.0, 0.2, 2), [0.5, 0.5, 0.3, 0.3, 0.1, 0.1, 0.1]),
    ],
)
def test_the_rate_falls_once_a_pass(schedule, expected):
    rate = falling(0.5, Settings(lr_schedule=schedule), updates_per_pass=2)
    got = [float(rate(jnp.array(k))) for k in range(len(expected))]
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-7)


def test_the_cosine_is_that_of_optax():
    rate = falling(0.5, Settings(lr_schedule="cosine"), updates_per_pass=1)
    passes = jnp.arange(7)
    np.testing.assert_allclose(rate(passes), optax.cosine_decay_schedule(0.5, 4)(passes), atol=1e-7)


def test_a_schedule_without_a_length_is_as_long_as_the_run():
    config = PPOConfig(num_epochs=3, lr_schedule="cosine", critic=CriticConfig(num_epochs=2))
    long = over_the_run(config, 10)
    assert (long.lr_schedule_steps, long.critic.lr_schedule_steps) == (30, None)
    both = over_the_run(PPOConfig(critic=CriticConfig(num_epochs=2, lr_schedule="linear")), 10)
    assert (both.lr_schedule_steps, both.critic.lr_schedule_steps) == (None, 20)
    assert over_the_run(PPOConfig(), None) == PPOConfig()
    given = PPOConfig(lr_schedule="linear", lr_schedule_steps=7)
    assert over_the_run(given, 10) is given
    sac = SACConfig(lr_schedule="linear", num_cycles=3, num_updates=5)
    assert over_the_run(sac, 10).lr_schedule_steps == 150
    pearl = PEARLConfig(lr_schedule="linear", num_updates=5, context_minibatch_size=50)
    assert over_the_run(pearl, 10).lr_schedule_steps == 100
    entropy = {"entropy_method": "regularized", "entropy_schedule": "linear"}
    rl2 = RL2PPOConfig(num_epochs=4, entropy_coeff=0.1, **entropy)
    assert over_the_run(rl2, 10).lr_schedule_steps == 40
    with pytest.raises(ConfigError, match=r"needs num_iterations, .*; or give its length"):
        over_the_run(sac, None)


@pytest.mark.parametrize(
    ("config", "limits", "expected"),
    [
        (PPOConfig(num_lanes=3, num_steps=10), (None, 25), 3),  # 12 steps an iteration
        (PPOConfig(num_lanes=3, num_steps=10), (2, 25), 2),
        (PPOConfig(num_episodes=4), (None, 25), None),
        (PPOConfig(num_episodes=4), (7, 25), 7),
        (SACConfig(num_lanes=2, num_cycles=3, num_steps=5), (None, 19), 2),  # 18
        (RL2PPOConfig(), (None, 25), None),
        (RL2PPOConfig(), (None, None), None),
    ],
)
def test_the_iterations_of_a_run_are_known_from_its_limits_or_not(config, limits, expected):
    assert iterations_within(config, *limits) == expected


def test_a_linear_schedule_ends_at_zero():
    rate = falling(0.5, Settings(lr_schedule="linear"), updates_per_pass=2)
    assert float(rate(jnp.array(8))) == float(rate(jnp.array(100))) == 0.0
