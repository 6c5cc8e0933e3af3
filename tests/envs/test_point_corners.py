import jax
import jax.numpy as jnp
import numpy as np
import pytest

from adaptax.core.errors import ConfigError
from adaptax.envs.suites.point_corners import (
    CORNERS,
    PointCornersConfig,
    PointCornersEnv,
    PointMomentumConfig,
    PointMomentumEnv,
    PointWallsConfig,
    PointWallsEnv,
    point_corners,
    point_momentum,
    point_walls,
)

KEY = jax.random.key(0)
GOAL = {"goal": jnp.array([2.0, 2.0])}
GAPS = {**GOAL, "gaps": jnp.array([[1.0, 0.0], [0.0, 2.0]])}
"""The inner wall is open to the right, the outer one above."""


def step(env, state, action, task=GOAL):
    return env.step(KEY, jnp.array(state), jnp.array(action), task)[1]


def walls(position, action, **settings):
    return step(PointWallsEnv(PointWallsConfig(**settings)), position, action, GAPS)


def starts(env):
    keys = jax.random.split(KEY, 500)
    return np.asarray(jax.jit(jax.vmap(lambda key: env.reset(key, GAPS)[1]))(keys))


def test_corners_step_by_0_4_and_reward_half_the_distance():
    taken = step(PointCornersEnv(PointCornersConfig()), [0.0, 1.0], [1.0, -0.5])
    np.testing.assert_allclose(taken.next_obs, [0.4, 0.8], rtol=1e-6)
    assert float(taken.reward) == pytest.approx(-0.5 * np.hypot(1.6, 1.2), rel=1e-6)


@pytest.mark.parametrize(
    ("position", "reward"),
    [([1.0, 1.0], 0.2), ([-1.0, 1.0], 0.0), ([0.0, 0.0], 0.0)],
    ids=["towards the goal", "towards another corner", "near the start"],
)
def test_sparse_corners_reward_progress_where_the_goal_is_nearest(position, reward):
    config = PointCornersConfig(sparse=True, step_size=0.2, reward_scale=1.0)
    taken = step(PointCornersEnv(config), position, [1.0, 0.0])
    expected = np.hypot(1.0, 1.0) - np.hypot(0.8, 1.0) if reward else 0.0
    assert float(taken.reward) == pytest.approx(expected, abs=1e-6)


def test_sparse_corners_punish_steps_back():
    config = PointCornersConfig(sparse=True, step_size=0.2, reward_scale=1.0)
    assert float(step(PointCornersEnv(config), [1.0, 1.0], [-1.0, -1.0]).reward) < -0.2


def test_momentum_moves_by_the_new_velocity():
    env = PointMomentumEnv(PointMomentumConfig())
    taken = step(env, [1.0, 2.0, 0.3, 0.0], [1.0, 0.0])
    np.testing.assert_allclose(taken.next_obs, [1.4, 2.0, 0.4, 0.0], rtol=1e-6)
    assert float(taken.reward) == pytest.approx(-0.6, rel=1e-5)


@pytest.mark.parametrize(("position", "reward"), [([1.0, 2.0], 1.0), ([-1.0, 2.0], 0.0)])
def test_sparse_momentum_rewards_nearness_within_2(position, reward):
    env = PointMomentumEnv(PointMomentumConfig(sparse=True))
    assert float(step(env, [*position, 0.0, 0.0], [0.0, 0.0]).reward) == pytest.approx(reward)


def test_a_wall_stops_at_its_radius():
    taken = walls([-0.9, 0.0], [-1.0, 0.0])
    np.testing.assert_allclose(taken.next_obs, [-1.0, 0.0], atol=1e-4)
    assert float(jnp.linalg.norm(taken.next_obs)) < 1.0


def test_a_stopped_point_stays_stopped():
    state = jnp.array([-0.9, 0.1])
    for _ in range(20):
        state = walls(state, [-1.0, 0.0]).next_obs
    assert 0.99 < float(jnp.linalg.norm(state)) < 1.0


@pytest.mark.parametrize(
    ("position", "action", "reached"),
    [
        ([0.9, 0.0], [1.0, 0.0], [1.1, 0.0]),
        ([0.0, 1.9], [0.0, 1.0], [0.0, 2.1]),
        ([-1.1, 0.0], [1.0, 0.0], [-0.9, 0.0]),
        ([0.0, -2.1], [0.0, 1.0], [0.0, -1.9]),
    ],
    ids=["inner gap", "outer gap", "inwards through the inner", "inwards through the outer"],
)
def test_moves_that_walls_let_pass(position, action, reached):
    np.testing.assert_allclose(walls(position, action).next_obs, reached, rtol=1e-5, atol=1e-6)


def test_the_outer_wall_has_a_gap_of_its_own():
    taken = walls([1.9, 0.0], [1.0, 0.0])
    np.testing.assert_allclose(taken.next_obs, [2.0, 0.0], atol=1e-4)
    assert float(jnp.linalg.norm(taken.next_obs)) < 2.0


def test_walls_reward_where_the_point_is():
    assert float(walls([-0.9, 0.0], [-1.0, 0.0]).reward) == pytest.approx(-np.hypot(3, 2), abs=1e-4)


@pytest.mark.parametrize(("position", "progress"), [([2.0, 0.5], 0.2), ([2.0, -1.0], 0.0)])
def test_sparse_walls_reward_progress_near_the_goal(position, progress):
    taken = walls(position, [0.0, 1.0], sparse=True)
    assert float(taken.reward) == pytest.approx(progress, abs=1e-6)


@pytest.mark.parametrize(
    "env",
    [
        PointCornersEnv(PointCornersConfig()),
        PointMomentumEnv(PointMomentumConfig()),
        PointWallsEnv(PointWallsConfig()),
    ],
    ids=["corners", "momentum", "walls"],
)
def test_success_is_being_within_half_a_unit(env):
    rest = [0.0] * (env.spec.observation_size - 2)
    for x, near in ((1.51, True), (1.49, False)):
        assert bool(step(env, [x, 2.0, *rest], [0.0, 0.0], GAPS).info["success"]) == near


def test_starts_are_uniform_in_their_squares():
    assert np.abs(starts(PointCornersEnv(PointCornersConfig()))).max() == 0.0
    assert 0.19 < np.abs(starts(PointWallsEnv(PointWallsConfig()))).max() <= 0.2
    momentum = np.abs(starts(PointMomentumEnv(PointMomentumConfig()))).max(0)
    np.testing.assert_allclose(momentum, [0.2, 0.2, 0.1, 0.1], rtol=0.05)


@pytest.mark.parametrize(
    "suite", [point_corners(PointCornersConfig()), point_momentum(PointMomentumConfig())]
)
def test_tasks_are_the_four_corners(suite):
    goals = np.stack([task.params["goal"] for task in suite.train.tasks])
    np.testing.assert_array_equal(goals, CORNERS)
    assert {tuple(g) for g in goals} == {(-2, -2), (-2, 2), (2, -2), (2, 2)}


def test_gaps_lie_on_their_walls():
    suite = point_walls(PointWallsConfig(num_test_tasks=200))
    gaps = np.stack([task.params["gaps"] for task in suite.test.tasks])
    radii = np.broadcast_to([1.0, 2.0], (200, 2))
    np.testing.assert_allclose(np.linalg.norm(gaps, axis=2), radii, rtol=1e-6)
    assert len({tuple(task.params["goal"]) for task in suite.test.tasks}) == 4


def test_a_negative_start_range_is_refused():
    with pytest.raises(ConfigError, match=r"not -0\.1"):
        PointCornersConfig(start_range=-0.1)
