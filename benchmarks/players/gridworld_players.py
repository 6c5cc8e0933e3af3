"""Players of the gridworld that know the prior: what a learned player is compared with.

The prior is that of the suite `gridworld` (Zintgraf et al. 2020, arXiv 1910.08348, section 5.1): a
goal uniform over its possible cells, episodes of H steps that start in the corner. Moves are
certain and a step tells whether its cell is the goal, so that a belief is a set of cells still
possible. All that is seen before the goal is found is that it was not there: until then a player
follows one path, and afterwards goes to the goal the shortest way and stays. Figures are exact
expectations, by episode of a trial.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

from adaptax.envs.suites.gridworld import MOVES, OFF_GOAL, ON_GOAL, possible_goals

UNIT = 0.1
"""Rewards are whole numbers of it, so that sums of them are exact."""
_FOUND, _MISSED = round(ON_GOAL / UNIT), round(OFF_GOAL / UNIT)
START = 0
"""The number of the corner; cell (x, y) has the number x * size + y."""


@dataclass(frozen=True)
class Grid:
    """The sizes of a gridworld. Axes: C cells, A moves, G goals, K episodes, H steps of each."""

    size: int = 5
    horizon: int = 15
    num_episodes: int = 4

    @cached_property
    def goals(self) -> list[int]:
        """The numbers of the cells that may be the goal."""
        return [int(x * self.size + y) for x, y in possible_goals(self.size)]

    @cached_property
    def after(self) -> list[list[int]]:
        """The numbers of the cells, by cell, that moves lead to."""
        cells = np.stack(np.divmod(np.arange(self.size**2), self.size), -1)
        moved = np.clip(cells[:, None] + MOVES, 0, self.size - 1)
        found: list[list[int]] = (moved[..., 0] * self.size + moved[..., 1]).tolist()
        return found

    def informed(self, goal: int) -> int:
        """Return, in units, of an episode of who knows the goal."""
        missed = min(sum(divmod(goal, self.size)) - 1, self.horizon)
        return _MISSED * missed + _FOUND * (self.horizon - missed)

    def outcome(self, goal: int, time: int | None) -> np.ndarray:
        """Returns [K], in units, where the trial's step number `time` first leads to the goal.

        Where it is None, no step does. In later episodes the goal is known.
        """
        returns = np.full(self.num_episodes, _MISSED * self.horizon)
        if time is not None:
            episode, missed = divmod(time - 1, self.horizon)
            returns[episode] = _MISSED * missed + _FOUND * (self.horizon - missed)
            returns[episode + 1 :] = self.informed(goal)
        return returns


def informed_returns(grid: Grid) -> np.ndarray:
    """Mean return of each episode [K] to who is told the goal: a bound that no learner reaches."""
    return np.full(grid.num_episodes, UNIT * np.mean([grid.informed(g) for g in grid.goals]))


def random_returns(grid: Grid) -> np.ndarray:
    """Mean return of each episode [K] to who draws every move alike."""
    chance, total = np.eye(grid.size**2)[START], 0.0
    for _ in range(grid.horizon):
        moved = np.zeros_like(chance)
        np.add.at(moved, np.array(grid.after), chance[:, None] / len(MOVES))
        chance = moved
        total += OFF_GOAL + (ON_GOAL - OFF_GOAL) * float(np.mean(chance[grid.goals]))
    return np.full(grid.num_episodes, total)


def posterior_sampling_returns(grid: Grid) -> np.ndarray:
    """Mean return of each episode [K] to posterior sampling (Strens 2000).

    For a whole episode it plays as if one goal, drawn from those still possible, were the goal: it
    goes there, x first and then y, and stays, also where it comes by the goal on its way.
    """

    def way(goal: int) -> list[int]:
        """The cell after each step of an episode."""
        x, y = divmod(goal, grid.size)
        along_x = [grid.size * i for i in range(1, x + 1)]
        along_y = [grid.size * x + i for i in range(1, y + 1)]
        return [*along_x, *along_y, *[goal] * grid.horizon][: grid.horizon]

    @cache
    def returns(possible: frozenset[int], num_episodes: int) -> np.ndarray:
        """Of the last so many episodes, in units, summed over the goals still possible."""
        total = np.zeros(num_episodes)
        if num_episodes == 0 or not possible:
            return total
        for drawn in possible:
            cells = way(drawn)
            seen = possible.intersection(cells)
            on_goal = sum(cell in possible for cell in cells)
            total[0] += _MISSED * grid.horizon * len(possible) + (_FOUND - _MISSED) * on_goal
            total[1:] += sum(grid.informed(goal) for goal in seen)
            total[1:] += returns(possible - seen, num_episodes - 1)
        return total / len(possible)

    return UNIT * returns(frozenset(grid.goals), grid.num_episodes) / len(grid.goals)


def path_returns(grid: Grid, path: list[int]) -> np.ndarray:
    """Mean return of each episode [K] to who follows a path until the goal is found.

    `path` is the cell after each step of the trial.
    """
    times = [path.index(goal) + 1 if goal in path else None for goal in grid.goals]
    outcomes = [grid.outcome(goal, time) for goal, time in zip(grid.goals, times, strict=True)]
    mean: np.ndarray = UNIT * np.mean(outcomes, axis=0)
    return mean


def optimal_path(grid: Grid) -> list[int]:
    """The path of the Bayes-optimal player: the cell after each step until the goal is found.

    Dynamic programming over cell, belief and time left in the whole trial. What a path is worth is
    the sum, over goals, of what it is worth to come to each of them first when it does. Memory and
    time are those of a number for every cell and every set of goals: 0.8 GB and a minute for 5 x 5.
    """
    values = [_never_found(grid)]
    for episode in reversed(range(1, grid.num_episodes)):
        values.insert(0, _value_at_start(grid, episode, values[0]))
    path: list[int] = []
    for episode, value in enumerate(values):
        possible = sum(1 << i for i, goal in enumerate(grid.goals) if goal not in path)
        path += _best_way(grid, episode, possible, value)
    return path


def _never_found(grid: Grid) -> np.ndarray:
    """What a trial is worth that has not found its goal, summed over each set of goals [2^G]."""
    each = int(grid.outcome(START, None).sum())
    most = _FOUND * grid.horizon * grid.num_episodes * len(grid.goals)
    value = np.zeros(1, np.min_scalar_type(-most))
    for _ in grid.goals:
        value = np.concatenate([value, value + each])
    return value


def _value_at_start(grid: Grid, episode: int, after: np.ndarray) -> np.ndarray:
    """The value [2^G] of sets of goals at the start of an episode, from those `after` it."""
    value = np.tile(after, (len(grid.after), 1))
    for step in reversed(range(grid.horizon)):
        time = episode * grid.horizon + step + 1
        entered = np.stack([_entered(grid, c, time, value[c]) for c in range(len(value))])
        value = np.stack([entered[list(set(cells))].max(axis=0) for cells in grid.after])
    at_start: np.ndarray = value[START]
    return at_start


def _entered(grid: Grid, cell: int, time: int, value: np.ndarray) -> np.ndarray:
    """The value [2^G] of a step that leads to a cell, from the value of what follows there."""
    if cell not in grid.goals:
        return value
    sets = value.reshape(-1, 2, 1 << grid.goals.index(cell)).copy()  # without the cell, and with it
    sets[:, 1] = sets[:, 0] + grid.outcome(cell, time).sum()
    return sets.reshape(-1)


def _best_way(grid: Grid, episode: int, possible: int, after: np.ndarray) -> list[int]:
    """The cells that the steps of an episode lead to, from a set of goals at its start."""
    bits = {goal: 1 << i for i, goal in enumerate(grid.goals)}
    times = range(episode * grid.horizon + 1, (episode + 1) * grid.horizon + 1)
    gains = [{goal: int(grid.outcome(goal, t).sum()) for goal in bits} for t in times]

    @cache
    def best(step: int, cell: int, possible: int) -> tuple[int, int]:
        """The most that is to come, and the cell to go to for it."""
        if step == grid.horizon or not possible:
            return int(after[possible]), cell
        choices = []
        for there in set(grid.after[cell]):
            new = possible & bits.get(there, 0)
            gain = gains[step][there] if new else 0
            choices.append((gain + best(step + 1, there, possible - new)[0], there))
        return max(choices)

    cells = [START]
    for step in range(grid.horizon):
        cells.append(best(step, cells[-1], possible)[1])
        possible &= ~bits.get(cells[-1], 0)
    return cells[1:]
