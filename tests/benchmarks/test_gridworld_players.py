"""Reference players of the gridworld: against brute force on 3 x 3, and played in the suite."""

import numpy as np
import pytest
from players.gridworld_players import (
    START,
    Grid,
    informed_returns,
    optimal_path,
    path_returns,
    posterior_sampling_returns,
    random_returns,
)

from adaptax.envs.suites.gridworld import GridworldConfig, gridworld

SMALL = Grid(size=3, horizon=3, num_episodes=2)
MOVES = [(0, 1), (0, -1), (-1, 0), (1, 0), (0, 0)]


def moved(cell, move):
    return tuple(min(max(c + m, 0), 2) for c, m in zip(cell, move, strict=True))


def best_of_all_policies(grid: Grid) -> float:
    """The most that any policy can expect on 3 x 3, by trying every action after every history.

    Nothing is known here but the steps of the game and Bayes' rule: goals that contradict what was
    paid are out.
    """

    def best(time, cell, goals):
        """The most that is to come, summed over the goals still possible."""
        if time == grid.horizon * grid.num_episodes:
            return 0.0
        if time % grid.horizon == 0:
            cell = (0, 0)
        values = []
        for move in MOVES:
            there = moved(cell, move)
            here = [goal for goal in goals if goal == there]
            others = [goal for goal in goals if goal != there]
            value = sum(1.0 + best(time + 1, there, [goal]) for goal in here)
            if others:
                value += best(time + 1, there, others) - 0.1 * len(others)
            values.append(value)
        return max(values)

    goals = [(0, 2), (1, 2), (2, 0), (2, 1), (2, 2)]
    return best(0, (0, 0), goals) / len(goals)


@pytest.mark.parametrize(
    "grid", [SMALL, Grid(3, 6, 1), Grid(3, 2, 3)], ids=["two episodes", "one", "three"]
)
def test_no_policy_beats_the_optimal_path(grid):
    optimum = path_returns(grid, optimal_path(grid)).sum()
    assert optimum == pytest.approx(best_of_all_policies(grid), abs=1e-9)


def in_the_suite(grid: Grid, path: list[int]) -> np.ndarray:
    """Mean return of each episode [K], played: along the path, then to the goal and staying."""
    suite = gridworld(GridworldConfig(grid.size, grid.horizon, grid.num_episodes))
    tasks = suite.test.tasks
    pool, slots = suite.make_pool(len(tasks)), np.arange(len(tasks))
    seeds, total = np.zeros(len(tasks), np.uint32), np.zeros((len(tasks), grid.num_episodes))
    goals = [int(np.dot(task.params["goal"], [grid.size, 1])) for task in tasks]
    known = np.zeros(len(tasks), bool)
    for time, planned in enumerate(path):
        episode, step = divmod(time, grid.horizon)
        if step == 0:
            pool.reset(slots, seeds, tasks)
            cells = [START] * len(tasks)
        aims = [goal if k else planned for goal, k in zip(goals, known, strict=True)]
        actions = [nearest(grid, cell, aim) for cell, aim in zip(cells, aims, strict=True)]
        found = pool.step(slots, np.array(actions, np.int32))
        cells = np.asarray(found.next_obs) @ [grid.size, 1]
        cells = cells.astype(int).tolist()
        known |= np.asarray(found.reward) > 0
        total[:, episode] += np.asarray(found.reward)
    return total.mean(axis=0)


def nearest(grid: Grid, cell: int, aim: int) -> int:
    """The move after which the way to a cell is shortest."""

    def left(there: int) -> int:
        ends = zip(divmod(there, grid.size), divmod(aim, grid.size), strict=True)
        return sum(abs(a - b) for a, b in ends)

    return int(np.argmin([left(there) for there in grid.after[cell]]))


@pytest.mark.parametrize("grid", [SMALL, Grid(4, 6, 3)], ids=["3 x 3", "4 x 4"])
def test_played_in_the_suite_a_path_returns_what_is_said_of_it(grid):
    path = optimal_path(grid)
    np.testing.assert_allclose(in_the_suite(grid, path), path_returns(grid, path), atol=1e-5)


def test_to_know_the_goal_bounds_the_optimum_which_bounds_the_others():
    grid = Grid(4, 6, 3)
    informed, optimum = informed_returns(grid), path_returns(grid, optimal_path(grid))
    sampled, chance = posterior_sampling_returns(grid), random_returns(grid)
    assert informed.sum() > optimum.sum() > sampled.sum() > chance.sum()
    assert np.all(np.diff(optimum) >= 0)
    # By hand: the 12 goals are 2 to 6 moves away, 3 + 4 + 3 + ... of them.
    distances = [2, 3, 2, 3, 4, 3, 4, 5, 3, 4, 5, 6]
    expected = np.mean([6 - 1.1 * (d - 1) for d in distances])
    assert informed == pytest.approx([expected] * 3)


def simulated(grid: Grid, num: int, player) -> np.ndarray:
    """Mean return of each episode [K] of `player(rng, episode, possible) -> cells`."""
    rng, total = np.random.default_rng(0), np.zeros(grid.num_episodes)
    for _ in range(num):
        goal, possible = int(rng.choice(grid.goals)), set(grid.goals)
        for episode in range(grid.num_episodes):
            cells = player(rng, sorted(possible))
            total[episode] += sum(1.0 if cell == goal else -0.1 for cell in cells)
            possible = {goal} if goal in cells else possible - set(cells)
    return total / num


def test_posterior_sampling_is_what_a_simulation_finds():
    grid = Grid(3, 5, 3)

    def player(rng, possible):
        aim, cells = int(rng.choice(possible)), [START]
        for _ in range(grid.horizon):
            x, y = divmod(cells[-1], 3)
            to_x, to_y = divmod(aim, 3)
            cells.append(cells[-1] + 3 if x < to_x else cells[-1] + (y < to_y))
        return cells[1:]

    expected = posterior_sampling_returns(grid)
    np.testing.assert_allclose(simulated(grid, 20_000, player), expected, atol=0.08)


def test_random_moves_are_what_a_simulation_finds():
    grid = Grid(3, 5, 1)

    def player(rng, possible):
        cells = [START]
        for move in rng.integers(5, size=grid.horizon):
            cells.append(grid.after[cells[-1]][move])
        return cells[1:]

    np.testing.assert_allclose(simulated(grid, 20_000, player), random_returns(grid), atol=0.03)
