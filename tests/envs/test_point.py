import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.core.errors import ConfigError
from adaptax.core.spec import Continuous
from adaptax.envs.suites.point_goal import (
    PointEnv,
    PointGoalConfig,
    PointGoalSparseConfig,
    point_goal,
    point_goal_sparse,
)

KEY = jax.random.key(0)
GOAL = {"goal": jnp.array([0.6, 0.8])}


def step(env: PointEnv, position, action):
    return env.step(KEY, jnp.array(position), jnp.array(action), GOAL)[1]


def test_reward_is_minus_the_distance_after_the_move():
    taken = step(PointEnv(20, 0.1), [0.5, 0.8], [-1.0, 0.0])
    np.testing.assert_allclose(taken.next_obs, [0.4, 0.8], rtol=1e-6)
    assert float(taken.reward) == pytest.approx(-0.2, abs=1e-6)


@pytest.mark.parametrize(
    ("start", "reward"), [([0.55, 0.8], 0.75), ([0.4, 0.8], 0.0), ([0.0, 0.0], 0.0)]
)
def test_sparse_reward_falls_to_zero_at_the_tolerance(start, reward):
    taken = step(PointEnv(20, 0.1, tolerance=0.2), start, [0.0, 0.0])
    assert float(taken.reward) == pytest.approx(reward, abs=1e-6)


@pytest.mark.parametrize(("tolerance", "limit"), [(None, 0.1), (0.2, 0.2)])
def test_success_is_nearness(tolerance, limit):
    env = PointEnv(20, 0.1, tolerance)
    for distance, near in ((0.99 * limit, True), (1.01 * limit, False)):
        assert bool(step(env, [0.6, 0.8 - distance], [0.0, 0.0]).info["success"]) == near


@pytest.mark.parametrize(
    "suite", [point_goal(PointGoalConfig()), point_goal_sparse(PointGoalSparseConfig())]
)
def test_goals_lie_on_the_upper_half_circle(suite):
    drawn = suite.train.sample(np.random.default_rng(0), 200)
    goals = np.stack([task.params["goal"] for task in (*drawn, *suite.test.tasks)])
    np.testing.assert_allclose(np.linalg.norm(goals, axis=1), 1.0, rtol=1e-6)
    assert goals[:, 1].min() >= 0 and goals[:, 0].min() < -0.9 and goals[:, 0].max() > 0.9


def test_spec():
    spec = point_goal(PointGoalConfig(horizon=7)).spec
    assert (spec.observation_size, spec.action, spec.horizon) == (2, Continuous(2), 7)
    assert spec.has_success


def test_held_out_goals_are_fixed_by_the_task_seed():
    one, again, other = (point_goal(PointGoalConfig(task_seed=seed)) for seed in (0, 0, 1))
    assert one.task_set_hash() == again.task_set_hash() != other.task_set_hash()


def test_a_radius_of_zero_is_refused():
    with pytest.raises(ConfigError, match=r"radius must be greater than 0, not 0\.0"):
        PointGoalConfig(radius=0.0)
