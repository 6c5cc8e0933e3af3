import numpy as np
import pytest

from adaptax.core.errors import ConfigError
from adaptax.core.spec import Discrete
from adaptax.envs.suites.gridworld import GridworldConfig, gridworld, possible_goals

SUITE = gridworld(GridworldConfig())
UP, DOWN, LEFT, RIGHT, STAY = range(5)


def played(goal, actions, suite=SUITE):
    """Cells, rewards and success of the steps of one lane, and where episodes end."""
    (task,) = [task for task in suite.test.tasks if list(task.params["goal"]) == list(goal)]
    pool = suite.make_pool(1)
    slot, cells, rows = np.arange(1), [], []
    pool.reset(slot, np.zeros(1, np.uint32), [task])
    for action in actions:
        step = pool.step(slot, np.array([action], np.int32))
        cells.append(np.asarray(step.next_obs)[0].tolist())
        end = bool(step.terminated[0])
        rows.append((float(step.reward[0]), bool(step.info["success"][0]), end))
        if end:
            pool.reset(slot, np.zeros(1, np.uint32), [task])
    rewards, success, ends = zip(*rows, strict=True)
    return cells, np.array(rewards), list(success), list(ends)


def test_spec_is_the_papers():
    spec = SUITE.spec
    assert (spec.observation_size, spec.action, spec.horizon) == (2, Discrete(5), 15)
    assert (spec.trial_episodes, spec.horizon_terminates, spec.has_success) == (4, True, True)


def test_moves_are_up_down_left_right_and_stay_and_walls_hold():
    actions = [LEFT, DOWN, UP, UP, RIGHT, STAY, DOWN, LEFT, *[UP] * 5]
    cells, *_ = played((4, 4), actions)
    assert cells[:8] == [[0, 0], [0, 0], [0, 1], [0, 2], [1, 2], [1, 2], [1, 1], [0, 1]]
    assert cells[8:] == [[0, 2], [0, 3], [0, 4], [0, 4], [0, 4]]


def test_a_step_to_the_goal_and_one_that_stays_there_pay_1_and_others_minus_a_tenth():
    _, rewards, success, _ = played((2, 0), [RIGHT, RIGHT, STAY, LEFT, RIGHT])
    np.testing.assert_allclose(rewards, [-0.1, 1.0, 1.0, -0.1, 1.0], rtol=1e-6)
    assert success == [False, True, True, False, True]


def test_an_episode_is_over_at_its_horizon_and_the_next_starts_in_the_corner():
    cells, _, _, ends = played((4, 4), [UP] * 6, gridworld(GridworldConfig(horizon=3)))
    assert ends == [False, False, True] * 2
    assert cells[3] == [0, 1]


def test_goals_are_all_cells_but_the_start_and_those_that_touch_it():
    goals = {tuple(goal) for goal in possible_goals(5).tolist()}
    cells = {(x, y) for x in range(5) for y in range(5)}
    assert goals == cells - {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert len(possible_goals(3)) == 5


def test_every_goal_is_trained_on_and_none_is_held_out():
    assert len(SUITE.test.tasks) == 21
    assert not SUITE.held_out
    drawn = SUITE.train.sample(np.random.default_rng(0), 21)
    assert {task.name for task in drawn} == {task.name for task in SUITE.test.tasks}


def test_a_grid_without_a_cell_far_from_the_start_is_refused():
    with pytest.raises(ConfigError, match="size must be at least 3, not 2"):
        GridworldConfig(size=2)
    with pytest.raises(ConfigError, match="num_episodes must be greater than 0, not 0"):
        GridworldConfig(num_episodes=0)
